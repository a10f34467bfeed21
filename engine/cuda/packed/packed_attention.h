// PackedAttention: decoded rows that read packed pages as they are (kernels/packed/packed_decode.h), without
// unpacking them: fp8, int4, fp4, int2 next to int4, and KIVI's int2 next to staged KV entries
// (staged_entries.h).

#ifndef KVTWIN_ENGINE_CUDA_PACKED_PACKED_ATTENTION_H_
#define KVTWIN_ENGINE_CUDA_PACKED_PACKED_ATTENTION_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/cuda/device/device_lists.h"
#include "engine/cuda/kv_cache.h"
#include "engine/cuda/packed/staged_entries.h"
#include "engine/cuda/row_attention.h"
#include "kernels/packed/packed_decode.h"

namespace kvtwin::cuda {

class PackedAttention {
 public:
  // Where `format` stands among the parts of packed_decode; nullopt: it has no such kernel.
  static std::optional<PackedPart> part_of(Format format);

  PackedAttention() = default;
  // For the formats of `pools` (one geometry), steps of at most `rows` rows that read about `pages` pages.
  // `staged`: int2 pages, and staged ones in the wide part.
  // Takes nothing if the kernel does not take them: then ready() is false. Wrong: no room.
  static Result<PackedAttention> make(const LlmSpec& llm, std::span<const PackedPages> pools, uint32_t rows,
                                      uint32_t pages, bool staged = false);
  bool ready() const { return shape_.sequences > 0; }
  bool has_rows() const { return !sequences_.empty(); }  // of the step

  void clear();
  // What a row reads of one pool: the first `tokens` KV entries of `pages`, laid end to end.
  struct Part {
    PackedPart part{};
    std::span<const uint32_t> pages;
    uint32_t tokens = 0;
  };
  void add(uint32_t row, std::span<const Part> parts);

  void send(const StepStream& on);
  // As StagedEntries::repeats(), of plan() and attend(): every row has been added.
  bool repeats() const { return upload_.base() == lists_at_; }
  void plan(const StepStream& on);
  // `staged`: the staged pages, if some rows read them.
  void attend(uint32_t layer, const LayerRows& tensors, std::span<const PackedPages> pools,
              cudaStream_t stream, const void* staged = nullptr);

 private:
  PackedDecodeArgs args() const;

  PackedDecodeShape shape_;  // sequences: the most of a step
  float scale_ = 1;
  Buffer plan_, workspace_;
  std::vector<PackedSequence> sequences_;
  std::vector<uint32_t> pages_;
  uint32_t query_heads_ = 0, kv_heads_ = 0;
  DeviceLists upload_;
  ListAt<PackedSequence> sequences_at_;
  ListAt<uint32_t> pages_at_;
  const void* lists_at_ = nullptr;  // at first
};

// Adds rows of padding (StepRows::padding) until there are `size` rows. They read no page and pack nothing
// into pool number `pool`.
void add_packed_padding(uint32_t size, size_t pool, StagedEntries* staged, PackedAttention* fused,
                        StepRows* rows);
// KvCache::fill_up() for packed pages.
void fill_up_packed(uint32_t size, size_t pool, StagedEntries* staged, PackedAttention* fused,
                    const StepStream& on, StepRows* rows);

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_PACKED_PACKED_ATTENTION_H_
