// RetrievalOracle records every rotated row of a run, and computes for every read which pages
// docs/design/methods/freekv.md#step reads and recalls, and the output. It has no slots, copies or event
// order.

#ifndef KVTWIN_TESTS_UNIT_CPU_RETRIEVAL_RETRIEVAL_ORACLE_H_
#define KVTWIN_TESTS_UNIT_CPU_RETRIEVAL_RETRIEVAL_ORACLE_H_

#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "tests/unit/cpu_retrieval/retrieval_run.h"

namespace kvtwin::testing {

class RetrievalOracle final : public cpu::RetrievalWitness {
 public:
  RetrievalOracle(const RetrievalSetting& setting, const LlmSpec& llm);

  void rotated(RequestId request, uint32_t layer, uint32_t position, const float* q, const float* k,
               const float* v) override;
  void projected(RequestId request, uint32_t layer, uint32_t position, const float* q) override;
  void attends(const Read& read) override;
  void attended(const Read& read, const float* out) override;
  void recalls(const cpu::HeadAt& at, bool before_attention, uint32_t pages) override;
  void wrote(uint32_t page, uint32_t layer, uint32_t head) override;

  // Called by attends(): from now on the pages of `read` must not be written.
  void reads_began(const Read& read) { reading_ = &read; }

  // After the run: the recalled pages are the differences between the selections of successive steps (F-3).
  void check_recalls() const;

  uint64_t reads = 0, corrected = 0, compared = 0, speculated = 0;
  // copies that ran during a read, and those of them into pages being read.
  uint64_t writes_during_reads = 0, writes_into_reads = 0;
  // The largest distance of outputs from attention over the exact rows that were read; 0 except for
  // ShadowKV's keys.
  double worst_output = 0;

 private:
  using Key = std::tuple<RequestId, uint32_t>;  // layer
  struct Rows {
    std::vector<std::vector<float>> q, k, v;  // by position
  };
  void store(std::vector<float>* k, std::vector<float>* v) const;
  std::vector<float> page_keys(const Key& key, uint32_t head, uint32_t page) const;
  std::set<uint32_t> selection(const Key& key, uint32_t head, uint32_t position) const;
  void note_outliers(const Key& key, uint32_t head, uint32_t position);
  void check_pages(const Read& read, bool first);
  void check_tokens(const Read& read);
  std::optional<bool> turns(const Key& key, uint32_t head, uint32_t position) const;
  std::vector<float> exact_output(const Read& read) const;

  const RetrievalSetting setting_;
  const LlmSpec llm_;
  const uint32_t page_, sinks_, window_, selectable_, extra_;
  std::map<Key, Rows> rows_;
  // By request, layer, head: the positions that read, and the recalls of each: {before, behind} attention.
  std::map<std::tuple<RequestId, uint32_t, uint32_t>, std::map<uint32_t, std::pair<uint32_t, uint32_t>>>
      recalled_;
  std::map<std::tuple<RequestId, uint32_t, uint32_t>, std::vector<uint32_t>> positions_;
  std::map<std::tuple<RequestId, uint32_t, uint32_t>, std::set<uint32_t>> outliers_;  // ShadowKV
  std::map<std::tuple<RequestId, uint32_t, uint32_t>, std::vector<float>>
      projected_;  // request, layer, position
  const Read* reading_ = nullptr;
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_CPU_RETRIEVAL_RETRIEVAL_ORACLE_H_
