#include "engine/cuda/calibrate_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/calibrate_formats.h"
#include "engine/cuda/calibration_tables.h"
#include "engine/cuda/chunk_load.h"
#include "engine/cuda/device_facts.h"
#include "engine/cuda/step_bench.h"
#include "models/measured_cost.h"
#include "models/weights.h"

namespace kvtwin::cuda {
namespace {

class Calibration {
 public:
  explicit Calibration(const CalibrationRequest& request)
      : request_(request),
        shapes_(request.llm),
        rows_(calibrated_rows(request.quick)),
        tables_(shapes_.model, request.llm.layers) {}

  Result<MeasuredDevice> run();

 private:
  Result<void> make();
  Result<std::unique_ptr<StepBench>> bench(bool timed);
  void point(std::span<const BenchCall> calls, uint32_t padded, bool attention);
  void decodes();
  void chunks();
  Result<void> launches();
  void copies();
  void both_ways();
  void copies_beside_steps();
  void beside_copies();
  void after_load();
  void small_after_load();
  void by_stretch();
  void pauses();
  void quiet();
  Result<void> launched();
  Result<void> beside_chunks();
  Result<void> held_out();
  void figure(const std::string& name, const char* unit, const std::vector<double>& values);
  void say(const std::string& text) const {
    if (request_.progress) request_.progress(text);
  }

  const CalibrationRequest& request_;
  const MeasuredShapes shapes_;
  const std::vector<uint32_t> rows_;
  std::unique_ptr<DeviceModel> model_;
  std::unique_ptr<StepBench> plain_, timed_;
  CalibrationTables tables_;
  MeasuredDevice out_;
};

Result<std::unique_ptr<StepBench>> Calibration::bench(bool timed) {
  StepBenchConfig config;
  config.page_tokens = request_.page_tokens;
  config.pages_gpu = kPagesGpu * 16 / request_.page_tokens;
  config.pages_host = timed ? 0 : kPagesHost;
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
  if (!model) return tl::unexpected<Mistake>(model.error());
  model_ = std::move(*model);
  for (auto [to, timed] : {std::pair(&plain_, false), std::pair(&timed_, true)}) {
    const uint64_t before = device_facts().memory_free;
    Result<std::unique_ptr<StepBench>> made = bench(timed);
    if (!made) return tl::unexpected<Mistake>(made.error());
    *to = std::move(*made);
    if (timed) continue;
    const double pages = static_cast<double>(request_.llm.kv_bytes_per_token() * kPagesGpu * 16);
    figure(fmt::format("memory of an engine of {} rows beside its pages", rows_.back()), "MiB",
           {(static_cast<double>(before - device_facts().memory_free) - pages) / 1048576});
  }
  return {};
}

void Calibration::figure(const std::string& name, const char* unit, const std::vector<double>& values) {
  if (values.empty()) return;
  const Measured m = measured_of(values);
  out_.figures.push_back({name, unit, m.us, m.p10, m.p90});
}

// The clock recovers from chunks.
void Calibration::quiet() { rest(plain_.get()); }

// Steps as they are, then with events between operations. `attention`: what depends on contexts is kept too.
void Calibration::point(std::span<const BenchCall> calls, uint32_t padded, bool attention) {
  const BenchShape guess(calls, padded, 0);
  const bool slow = guess.shape.tokens > 1024 || guess.shape.decode_context_sum > 100'000;
  const bool chunk = !guess.chunks.empty();
  const uint32_t steps = chunk ? chunk_steps(guess.shape.tokens) : slow ? 7 : 12;
  const uint32_t warm = chunk ? warm_steps(guess.shape.tokens) : 3;
  if (chunk) quiet();
  const StepTimes plain = plain_->measure(calls, padded, warm, steps);
  if (chunk) quiet();
  const StepTimes timed = timed_->measure(calls, padded, warm, steps / 2);
  const BenchShape at(calls, padded, warm + steps / 2);
  KVT_CHECK(!chunk || calls.size() == 1);
  const uint32_t padded_rows = at.shape.tokens_padded, samples = at.shape.logits_rows;
  const uint32_t rows = chunk ? at.chunks[0].tokens : at.shape.decodes;
  const uint32_t context = chunk ? at.chunks[0].context : static_cast<uint32_t>(at.shape.decode_context_sum);
  const struct {
    Operation operation;
    const std::string& shape;
    uint32_t rows, context;
    bool kept;
  } wanted[] = {{Operation::kEmbed, shapes_.hidden, padded_rows, 0, true},
                {Operation::kNorm, shapes_.hidden, padded_rows, 0, true},
                {Operation::kQkv, shapes_.qkv, padded_rows, 0, true},
                {Operation::kAppend, shapes_.heads, padded_rows, 0, true},
                {Operation::kAttentionOut, shapes_.attention_out, padded_rows, 0, true},
                {Operation::kGateUp, shapes_.gate_up, padded_rows, 0, true},
                {Operation::kActivation, shapes_.intermediate, padded_rows, 0, true},
                {Operation::kDown, shapes_.down, padded_rows, 0, true},
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
         timed.count[kind], one.kept,
         one.operation == Operation::kDecodeAttention || one.operation == Operation::kChunkAttention});
    found.events += timed.count[kind];
  }
  found.wall = measured_of(plain.wall);
  found.chunk = chunk, found.rows = rows;
  tables_.add(std::move(found));
  if (!chunk && attention && calls.front().context == kShortContext)
    figure(fmt::format("host starts a step of {} decodes", rows), "us", timed.issued);
  const Clocks clocks = device_clocks();
  out_.sm_mhz_min = std::min(out_.sm_mhz_min, clocks.sm), out_.memory_mhz = clocks.memory;
  out_.sm_mhz_max = std::max(out_.sm_mhz_max, clocks.sm);
}

