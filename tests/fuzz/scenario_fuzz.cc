// Any bytes, read as a scenario: values or Mistakes. What is accepted is written out in full and must be
// accepted again.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "scenarios/scenario.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto scenario = kvtwin::parse_scenario(text, "scenarios/fuzz.textproto", {});
  if (!scenario) return 0;
  kvtwin::Mistakes mistakes;
  kvtwin::check_scenario(*scenario, &mistakes);
  const std::string resolved = kvtwin::resolved_textproto(*scenario);
  if (!kvtwin::parse_scenario(resolved, "scenarios/fuzz.textproto", {})) {
    std::fprintf(stderr, "the resolved scenario is refused:\n%s\n", resolved.c_str());
    std::abort();
  }
  return 0;
}
