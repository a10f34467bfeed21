// Buffer owns device memory, or pinned host memory for copies to and from it.

#ifndef KVTWIN_ENGINE_CUDA_DEVICE_BUFFER_H_
#define KVTWIN_ENGINE_CUDA_DEVICE_BUFFER_H_

#include <cstdint>
#include <string>
#include <utility>

#include "engine/base/result.h"

namespace kvtwin::cuda {

class Buffer {
 public:
  enum class Kind : uint8_t { kDevice, kPinned };

  Buffer() = default;
  // `what` and `shape` appear in the message if there is not enough memory.
  static Result<Buffer> make(Kind kind, uint64_t bytes, const char* what, const std::string& shape);
  Buffer(Buffer&& other) noexcept
      : kind_(other.kind_), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(kind_, other.kind_), std::swap(data_, other.data_), std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer();

  // `offset` in bytes.
  template <typename T>
  T* as(uint64_t offset = 0) const {
    return reinterpret_cast<T*>(static_cast<char*>(data_) + offset);
  }
  uint64_t bytes() const { return bytes_; }
  // Bytes of all live buffers of the process.
  static uint64_t live_bytes(Kind kind);

 private:
  Kind kind_ = Kind::kDevice;
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_DEVICE_BUFFER_H_