// Every captured number of rows with short contexts, then contexts.
void Calibration::decodes() {
  const auto batch = [&](uint32_t count, uint32_t context) {
    const std::vector<BenchCall> calls(count, BenchCall{1, context, true});
    // Tables over contexts have a power of two of calls: in other rows they would have a hole.
    point(calls, count, std::has_single_bit(count));
  };
  for (const uint32_t count : rows_) {
    if (count <= kDecodeRowsMax) batch(count, kShortContext);
  }
  say("decodes of short contexts are measured");
  for (const uint32_t count : {1u, 2u, 4u, 8u, 16u, 32u, 64u, 128u, 256u}) {
    for (const uint32_t context : {512u, 1024u, 2048u, 4096u, 8192u, 16384u, 32768u}) {
      if (request_.quick && (count % 64 != 0 || context > 2048)) continue;
      if (uint64_t{count} * (context + 96) < plain_->cells_max()) batch(count, context);
    }
  }
  say("decodes are measured");
}

void Calibration::chunks() {
  const auto one = [&](uint32_t tokens, uint32_t context) {
    const BenchCall call{tokens, context, true};
    point({&call, 1}, tokens, std::has_single_bit(tokens));
  };
  for (const uint32_t count : rows_) {
    if (count > kDecodeRowsMax) one(count, 0);
  }
  say("chunks without context are measured");
  for (const uint32_t tokens : {16u, 64u, 128u, 256u, 512u, 1024u, 2048u, 4096u}) {
    if (tokens > rows_.back()) continue;
    for (const uint32_t context : {0u, 1024u, 4096u, 12288u, 32768u}) {
      if (context > (request_.quick ? 2048u : tokens > 2048 ? 8192u : 32768u)) continue;
      if (context > 0 || tokens <= kDecodeRowsMax) one(tokens, context);  // else it was measured above
    }
  }
  say("chunks are measured");
}

Result<void> Calibration::launches() {
  const Result<LaunchTimes> times = launch_times();
  if (!times) return tl::unexpected<Mistake>(times.error());
  figure("host starts a kernel", "us", times->host);
  figure("small kernel after another", "us", times->device);
  figure("small kernel and an event after another", "us", times->evented);
  figure("small kernel after another in a graph", "us", times->graphed);
  figure("host starts a graph of 100", "us", times->graph);
  figure("four bytes to the host", "us", times->sync);
  return {};
}

// Decode steps that are started operation by operation, as engines with methods do.
Result<void> Calibration::launched() {
  StepBenchConfig config;
  config.page_tokens = request_.page_tokens;
  config.pages_gpu = 4096 * 16 / request_.page_tokens;
  config.rows_max = config.samples_max = kDecodeRowsMax;
  config.row_sizes = {1, 2, 4, 8, 16, 32, 64, 128, 256};
  config.graphs = false;
  const Result<std::unique_ptr<StepBench>> bench = StepBench::make(config, request_.llm, model_.get());
  if (!bench) return tl::unexpected<Mistake>(bench.error());
  for (const uint32_t count : config.row_sizes) {
    const std::vector<BenchCall> calls(count, BenchCall{1, kShortContext, true});
    const Measured graph = measured_of(plain_->measure(calls, count, 4, 14).wall);
    const Measured one_by_one = measured_of((*bench)->measure(calls, count, 4, 14).wall);
    tables_.set_launching(count, std::max(0.0, one_by_one.us - graph.us));
  }
  say("decodes without graphs are measured");
  return {};
}

