// PackedCache holds KV in one packed format on pages by position (fp8, int4, fp4); or as KIVI does, in int2
// except for the newest KV entries, which stay bf16 until enough of them have accumulated
// (docs/design/methods/triaxialkv.md#numbers).
//
// Storage and reads (docs/design/methods/triaxialkv.md#serving):
//   * Rotated keys and values are first rounded to bf16, like a GPU's projections. So the stored value does
//   not
//     depend on whether a KV entry was packed at once or waited in bf16.
//   * A chunk's rows attend to their own chunk exactly, and to earlier KV entries as stored.
//   * A decoded row is stored first and read like the others.
// By this definition a chunked prefill differs from an unchunked one, except for what the first chunk stores.
//
// KIVI: keys are packed residual_tokens at a time, counted from the position where the request began to
// compute; a value is packed when residual_tokens newer ones exist. Packing follows the step's attention, as
// in KIVI's code. A request reuses packed pages only: the policy shares no others (CoreConfig, precision).

#ifndef KVTWIN_ENGINE_CPU_PACKED_PACKED_CACHE_H_
#define KVTWIN_ENGINE_CPU_PACKED_PACKED_CACHE_H_

#include <map>
#include <memory>
#include <vector>

#include "engine/cpu/kv_cache.h"
#include "engine/cpu/packed/packed_store.h"
#include "kernels/attention/attention.h"
#include "kernels/cache_ops/rope_append.h"

namespace kvtwin::cpu {

struct PackedFormat {
  Format format = Format::kInt4;
  uint32_t group = 32;
  uint32_t residual_tokens = 0;      // > 0: KIVI, a multiple of the group; format is int2
  uint32_t step_tokens_max = 65536;  // rows of one step
};

class PackedCache final : public KvCache {
 public:
  // Fails if there is no memory for the pages, or no such groups.
  static Result<std::unique_ptr<KvCache>> make(const KvMemory& memory, const LlmSpec& llm,
                                               const PackedFormat& format);

  void begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) override;
  void attend(uint32_t layer, float* q, float* k, const float* v, float* out) override;
  void end(const LaunchStep&, uint32_t, std::span<const PlanEntry>, DataOutcomes*) override;
  void notify(const Command& command) override;

  const PackedStore& store() const { return store_; }  // for tests

 private:
  struct Request {
    std::vector<PageId> pages;
    uint32_t keys_packed = 0, values_packed = 0;  // KIVI: number of leading packed ones
  };
  // The part of the step that belongs to one entry.
  struct RequestPart {
    Request* request = nullptr;
    uint32_t row = 0, tokens = 0, context = 0;
    uint32_t keys_packed = 0, values_packed = 0;  // KIVI: after the step
    std::vector<kernels::ReadRun> runs;
    std::vector<kernels::AttentionRow> rows;
  };

  PackedCache(const KvMemory& memory, const LlmSpec& llm, const PackedFormat& format, PackedStore store)
      : memory_(memory), llm_(llm), format_(format), rope_(rope_frequencies(llm)), store_(std::move(store)) {}

  void take_pages(const LaunchStep& launch, uint32_t offset);
  void plan_reads(const PlanEntry& entry, RequestPart* request_part) const;
  void store_rows(uint32_t layer, const RequestPart& request_part, const float* k, const float* v);
  void pack_due(uint32_t layer, const RequestPart& request_part);
  bool kivi() const { return format_.residual_tokens > 0; }

  const KvMemory memory_;
  const LlmSpec llm_;
  const PackedFormat format_;
  const RopeFrequencies rope_;
  PackedStore store_;
  std::map<RequestId, Request> requests_;
  std::vector<RequestPart> request_parts_;  // of the step
  std::vector<float> values_;               // of the layer, rounded
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_PACKED_PACKED_CACHE_H_
