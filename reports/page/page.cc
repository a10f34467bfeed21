#include "reports/page/page.h"

// The assembler includes the file's bytes: compiling a string literal of this size takes seconds.
asm(R"(
  .section .rodata
  .global kvtwin_report_page, kvtwin_report_page_end
kvtwin_report_page:
  .incbin ")" KVTWIN_REPORT_PAGE R"("
kvtwin_report_page_end:
  .byte 0
  .previous
)");
extern "C" const char kvtwin_report_page[];
extern "C" const char kvtwin_report_page_end[];

namespace kvtwin {
std::string_view report_page() { return {kvtwin_report_page, kvtwin_report_page_end}; }
}  // namespace kvtwin
