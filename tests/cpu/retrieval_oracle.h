// RetrievalOracle writes down every rotated row of a run, and says for every read what METHODS 6.3 would have
// read, recalled and computed. It knows no slots, no copies and no order of events.

#ifndef KVTWIN_TESTS_CPU_RETRIEVAL_ORACLE_H_
#define KVTWIN_TESTS_CPU_RETRIEVAL_ORACLE_H_

#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "tests/cpu/retrieval_run.h"

namespace kvtwin::testing {

class RetrievalOracle final : public cpu::RetrievalWitness {
 public:
  RetrievalOracle(const RetrievalSetting& setting, const LlmSpec& llm);

  void rotated(CallId call, uint32_t layer, uint32_t position, const float* q, const float* k,
               const float* v) override;
  void attends(const Read& read) override;
  void attended(const Read& read, const float* out) override;
  void recalls(const cpu::HeadAt& at, bool before_attention, uint32_t pages) override;
  void wrote(uint32_t page, uint32_t layer, uint32_t head) override;

  // After the run: what was recalled is the difference of what was chosen, step by step (F-3).
  void check_recalls() const;

  uint64_t reads = 0, corrected = 0, compared = 0, speculated = 0, writes_beside_reads = 0;
  // Keys that attention reads are the rotated ones, to the bit: not ShadowKV's.
  bool exact_keys = true;

 private:
  using Key = std::tuple<CallId, uint32_t>;  // layer
  struct Rows {
    std::vector<std::vector<float>> q, k, v;  // by position
  };
  std::set<uint32_t> selection(const Key& key, uint32_t head, uint32_t position) const;
  std::optional<bool> turns(const Key& key, uint32_t head, uint32_t position) const;
  std::vector<float> exact_output(const Read& read) const;

  const RetrievalSetting setting_;
  const LlmSpec llm_;
  const uint32_t page_, sinks_, window_, selectable_;
  std::map<Key, Rows> rows_;
  // By call, layer, head: the positions that read, and what was recalled at each: {before, behind}.
  std::map<std::tuple<CallId, uint32_t, uint32_t>, std::map<uint32_t, std::pair<uint32_t, uint32_t>>>
      recalled_;
  std::map<std::tuple<CallId, uint32_t, uint32_t>, std::vector<uint32_t>> positions_;
  const Read* reading_ = nullptr;
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_CPU_RETRIEVAL_ORACLE_H_
