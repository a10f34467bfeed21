// Expanded steps: step graphs executed operation by operation on the simulated node, so that their transfers
// compete for shared links.
//
// A collapsed step is one longest path whose copies have their PCIe link to themselves. That is exact while
// the shared links are free. kvtwin collapses a step while every shared link on its route is predicted below
// 60 % utilisation (error <= 1 %) and expands it above (docs/design/simgrid.md#collapsing). In an expanded
// step each piece of the contracted graph is an activity that starts when its dependencies have ended.

#ifndef KVTWIN_SIM_EXPANDED_STEP_H_
#define KVTWIN_SIM_EXPANDED_STEP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/steps/step_graph.h"
#include "sim/sim_backend.h"
#include "sim/simgrid_adapter.h"

namespace kvtwin::sim {

constexpr double kExpandAbove = 0.60;

// One GPU's demand on a shared link: bytes that a step moves over it, and the duration of the collapsed step.
struct LinkDemand {
  uint64_t bytes = 0;
  Ticks step = 0;
};
// Sum of all demands as a fraction of `gb_per_s`.
double predicted_utilisation(std::span<const LinkDemand> demands, double gb_per_s);
// Returns kCollapsed or kExpanded. A step without transfers is collapsed, whatever `asked` is.
Fidelity choose_fidelity(Fidelity asked, bool has_transfers, double utilisation_max);

class ExpandedSteps {
 public:
  // Where the pieces of one engine run: kernels on one GPU, because all are alike; copies of the graph's
  // bytes on the two routes of every GPU at once.
  struct Site {
    uint32_t gpu = 0;
    std::vector<RouteId> in, out;
  };
  struct Timing {
    double start_ns = 0;
    double end_ns = 0;      // end of the last required piece
    double exposed_ns = 0;  // as StepTiming::exposed
  };
  using Done = std::function<void(const Timing&)>;

  // Installs itself as grid's on_done(). A caller that shares the grid replaces it and passes on our tokens.
  explicit ExpandedSteps(SimGrid* grid);
  ~ExpandedSteps();

  // `graph` must outlive this; its costs may change between steps. The first stream computes. Pieces of other
  // streams that are not transfers take their time without the GPU (host work).
  uint32_t add_engine(StepGraph* graph, const Site& site);
  // Starts the next step of `engine` now. Calls `done` in SimGrid's kernel when its required pieces have
  // ended; the other pieces continue concurrently with the next steps. `carried_ns`: end instants of
  // background work that a preceding collapsed step left; empty: none. REQUIRES: the previous step is done.
  void start(uint32_t engine, std::span<const uint32_t> outcomes, Done done,
             std::span<const double> carried_ns = {});
  // True while pieces of earlier steps are running.
  bool busy(uint32_t engine) const;

  static bool is_ours(Token token) { return token >> 63 != 0; }
  void on_done(Token token);

 private:
  struct Step;
  struct Engine;
  void copy(const std::vector<RouteId>& routes, uint64_t bytes, Token token);
  void release(Engine* engine, Step* step, uint32_t piece, bool moves);
  void begin(Engine* engine, Step* step, uint32_t piece);
  void ended(Engine* engine, Step* step, uint32_t piece);
  void wait_for(Engine* engine, Step* step, uint32_t piece, uint32_t value, bool moves,
                std::span<const double> carried_ns);
  void note_carried(Engine* engine, Step* step);
  void wait_for_carried(Engine* engine, Step* step, uint32_t piece, uint32_t carry);
  Token token_of(const Engine& engine, const Step& step, uint32_t piece) const;

  SimGrid* const grid_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_EXPANDED_STEP_H_
