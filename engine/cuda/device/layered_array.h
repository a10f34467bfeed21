// LayeredArray: as many elements of equal size in each of several layers, [layers][count][each bytes], on the
// GPU. It can grow; what is there stays.

#ifndef KVTWIN_ENGINE_CUDA_DEVICE_LAYERED_ARRAY_H_
#define KVTWIN_ENGINE_CUDA_DEVICE_LAYERED_ARRAY_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/cuda/device/buffer.h"

namespace kvtwin::cuda {

class LayeredArray {
 public:
  LayeredArray() = default;
  // `what` appears in messages, and must outlive the array. Wrong: no room.
  static Result<LayeredArray> make(uint32_t layers, uint64_t each, uint32_t count, const char* what);

  // Growing waits for the GPU.
  void reserve(uint32_t count);
  uint64_t each() const { return each_; }
  template <typename T>
  T* layer(uint32_t index) const {
    return elements_.as<T>(uint64_t{index} * count_ * each_);
  }
  // Copies from the host's pageable memory, which may be reused at once, to a place in an element.
  void put(uint32_t layer, uint32_t element, uint64_t offset, const void* from, uint64_t bytes,
           cudaStream_t stream) const;

 private:
  Result<void> grow(uint32_t count);

  const char* what_ = "";
  uint32_t layers_ = 0, count_ = 0;
  uint64_t each_ = 0;
  Buffer elements_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_DEVICE_LAYERED_ARRAY_H_
