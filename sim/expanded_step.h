// Runs step graphs piece by piece on the simulated node, so that their transfers meet on shared links.
//
// Collapsed, a step is one longest path whose copies have their PCIe link for themselves. That is exact
// while nobody else needs what they share; kvtwin collapses a step while every shared link on its way is
// predicted below 60 % busy (error <= 1 %), and expands it above. Expanded, each piece of the contracted
// graph is an activity, started when what it waits for has ended and not before.

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

// One GPU's demand on a shared link: bytes that a step moves over it, and how long the step takes
// when it is collapsed.
struct LinkDemand {
  uint64_t bytes = 0;
  Ticks step = 0;
};
// Fraction of `gb_per_s` that all demands together ask for.
double predicted_utilisation(std::span<const LinkDemand> demands, double gb_per_s);
// kCollapsed or kExpanded. A step without transfers is collapsed whatever was asked for.
Fidelity choose_fidelity(Fidelity asked, bool has_transfers, double utilisation_max);

class ExpandedSteps {
 public:
  // Where the pieces of one engine run: kernels on one GPU (all are alike), copies of the graph's bytes on
  // every GPU's two routes at once.
  struct Site {
    uint32_t gpu = 0;
    std::vector<RouteId> in, out;
  };
  struct Timing {
    double start_ns = 0;
    double end_ns = 0;      // of the last required piece
    double exposed_ns = 0;  // as StepTiming::exposed
  };
  using Done = std::function<void(const Timing&)>;

  // Takes over grid's on_done(). Who shares it passes on the tokens that are ours.
  explicit ExpandedSteps(SimGrid* grid);
  ~ExpandedSteps();

  // `graph` must outlive this. Its costs may change between steps. The first stream computes; other
  // streams' pieces that are no transfers take their time without the GPU (the host).
  uint32_t add_engine(StepGraph* graph, const Site& site);
  // Starts the next step of `engine` now; requests `done` in SimGrid's kernel when its required pieces have
  // ended. What is not required runs on, beside the next steps. `carried_ns`: instants of what a collapsed
  // step before left (none: nothing). REQUIRES: the step before is done.
  void start(uint32_t engine, std::span<const uint32_t> outcomes, Done done,
             std::span<const double> carried_ns = {});
  // Pieces of earlier steps still run.
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
