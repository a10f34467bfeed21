// DevicePages: the KV pages of one engine in one format, those of the GPU and, in pinned memory, those of the
// host tier. Tiers are ranges of one address space (units.h, PageId): [0, gpu) and behind them the host's.
//
//   GPU   [layers][pages][kv_heads][keys, values][page_tokens][head_dim]   (a layer is what a kernel reads)
//   host  [pages][layers][...]                                             (a page is what a copy moves)
// Within a page's part of one layer both are alike (kernels/common/kv_block.cuh; packed:
// kernels/packed/packed_page.h), so a copy is one strided piece.

#ifndef KVTWIN_ENGINE_CUDA_DEVICE_DEVICE_PAGES_H_
#define KVTWIN_ENGINE_CUDA_DEVICE_DEVICE_PAGES_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/units.h"
#include "engine/cuda/device/buffer.h"
#include "models/catalog/llm.h"

namespace kvtwin::cuda {

class DevicePages {
 public:
  DevicePages() = default;
  // Errors: no room for that many.
  static Result<DevicePages> make(const LlmSpec& llm, uint32_t page_tokens, uint32_t gpu, uint32_t host);
  // Of any format: `part_bytes` are one page's in one layer.
  static Result<DevicePages> make_packed(uint64_t part_bytes, uint32_t layers, uint32_t gpu, uint32_t host);
  // The host pages of `larger` become those of this too: each holds a copy from either. REQUIRES: this has
  // none, and its pages are not larger.
  void share_host(const DevicePages& larger);

  __nv_bfloat16* layer(uint32_t index) const { return gpu_.as<__nv_bfloat16>(index * layer_bytes()); }
  uint8_t* packed_layer(uint32_t index) const { return gpu_.as<uint8_t>(index * layer_bytes()); }
  uint64_t page_bytes() const { return part_bytes_ * layers_; }
  // Of one page in one layer.
  uint64_t part_bytes() const { return part_bytes_; }
  // One layer's part of the host's first page; those of the pages behind it follow every page_bytes().
  __nv_bfloat16* host_layer(uint32_t index) const {
    return reinterpret_cast<__nv_bfloat16*>(host_pages_ + index * part_bytes_);
  }

  void copy(PageId source, PageId target, cudaStream_t stream) const;
  // Every value becomes NaN (packed ones: their scales). REQUIRES: a page of the GPU.
  void poison(PageId page, cudaStream_t stream) const;

 private:
  struct Place {
    char* first = nullptr;  // of layer 0
    uint64_t stride = 0;    // from layer to layer
  };
  Place place(PageId page) const;
  uint64_t layer_bytes() const { return part_bytes_ * pages_gpu_; }

  Buffer gpu_, host_;
  char* host_pages_ = nullptr;    // in host_, or in that of others
  uint64_t host_page_bytes_ = 0;  // from one to the next
  uint64_t part_bytes_ = 0;       // of one page in one layer
  uint32_t layers_ = 0, pages_gpu_ = 0, pages_host_ = 0;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_DEVICE_DEVICE_PAGES_H_
