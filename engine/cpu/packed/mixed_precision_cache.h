// MixedPrecisionCache holds KV in int2 and int4 pages by tag (TriAxialKV,
// docs/design/methods/triaxialkv.md#serving). MixedPrecisionEntries tracks the slots of KV entries
// (mixed_precision_entries.h); this class stores and reads their values.
//
//   * KV entries that wait for a full group are in bf16.
//   * A chunk attends to its own rows exactly and to earlier KV entries as stored; then it is stored.
//   * A decoded KV entry is stored in 4 bits and read like the others.
//   * KV entries that age are requantised from their int4 bytes, before all other work of a step.
//
// KV entries are read in order of position, whatever their pages, so attention depends on what is stored, not
// on where. Rows are first rounded to bf16, as in PackedCache; with 4 bits for every tag both classes are
// identical bit for bit.

#ifndef KVTWIN_ENGINE_CPU_PACKED_MIXED_PRECISION_CACHE_H_
#define KVTWIN_ENGINE_CPU_PACKED_MIXED_PRECISION_CACHE_H_

#include <memory>
#include <vector>

#include "engine/common/mixed_precision_entries.h"
#include "engine/cpu/kv_cache.h"
#include "engine/cpu/packed/packed_store.h"
#include "kernels/attention/attention.h"

namespace kvtwin::cpu {

struct MixedPrecisionFormat {
  uint32_t pages_int2 = 0;  // the first pages_int2 of pages_gpu are int2
  uint32_t group = 32;
  uint32_t step_tokens_max = 65536;
};

class MixedPrecisionCache final : public KvCache {
 public:
  // Fails if there is no memory for the pages, or no such groups.
  static Result<std::unique_ptr<KvCache>> make(const KvMemory& memory, const LlmSpec& llm,
                                               const MixedPrecisionFormat& format);

  void begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) override;
  void attend(uint32_t layer, float* q, float* k, const float* v, float* out) override;
  void end(const LaunchStep&, uint32_t, std::span<const PlanEntry>, DataOutcomes*) override {}
  void notify(const Command& command) override;

  using Place = MixedPrecisionEntries::Place;
  std::span<const Place> places(RequestId request) const { return kv_entries_.places(request); }  // for tests
  const PackedStore& store() const { return store_; }

 private:
  // The part of the step that belongs to one entry, as attention reads it.
  struct Reads {
    std::vector<kernels::ReadRun> runs;
    std::vector<kernels::AttentionRow> rows;
  };

  MixedPrecisionCache(const KvMemory& memory, const LlmSpec& llm, const MixedPrecisionFormat& format,
                      PackedStore store)
      : memory_(memory),
        llm_(llm),
        format_(format),
        rope_(rope_frequencies(llm)),
        store_(std::move(store)),
        kv_entries_(memory.page_tokens, format.pages_int2, memory.pages_gpu) {}

  uint32_t stored_page(uint32_t page) const;
  PageId stored_copy(PageId page, bool int2) const;
  void copy_pages(const StartTransfer& transfer);
  void pack_again(const MixedPrecisionEntries::Aged& aged);
  void plan_reads(const MixedPrecisionEntries::RequestPart& request_part, Reads* reads) const;
  void perform(uint32_t layer, const MixedPrecisionEntries::RequestPart& request_part, const float* k,
               const float* v);

  const KvMemory memory_;
  const LlmSpec llm_;
  const MixedPrecisionFormat format_;
  const RopeFrequencies rope_;
  PackedStore store_;
  MixedPrecisionEntries kv_entries_;
  // State of the current step.
  std::vector<MixedPrecisionEntries::RequestPart> request_parts_;
  std::vector<Reads> reads_;
  std::vector<PageId> taken_;
  std::vector<float> values_;  // of the layer, rounded
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_PACKED_MIXED_PRECISION_CACHE_H_