// A chunk behind quiet time, and every further one behind those before it: what each took, by how much of the
// window before it was spent on chunks.
void Calibration::after_load() {
  for (const uint32_t tokens : {256u, 512u, 1024u, 2048u}) {
    if (tokens > rows_.back()) continue;
    const BenchCall chunk{tokens, 0, true};
    std::map<uint32_t, std::vector<double>> by_load;
    for (int repeat = 0; repeat < 4; ++repeat) {
      quiet();
      double spent = 0;
      for (const double us : plain_->series({&chunk, 1}, tokens, 5 * kLoadWindowUs)) {
        const double load = std::min(1.0, spent / kLoadWindowUs);
        by_load[static_cast<uint32_t>(std::lround(load * kLoadSteps)) * 1000 / kLoadSteps].push_back(us);
        spent += us;
      }
    }
    for (const auto& [load, values] : by_load)
      tables_.keep("chunk after load", shapes_.model, tokens, load, measured_of(values));
  }
  small_after_load();
  figure("chunk load looks back", "ms", {kLoadWindowUs / 1e3});
  say("chunks behind quiet time are measured");
}

// Chunks too short to be a load themselves wait for memory, as decodes do: what long chunks before them
// change.
void Calibration::small_after_load() {
  const BenchCall load{std::min(1024u, rows_.back()), 0, true};
  for (const uint32_t tokens : {64u, 128u}) {
    const BenchCall chunk{tokens, 0, true};
    std::vector<double> quietly, behind;
    for (int repeat = 0; repeat < 4; ++repeat) {
      quiet();
      quietly.push_back(plain_->series({&chunk, 1}, tokens, 1).front());
      plain_->series({&load, 1}, load.tokens, 2 * kLoadWindowUs);
      behind.push_back(plain_->series({&chunk, 1}, tokens, 1).front());
    }
    tables_.keep("chunk after load", shapes_.model, tokens, 0, measured_of(quietly));
    tables_.keep("chunk after load", shapes_.model, tokens, 1000, measured_of(behind));
  }
}

// Chunks without a pause, for longer: what one takes by how long that has gone on.
void Calibration::by_stretch() {
  const uint32_t tokens = std::min(1024u, rows_.back());
  const BenchCall chunk{tokens, 0, true};
  std::map<uint32_t, std::vector<double>> by_ms;
  for (const double length : {kStretchUs, kStretchAgainUs}) {
    quiet();
    quiet();
    double spent = 0;
    for (const double us : plain_->series({&chunk, 1}, tokens, length)) {
      const double bin = spent < kLateStretchUs ? kStretchBinUs : kLateStretchBinUs;
      if (spent >= kStretchBinUs)  // before, it is the window's
        by_ms[static_cast<uint32_t>((std::floor(spent / bin) + 0.5) * bin / 1e3)].push_back(us);
      spent += us;
    }
  }
  for (const auto& [ms, values] : by_ms)
    tables_.keep("chunk by stretch", shapes_.model, tokens, ms, measured_of(values));
  figure("chunk tables hold from", "ms", {kLoadWindowUs / 1e3});
  figure("chunk tables hold to", "ms", {(kLoadWindowUs + kShortStretchUs) / 1e3});
  say("chunks behind many others are measured");
}

// How long a pause must be for a chunk to be as fast as behind quiet time: until half of what load adds is
// gone.
void Calibration::pauses() {
  const uint32_t tokens = std::min(1024u, rows_.back());
  const BenchCall chunk{tokens, 0, true};
  const std::vector<BenchCall> calls(32, BenchCall{1, 512, true});
  quiet();
  const double cold = plain_->series({&chunk, 1}, tokens, 1).front();
  double forgotten = 0;
  for (const double pause_ms : {60.0, 45.0, 30.0, 20.0, 10.0, 5.0}) {
    const double hot = measured_of(plain_->series({&chunk, 1}, tokens, 300e3)).us;
    plain_->series(calls, 32, pause_ms * 1e3);
    const double first = plain_->series({&chunk, 1}, tokens, 1).front();
    figure(fmt::format("chunk behind a pause of {} ms", pause_ms), "us", {first});
    if (first < (cold + hot) / 2) forgotten = pause_ms;
  }
  figure("chunk load is forgotten in", "ms", {forgotten > 0 ? forgotten : 60.0});
}

