// CopyEngines copies pages between memory tiers over the simulated node.
//
// Each GPU has one copy engine per direction. Its copies run one after another, each after a fixed overhead;
// SimGrid divides shared links (host memory, links between sockets) fairly among concurrent copies. A
// transfer of an engine with g GPUs is g concurrent copies of 1/g of the bytes, and is done when the last one
// is.
//
// A disk belongs to its node and is shared by the engines of that node. A read goes through host memory to a
// GPU in pieces, and is modelled as one copy at the rate of the slowest link.
//
// The overhead is a delay before the copy and not a link latency: SimGrid divides a link in proportion to 1 /
// latency, and a latency would be the same in both directions.

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

// Largest distance of SimGrid's times (doubles) from the whole nanosecond that they stand for; see
// sim/README.md, "One clock".
constexpr double kClockMarginNs = 0.25;

class CopyEngines {
 public:
  struct Place {
    uint32_t gpu_first = 0;
    uint32_t gpus = 1;
  };
  // `done(at, id)` is called in SimGrid's kernel when all copies of transfer `id` have ended.
  using Done = std::function<void(Instant at, uint64_t id)>;

  // The first `sources` places send to all other places, from GPU to GPU; 0: none does. REQUIRES: every place
  // lies on the nodes of `grid`, whose spec is `spec`, and there is a path from each source to each other
  // place.
  CopyEngines(const PlatformSpec& spec, const std::vector<Place>& places, SimGrid* grid, Done done,
              uint32_t sources = 0);

  // Starts or queues the copies of one transfer of engine `place`. REQUIRES: bytes > 0; `id` is not in use.
  void start(Instant now, uint32_t place, Tier source, Tier target, uint64_t bytes, uint64_t id);
  // The same from the GPUs of engine `from` to those of engine `to`. A GPU of the engine with fewer GPUs
  // serves several GPUs of the other.
  void start_between(Instant now, uint32_t from, uint32_t to, uint64_t bytes, uint64_t id);
  bool busy() const { return transfers_left_ > 0; }
  // Handles a completion. This object installs itself as grid's on_done(); a caller that shares the grid
  // replaces it and passes on the tokens of copies.
  void on_done(Token token) { finished(static_cast<uint32_t>(token)); }

 private:
  struct Copy {
    uint64_t bytes = 0;
    uint32_t transfer = 0;  // index into transfers_
  };
  struct CopyQueue {
    RouteId route{};
    Duration overhead{};
    std::deque<Copy> waiting;  // the front one is in progress if `running`
    bool running = false;
  };
  struct Transfer {
    uint64_t id = 0;
    uint32_t copies_left = 0;
  };
  // Queues of one engine, as indices into copy_queues_: one per GPU and direction, one to the disk, and one
  // per GPU from the disk.
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
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> ways_;  // queues by (from, to)
  std::vector<Transfer> transfers_;
  std::vector<uint32_t> transfers_free_;
  uint64_t transfers_left_ = 0;
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_COPY_ENGINES_H_
