#include "engine/cuda/device/cuda_check.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

namespace kvtwin::cuda {

std::string what_failed(const char* operation, const std::string& shape, uint64_t bytes,
                        const std::string& said) {
  size_t free = 0, total = 0;
  std::string memory = "how much the GPU has free cannot be asked";
  if (cudaMemGetInfo(&free, &total) == cudaSuccess)
    memory = fmt::format("the GPU has {} of {} free", free, total);
  return fmt::format("{} [{}]: {}; needs {} bytes, {}", operation, shape, said, bytes, memory);
}

Result<void> check(cudaError_t error, const char* operation, const std::string& shape, uint64_t bytes) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // clears the error, which the next call would report again
  return make_error({}, what_failed(operation, shape, bytes, cudaGetErrorString(error)));
}

void fail(const std::string& what) {
  std::fprintf(stderr, "kvtwin: cuda: %s\n", what.c_str());
  std::fflush(nullptr);
  std::_Exit(3);  // without destructors: other threads are still running
}

}  // namespace kvtwin::cuda