void Calibration::copies() {
  const std::string page = std::to_string(request_.llm.kv_bytes_per_token() * request_.page_tokens);
  for (const bool in : {true, false}) {
    for (const uint32_t pages : {1u, 4u, 16u, 64u, 256u, 1024u}) {
      if (request_.quick && pages > 64) continue;
      tables_.keep(in ? "copy in" : "copy out", page, pages, 0,
                   measured_of(plain_->copies(in, pages, pages > 100 ? 5 : 10)));
    }
  }
}

// Copies beside decode steps that are longer than they: how a server's are.
void Calibration::copies_beside_steps() {
  const std::string page = std::to_string(request_.llm.kv_bytes_per_token() * request_.page_tokens);
  const std::vector<BenchCall> calls(8, BenchCall{1, 1024, true});
  for (const bool in : {true, false}) {
    for (const uint32_t pages : {1u, 4u, 16u, 64u}) {
      const StepBench::Beside found = plain_->copy_beside_steps(calls, in, pages, request_.quick ? 4 : 12);
      tables_.keep(in ? "copy in beside steps" : "copy out beside steps", page, pages, 0,
                   measured_of(found.copies));
      if (pages == 64)
        figure(fmt::format("decode of 8 x 1024 beside a copy {}", in ? "in" : "out"), "us", found.steps.wall);
    }
  }
}

void Calibration::both_ways() {
  const StepBench::BothWays both = plain_->both_ways(64, 12);
  figure("in beside out", "GB/s", both.in_gb_per_s);
  figure("out beside in", "GB/s", both.out_gb_per_s);
}

void Calibration::beside_copies() {
  const std::vector<BenchCall> calls(32, BenchCall{1, 2048, true});
  for (const auto& [in, out, name] :
       {std::tuple(false, false, "no copies"), std::tuple(true, false, "copies in"),
        std::tuple(false, true, "copies out"), std::tuple(true, true, "both")}) {
    const StepBench::Beside found = plain_->beside_copies(calls, in, out, 240, request_.quick ? 4 : 6);
    figure(fmt::format("decode of 32 x 2048 beside {}", name), "us", found.steps.wall);
    figure(fmt::format("in beside decode, {}", name), "GB/s", found.in_gb_per_s);
    figure(fmt::format("out beside decode, {}", name), "GB/s", found.out_gb_per_s);
  }
}

// What decodes add to a step with a chunk beside their operations, which tables have as a graph starts them:
// steps of equally many rows, by how many of these decode. What prices of the chunk alone are off by is not
// theirs.
Result<void> Calibration::beside_chunks() {
  constexpr uint32_t kRows = 256;
  auto cost = MeasuredCost::make(out_, request_.llm, {}, "what was just measured");
  if (!cost) return tl::unexpected<Mistake>(cost.error());
  std::map<uint32_t, std::vector<double>> more;
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (const uint32_t decodes : {0u, 1u, 8u, 32u, 64u, 128u, 192u}) {
      std::vector<BenchCall> calls(decodes, BenchCall{1, kShortContext, true});
      calls.push_back({kRows - decodes, 0, true});
      quiet();
      const uint32_t warm = warm_steps(kRows), count = chunk_steps(kRows);
      BenchShape at(calls, kRows, warm + count / 2);
      const double priced = static_cast<double>((*cost)->step(at.shape).device) / kTicksPerNs / 1e3;
      for (const double us : plain_->measure(calls, kRows, warm, count).wall)
        more[decodes].push_back(us - priced);
    }
  }
  const double alone = measured_of(more[0]).us;
  for (auto& [decodes, values] : more) {
    for (double& value : values) value = std::max(0.0, value - alone);
    if (decodes > 0) tables_.keep("chunk host mixed", shapes_.model, decodes, 0, measured_of(values));
  }
  out_.tables = tables_.tables();
  return {};
}

