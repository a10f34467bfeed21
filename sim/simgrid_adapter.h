// The only door to SimGrid. Times are nanoseconds since this simulation began, as doubles, because
// SimGrid keeps doubles; sim_backend.cc turns them into Instants in one place.
//
// There is one actor, the driver. It runs the body given to run() and sleeps in wait_until(). Everything
// else is owned by SimGrid's kernel ("maestro"): copies, kernels and timers complete by themselves and
// request back there, where nothing may block. Traps that shaped this file are in sim/README.md.
//
// One at a time per process: SimGrid's engine is a singleton. A second one after the first works, but
// SimGrid's clock goes on from where the first ended, so the last bits of contended copies may differ.

#ifndef KVTWIN_SIM_SIMGRID_ADAPTER_H_
#define KVTWIN_SIM_SIMGRID_ADAPTER_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "sim/platform.h"

namespace kvtwin::sim {

enum class RouteId : uint32_t {};
using Token = uint64_t;

class SimGrid {
 public:
  // REQUIRES: validate_platform(spec) found nothing wrong.
  explicit SimGrid(const PlatformSpec& spec);
  ~SimGrid();
  SimGrid(const SimGrid&) = delete;
  SimGrid& operator=(const SimGrid&) = delete;

  // Paths between places. Asking twice for the same path is free. Before run() only.
  RouteId host_to_gpu(uint32_t socket, uint32_t gpu);
  RouteId gpu_to_host(uint32_t gpu, uint32_t socket);
  RouteId gpu_to_gpu(uint32_t source, uint32_t target);  // REQUIRES: there is a way (platform.h)
  // REQUIRES: disk_read_gb_per_s > 0. A read passes through the memory next to the GPU, in pieces, and on.
  RouteId host_to_disk(uint32_t socket);
  RouteId disk_to_gpu(uint32_t gpu);
  // What a copy alone on this path gets: the slowest link.
  double gb_per_s(RouteId route) const;

  // Called in the kernel when a copy or a kernel ends. Set before run().
  void on_done(std::function<void(Token)> done);

  // Runs `body` in the driver actor; returns when it has returned and nothing is in flight any more.
  void run(std::function<void()> body);

  double now_ns() const;
  // Whether wait_until(at_ns) would return at once. Not the same as now_ns() >= at_ns: doubles round.
  bool reached(double at_ns) const;

  // Driver only: sleeps until `at_ns`, or until an earlier instant that wake_by() asks for meanwhile.
  void wait_until(double at_ns);
  // Driver only: sleeps until wake_by() names an instant and it has come.
  void wait();
  // Kernel only: the driver must wake at `at_ns` or earlier.
  void wake_by(double at_ns);

  // From anywhere. `at_ns` may be in the past: then it happens at once, still not before we return.
  void at(double at_ns, std::function<void()> then);
  void start_copy(RouteId route, uint64_t bytes, Token token);  // REQUIRES: bytes > 0
  // A kernel that takes `ns` when it has the GPU alone; kernels that overlap share it equally.
  void start_kernel(uint32_t gpu, double ns, Token token);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_SIMGRID_ADAPTER_H_
