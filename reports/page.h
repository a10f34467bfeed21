// The page that reports/web is bundled into, as it was when this was built.

#ifndef KVTWIN_REPORTS_PAGE_H_
#define KVTWIN_REPORTS_PAGE_H_

#include <string_view>

namespace kvtwin {

// Empty: this build has none.
std::string_view report_page();

}  // namespace kvtwin

#endif  // KVTWIN_REPORTS_PAGE_H_
