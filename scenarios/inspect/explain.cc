#include "scenarios/inspect/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "engine/base/check.h"

#ifdef KVTWIN_HAVE_SIMGRID
#include "engine/base/plural.h"
#include "models/cost/all_reduce.h"
#include "scenarios/app/compose_outcomes.h"
#include "scenarios/app/compose_retrieving.h"
#include "sim/clock/step_clock.h"
#endif

namespace kvtwin {

Result<AskedShape> parse_shape(const std::string& text) {
  AskedShape shape;
  const struct {
    const char* name;
    uint32_t* value;
  } fields[] = {{"decodes", &shape.decodes},
                {"context", &shape.context},
                {"chunks", &shape.chunks},
                {"chunk_tokens", &shape.chunk_tokens},
                {"chunk_context", &shape.chunk_context},
                {"compress", &shape.compress}};
  constexpr char kRight[] = "as in --shape=decodes=4,context=32768 or chunks=1,chunk_tokens=2048";
  size_t from = 0;
  while (from <= text.size()) {
    const size_t comma = std::min(text.find(',', from), text.size());
    const std::string part = text.substr(from, comma - from);
    const size_t equals = part.find('=');
    const auto field = std::find_if(std::begin(fields), std::end(fields), [&](const auto& one) {
      return equals != std::string::npos && part.substr(0, equals) == one.name;
    });
    if (field == std::end(fields))
      return make_error("--shape", fmt::format("\"{}\" is not a part of a shape", part), kRight);
    const char* const end = part.data() + part.size();
    const auto read = std::from_chars(part.data() + equals + 1, end, *field->value);
    if (read.ec != std::errc{} || read.ptr != end || *field->value > (1u << 24))
      return make_error("--shape", fmt::format("\"{}\" is not a number up to 16,777,216", part), kRight);
    from = comma + 1;
  }
  if (shape.decodes + shape.chunks == 0)
    return make_error("--shape", fmt::format("\"{}\" has no decodes and no chunks", text), kRight);
  if (shape.chunks > 0 && shape.chunk_tokens == 0)
    return make_error("--shape", fmt::format("{} chunks of 0 tokens", shape.chunks), kRight);
  if (shape.compress > 1 || (shape.compress == 1 && shape.chunks == 0))
    return make_error("--shape", fmt::format("compress is {} with {} chunks", shape.compress, shape.chunks),
                      "compress=1 needs chunks, whose requests are compressed");
  if (uint64_t{shape.decodes} + uint64_t{shape.chunks} > 4096)
    return make_error("--shape", fmt::format("{} requests in one step", shape.decodes + shape.chunks),
                      "at most 4,096");
  if (uint64_t{shape.chunks} * shape.chunk_tokens > (1u << 24))
    return make_error("--shape", fmt::format("{} chunks of {} tokens", shape.chunks, shape.chunk_tokens),
                      "at most 16,777,216 tokens in all");
  return shape;
}

#ifdef KVTWIN_HAVE_SIMGRID

namespace {

std::string contexts(uint32_t least, uint32_t most) {
  return least == most ? fmt::format("context {}", grouped(most))
                       : fmt::format("contexts {} to {}", grouped(least), grouped(most));
}

std::string describe(std::span<const PlanEntry> entries, uint32_t offset, size_t compressions) {
  uint32_t decodes = 0, least = UINT32_MAX, most = 0, chunks = 0, tokens = 0, passes = 0, probe_tokens = 0;
  for (const PlanEntry& entry : entries) {
    if (entry.kind == EntryKind::kDecode) {
      ++decodes;
      least = std::min(least, entry.context + offset), most = std::max(most, entry.context + offset);
    } else if (entry.kind == EntryKind::kChunk) {
      ++chunks, tokens += entry.tokens;
    } else {
      ++passes, probe_tokens += entry.tokens;
    }
  }
  std::string out;
  if (decodes > 0) out = fmt::format("{} {}, {}", decodes, plural(decodes, "decode"), contexts(least, most));
  if (chunks > 0) {
    out += fmt::format("{}{} {}, {} {}", out.empty() ? "" : "; ", chunks, plural(chunks, "chunk"),
                       grouped(tokens), plural(tokens, "token"));
  }
  if (passes > 0) {
    out += fmt::format("{}{} {} of {} probe {}", out.empty() ? "" : "; ", passes,
                       passes == 1 ? "pass" : "passes", grouped(probe_tokens), plural(probe_tokens, "token"));
  }
  if (compressions > 0) out += fmt::format("; {} compressed", compressions);
  return out;
}

// Captures one step as it is priced.
class StepCapture final : public sim::StepWatcher {
 public:
  StepCapture(uint32_t engine, uint64_t step, CostModel* cost) : engine_(engine), step_(step), cost_(*cost) {}

