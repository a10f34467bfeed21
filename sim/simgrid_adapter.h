// SimGrid is the only access to the SimGrid library. Times are nanoseconds since this simulation began, as
// doubles, because SimGrid keeps doubles; sim_backend.cc converts them to Instants in one place.
//
// There is one actor, the driver. It runs the body given to run() and sleeps in wait_until(). SimGrid's
// kernel ("maestro") owns everything else: copies, kernels and timers complete by themselves and call back in
// the kernel, where nothing may block. docs/design/simgrid.md#traps lists the traps behind this design.
//
// One simulation at a time per process: SimGrid's engine is a singleton. A second one after the first works,
// but SimGrid's clock continues from the end of the first, so the last bits of contended copies may differ.

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

  // Paths between places. Asking for the same path again is free. Before run() only.
  RouteId host_to_gpu(uint32_t socket, uint32_t gpu);
  RouteId gpu_to_host(uint32_t gpu, uint32_t socket);
  RouteId gpu_to_gpu(uint32_t source, uint32_t target);  // REQUIRES: there is a path (platform.h)
  // REQUIRES: disk_read_gb_per_s > 0. A read passes through the host memory next to the GPU, in pieces.
  RouteId host_to_disk(uint32_t socket);
  RouteId disk_to_gpu(uint32_t gpu);
  // Rate of a copy that has this path to itself: that of its slowest link.
  double gb_per_s(RouteId route) const;

  // Called in the kernel when a copy or a kernel ends. Set before run().
  void on_done(std::function<void(Token)> done);

  // Runs `body` in the driver actor; returns when it has returned and nothing is in flight.
  void run(std::function<void()> body);

  double now_ns() const;
  // Whether wait_until(at_ns) would return at once. This differs from now_ns() >= at_ns, because doubles
  // round.
  bool reached(double at_ns) const;

  // Driver only: sleeps until `at_ns`, or until an earlier instant given to wake_by() meanwhile.
  void wait_until(double at_ns);
  // Driver only: sleeps until an instant given to wake_by() has come.
  void wait();
  // Kernel only: the driver must wake at `at_ns` or earlier.
  void wake_by(double at_ns);

  // From anywhere. `at_ns` may be in the past; `then` then runs at this instant, but not before at() returns.
  void at(double at_ns, std::function<void()> then);
  void start_copy(RouteId route, uint64_t bytes, Token token);  // REQUIRES: bytes > 0
  // A kernel that takes `ns` if it has the GPU to itself; concurrent kernels share the GPU equally.
  void start_kernel(uint32_t gpu, double ns, Token token);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_SIMGRID_ADAPTER_H_
