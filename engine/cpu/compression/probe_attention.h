// ProbeAttention is the attention of a pass of probe tokens, which attend to a request's KV entries and to
// one another, and stores only their queries and keys: Judge Q's soft tokens
// (docs/design/methods/judge-q.md#inference), KVzip's repetitions (docs/design/methods/uniform.md#kvzip).
//
// Probe tokens follow the request's KV entries. Their keys and values are staged, so pages are byte for byte
// unchanged (test J-1).

#ifndef KVTWIN_ENGINE_CPU_COMPRESSION_PROBE_ATTENTION_H_
#define KVTWIN_ENGINE_CPU_COMPRESSION_PROBE_ATTENTION_H_

#include <vector>

#include "engine/common/ranking.h"
#include "engine/cpu/compression/kv_entry_store.h"
#include "engine/cpu/forward.h"
#include "models/catalog/rope.h"

namespace kvtwin::cpu {

class ProbeAttention final : public LayerAttention {
 public:
  // All arguments must outlive it. REQUIRES: the store can stage the rows.
  ProbeAttention(KvEntryStore* store, const RequestTable* kv_entries, const LlmSpec* llm,
                 const RopeFrequencies* rope)
      : store_(*store), kv_entries_(*kv_entries), llm_(*llm), rope_(*rope), probes_(llm->layers) {}

  void attend(uint32_t layer, float* q, float* k, const float* v, float* out) override;
  // Sets the number of rows of the next attend().
  void set_rows(uint32_t rows) { rows_ = rows; }

  std::vector<Probes>& probes() { return probes_; }  // by layer

 private:
  KvEntryStore& store_;
  const RequestTable& kv_entries_;
  const LlmSpec& llm_;
  const RopeFrequencies& rope_;
  uint32_t rows_ = 0;
  std::vector<Probes> probes_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_COMPRESSION_PROBE_ATTENTION_H_
