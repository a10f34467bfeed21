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
  bool reused = false;    // it began with a prefix checkpoint, whose steps are the first ones

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
  StepsByRequest(const cpu::TokenIds* tokens, size_t vocab, size_t page_tokens)
      : tokens_(*tokens), vocab_(vocab), page_tokens_(page_tokens) {}
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
    for (const PrefixCheckpoint& one : launch.prefix_checkpoints)
      prefix_checkpoints_[one.prefix_checkpoint] = requests.at(launch.entries[one.entry].request);
  }
  void notify(const Command& command) override {
    const auto* transfer = std::get_if<StartTransfer>(&command);
    if (transfer != nullptr) ++transfers[transfer->kind];
    engine_->notify(command);
  }

  std::map<RequestId, RequestSteps> requests;
  std::map<TransferKind, uint64_t> transfers;

 private:
  // What a request has that begins with the prefix checkpoint.
  RequestSteps after(uint32_t prefix_checkpoint, RequestId request) const {
    RequestSteps out = prefix_checkpoints_.at(prefix_checkpoint);
    out.returned = false, out.reused = true;
    for (EntryStep& step : out.steps) step.entry.request = request, step.entry.samples = false;
    return out;
  }
  // Pages that the entry allocates for copies of a prefix checkpoint's, by group. Alone, a request writes on.
  static std::map<uint32_t, uint32_t> copies_of(const PrefixHit& hit, size_t page_tokens) {
    std::map<uint32_t, uint32_t> out;
    for (uint32_t g = 0; g < hit.kv_entries.size(); ++g)
      out[g] = static_cast<uint32_t>(div_ceil<size_t>(hit.kv_entries[g], page_tokens)) - hit.shared[g];
    return out;
  }
  EntryStep& record(const LaunchStep& launch, uint32_t offset, uint32_t index) {
    PlanEntry entry = launch.entries[index];
    entry.context += offset, entry.first = entry.first && offset == 0;
    RequestSteps& of_request = requests[entry.request];
    if (entry.first && !entry.swapped_in) of_request = {};
    std::map<uint32_t, uint32_t> copies;
    for (const PrefixHit& hit : launch.prefix_hits) {
      if (hit.request != entry.request || offset > 0 || entry.swapped_in || hit.kv_entries.empty()) continue;
      if (entry.first) of_request = after(hit.prefix_checkpoint, entry.request);
      copies = copies_of(hit, page_tokens_);
    }
    of_request.returned = of_request.returned || (entry.first && entry.swapped_in);
    entry.first = of_request.steps.empty(), entry.swapped_in = false;
    for (auto p = static_cast<uint32_t>(of_request.tokens.size()); p < entry.context + entry.stored(); ++p)
      of_request.tokens.push_back(tokens_.token(entry.request, p));
    EntryStep& step = of_request.steps.emplace_back();
    step.entry = entry;
    for (const PageAllocation& one : launch.allocations) {
      if (one.offset != offset || one.entry != index) continue;
      if (copies[one.group] > 0) {
        --copies[one.group];
      } else {
        step.allocations.push_back(one);
      }
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
  const size_t vocab_, page_tokens_;
  TestedEngine* engine_ = nullptr;
  std::map<uint32_t, RequestSteps> prefix_checkpoints_;  // by number
  std::map<RequestId, Retained> retained_;               // of the step
};

// Runs the client's requests on an engine of this configuration, at drawn times; `source` performs its steps.
// `copies`: the engine whose copies between tiers take time; null: they take none.
inline void run_requests(const CoreConfig& config, uint64_t seed, cpu::IdentityTokens* tokens,
                         ScriptClient* client, OutcomeSource* source, TestedEngine* copies) {
  cpu::CpuBackendOptions backend_options{.steps_in_flight_max = {config.steps_in_flight_max}};
  if (copies != nullptr)
    backend_options.copy_time = [copies](EngineId, TransferId transfer) {
      return copies->copy_time(transfer);
    };
  cpu::CpuBackend backend(backend_options, source, drawn_times(seed));
  RunOptions options;
  options.check_invariants = true;
  options.engines = {config};
  const RunEnd end = run(options, tokens->watch(client), &backend, {});
  CHECK(end.idle);
  CHECK(client->content());
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_CONFORMANCE_ENGINES_REQUEST_STEPS_H_
