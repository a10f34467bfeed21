// What choosing pages keeps on the GPU besides pages (kernels/select/page_choice.h): summaries by page, what
// slots hold and which query chose it by request and layer, and room for one layer's scores and moves of each
// of the streams that choose.

#ifndef KVTWIN_ENGINE_CUDA_RETRIEVAL_RETRIEVAL_MEMORY_H_
#define KVTWIN_ENGINE_CUDA_RETRIEVAL_RETRIEVAL_MEMORY_H_

#include <cstdint>

#include "engine/cuda/device/buffer.h"
#include "kernels/select/page_choice.h"
#include "models/catalog/llm.h"

namespace kvtwin::cuda {

class RetrievalMemory {
 public:
  struct Size {
    uint32_t layers = 0;  // that choose; they are counted from 0 here
    uint32_t owners = 0;  // pages that have summaries
    bool slots = false;   // pages move: there are slots and queries before
    bool ahead = false;   // heads may choose for the next step, concurrently with those of this one
    // Taken at once: for steps of so many requests, of so many pages to choose from.
    uint32_t requests = 0, candidates = 0;
  };
  RetrievalMemory() = default;
  // Wrong: no room.
  static Result<RetrievalMemory> make(const LlmSpec& llm, const ChoiceShape& shape, const Size& size);

  // Room for a number of requests (numbers below it), and for steps with a number of rows that choose, of a
  // number of pages at most. Growing waits for the GPU. What requests have stays.
  void reserve_states(uint32_t states);
  void reserve_rows(uint32_t rows, uint32_t candidates);

  // Another one whenever something lies elsewhere, or a stride changed.
  uint64_t place() const { return place_; }

  const ChoiceShape& shape() const { return shape_; }
  __nv_bfloat16* summaries(uint32_t layer) const;
  uint64_t summary_bytes() const { return uint64_t{shape_.kv_heads} * 2 * shape_.head_dim * 2; }  // of a page
  uint64_t summaries_of_layer_bytes() const { return summary_bytes() * size_.owners; }
  __nv_bfloat16* q_before(uint32_t layer) const;
  ChoiceCounts* counts(uint32_t layer) const { return counts_.as<ChoiceCounts>() + layer; }
  const ChoiceCounts* counts_on_host() const { return counts_host_.as<ChoiceCounts>(); }
  void fetch_counts(cudaStream_t stream) const;
  // All of one layer's but rows, lists, q and tables.
  ChoiceArgs args(uint32_t layer, ChoosesFor step) const;
  // The same for rows that trust no choice. Their counts are the last ones, which no layer has.
  ChoiceArgs spare_args(uint32_t layer) const;
  // Tables for choices that are not read by table.
  uint32_t* spare_tables() const { return spare_tables_.as<uint32_t>(); }

 private:
  Result<void> take_states(uint32_t states);
  Result<void> take_rows(uint32_t rows, uint32_t candidates);
  uint64_t head_lists() const { return uint64_t{shape_.kv_heads} * shape_.chosen; }
  uint64_t query_numbers() const { return uint64_t{shape_.kv_heads} * shape_.group * shape_.head_dim; }

  ChoiceShape shape_;
  Size size_;
  uint32_t states_ = 0, rows_ = 0;
  uint64_t place_ = 0;
  Buffer summaries_, held_, q_before_, counts_, counts_host_, scores_, scores_next_, before_, after_, now_,
      spare_tables_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_RETRIEVAL_RETRIEVAL_MEMORY_H_
