#include "engine/cuda/device/buffer.h"

#include <fmt/format.h>

#include <atomic>

#include "engine/cuda/device/cuda_check.h"

namespace kvtwin::cuda {
namespace {

std::atomic<uint64_t> live[2];  // by Buffer::Kind

}  // namespace

uint64_t Buffer::live_bytes(Kind kind) { return live[static_cast<size_t>(kind)]; }

Result<Buffer> Buffer::make(Kind kind, uint64_t bytes, const char* what, const std::string& shape) {
  Buffer out;
  out.kind_ = kind;
  out.bytes_ = bytes;
  if (bytes == 0) return out;
  const bool device = kind == Kind::kDevice;
  const cudaError_t error =
      device ? cudaMalloc(&out.data_, bytes) : cudaHostAlloc(&out.data_, bytes, cudaHostAllocDefault);
  const std::string operation = fmt::format("{} for {}", device ? "cudaMalloc" : "cudaHostAlloc", what);
  if (Result<void> ok = check(error, operation.c_str(), shape, bytes); !ok)
    return tl::unexpected<Error>(ok.error());
  live[static_cast<size_t>(kind)] += bytes;
  return out;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  live[static_cast<size_t>(kind_)] -= bytes_;
  // Fails at the end of the process if the driver is already unloaded; then there is nothing to free.
  static_cast<void>(kind_ == Kind::kDevice ? cudaFree(data_) : cudaFreeHost(data_));
}

}  // namespace kvtwin::cuda
