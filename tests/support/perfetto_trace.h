// Reads a Perfetto trace as Perfetto would, and says what is wrong with it.

#ifndef KVTWIN_TESTS_SUPPORT_PERFETTO_TRACE_H_
#define KVTWIN_TESTS_SUPPORT_PERFETTO_TRACE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvtwin::testing {

struct PerfettoSlice {
  std::string track;  // its name; lanes of a row: "host to gpu", "host to gpu 2"
  std::string name;
  uint64_t from = 0, to = 0;  // ns; to is UINT64_MAX where it never ends
  std::map<std::string, std::string> annotations;
  std::vector<std::string> instants;
};

struct PerfettoTrace {
  std::vector<std::string> problem;  // in words; empty: all is well
  std::vector<PerfettoSlice> slices;
  std::map<std::string, std::vector<std::pair<uint64_t, int64_t>>> counters;  // by track's name
  std::vector<std::string> processes;
};

// Wrong is: bytes that are no Trace, fields that the format has not, packets without a sequence id, a
// sequence that does not begin by clearing its state, tracks that are described late, twice or below nobody,
// times that go back, slices that end before they begin or overlap, counters on other tracks than counters'
// own.
PerfettoTrace read_perfetto(const std::string& bytes);

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_PERFETTO_TRACE_H_