  void priced(const Seen& step) override {
    if (raw(step.engine) != engine_) return;
    last_ = raw(step.step);
    if (last_ != step_ || retained_) return;
    ExplainedStep retained;
    retained.step = step_, retained.engine = engine_;
    retained.begins_ns = static_cast<double>(step.base.ns) + static_cast<double>(step.begins) / kTicksPerNs;
    retained.of = describe(step.entries, step.offset, step.compressions);
    retained.graph = *step.pricer->graph();
    retained.begins = step.begins;
    retained.timing = step.alone;
    retained.carried.assign(step.pricer->carried().begin(), step.pricer->carried().end());
    retained.graph.times(&retained.times);
    retained.waits = waits_of(retained.graph, retained.begins, retained.timing, retained.carried);
    retained.prices = cost_.ops(step.pricer->reads());
    retained_ = std::move(retained);
  }

  bool done() const { return retained_.has_value(); }
  std::optional<uint64_t> last() const { return last_; }
  ExplainedStep take() { return std::move(*retained_); }

 private:
  const uint32_t engine_;
  const uint64_t step_;
  CostModel& cost_;
  std::optional<uint64_t> last_;
  std::optional<ExplainedStep> retained_;
};

// Sends no requests after the step was captured, so that the run ends soon.
class UntilSeen final : public Client {
 public:
  UntilSeen(Client* client, const StepCapture& step_capture) : client_(client), step_capture_(step_capture) {}

  Instant wake_at() const override { return step_capture_.done() ? kNever : client_->wake_at(); }
  void wake(Instant now, ClientEvents* events) override {
    if (!step_capture_.done()) client_->wake(now, events);
  }
  void tokens_emitted(Instant now, RequestId request, uint32_t tokens, ClientEvents* events) override {
    if (!step_capture_.done()) client_->tokens_emitted(now, request, tokens, events);
  }
  void request_finished(Instant now, RequestId request, uint32_t tokens, bool cancelled,
                        ClientEvents* events) override {
    if (!step_capture_.done()) client_->request_finished(now, request, tokens, cancelled, events);
  }
  void request_rejected(Instant now, RequestId request, ClientEvents* events) override {
    if (!step_capture_.done()) client_->request_rejected(now, request, events);
  }

