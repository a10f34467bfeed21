// Common to the benchmarks: random numbers on the device, the time of a launch from replays of a graph, and
// the reported counters.

#ifndef KVTWIN_KERNELS_BENCH_REPLAY_CUH_
#define KVTWIN_KERNELS_BENCH_REPLAY_CUH_

#include <benchmark/benchmark.h>

#include <cstring>

#include "kernels/bench/decode_problem.cuh"

namespace kvtwin::test {

constexpr double kReadCeiling = 4.69e12;  // bytes per second (docs/design/kernels.md#ceilings)
constexpr double kBf16Ceiling = 790e12;   // flops per second (docs/design/kernels.md#gemm)

// Numbers in [-1, 1) from their index.
static __global__ void fill_bf16(uint4* data, size_t count) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    uint32_t word[4];
    for (int k = 0; k < 4; ++k) {
      uint64_t x = (i * 4 + static_cast<size_t>(k)) * 0x9e3779b97f4a7c15u;
      x ^= x >> 29, x *= 0xbf58476d1ce4e5b9u, x ^= x >> 32;
      const float a = static_cast<float>(x & 0xffff) / 32768 - 1,
                  b = static_cast<float>(x >> 16 & 0xffff) / 32768 - 1;
      const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
      word[k] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    data[i] = {word[0], word[1], word[2], word[3]};
  }
}
inline DeviceArray<__nv_bfloat16> random_bf16(size_t count) {
  DeviceArray<__nv_bfloat16> out(count);
  fill_bf16<<<1056, 256>>>(reinterpret_cast<uint4*>(out.get()), count / 8);
  KVT_CUDA(cudaDeviceSynchronize());
  return out;
}

inline double median(std::vector<double> seconds) {
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return seconds[seconds.size() / 2];
}

// Seconds of one launch, from replays of a graph of launch(0), launch(1), ..., after two warm-up replays.
template <typename Launch>
std::vector<double> replays(benchmark::State& state, cudaStream_t stream, uint32_t launches,
                            const Launch& launch) {
  cudaGraph_t graph;
  cudaGraphExec_t runnable;
  cudaEvent_t begin, end;
  KVT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (uint32_t i = 0; i < launches; ++i) KVT_CUDA(launch(i));
  KVT_CUDA(cudaStreamEndCapture(stream, &graph));
  KVT_CUDA(cudaGraphInstantiate(&runnable, graph, 0));
  KVT_CUDA(cudaEventCreate(&begin));
  KVT_CUDA(cudaEventCreate(&end));
  for (int i = 0; i < 2; ++i) KVT_CUDA(cudaGraphLaunch(runnable, stream));
  std::vector<double> seconds;
  for (auto _ : state) {
    KVT_CUDA(cudaEventRecord(begin, stream));
    KVT_CUDA(cudaGraphLaunch(runnable, stream));
    KVT_CUDA(cudaEventRecord(end, stream));
    KVT_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    KVT_CUDA(cudaEventElapsedTime(&ms, begin, end));
    seconds.push_back(static_cast<double>(ms) / 1e3 / launches);
    state.SetIterationTime(seconds.back());
  }
  KVT_CUDA(cudaEventDestroy(begin));
  KVT_CUDA(cudaEventDestroy(end));
  KVT_CUDA(cudaGraphExecDestroy(runnable));
  KVT_CUDA(cudaGraphDestroy(graph));
  return seconds;
}

// The median of replays() on its own stream: launch(i, stream).
template <typename Launch>
double median_of_replays(benchmark::State& state, uint32_t launches, const Launch& launch) {
  cudaStream_t stream;
  KVT_CUDA(cudaStreamCreate(&stream));
  const double seconds =
      median(replays(state, stream, launches, [&](uint32_t i) { return launch(i, stream); }));
  KVT_CUDA(cudaStreamDestroy(stream));
  return seconds;
}

template <typename T>
void label_with_digest(benchmark::State& state, const DeviceArray<T>& out) {
  const std::vector<T> host = out.read();
  const size_t words = host.size() * sizeof(T) / 4;
  uint64_t digest = 0;
  for (size_t i = 0; i < words; ++i) {
    uint32_t word;
    std::memcpy(&word, reinterpret_cast<const char*>(host.data()) + i * 4, 4);
    digest = (digest ^ word) * 0x100000001b3u;
  }
  char label[32];
  std::snprintf(label, sizeof label, "digest %016llx", static_cast<unsigned long long>(digest));
  state.SetLabel(label);
}

}  // namespace kvtwin::test

#endif  // KVTWIN_KERNELS_BENCH_REPLAY_CUH_
