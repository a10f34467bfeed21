// KvEntryGates: the gates of FastKVzip and TrimKV for a step's rows, one number per KV head, with all layers'
// weights on the device. The weights that are present select the method.

#ifndef KVTWIN_ENGINE_CUDA_COMPRESSION_KV_ENTRY_GATES_H_
#define KVTWIN_ENGINE_CUDA_COMPRESSION_KV_ENTRY_GATES_H_

#include <vector>

#include "engine/common/scorer_weights.h"
#include "engine/cuda/device/matmul.h"
#include "engine/cuda/kv_cache.h"

namespace kvtwin::cuda {

class KvEntryGates {
 public:
  KvEntryGates() = default;
  // `rows`: most rows of a step. Fails if there is not enough memory.
  static Result<KvEntryGates> make(const cpu::ScorerWeights& weights, const LlmSpec& llm, uint32_t rows);

  // [rows][kv_heads], valid until the next call. The product runs over `padded_rows` rows, a size that it has
  // already run with.
  const float* of(uint32_t layer, const __nv_bfloat16* hidden, const DeviceRows& rows, Matmul* matmul,
                  cudaStream_t stream) const;

 private:
  struct Layer {
    uint64_t matrix = 0;           // in numbers: [kGateParts][outputs][hidden]
    std::vector<uint64_t> fields;  // in floats: everything else, in the order of the gate's fields
    uint32_t outputs = 0;
  };
  Result<void> upload(const std::vector<__nv_bfloat16>& matrices, const std::vector<float>& fields);

  bool trims_ = false;  // TrimKV
  uint32_t kv_heads_ = 0, group_ = 1, hidden_ = 0, rows_ = 0;
  std::vector<Layer> layers_;
  Buffer matrices_, fields_, products_, gates_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_COMPRESSION_KV_ENTRY_GATES_H_
