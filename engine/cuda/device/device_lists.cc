#include "engine/cuda/device/device_lists.h"

#include <algorithm>
#include <utility>

#include "engine/cuda/device/cuda_check.h"

namespace kvtwin::cuda {

void grow(Buffer* buffer, Buffer::Kind kind, uint64_t bytes, const char* what) {
  if (bytes <= buffer->bytes()) return;
  *buffer = Buffer();  // frees before it allocates
  Result<Buffer> made = Buffer::make(kind, bytes + bytes / 2, what, "of a step");
  if (!made) fail(made.error().text());
  *buffer = std::move(*made);
}

void DeviceLists::reserve(uint64_t bytes) {
  grow(&staging_, Buffer::Kind::kPinned, bytes, "work lists");
  grow(&device_, Buffer::Kind::kDevice, bytes, "work lists");
}

void DeviceLists::send(cudaStream_t stream) {
  const uint64_t bytes = std::max<uint64_t>(bytes_.size(), kAlignment);
  reserve(bytes);
  std::copy(bytes_.begin(), bytes_.end(), staging_.as<char>());
  must(
      cudaMemcpyAsync(device_.as<char>(), staging_.as<char>(), bytes_.size(), cudaMemcpyHostToDevice, stream),
      "copy of work lists", bytes_.size(), [] { return std::string(); });
}

}  // namespace kvtwin::cuda