// Steps of shapes that are in no table: sizes between, unequal contexts, several chunks, mixtures.
Result<void> Calibration::held_out() {
  auto cost = MeasuredCost::make(out_, request_.llm, {}, "what was just measured");
  if (!cost) return tl::unexpected<Mistake>(cost.error());
  std::vector<std::pair<std::string, std::vector<BenchCall>>> steps;
  const auto decodes = [](uint32_t count, uint32_t context) {
    return std::vector<BenchCall>(count, {1, context});
  };
  steps.emplace_back("3 decodes of 777", decodes(3, 777));
  steps.emplace_back("12 decodes of 3000", decodes(12, 3000));
  steps.emplace_back("40 decodes of 1500", decodes(40, 1500));
  steps.emplace_back("100 decodes of 900", decodes(100, 900));
  steps.emplace_back("200 decodes of 1200", decodes(200, 1200));
  std::vector<BenchCall> skewed;
  for (uint32_t i = 0; i < 24; ++i) skewed.push_back({1, 100 + i * i * 40});
  steps.emplace_back("24 decodes of 100 to 21260", skewed);
  skewed.assign(15, {1, 200});
  skewed.push_back({1, 30000});
  steps.emplace_back("15 decodes of 200 and one of 30000", skewed);
  steps.emplace_back("a chunk of 310 behind 700", std::vector<BenchCall>{{310, 700}});
  steps.emplace_back("a chunk of 1500 behind 5000", std::vector<BenchCall>{{1500, 5000}});
  steps.emplace_back("chunks of 700, 900, 448", std::vector<BenchCall>{{700, 0}, {900, 3000}, {448, 100}});
  steps.emplace_back("eight chunks of 256 behind 1000", std::vector<BenchCall>(8, {256, 1000}));
  std::vector<BenchCall> mixed = decodes(32, 2000);
  mixed.push_back({1000, 2000});
  steps.emplace_back("32 decodes of 2000 and a chunk of 1000", mixed);
  mixed = decodes(100, 1000);
  mixed.push_back({600, 0}), mixed.push_back({900, 5000, false});
  steps.emplace_back("100 decodes of 1000 and chunks of 600, 900", mixed);
  for (const auto& [name, calls] : steps) {
    uint32_t rows = 0;
    for (const BenchCall& call : calls) rows += call.tokens;
    const auto padded = std::lower_bound(rows_.begin(), rows_.end(), rows);
    if (padded == rows_.end()) continue;
    const bool chunk = rows > calls.size();
    if (chunk) quiet();
    const uint32_t warm = chunk ? warm_steps(rows) : 3, count = chunk ? chunk_steps(rows) : 10;
    const StepTimes found = plain_->measure(calls, *padded, warm, count);
    BenchShape at(calls, *padded, warm + count / 2);
    const double predicted = static_cast<double>((*cost)->step(at.shape).device) / kTicksPerNs / 1e3;
    out_.held_out.push_back({name, measured_of(found.wall).us, predicted});
  }
  for (const uint32_t tokens : {700u, 1400u}) {
    const BenchCall chunk{tokens, 300, true};
    const uint32_t padded = *std::lower_bound(rows_.begin(), rows_.end(), tokens);
    std::vector<double> first;
    for (int i = 0; i < 5; ++i) {
      quiet();
      first.push_back(plain_->series({&chunk, 1}, padded, 1).front());
    }
    BenchShape at({&chunk, 1}, padded, 0);
    at.shape.chunk_load = at.shape.stretch_ms = 0;
    const double predicted = static_cast<double>((*cost)->step(at.shape).device) / kTicksPerNs / 1e3;
    out_.held_out.push_back(
        {fmt::format("a chunk of {} behind quiet time", tokens), measured_of(first).us, predicted});
  }
  return {};
}

Result<MeasuredDevice> Calibration::run() {
  if (Result<void> ok = make(); !ok) return tl::unexpected<Mistake>(ok.error());
  if (Result<void> ok = launches(); !ok) return tl::unexpected<Mistake>(ok.error());
  // What the clocks do after idling is nobody's measurement.
  const BenchCall warm{std::min(1024u, rows_.back()), 0, true};
  plain_->measure({&warm, 1}, warm.tokens, 20, 1);
  decodes();
  if (Result<void> ok = launched(); !ok) return tl::unexpected<Mistake>(ok.error());
  chunks();
  after_load();
  by_stretch();
  pauses();
  copies();
  both_ways();
  copies_beside_steps();
  beside_copies();
  const CalibrationTables::Found found = tables_.take_steps();
  figure("an event adds to an operation", "us", {found.event_us});
  figure("step beside its operations", "% of it", found.host_percent);
  out_.tables = tables_.tables();
  if (Result<void> ok = beside_chunks(); !ok) return tl::unexpected<Mistake>(ok.error());
  if (Result<void> ok = held_out(); !ok) return tl::unexpected<Mistake>(ok.error());
  timed_.reset();  // its pages
  if (Result<void> ok = calibrate_formats(request_, model_.get(), plain_.get(), &out_); !ok)
    return tl::unexpected<Mistake>(ok.error());
  return std::move(out_);
}

}  // namespace

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
