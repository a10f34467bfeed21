// DenseLayers: the first layers of a retrieving engine, in which every row reads its whole context. Their
// rows stand on other pages than those of the layers that choose, so they have lists of their own.

#ifndef KVTWIN_ENGINE_CUDA_RETRIEVAL_DENSE_LAYERS_H_
#define KVTWIN_ENGINE_CUDA_RETRIEVAL_DENSE_LAYERS_H_

#include <span>

#include "engine/cuda/kv_cache.h"

namespace kvtwin::cuda {

class DenseLayers {
 public:
  DenseLayers() = default;
  // `llm` must outlive it. `pages`: of one layer's pool; `rows`: of one step, at most. Wrong: no room.
  static Result<DenseLayers> make(const LlmSpec* llm, uint32_t page_tokens, uint32_t pages, uint32_t rows);

  void clear() { rows_.clear(); }
  // KV entries [context, context + tokens) of a request whose pages are `pages`; KV entry i is of position i
  // + gone.
  void add(std::span<const uint32_t> pages, uint32_t context, uint32_t tokens, uint32_t dropped);
  void warm_up(uint32_t size) { attention_.add_warm_up(size, &rows_); }

  // The lists are on their way.
  void send(cudaStream_t stream) { on_device_ = upload_.send(rows_, stream); }
  // As LayerAttention::repeats(), of plan() and attend().
  bool repeats(StepGraphKey* graph_key) const;
  // `pool`: the layer's.
  void plan(const __nv_bfloat16* pool, cudaStream_t stream);
  void attend(uint32_t layer, const LayerRows& tensors, __nv_bfloat16* pool, const StepStream& on);

 private:
  uint32_t page_tokens_ = 0, kv_heads_ = 0;
  RowAttention attention_;
  StepRows rows_;
  DeviceRows on_device_;
  RowsUpload upload_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_RETRIEVAL_DENSE_LAYERS_H_
