// DeviceLists sends lists of records to the GPU in one copy and returns their addresses there.

#ifndef KVTWIN_ENGINE_CUDA_DEVICE_DEVICE_LISTS_H_
#define KVTWIN_ENGINE_CUDA_DEVICE_DEVICE_LISTS_H_

#include <cuda_runtime_api.h>

#include <cstring>
#include <vector>

#include "engine/cuda/device/buffer.h"
#include "engine/cuda/device/step_rows.h"

namespace kvtwin::cuda {

// Position of a list among those that are sent together.
template <typename T>
struct ListAt {
  uint64_t offset = 0;
  uint32_t count = 0;
};

class DeviceLists {
 public:
  DeviceLists() = default;

  // REQUIRES: the previous copy has completed.
  void clear() { bytes_.clear(); }
  template <typename T>
  ListAt<T> add(const std::vector<T>& list) {
    const uint64_t at = bytes_.size();
    bytes_.resize(at + (list.size() * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment);
    if (!list.empty()) std::memcpy(bytes_.data() + at, list.data(), list.size() * sizeof(T));
    return {at, static_cast<uint32_t>(list.size())};
  }
  // Reserves `bytes`; REQUIRES: as clear().
  void reserve(uint64_t bytes);
  // Starts the copy. Reallocates if there is not enough memory, which changes all addresses (base()).
  void send(cudaStream_t stream);
  const void* base() const { return device_.as<const void>(); }
  // Adds the address and length of a list to the key. REQUIRES: sent.
  template <typename T>
  void add_to(StepGraphKey* graph_key, const ListAt<T>& list) const {
    graph_key->add(at(list));
    graph_key->add(uint64_t{list.count});
  }
  template <typename T>
  const T* at(const ListAt<T>& list) const {
    return device_.as<const T>(list.offset);
  }

 private:
  static constexpr uint64_t kAlignment = 256;
  std::vector<char> bytes_;
  Buffer staging_, device_;
};

// Makes `buffer` hold at least `bytes`; its content is lost. Ends the process if there is not enough memory
// (cuda_check.h).
void grow(Buffer* buffer, Buffer::Kind kind, uint64_t bytes, const char* what);

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_DEVICE_DEVICE_LISTS_H_
