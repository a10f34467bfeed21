#include "engine/calibrate/calibrate_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <tuple>
#include <utility>

#include "engine/base/check.h"
#include "engine/calibrate/calibrate_formats.h"
#include "engine/calibrate/calibration.h"
#include "engine/calibrate/calibration_checks.h"
#include "engine/calibrate/calibration_memory.h"
#include "engine/calibrate/chunk_load.h"
#include "engine/cuda/device/device_facts.h"
#include "models/cost/graph_shapes.h"
#include "models/cost_tables/measured_cost.h"
#include "models/weights/weights.h"

namespace kvtwin::cuda {

Result<std::unique_ptr<StepBench>> Calibration::bench(bool timed) {
  StepBenchConfig config;
  config.page_tokens = request_.page_tokens;
  const Result<uint32_t> pages = timed ? next_engine_pages(request_.llm, request_.page_tokens,
                                                           request_.llm.kv_bytes_per_token(), kTokensSmall)
                                       : first_engine_pages(request_.llm, request_.page_tokens);
  if (!pages) return tl::unexpected<Error>(pages.error());
  config.pages_gpu = *pages;
  config.pages_host = timed ? 0 : pages_of_copies(request_.llm, request_.page_tokens);
  config.rows_max = rows_.back(), config.samples_max = kDecodeRowsMax;
  config.row_sizes = rows_;
  config.timed = timed;
  return StepBench::make(config, request_.llm, model_.get());
}

Result<void> Calibration::make() {
  if (Result<void> ok = check_gpu(); !ok) return ok;
  const DeviceFacts facts = device_facts();
  out_.gpu = facts.gpu, out_.driver = facts.driver, out_.cuda = facts.cuda, out_.sm_count = facts.sm_count;
  out_.build = request_.build, out_.date = request_.date;
  out_.model = request_.llm.name, out_.page_tokens = request_.page_tokens;
  out_.sm_mhz_min = UINT32_MAX;
  figure("memory of contexts", "MiB",
         {static_cast<double>(facts.memory_total - facts.memory_free) / 1048576});
  say(fmt::format("{}, driver {}: weights of {}", facts.gpu, facts.driver, request_.llm.name));
  Result<std::unique_ptr<DeviceModel>> model =
      DeviceModel::make(ModelWeights::random_outline(request_.llm, request_.seed));
  if (!model) return tl::unexpected<Error>(model.error());
  model_ = std::move(*model);
  for (auto [to, timed] : {std::pair(&plain_, false), std::pair(&timed_, true)}) {
    const uint64_t before = device_facts().memory_free;
    Result<std::unique_ptr<StepBench>> made = bench(timed);
    if (!made) return tl::unexpected<Error>(made.error());
    *to = std::move(*made);
    if (timed) continue;
    const double pages = static_cast<double>(request_.llm.kv_bytes_per_token() *
                                             (plain_->entries_max() + request_.page_tokens));
    figure(fmt::format("memory of an engine of {} rows beside its pages", rows_.back()), "MiB",
           {(static_cast<double>(before - device_facts().memory_free) - pages) / 1048576});
  }
  chunk_runs_ = std::make_unique<ChunkRuns>(plain_.get());
  return {};
}

void Calibration::figure(const std::string& name, const char* unit, const std::vector<double>& values) {
  if (values.empty()) return;
  const Measured m = measured_of(values);
  out_.figures.push_back({name, unit, m.us, m.p10, m.p90});
}

// Lets the clock recover from chunks.
void Calibration::wait_idle() { rest(plain_.get()); }

// The operations of a step that was timed with events. `attention`: includes the operations that depend on
// contexts.
TimedStep Calibration::parts_of(const StepTimes& timed, const BenchShape& at, bool attention) const {
  const bool chunk = !at.chunks.empty();
  const uint32_t padded = at.shape.tokens_padded, samples = at.shape.logits_rows;
  const uint32_t rows = chunk ? at.chunks[0].tokens : at.shape.decodes;
  const uint32_t context = chunk ? at.chunks[0].context : static_cast<uint32_t>(at.shape.decode_context_sum);
  const struct {
    Operation operation;
    const std::string& shape;
    uint32_t rows, context;
    bool retained;
  } wanted[] = {{Operation::kEmbed, shapes_.hidden, padded, 0, true},
                {Operation::kNorm, shapes_.hidden, padded, 0, true},
                {Operation::kQkv, shapes_.qkv, padded, 0, true},
                {Operation::kAppend, shapes_.heads, padded, 0, true},
                {Operation::kAttentionOut, shapes_.attention_out, padded, 0, true},
                {Operation::kGateUp, shapes_.gate_up, padded, 0, true},
                {Operation::kActivation, shapes_.intermediate, padded, 0, true},
                {Operation::kDown, shapes_.down, padded, 0, true},
                {Operation::kLogits, shapes_.logits, samples, 0, true},
                {Operation::kSample, shapes_.vocab, samples, 0, true},
                {Operation::kDecodeAttention, shapes_.heads, rows, context, attention},
                {Operation::kChunkAttention, shapes_.heads, rows, context, attention}};
  TimedStep found;
  for (const auto& one : wanted) {
    const auto kind = static_cast<size_t>(one.operation);
    if (timed.count[kind] == 0) continue;
    found.parts.push_back(
        {name_of(one.operation), one.shape, one.rows, one.context, measured_of(timed.operation[kind]),
         timed.count[kind], one.retained,
         one.operation == Operation::kDecodeAttention || one.operation == Operation::kChunkAttention});
    found.events += timed.count[kind];
  }
  found.chunk = chunk, found.rows = rows;
  return found;
}

// Decodes that were not timed by operation: attention is the difference to a step with a shorter context.
// `beside` was measured next to it.
TimedStep Calibration::attention_of(const BenchShape& at, const Measured& wall,
                                    const Measured& beside) const {
  const auto context = static_cast<uint32_t>(at.shape.decode_context_sum);
  return {.parts = {{name_of(Operation::kDecodeAttention),
                     shapes_.heads,
                     at.shape.decodes,
                     context,
                     {},
                     0,
                     true,
                     true}},
          .wall = wall,
          .beside = beside,
          .rows = at.shape.decodes};
}

void Calibration::note_clocks() {
  const Clocks clocks = device_clocks();
  out_.sm_mhz_min = std::min(out_.sm_mhz_min, clocks.sm), out_.memory_mhz = clocks.memory;
  out_.sm_mhz_max = std::max(out_.sm_mhz_max, clocks.sm);
}

// Every captured number of rows with short contexts.
void Calibration::short_decodes() {
  const StepRounds rounds = pace_.decodes();
  plain_->series(std::vector<BenchRequest>(kRestRequests, BenchRequest{1, 512, true}), kRestRequests,
                 kSettledUs);
  for (const uint32_t count : rows_) {
    if (count > kDecodeRowsMax) continue;
    const std::vector<BenchRequest> requests(count, BenchRequest{1, kShortContext, true});
    const StepTimes plain = plain_->measure(requests, count, rounds.warm, rounds.steps);
    const StepTimes timed = timed_->measure(requests, count, rounds.warm, rounds.steps / 2);
    const BenchShape at(requests, count, rounds.middle());
    // Tables over contexts have powers of two of requests only; other rows would leave gaps in the table.
    TimedStep step = parts_of(timed, at, std::has_single_bit(count));
    step.wall = measured_of(plain.wall);
    tables_.add(std::move(step));
    if (std::has_single_bit(count))
      figure(fmt::format("host starts a step of {} decodes", count), "us", timed.issued);
    note_clocks();
  }
  say("decodes of short contexts are measured");
}

void Calibration::long_decodes() {
  const StepRounds rounds = pace_.decodes();
  for (const uint32_t count : {1u, 2u, 4u, 8u, 16u, 32u, 64u, 128u, 256u}) {
    const std::vector<BenchRequest> short_ones(count, BenchRequest{1, kShortContext, true});
    const Measured beside = measured_of(plain_->measure(short_ones, count, rounds.warm, rounds.steps).wall);
    for (const uint32_t context : {512u, 2048u, 8192u, 32768u}) {
      if (request_.quick && (count % 64 != 0 || context > 2048)) continue;
      const std::vector<BenchRequest> requests(count, BenchRequest{1, context, true});
      if (!plain_->fits(requests)) continue;
      const StepTimes plain = plain_->measure(requests, count, rounds.warm, rounds.steps);
      tables_.add(
          attention_of(BenchShape(requests, count, rounds.middle()), measured_of(plain.wall), beside));
    }
  }
  say("decodes are measured");
}

std::vector<uint32_t> Calibration::chunk_tokens() const {
  std::vector<uint32_t> out{16, 64, 128, 256};
  std::copy_if(rows_.begin(), rows_.end(), std::back_inserter(out),
               [](uint32_t rows) { return rows > kDecodeRowsMax; });
  return out;
}

// Measures all chunks once more, and a period of chunks without pauses.
void Calibration::pass_over_chunks() {
  chunk_runs_->pass(chunk_tokens());
  busy_period(kBusyAgainUs);
  say("chunks were passed over");
}

TimedStep Calibration::timed_chunk(uint32_t tokens, uint32_t context) {
  const BenchRequest chunk{tokens, context, true};
  const StepRounds rounds = pace_.chunks(tokens);
  wait_idle();
  const StepTimes timed = timed_->measure({&chunk, 1}, tokens, rounds.warm, std::max(2u, rounds.steps / 2));
  note_clocks();
  return parts_of(timed, BenchShape({&chunk, 1}, tokens, 0), std::has_single_bit(tokens));
}

// Stores the operations of chunks, and the durations of their steps over all passes. Attention behind
// contexts is timed by itself: the clock changes whole steps by more than attention takes.
void Calibration::chunks() {
  for (const uint32_t tokens : chunk_tokens()) {
    TimedStep step = timed_chunk(tokens, 0);
    step.wall = chunk_runs_->taken(tokens);
    tables_.add(std::move(step));
    if (!std::has_single_bit(tokens)) continue;
    for (const uint32_t context : {1024u, 4096u, 12288u, 32768u}) {
      const BenchRequest chunk{tokens, context, true};
      if (request_.quick && context > 2048) continue;
      if (timed_->fits({&chunk, 1})) tables_.add(timed_chunk(tokens, context));
    }
  }
  say("chunks are measured");
}

Result<void> Calibration::launches() {
  const Result<LaunchTimes> times = launch_times();
  if (!times) return tl::unexpected<Error>(times.error());
  figure("host starts a kernel", "us", times->host);
  figure("small kernel after another", "us", times->device);
  figure("small kernel and an event after another", "us", times->evented);
  figure("small kernel after another in a graph", "us", times->graphed);
  figure("host starts a graph of 100", "us", times->graph);
  figure("four bytes to the host", "us", times->sync);
  return {};
}

// Decode steps that are launched operation by operation, as in engines with methods.
Result<void> Calibration::launched() {
  StepBenchConfig config;
  config.page_tokens = request_.page_tokens;
  const Result<uint32_t> pages =
      next_engine_pages(request_.llm, request_.page_tokens, request_.llm.kv_bytes_per_token(), kTokensSmall);
  if (!pages) return tl::unexpected<Error>(pages.error());
  config.pages_gpu = *pages;
  config.rows_max = config.samples_max = kDecodeRowsMax;
  config.row_sizes = {1, 2, 4, 8, 16, 32, 64, 128, 256};
  config.graphs = false;
  const Result<std::unique_ptr<StepBench>> bench = StepBench::make(config, request_.llm, model_.get());
  if (!bench) return tl::unexpected<Error>(bench.error());
  const StepRounds rounds = pace_.decodes();
  for (const uint32_t count : config.row_sizes) {
    const std::vector<BenchRequest> requests(count, BenchRequest{1, kShortContext, true});
    const Measured graph = measured_of(plain_->measure(requests, count, rounds.warm, rounds.steps).wall);
    const Measured one_by_one =
        measured_of((*bench)->measure(requests, count, rounds.warm, rounds.steps).wall);
    tables_.set_launching(count, std::max(0.0, one_by_one.us - graph.us));
  }
  say("decodes without graphs are measured");
  return {};
}

Result<MeasuredDevice> Calibration::run() {
  if (Result<void> ok = make(); !ok) return tl::unexpected<Error>(ok.error());
  if (Result<void> ok = launches(); !ok) return tl::unexpected<Error>(ok.error());
  // The first steps after a long idle time are not measured: the clock is unsettled.
  const BenchRequest warm{std::min(1024u, rows_.back()), 0, true};
  plain_->measure({&warm, 1}, warm.tokens, 20, 1);
  const int passes = request_.quick ? 1 : kChunkPasses;
  pass_over_chunks();
  short_decodes();
  long_decodes();
  if (Result<void> ok = launched(); !ok) return tl::unexpected<Error>(ok.error());
  for (int pass = 2; pass < passes; ++pass) pass_over_chunks();
  after_chunks();
  busy_period(kBusyUs);
  pauses();
  copies(plain_.get(), request_.page_tokens);
  both_ways();
  copies_during_steps(plain_.get(), request_.page_tokens);
  if (Result<void> ok = copies_of_larger_pages(); !ok) return tl::unexpected<Error>(ok.error());
  during_copies();
  if (passes > 1) pass_over_chunks();
  chunks();
  after_load();
  busy_curves();
  const CalibrationTables::Found found = tables_.take_steps();
  figure("an event adds to an operation", "us", {found.event_us});
  figure("step besides its operations", "% of it", found.host_percent);
  out_.tables = tables_.tables();
  if (Result<void> ok = during_chunks(); !ok) return tl::unexpected<Error>(ok.error());
  auto cost = MeasuredCost::make(out_, request_.llm, {}, "what was just measured");
  if (!cost) return tl::unexpected<Error>(cost.error());
  out_.held_out = held_out_steps(plain_.get(), cost->get(), pace_, rows_);
  timed_.reset();  // frees its pages
  if (Result<void> ok = calibrate_formats(request_, model_.get(), plain_.get(), &out_); !ok)
    return tl::unexpected<Error>(ok.error());
  return std::move(out_);
}

std::vector<uint32_t> calibrated_rows(bool quick) {
  if (quick) return {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048};
  std::vector<uint32_t> out = {1, 2, 4};
  for (uint32_t rows = 8; rows <= kDecodeRowsMax; rows += 8) out.push_back(rows);
  for (uint32_t rows = kDecodeRowsMax + 64; rows <= 2048; rows += 64) out.push_back(rows);
  out.push_back(4096);
  return out;
}

Result<MeasuredDevice> calibrate_device(const CalibrationRequest& request) {
  return Calibration(request).run();
}

}  // namespace kvtwin::cuda
