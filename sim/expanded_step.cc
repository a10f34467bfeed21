#include "sim/expanded_step.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"

namespace kvtwin::sim {
namespace {

double as_ns(Ticks ticks) { return static_cast<double>(ticks) / static_cast<double>(kTicksPerNs); }

}  // namespace

double predicted_utilisation(std::span<const LinkDemand> demands, double gb_per_s) {
  double asked = 0;
  for (const LinkDemand& demand : demands) {
    if (demand.bytes > 0) asked += static_cast<double>(demand.bytes) / std::max(1.0, as_ns(demand.step));
  }
  return asked / gb_per_s;
}

Fidelity choose_fidelity(Fidelity asked, bool has_transfers, double utilisation_max) {
  if (!has_transfers) return Fidelity::kCollapsed;
  if (asked != Fidelity::kAuto) return asked;
  return utilisation_max > kExpandAbove ? Fidelity::kExpanded : Fidelity::kCollapsed;
}

// A running step. It lives until its last piece has ended, which may be several steps later.
struct ExpandedSteps::Step {
  struct Waiter {
    Step* step = nullptr;
    uint32_t piece = 0;
  };
  uint32_t slot = 0;
  double started = 0;
  std::vector<uint32_t> missing;  // dependencies that have not ended
  // As they were when the step started: costs change from step to step.
  std::vector<StepGraph::Piece> pieces;
  std::vector<uint32_t> copies_left;           // routes on which a transfer is still in progress
  std::vector<double> held_until;              // end of the dependencies that are not transfers
  std::vector<std::vector<uint32_t>> effects;  // by piece: dependent pieces of the same step
  std::vector<std::vector<Waiter>> waiters;    // by piece: dependent pieces of later steps
  uint32_t left = 0;
  uint32_t required_left = 0;
  Timing timing;
  Done done;
};

struct ExpandedSteps::Engine {
  // The piece that sets a carried instant.
  struct Carried {
    Step* step = nullptr;  // null once it has ended
    uint32_t piece = 0;
  };
  uint32_t number = 0;
  StepGraph* graph = nullptr;
  Site site;
  std::vector<Carried> carried;
  std::vector<std::unique_ptr<Step>> steps;
  std::vector<uint32_t> free;
  uint32_t running = 0;  // steps with pieces that have not ended
};

ExpandedSteps::ExpandedSteps(SimGrid* grid) : grid_(grid) {
  grid->on_done([this](Token token) { on_done(token); });
}

void ExpandedSteps::on_done(Token token) {
  Engine* const engine = engines_[(token >> 48) & 0x7fff].get();
  Step* const step = engine->steps[(token >> 24) & 0xffffff].get();
  const auto piece = static_cast<uint32_t>(token & 0xffffff);
  if (step->copies_left[piece] > 0 && --step->copies_left[piece] > 0) return;
  ended(engine, step, piece);
}

bool ExpandedSteps::busy(uint32_t engine) const { return engines_.at(engine)->running > 0; }

ExpandedSteps::~ExpandedSteps() = default;

Token ExpandedSteps::token_of(const Engine& engine, const Step& step, uint32_t piece) const {
  return (Token{1} << 63) | (Token{engine.number} << 48) | (Token{step.slot} << 24) | piece;
}

uint32_t ExpandedSteps::add_engine(StepGraph* graph, const Site& site) {
  auto engine = std::make_unique<Engine>();
  engine->number = static_cast<uint32_t>(engines_.size());
  engine->graph = graph;
  engine->site = site;
  engine->carried.resize(graph->carried());
  engines_.push_back(std::move(engine));
  return engines_.back()->number;
}

void ExpandedSteps::start(uint32_t number, std::span<const uint32_t> outcomes, Done done,
                          std::span<const double> carried_ns) {
  Engine* const engine = engines_.at(number).get();
  StepGraph& graph = *engine->graph;
  graph.apply_outcomes(outcomes);
  if (engine->free.empty()) {
    engine->free.push_back(static_cast<uint32_t>(engine->steps.size()));
    engine->steps.push_back(std::make_unique<Step>());
    engine->steps.back()->slot = engine->free.back();
  }
  Step* const step = engine->steps[engine->free.back()].get();
  engine->free.pop_back();
  const uint32_t pieces = graph.node_count();
  step->started = grid_->now_ns();
  step->missing.assign(pieces, 0);
  step->held_until.assign(pieces, step->started);
  step->waiters.assign(pieces, {});
  step->effects.assign(pieces, {});
  step->copies_left.assign(pieces, 0);
  step->pieces.clear();
  for (uint32_t i = 0; i < pieces; ++i) step->pieces.push_back(graph.piece(i));
  step->left = step->required_left = 0;
  step->timing = {.start_ns = step->started};
  ++engine->running;
  step->done = std::move(done);
  for (uint32_t i = 0; i < pieces; ++i) {
    const StepGraph::Piece& piece = step->pieces[i];
    if (piece.absent) continue;
    ++step->left;
    step->required_left += piece.required ? 1 : 0;
    for (const auto& causes : {piece.others, piece.transfers}) {
      const bool moves = causes.data() == piece.transfers.data();
      for (const uint32_t cause : causes) wait_for(engine, step, i, graph.resolve(cause), moves, carried_ns);
    }
  }
  note_carried(engine, step);
  // A piece without duration starts others at once, so collect the ready pieces before anything begins.
  std::vector<uint32_t> ready;
  for (uint32_t i = 0; i < pieces; ++i) {
    if (step->missing[i] == 0 && !step->pieces[i].absent) ready.push_back(i);
  }
  for (const uint32_t piece : ready) begin(engine, step, piece);
}

void ExpandedSteps::wait_for(Engine* engine, Step* step, uint32_t piece, uint32_t value, bool moves,
                             std::span<const double> carried_ns) {
  const uint32_t carried = engine->graph->carried();
  if (value == StepGraph::kNothing) return;
  if (value >= carried) {
    ++step->missing[piece];
    step->effects[value - carried].push_back(piece);
    return;
  }
  wait_for_carried(engine, step, piece, value);
  if (value >= carried_ns.size() || carried_ns[value] <= step->started) return;
  ++step->missing[piece];
  grid_->at(carried_ns[value], [this, engine, step, piece, moves] { release(engine, step, piece, moves); });
}

// Later steps wait for these pieces. A carried instant that this step does not set stays as it is.
void ExpandedSteps::note_carried(Engine* engine, Step* step) {
  const StepGraph& graph = *engine->graph;
  for (uint32_t carry = 0; carry < graph.carried(); ++carry) {
    const uint32_t feeder = graph.feeder(carry);
    if (feeder == StepGraph::kNothing) continue;
    const uint32_t value = graph.resolve(feeder);
    if (value != StepGraph::kNothing && value >= graph.carried()) {
      engine->carried[carry] = {step, value - graph.carried()};
    }
  }
}

void ExpandedSteps::wait_for_carried(Engine* engine, Step* step, uint32_t piece, uint32_t carry) {
  const Engine::Carried& from = engine->carried[carry];
  if (from.step == nullptr) return;
  ++step->missing[piece];
  from.step->waiters[from.piece].push_back({step, piece});
}

void ExpandedSteps::copy(const std::vector<RouteId>& routes, uint64_t bytes, Token token) {
  for (const RouteId route : routes) grid_->start_copy(route, bytes, token);
}

// A dependency of `piece` has ended.
void ExpandedSteps::release(Engine* engine, Step* step, uint32_t piece, bool moves) {
  if (!moves) step->held_until[piece] = grid_->now_ns();
  if (--step->missing[piece] == 0) begin(engine, step, piece);
}

void ExpandedSteps::begin(Engine* engine, Step* step, uint32_t number) {
  const StepGraph::Piece& piece = step->pieces[number];
  const double now = grid_->now_ns();
  if (piece.measured) step->timing.exposed_ns += now - step->held_until[number];
  const double ns = as_ns(piece.duration);
  const Token token = token_of(*engine, *step, number);
  if (ns <= 0) {
    ended(engine, step, number);
  } else if (is_transfer(piece.kind) && piece.bytes > 0) {
    // The overhead of a transfer is its duration less that of its bytes on a free path.
    const std::vector<RouteId>& routes = piece.kind == OpKind::kRecall ? engine->site.in : engine->site.out;
    const double overhead = ns - static_cast<double>(piece.bytes) / grid_->gb_per_s(routes.front());
    const uint64_t bytes = piece.bytes;
    step->copies_left[number] = static_cast<uint32_t>(routes.size());
    if (overhead <= 0) return copy(routes, bytes, token);
    grid_->at(now + overhead, [this, &routes, bytes, token] { copy(routes, bytes, token); });
  } else if (!is_transfer(piece.kind) && static_cast<uint32_t>(piece.stream) == 0) {
    grid_->start_kernel(engine->site.gpu, ns, token);
  } else {
    grid_->at(now + ns, [this, engine, step, number] { ended(engine, step, number); });
  }
}

void ExpandedSteps::ended(Engine* engine, Step* step, uint32_t number) {
  const double now = grid_->now_ns();
  const StepGraph::Piece piece = step->pieces[number];
  for (Engine::Carried& carried : engine->carried) {
    if (carried.step == step && carried.piece == number) carried = {};
  }
  for (const uint32_t effect : step->effects[number]) release(engine, step, effect, piece.moves);
  for (const Step::Waiter& waiter : step->waiters[number])
    release(engine, waiter.step, waiter.piece, piece.moves);
  step->waiters[number].clear();
  const bool last_required = piece.required && --step->required_left == 0;
  if (last_required) step->timing.end_ns = now;
  const Timing timing = step->timing;
  const Done done = last_required ? std::move(step->done) : Done{};
  if (--step->left == 0) {
    engine->free.push_back(step->slot);
    --engine->running;
  }
  if (done) done(timing);  // last: it may start the next step, which reuses this slot
}

}  // namespace kvtwin::sim
