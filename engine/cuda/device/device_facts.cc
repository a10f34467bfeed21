#include "engine/cuda/device/device_facts.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <chrono>

#include "engine/cuda/device/buffer.h"
#include "engine/cuda/device/cuda_check.h"
#include "kernels/dense/dense_cuda.h"

namespace kvtwin::cuda {
namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// NVML, part of the driver. Loaded at run time, because build machines may not have it.
class Nvml {
 public:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW)) {
    const auto init = find<int (*)()>("nvmlInit_v2");
    if (init == nullptr || init() != 0) return;
    char bus[32] = {};
    const auto by_bus = find<int (*)(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
    if (by_bus == nullptr || cudaDeviceGetPCIBusId(bus, sizeof bus, 0) != cudaSuccess) return;
    if (by_bus(bus, &device_) != 0) device_ = nullptr;
  }

  std::string driver() const {
    char text[96] = {};
    const auto get = find<int (*)(char*, unsigned)>("nvmlSystemGetDriverVersion");
    return get != nullptr && get(text, sizeof text) == 0 ? text : "";
  }
  // `kind`: 1 SM, 2 memory (nvmlClockType_t).
  uint32_t clock(int kind) const {
    unsigned mhz = 0;
    const auto get = find<int (*)(void*, int, unsigned*)>("nvmlDeviceGetClockInfo");
    return device_ != nullptr && get != nullptr && get(device_, kind, &mhz) == 0 ? mhz : 0;
  }

 private:
  template <typename Function>
  Function find(const char* name) const {
    return library_ == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library_, name));
  }
  void* const library_;
  void* device_ = nullptr;
};

const Nvml& nvml() {
  static const Nvml kOne;
  return kOne;
}

// A small kernel: the norm of one row.
class SmallKernel {
 public:
  Result<void> make() {
    Result<Buffer> made = Buffer::make(Buffer::Kind::kDevice, 16 * kWidth, "a small kernel", "one row");
    if (!made) return tl::unexpected<Error>(made.error());
    memory_ = std::move(*made);
    if (auto ok = check(cudaMemset(memory_.as<void>(), 0, memory_.bytes()), "cudaMemset", ""); !ok) return ok;
    return check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate", "");
  }
  ~SmallKernel() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  void start() const {
    RmsNormArgs args;
    args.x = memory_.as<float>(), args.weight = memory_.as<float>(4 * kWidth);
    args.eps = 1e-5f, args.rows = 1, args.width = kWidth;
    args.out = memory_.as<__nv_bfloat16>(8 * kWidth);
    must(rms_norm(args, stream_), "rms_norm");
  }
  cudaStream_t stream() const { return stream_; }
  void* memory() const { return memory_.as<void>(); }
  void wait() const { must(cudaStreamSynchronize(stream_), "small kernels"); }

 private:
  static constexpr uint32_t kWidth = 4096;
  Buffer memory_;
  cudaStream_t stream_ = nullptr;
};

// Device time in us of the work that `start` launches. Earlier launches keep the device busy, so that the
// host is ahead.
template <typename Start>
double device_us(const SmallKernel& kernel, const Start& start) {
  cudaEvent_t from = nullptr, to = nullptr;
  must(cudaEventCreate(&from), "cudaEventCreate");
  must(cudaEventCreate(&to), "cudaEventCreate");
  for (int i = 0; i < 300; ++i) kernel.start();
  must(cudaEventRecord(from, kernel.stream()), "cudaEventRecord");
  start();
  must(cudaEventRecord(to, kernel.stream()), "cudaEventRecord");
  kernel.wait();
  float ms = 0;
  must(cudaEventElapsedTime(&ms, from, to), "cudaEventElapsedTime");
  cudaEventDestroy(from), cudaEventDestroy(to);
  return double{ms} * 1e3;
}

}  // namespace

DeviceFacts device_facts() {
  cudaDeviceProp found{};
  must(cudaGetDeviceProperties(&found, 0), "cudaGetDeviceProperties");
  int runtime = 0;
  must(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  size_t unused = 0, total = 0;
  must(cudaMemGetInfo(&unused, &total), "cudaMemGetInfo");
  return {found.name,
          nvml().driver(),
          fmt::format("{}.{}", runtime / 1000, runtime % 1000 / 10),
          static_cast<uint32_t>(found.multiProcessorCount),
          total,
          unused};
}

Clocks device_clocks() { return {nvml().clock(1), nvml().clock(2)}; }

Result<LaunchTimes> launch_times() {
  constexpr int kRepeats = 20, kLaunches = 100;
  SmallKernel kernel;
  if (Result<void> ok = kernel.make(); !ok) return tl::unexpected<Error>(ok.error());
  const auto some = [&] {
    for (int i = 0; i < kLaunches; ++i) kernel.start();
  };
  cudaEvent_t event = nullptr;
  must(cudaEventCreate(&event), "cudaEventCreate");
  must(cudaStreamBeginCapture(kernel.stream(), cudaStreamCaptureModeThreadLocal), "capture");
  some();
  cudaGraph_t graph = nullptr;
  must(cudaStreamEndCapture(kernel.stream(), &graph), "capture");
  cudaGraphExec_t ready = nullptr;
  must(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
  uint32_t word = 0;
  LaunchTimes out;
  for (int repeat = -2; repeat < kRepeats; ++repeat) {
    kernel.wait();
    Clock::time_point start = Clock::now();
    some();
    const double host = us_since(start) / kLaunches;
    kernel.wait();
    const double device = device_us(kernel, some) / kLaunches;
    const double evented = device_us(kernel, [&] {
      for (int i = 0; i < kLaunches; ++i) {
        kernel.start();
        must(cudaEventRecord(event, kernel.stream()), "cudaEventRecord");
      }
    });
    double graph_host = 0;
    const double graphed = device_us(kernel, [&] {
      start = Clock::now();
      must(cudaGraphLaunch(ready, kernel.stream()), "cudaGraphLaunch");
      graph_host = us_since(start);
    });
    start = Clock::now();
    must(cudaMemcpyAsync(&word, kernel.memory(), sizeof word, cudaMemcpyDeviceToHost, kernel.stream()),
         "copy of four bytes", 4);
    kernel.wait();
    const double sync = us_since(start);
    if (repeat < 0) continue;
    out.host.push_back(host), out.device.push_back(device), out.evented.push_back(evented / kLaunches);
    out.graphed.push_back(graphed / kLaunches), out.graph.push_back(graph_host), out.sync.push_back(sync);
  }
  cudaGraphExecDestroy(ready), cudaGraphDestroy(graph), cudaEventDestroy(event);
  return out;
}

}  // namespace kvtwin::cuda
