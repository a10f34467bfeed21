// Copies pages between tiers over the simulated node.
//
// Each GPU has one copy engine per direction: its copies run one after another, each after its own
// overhead; what they share (host memory, links between sockets) SimGrid divides fairly. A transfer of an
// engine with g GPUs is g copies of 1/g of the bytes, side by side, and is done when the last one is.
//
// A disk belongs to the node: all its engines share it. What is read from it goes through host memory to a
// GPU, piece by piece, as one copy at the rate of the slowest part.
//
// The overhead is a delay before the copy, not a link latency: SimGrid divides a link in proportion to
// 1 / latency, and a latency would be the same in both directions.

#ifndef KVTWIN_SIM_COPY_ENGINES_H_
#define KVTWIN_SIM_COPY_ENGINES_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "engine/base/commands.h"
#include "engine/base/units.h"
#include "sim/platform.h"
#include "sim/simgrid_adapter.h"

namespace kvtwin::sim {

// SimGrid's doubles come this close to the whole nanosecond they stand for; see sim/README.md, "One clock".
constexpr double kClockMarginNs = 0.25;

class CopyEngines {
 public:
  struct Place {
    uint32_t gpu_first = 0;
    uint32_t gpus = 1;
  };
  // `done(at, id)` is called in SimGrid's kernel when copies `id` have all ended.
  using Done = std::function<void(Instant at, uint64_t id)>;

  // The first `sources` places send to all others, GPU to GPU; 0: nobody does.
  // REQUIRES: every place lies on the nodes of `grid`, whose spec is `spec`, and there is a way from each
  // source to each other place.
  CopyEngines(const PlatformSpec& spec, const std::vector<Place>& places, SimGrid* grid, Done done,
              uint32_t sources = 0);

  // Starts, or queues, the copies of one transfer of engine `place`. REQUIRES: bytes > 0; `id` not in use.
  void start(Instant now, uint32_t place, Tier source, Tier target, uint64_t bytes, uint64_t id);
  // The same from the GPUs of engine `from` to those of engine `to`. An engine with fewer GPUs serves several
  // of the other's.
  void start_between(Instant now, uint32_t from, uint32_t to, uint64_t bytes, uint64_t id);
  bool busy() const { return transfers_left_ > 0; }
  // Takes over grid's on_done(); who shares it passes on the tokens that are ours.
  void on_done(Token token) { finished(static_cast<uint32_t>(token)); }

 private:
  struct Copy {
    uint64_t bytes = 0;
    uint32_t transfer = 0;  // index into transfers_
  };
  struct CopyQueue {
    RouteId route{};
    Duration overhead{};
    std::deque<Copy> waiting;  // the front one is under way when `running`
    bool running = false;
  };
  struct Transfer {
    uint64_t id = 0;
    uint32_t copies_left = 0;
  };
  // Lanes of one engine: its GPUs', each way, then the disk's: one to it, from it one to each GPU.
  struct CopyQueues {
    std::vector<uint32_t> in, out;
    std::vector<uint32_t> to_disk, from_disk;
  };

  uint32_t add_lane(RouteId route, Duration overhead);
  void add_ways(const PlatformSpec& spec, const std::vector<Place>& places, uint32_t sources);
  void start_on(Instant now, const std::vector<uint32_t>& copy_queues, uint64_t bytes, uint64_t id);
  const std::vector<uint32_t>& lanes_for(uint32_t place, Tier source, Tier target) const;
  void start_front(Instant now, uint32_t copy_queue);
  void issue(Instant now, uint32_t copy_queue);
  void finished(uint32_t copy_queue);

  SimGrid* const grid_;
  const Done done_;
  std::vector<CopyQueue> copy_queues_;
  std::vector<CopyQueues> places_;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> ways_;  // lanes, by (from, to)
  std::vector<Transfer> transfers_;
  std::vector<uint32_t> transfers_free_;
  uint64_t transfers_left_ = 0;
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_COPY_ENGINES_H_
