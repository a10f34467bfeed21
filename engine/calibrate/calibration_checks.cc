#include "engine/calibrate/calibration_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "engine/calibrate/chunk_load.h"
#include "engine/calibrate/chunk_runs.h"

namespace kvtwin::cuda {
namespace {

using Requests = std::vector<BenchRequest>;

Requests decodes(uint32_t count, uint32_t context) { return Requests(count, {1, context}); }

Requests with(Requests requests, const Requests& more) {
  requests.insert(requests.end(), more.begin(), more.end());
  return requests;
}

class Checks {
 public:
  Checks(StepBench* bench, CostModel* cost, const StepPace& pace, const std::vector<uint32_t>& rows)
      : bench_(*bench), cost_(*cost), pace_(pace), rows_(rows) {}

  void replays(const std::string& name, const Requests& requests);
  void behind_load(const std::string& name, const Requests& requests);
  void after_idle(const std::string& name, const Requests& requests);

  std::vector<HeldOutStep> take() { return std::move(out_); }

 private:
  // 0: too many rows, or more KV than there are pages for.
  uint32_t padded(const Requests& requests) const {
    if (!bench_.fits(requests)) return 0;
    uint32_t sum = 0;
    for (const BenchRequest& request : requests) sum += request.tokens;
    const auto found = std::lower_bound(rows_.begin(), rows_.end(), sum);
    return found == rows_.end() ? 0 : *found;
  }
  void add(const std::string& name, std::vector<double> us, const BenchShape& at) {
    const double predicted = static_cast<double>(cost_.step(at.shape).device) / kTicksPerNs / 1e3;
    out_.push_back({name, middle_of(std::move(us)).us, predicted});
  }

  StepBench& bench_;
  CostModel& cost_;
  const StepPace& pace_;
  const std::vector<uint32_t>& rows_;
  std::vector<HeldOutStep> out_;
};

// Decode steps that replay a graph.
void Checks::replays(const std::string& name, const Requests& requests) {
  const StepRounds rounds = pace_.decodes();
  const uint32_t rows = padded(requests);
  if (rows == 0) return;
  add(name, bench_.measure(requests, rows, rounds.warm, rounds.steps).wall,
      BenchShape(requests, rows, rounds.middle()));
}

// Steps with chunks after similar steps. Measures twice, because one series may coincide with an unusual
// state of the clock.
void Checks::behind_load(const std::string& name, const Requests& requests) {
  const uint32_t rows = padded(requests);
  if (rows == 0) return;
  const StepRounds rounds = pace_.chunks(rows);
  std::vector<double> us;
  for (int i = 0; i < 2; ++i) {
    rest(&bench_);
    const std::vector<double> found = bench_.measure(requests, rows, rounds.warm, rounds.steps).wall;
    us.insert(us.end(), found.begin(), found.end());
  }
  add(name, std::move(us), BenchShape(requests, rows, 0));
}

// Single steps with chunks, each between decodes, as when requests arrive now and then.
void Checks::after_idle(const std::string& name, const Requests& requests) {
  const uint32_t rows = padded(requests);
  if (rows == 0) return;
  std::vector<double> us;
  for (uint32_t i = 0; i < pace_.singles(); ++i) {
    rest(&bench_);
    us.push_back(bench_.measure(requests, rows, 0, 1).wall.front());
  }
  BenchShape at(requests, rows, 0);
  at.shape.chunk_load = at.shape.busy_ms = 0;
  add(name, std::move(us), at);
}

}  // namespace

std::vector<HeldOutStep> held_out_steps(StepBench* bench, CostModel* cost, const StepPace& pace,
                                        const std::vector<uint32_t>& rows) {
  Checks checks(bench, cost, pace, rows);
  Requests unequal;
  for (uint32_t i = 0; i < 24; ++i) unequal.push_back({1, 100 + i * i * 40});
  rest(bench);
  for (const auto& [count, context] : {std::pair(3u, 777u), std::pair(12u, 3000u), std::pair(40u, 1500u),
                                       std::pair(100u, 900u), std::pair(200u, 1200u)})
    checks.replays(fmt::format("{} decodes of {}", count, context), decodes(count, context));
  checks.replays("24 decodes of 100 to 21260", unequal);
  checks.replays("15 decodes of 200 and one of 30000", with(decodes(15, 200), {{1, 30000}}));
  checks.behind_load("a chunk of 310 behind 700", {{310, 700}});
  checks.behind_load("a chunk of 1500 behind 5000", {{1500, 5000}});
  checks.behind_load("chunks of 700, 900, 448", {{700, 0}, {900, 3000}, {448, 100}});
  checks.behind_load("eight chunks of 256 behind 1000", Requests(8, {256, 1000}));
  checks.behind_load("32 decodes of 2000 and a chunk of 1000", with(decodes(32, 2000), {{1000, 2000}}));
  checks.behind_load("100 decodes of 1000 and chunks of 600, 900",
                     with(decodes(100, 1000), {{600, 0}, {900, 5000, false}}));
  for (const uint32_t tokens : {330u, 570u, 700u, 810u, 930u, 1400u})
    checks.after_idle(fmt::format("a chunk of {} behind 300 between decodes", tokens), {{tokens, 300}});
  for (const uint32_t tokens : {40u, 100u, 210u})
    checks.after_idle(fmt::format("a chunk of {} and 20 decodes of 500, between decodes", tokens),
                      with(decodes(20, 500), {{tokens, 0}}));
  checks.after_idle("chunks of 50, 30, 90 and 12 decodes of 500, between decodes",
                    with(decodes(12, 500), {{50, 0}, {30, 200}, {90, 0}}));
  checks.after_idle("chunks of 130, 200, 90 and 30 decodes of 400, between decodes",
                    with(decodes(30, 400), {{130, 0}, {200, 0}, {90, 0}}));
  return checks.take();
}

}  // namespace kvtwin::cuda
