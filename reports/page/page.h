// The bytes of reports/web/report_page.html, which are part of the program.

#ifndef KVTWIN_REPORTS_PAGE_PAGE_H_
#define KVTWIN_REPORTS_PAGE_PAGE_H_

#include <string_view>

namespace kvtwin {

std::string_view report_page();

}  // namespace kvtwin

#endif  // KVTWIN_REPORTS_PAGE_PAGE_H_
