// KvEntryGates: the gates of FastKVzip and TrimKV of a step's rows, one number a KV head each, with all
// layers' weights on the device. Which method it is follows from the weights that there are.

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
  // Rows of one step: `rows` at most. Wrong: no room.
  static Result<KvEntryGates> make(const cpu::ScorerWeights& weights, const LlmSpec& llm, uint32_t rows);

  // [rows][kv_heads], until the next layer asks. `padded_rows` rows go through the product: their number is
  // one that it has seen before.
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
