// Lists of fixed records that go to the GPU in one copy.

#ifndef KVTWIN_ENGINE_CUDA_LIST_UPLOAD_H_
#define KVTWIN_ENGINE_CUDA_LIST_UPLOAD_H_

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "engine/cuda/buffer.h"
#include "engine/cuda/cuda_check.h"

namespace kvtwin::cuda {

class ListUpload {
 public:
  // Forgets the lists before. REQUIRES: their copy has ended, and so has what reads them.
  void clear() { bytes_.clear(); }
  // Returns where it lies, for at().
  template <typename T>
  uint64_t add(const std::vector<T>& list) {
    constexpr uint64_t kAlignment = 256;
    const uint64_t at = (bytes_.size() + kAlignment - 1) / kAlignment * kAlignment;
    bytes_.resize(at + list.size() * sizeof(T));
    if (!list.empty()) std::memcpy(bytes_.data() + at, list.data(), list.size() * sizeof(T));
    return at;
  }
  // Starts the copy; memory grows if it must. What cannot be had ends the process (cuda_check.h).
  void send(cudaStream_t stream) {
    if (bytes_.empty()) return;
    if (bytes_.size() > device_.bytes()) grow();
    std::memcpy(staging_.as<char>(), bytes_.data(), bytes_.size());
    must(cudaMemcpyAsync(device_.as<char>(), staging_.as<char>(), bytes_.size(), cudaMemcpyHostToDevice,
                         stream),
         "copy of lists", bytes_.size(), [] { return std::string(); });
  }
  template <typename T>
  const T* at(uint64_t offset) const {
    return device_.as<const T>(offset);
  }

 private:
  void grow() {
    const uint64_t bytes = std::max<uint64_t>(2 * bytes_.size(), 1 << 16);
    for (const auto& [kind, buffer] :
         {std::pair{Buffer::Kind::kPinned, &staging_}, std::pair{Buffer::Kind::kDevice, &device_}}) {
      Result<Buffer> made = Buffer::make(kind, bytes, "lists", "of a step");
      if (!made) fail(made.error().text());
      *buffer = std::move(*made);
    }
  }

  std::vector<char> bytes_;
  Buffer staging_, device_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_LIST_UPLOAD_H_
