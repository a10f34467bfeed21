// Foreign files that are damaged in many ways.

#ifndef KVTWIN_TESTS_UNIT_TRACES_HOSTILE_H_
#define KVTWIN_TESTS_UNIT_TRACES_HOSTILE_H_

#include <string>

#include "engine/base/prng.h"
#include "tests/unit/traces/support.h"

namespace kvtwin::testing {

// Truncates and changes `good` in many ways. Each result must be read, or refused by an Error with a
// message. Returns the number of refusals.
inline int hostile(const std::string& format, const std::string& name, const std::string& good) {
  const Folder folder;
  int refused = 0;
  const auto feed = [&](const std::string& bytes) {
    KeepAll sink;
    const Result<void> result = import_trace(format, folder.write(name, bytes), {}, &sink);
    if (!result) ++refused;
    return result || !result.error().what.empty();
  };
  bool all = true;
  for (size_t cut = 0; cut < good.size(); cut += 1 + good.size() / 150)
    all = feed(good.substr(0, cut)) && all;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    std::string bytes = good;
    for (uint64_t i = 0; i <= seed % 4; ++i) {
      const uint64_t bits = draw({seed, i});
      bytes[bits % bytes.size()] = "0123456789{}[]\",:-\\ntfe\0\xff"[(bits >> 40) % 25];
    }
    all = feed(bytes) && all;
  }
  // Numbers that do not fit, and wrong types.
  for (const char* replacement :
       {"-1", "99999999999999999999", "1e308", "null", "\"x\"", "[]", "{}", "0", "4294967295"}) {
    for (size_t at = 0; (at = good.find_first_of("0123456789", at)) != std::string::npos;) {
      const size_t end = good.find_first_not_of("0123456789.", at);
      if (good[at - 1] == ':') all = feed(good.substr(0, at) + replacement + good.substr(end)) && all;
      at = end;
      if (at == std::string::npos) break;
    }
  }
  all = feed(std::string(100'000, '[')) && all;
  all = feed(std::string(5'000, '\xff')) && all;
  return all ? refused : -1;
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_TRACES_HOSTILE_H_
