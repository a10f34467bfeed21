// DenseLayers: the first layers of a retrieving engine, in which every row reads its whole context. Their
// rows use other pages than those of the choosing layers, so they have separate lists.

#ifndef KVTWIN_ENGINE_CUDA_RETRIEVAL_DENSE_LAYERS_H_
#define KVTWIN_ENGINE_CUDA_RETRIEVAL_DENSE_LAYERS_H_

#include <span>

#include "engine/cuda/kv_cache.h"

namespace kvtwin::cuda {

class DenseLayers {
 public:
  DenseLayers() = default;
  // `llm` must outlive it. `pages`: of one layer's pool; `rows`: most rows of a step. Fails if there is not
  // enough memory.
  static Result<DenseLayers> make(const LlmSpec* llm, uint32_t page_tokens, uint32_t pages, uint32_t rows);

  void clear() { rows_.clear(); }
  // Adds KV entries [context, context + tokens) of a request with pages `pages`; KV entry i has position i +
  // dropped.
  void add(std::span<const uint32_t> pages, uint32_t context, uint32_t tokens, uint32_t dropped);
  // RowAttention::fill_up().
  void fill_up(uint32_t size) { attention_.fill_up(size, &rows_); }
  void warm_up(uint32_t size) { attention_.add_warm_up(size, &rows_); }

  // Sends the lists.
  void send(const StepStream& on) {
    on.timer->begin(Operation::kUpload);
    on_device_ = upload_.send(rows_, on.stream);
  }
  // As LayerAttention::repeats(), of plan() and attend().
  bool repeats(StepGraphKey* graph_key) const;
  AttentionRows rows_present() const { return cuda::rows_present(on_device_); }
  // RowAttention::start(); `pool`: of the layer.
  void start(const ListedOperation& one, const LayerRows& tensors, __nv_bfloat16* pool, cudaStream_t stream) {
    attention_.start(one, tensors, on_device_, pool, stream);
  }
  void plan(const __nv_bfloat16* pool, cudaStream_t stream);

 private:
  uint32_t page_tokens_ = 0, kv_heads_ = 0;
  RowAttention attention_;
  StepRows rows_;
  DeviceRows on_device_;
  RowsUpload upload_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_RETRIEVAL_DENSE_LAYERS_H_
