// What CUDA says is wrong, in our words: operation, shape, bytes needed and free.
//
// While things are set up an error is the user's (too many pages, another GPU): an Error. Once a step runs
// nothing can go on: what() is printed and the process ends with status 3.

#ifndef KVTWIN_ENGINE_CUDA_DEVICE_CUDA_CHECK_H_
#define KVTWIN_ENGINE_CUDA_DEVICE_CUDA_CHECK_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "engine/base/result.h"

namespace kvtwin::cuda {

// "cudaMalloc of KV pages [2000 pages of 65536 bytes]: out of memory; needs 131072000 bytes, the GPU has 77
// of 150754820096 free".
std::string what_failed(const char* operation, const std::string& shape, uint64_t bytes,
                        const std::string& said);

// An Error without a place; callers that know the scenario add it.
Result<void> check(cudaError_t error, const char* operation, const std::string& shape, uint64_t bytes = 0);

[[noreturn]] void fail(const std::string& what);

// `shape()` says the shape, and is asked only if something went wrong.
template <typename Shape>
void must(cudaError_t error, const char* operation, uint64_t bytes, Shape&& shape) {
  if (error != cudaSuccess) fail(what_failed(operation, shape(), bytes, cudaGetErrorString(error)));
}
inline void must(cudaError_t error, const char* operation, uint64_t bytes = 0) {
  must(error, operation, bytes, [] { return std::string(); });
}

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_DEVICE_CUDA_CHECK_H_