 private:
  Client* const client_;
  const StepCapture& step_capture_;
};

ExplainedStep with_exchange(const Scenario& scenario, const Composed& composed, ExplainedStep step) {
  const uint32_t tp = scenario.values.engines().tensor_parallel();
  if (tp > 1) step.exchange = all_reduce_text(composed.device, tp);
  return step;
}

}  // namespace

Result<ExplainedStep> explain_step(const Scenario& scenario, Composed* composed, uint32_t engine,
                                   uint64_t step) {
  if (engine >= composed->options.engines.size())
    return make_error("--engine", fmt::format("there is no engine {}", engine),
                      fmt::format("the scenario has {}, from 0", composed->options.engines.size()));
  StepCapture step_capture(engine, step, composed->cost.get());
  UntilSeen client(composed->client.get(), step_capture);
  composed->watcher = &step_capture;
  const Result<SimulatedEnd> end = simulate(scenario, composed, &client, {});
  composed->watcher = nullptr;
  if (!end) return tl::unexpected<Error>(end.error());
  if (step_capture.done()) return with_exchange(scenario, *composed, step_capture.take());
  if (!step_capture.last())
    return make_error("--step", fmt::format("engine {} runs no step", engine), "another --engine");
  return make_error("--step", fmt::format("the run has no step {} of engine {}", step, engine),
                    fmt::format("its last is {}", *step_capture.last()));
}

Result<ExplainedStep> explain_shape(const Scenario& scenario, Composed* composed, const AskedShape& shape) {
  constexpr uint32_t kSteps = 3;
  if (shape.compress > 0 && !composed->compression)
    return make_error("--shape", "compress=1, but this scenario never compresses, or at no cost",
                      "policies with a scorer and a budget, and cost.compressions: \"roofline\"");
  std::vector<PlanEntry> entries;
  const auto add = [&](EntryKind kind, uint32_t count, uint32_t tokens, uint32_t context) {
    for (uint32_t i = 0; i < count; ++i) {
      PlanEntry entry;
      entry.request = RequestId{static_cast<uint32_t>(entries.size())};
      entry.kind = kind, entry.tokens = tokens, entry.context = context;
      entry.samples = kind == EntryKind::kDecode;
      entries.push_back(entry);
    }
  };
  const CoreConfig& config = composed->options.engines.front();
  const ProbePasses passes = probe_passes(config.policies);
  const uint32_t end = shape.chunk_context + shape.chunk_tokens;
  add(EntryKind::kDecode, shape.decodes, 1, shape.context);
  add(EntryKind::kChunk, shape.chunks, shape.chunk_tokens, shape.chunk_context);
  const uint32_t tokens = shape.decodes + shape.chunks * shape.chunk_tokens;
  const auto captured = std::lower_bound(config.capture_sizes.begin(), config.capture_sizes.end(), tokens);
  LaunchStep launch;
  launch.tokens_padded = captured == config.capture_sizes.end() ? tokens : *captured;
  std::vector<ProbePass> last_passes;
  auto compressed = static_cast<uint32_t>(entries.size()) - shape.chunks;
  if (shape.compress > 0 && passes.count(end) > 0) {  // other requests, whose last pass is in the step
    const ProbePass last = passes.at(end, passes.count(end) - 1);
    compressed = static_cast<uint32_t>(entries.size());
    add(EntryKind::kProbe, shape.chunks, passes.tokens(last), end);
    last_passes.assign(shape.chunks, last);
    for (uint32_t i = 0; i < shape.chunks; ++i) last_passes[i].entry = compressed + i;
  }
  for (const PlanEntry& entry : entries) launch.tokens += entry.tokens;
  launch.entries = entries;
  launch.passes = last_passes;
  std::vector<Compression> compressions;
  for (uint32_t entry = compressed; entry < entries.size() && shape.compress > 0; ++entry) {
    Compression one;
    one.entry = entry, one.end = end;
    compressions.push_back(one);
  }
  launch.compressions = compressions;

  StepCapture step_capture(0, kSteps - 1, composed->cost.get());
  composed->watcher = &step_capture;
  const RetrievalSetup retrieving = make_retrieving(scenario, *composed);
  composed->watcher = nullptr;
  const Result<std::unique_ptr<Outcomes>> outcomes = Outcomes::make(scenario, *composed, {});
  if (!outcomes) return tl::unexpected<Error>(outcomes.error());
  sim::SimConfig sources;
  sources.engines.resize(composed->options.engines.size());
  (*outcomes)->attach(&sources, nullptr);
  sim::StepClock clock(EngineId{}, composed->cost.get(), 1);
  clock.extend(sources.engines[0].source, retrieving.pricers[0].get(), 1, nullptr);
  clock.watch(&step_capture);
  for (uint32_t i = 0; i < kSteps; ++i) {
    launch.step = StepId{i};
    clock.launch(Instant{}, launch);
    clock.look_ahead(kNever);
    clock.take();
  }
  KVT_CHECK(step_capture.done());
  return with_exchange(scenario, *composed, step_capture.take());
}

#else

Result<ExplainedStep> explain_step(const Scenario&, Composed*, uint32_t, uint64_t) {
  KVT_CHECK(can_simulate());
  return ExplainedStep{};
}
Result<ExplainedStep> explain_shape(const Scenario&, Composed*, const AskedShape&) {
  KVT_CHECK(can_simulate());
  return ExplainedStep{};
}

#endif

}  // namespace kvtwin
