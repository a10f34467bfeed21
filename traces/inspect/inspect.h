// TraceInspector reads a trace once and summarises it: counts, percentiles, ideal prefix reuse, provenance,
// and how much of it fits into a context window.
//
// Percentiles are nearest-rank: the smallest value that is not less than that percentage of all values.

#ifndef KVTWIN_TRACES_INSPECT_INSPECT_H_
#define KVTWIN_TRACES_INSPECT_INSPECT_H_

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "traces/format/sink.h"
#include "traces/inspect/reuse.h"

namespace kvtwin {

class TraceInspector : public TraceSink {
 public:
  Result<void> header(const v1::TraceHeader& header) override;
  Result<void> shared_spans(const v1::SharedSpanTable& table) override;
  Result<void> session(const v1::Session& session) override;
  Result<void> done() override;

  // After done().
  nlohmann::ordered_json json() const;
  std::string table() const;

 private:
  struct Window {
    uint64_t tokens = 0;
    uint64_t requests = 0;       // requests whose prompt and output fit
    uint64_t heads = 0;          // sessions whose first requests of the main agent fit, at least 3 of them
    uint64_t head_requests = 0;  // of these
    uint64_t all_head_requests = 0;  // of all sessions, also those with 1 or 2 such requests
  };

  void request(const v1::Node& node);
  void windows(const v1::Session& session);
  void count_prov(const v1::Node& node, const char* field, uint32_t number, uint64_t amount,
                  std::map<v1::Prov, uint64_t>* fractions) const;

  v1::TraceHeader header_;
  std::map<std::string, v1::Prov> policies_;
  ReuseCounter reuse_;
  std::array<Window, 4> windows_;
  uint64_t sessions_ = 0, tools_ = 0, opaque_ = 0, sub_agents_ = 0, shared_spans_ = 0;
  // Raw values, sorted by done(): tokens, counts, nanoseconds.
  std::vector<int64_t> prompt_, output_, per_session_, think_, tool_, service_;
  std::map<v1::Prov, uint64_t> prompt_prov_, output_prov_, wait_prov_;
};

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_INSPECT_INSPECT_H_
