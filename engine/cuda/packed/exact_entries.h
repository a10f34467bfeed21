// ExactEntries: bf16 KV entries of single requests outside the policy's pages: KIVI's newest, and
// TriAxialKV's that wait for their group. A slot is `tokens` KV entries in every layer; the caller assigns
// slots to requests.

#ifndef KVTWIN_ENGINE_CUDA_PACKED_EXACT_ENTRIES_H_
#define KVTWIN_ENGINE_CUDA_PACKED_EXACT_ENTRIES_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/cuda/device/buffer.h"
#include "models/catalog/llm.h"

namespace kvtwin::cuda {

class ExactEntries {
 public:
  ExactEntries() = default;
  // `tokens`: a multiple of kStagedPage (staged_entries.h).
  ExactEntries(const LlmSpec& llm, uint32_t tokens);

  // Makes slots [0, slots) available. Growing waits for the GPU and keeps the content. Ends the process if
  // there is not enough memory (cuda_check.h).
  void reserve(uint32_t slots);
  uint32_t tokens() const { return tokens_; }
  // A pool of one layer (kernels/quant/convert_entries.h), in which slot s has KV entries [s * tokens, (s +
  // 1) * tokens).
  __nv_bfloat16* layer(uint32_t index) const {
    return kv_entries_.as<__nv_bfloat16>(index * slots_ * slot_bytes_);
  }

 private:
  uint32_t tokens_ = 0, layers_ = 0, slots_ = 0;
  uint64_t slot_bytes_ = 0;  // in one layer
  Buffer kv_entries_;        // [layers][slots][tokens / page][kv_heads][keys, values][page][head_dim]
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_PACKED_EXACT_ENTRIES_H_
