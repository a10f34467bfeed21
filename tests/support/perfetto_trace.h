// Reads a Perfetto trace as Perfetto does and reports violations of the format.

#ifndef KVTWIN_TESTS_SUPPORT_PERFETTO_TRACE_H_
#define KVTWIN_TESTS_SUPPORT_PERFETTO_TRACE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvtwin::testing {

struct PerfettoSlice {
  std::string track;  // its name; overlapping slices are spread over "host to gpu", "host to gpu 2"
  std::string name;
  uint64_t from = 0, to = 0;  // ns; to is UINT64_MAX if the slice never ends
  std::map<std::string, std::string> annotations;
  std::vector<std::string> instants;
};

struct PerfettoTrace {
  std::vector<std::string> problem;  // one sentence per violation; empty: the trace is valid
  std::vector<PerfettoSlice> slices;
  std::map<std::string, std::vector<std::pair<uint64_t, int64_t>>> counters;  // by track name
  std::vector<std::string> processes;
};

// Violations are: bytes that are no Trace message, unknown fields, packets without a sequence id, a sequence
// that does not begin by clearing its state, tracks that are described late, twice or below an unknown
// parent, decreasing times, slices that end before they begin or overlap, and counters on tracks that are not
// counter tracks.
PerfettoTrace read_perfetto(const std::string& bytes);

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_PERFETTO_TRACE_H_
