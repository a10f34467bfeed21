// Reads any bytes as a scenario: a scenario, or errors with their positions. The lines after the first 0
// byte are --set arguments. The resolved scenario is written, and must be a scenario again.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "scenarios/load/scenario.h"

namespace {

using namespace kvtwin;

void demand(bool good, const char* what, const std::string& text) {
  if (good) return;
  std::fprintf(stderr, "%s:\n%s\n", what, text.c_str());
  std::abort();
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty() && lines.size() < 16) {
    const size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t zero = all.find('\0');
  const std::string_view sets = zero == std::string_view::npos ? std::string_view{} : all.substr(zero + 1);
  const std::string path = KVTWIN_SOURCE_DIR "/scenarios/fuzz.textproto";
  const auto scenario = parse_scenario(all.substr(0, zero), path, lines_of(sets));
  if (!scenario) {
    demand(!scenario.error().empty(), "refused without an error", std::string(all));
    for (const Error& error : scenario.error())
      demand(!error.where.empty() && !error.what.empty(), "an error without place or text", error.text());
    return 0;
  }
  const std::string text = resolved_textproto(*scenario);
  const auto again = parse_scenario(text, path, {});
  demand(again.has_value(), again ? "" : again.error().front().text().c_str(), text);
  demand(resolved_textproto(*again) == text, "resolved twice is not the same", text);
  return 0;
}
