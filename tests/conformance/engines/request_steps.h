// The steps of a whole run, by request: what a test repeats on an engine of which the request is alone.

#ifndef KVTWIN_TESTS_CONFORMANCE_ENGINES_REQUEST_STEPS_H_
#define KVTWIN_TESTS_CONFORMANCE_ENGINES_REQUEST_STEPS_H_

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "tests/conformance/engines/tested_engine.h"

namespace kvtwin::testing {

// By head: positions.
using Retained = std::map<uint32_t, std::vector<uint32_t>>;

// What a step did for one request.
struct EntryStep {
  PlanEntry entry;
  std::vector<PageAllocation> allocations;
  std::vector<FormatRun> formats;
  std::optional<ProbePass> pass;
  std::optional<Compression> compression;
  std::vector<Compression::Forced> forced;
  std::vector<uint32_t> keep;
  Retained retained;
  std::vector<float> logits;
};

struct RequestSteps {
  std::vector<EntryStep> steps;  // since it last started anew
  std::vector<uint32_t> tokens;
  bool returned = false;  // from the host

  // After a preemption by recompute the first chunk holds outputs too; the prompt ends with it.
  uint32_t prompt() const {
    auto out = static_cast<uint32_t>(tokens.size());
    for (const EntryStep& step : steps) {
      if (step.entry.samples) out = std::min(out, step.entry.context + step.entry.tokens);
    }
    return out;
  }
};

// Performs steps, and records them by request.
class StepsByRequest final : public OutcomeSource {
 public:
  StepsByRequest(const cpu::TokenIds* tokens, size_t vocab) : tokens_(*tokens), vocab_(vocab) {}
  void use(TestedEngine* engine) { engine_ = engine; }
  void retains(RequestId request, uint32_t head, std::span<const uint32_t> positions) {
    retained_[request][head].assign(positions.begin(), positions.end());
  }

  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override {
    retained_.clear();
    engine_->step(launch, offset, values);
    const std::vector<float> logits = engine_->logits();
    size_t sample = 0;
    for (uint32_t i = 0; i < launch.entries.size(); ++i) {
      EntryStep& step = record(launch, offset, i);
      if (!step.entry.samples) continue;
      const auto first = logits.begin() + static_cast<ptrdiff_t>(sample++ * vocab_);
      step.logits.assign(first, first + static_cast<ptrdiff_t>(vocab_));
    }
    CHECK(sample * vocab_ == logits.size());
  }
  void notify(const Command& command) override { engine_->notify(command); }

  std::map<RequestId, RequestSteps> requests;

 private:
  EntryStep& record(const LaunchStep& launch, uint32_t offset, uint32_t index) {
    PlanEntry entry = launch.entries[index];
    entry.context += offset, entry.first = entry.first && offset == 0;
    RequestSteps& of_request = requests[entry.request];
    if (entry.first && !entry.swapped_in) of_request = {};
    of_request.returned = of_request.returned || (entry.first && entry.swapped_in);
    entry.first = of_request.steps.empty(), entry.swapped_in = false;
    for (auto p = static_cast<uint32_t>(of_request.tokens.size()); p < entry.context + entry.stored(); ++p)
      of_request.tokens.push_back(tokens_.token(entry.request, p));
    EntryStep& step = of_request.steps.emplace_back();
    step.entry = entry;
    for (const PageAllocation& one : launch.allocations) {
      if (one.offset == offset && one.entry == index) step.allocations.push_back(one);
    }
    for (const FormatRun& run : launch.formats) {
      if (run.entry == index) step.formats.push_back({0, run.count, run.four});
    }
    for (const ProbePass& pass : launch.passes) {
      if (pass.entry == index) step.pass = pass;
    }
    for (const Compression& compression : launch.compressions) {
      if (compression.entry != index) continue;
      step.compression = compression;
      step.forced.assign(compression.forced.begin(), compression.forced.end());
      step.keep.assign(compression.keep.begin(), compression.keep.end());
      step.retained = retained_[entry.request];
    }
    return step;
  }

  const cpu::TokenIds& tokens_;
  const size_t vocab_;
  TestedEngine* engine_ = nullptr;
  std::map<RequestId, Retained> retained_;  // of the step
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_CONFORMANCE_ENGINES_REQUEST_STEPS_H_
