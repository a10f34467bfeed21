#include "engine/calibrate/calibrate_formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "engine/base/check.h"
#include "engine/calibrate/calibration_memory.h"
#include "engine/calibrate/calibration_tables.h"
#include "engine/calibrate/chunk_load.h"
#include "engine/calibrate/mixed_bench.h"
#include "models/cost_tables/measured_cost.h"
#include "models/weights/weights.h"

namespace kvtwin::cuda {
namespace {

constexpr uint32_t kPage = 32, kGroup = 32;  // keys of int2 share scales over 32 tokens
constexpr uint32_t kRowsMax = 2048, kRequestsMax = 128;
constexpr uint32_t kDecodeWarm = 3, kDecodeSteps = 8;
constexpr uint32_t kMixedRequests = 16, kMixedLong = 8;
// Chunks of few rows, and of many; for the latter, packing between matrix products was measured to cost less
// than alone. Multiples of two pages, as MixedBench requires.
constexpr uint32_t kFewTokens = 64, kManyTokens = 1024, kFewPairs = 3, kManyPairs = 4, kMixedRounds = 2;

const std::vector<uint32_t> kRowSizes = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048};

struct ChunkPoint {
  uint32_t tokens = 0, context = 0;
};

// Time that formats add to chunks, in us per step, by context. Steps in bf16 and packed ones are measured
// alternately, because the state of the clock changes a chunk by more than packing does.
struct ChunkMore {
  std::map<uint32_t, std::vector<double>> few, many;  // of chunks of kFewTokens and kManyTokens
};

double us_of(Ticks ticks) { return static_cast<double>(ticks) / kTicksPerNs / 1e3; }

class FormatCalibration {
 public:
  FormatCalibration(const CalibrationRequest& request, const DeviceModel* model, StepBench* plain,
                    MeasuredDevice* device)
      : request_(request),
        model_(model),
        plain_(*plain),
        out_(*device),
        pace_(request.llm),
        decodes_{kDecodeWarm, std::min(kDecodeSteps, pace_.decodes().steps)},
        mixed_requests_(std::min(kMixedRequests, pace_.chunks(kFewTokens).warm + kMixedLong)),
        heads_(MeasuredShapes(request.llm).heads) {}

  Result<void> run();

 private:
  Result<void> packed(const std::string& name, Format format);
  Result<void> mixed();
  void packed_decodes(StepBench* bench, CalibrationTables* tables);
  void packed_chunks(StepBench* bench, CalibrationTables* tables);
  Result<void> packed_held_out(const std::string& name, StepBench* bench);
  void mixed_fraction(MixedBench* bench, LowBitEntries kv_entries, CalibrationTables* tables);
  double mixed_chunks(MixedBench* bench, uint32_t tokens);
  Result<void> mixed_held_out(MixedBench* bench);

  // Measures a chunk after idle time.
  double chunk_us(StepBench* bench, const ChunkPoint& at, bool samples) const;
  // The duration of a bf16 step according to the file; and the attention of one layer in it.
  double priced(const StepShape& shape) { return us_of(cost_->step(shape).device); }
  double attention(const StepShape& shape);
  void keep_decode(const StepShape& shape, const std::vector<double>& wall, const char* table,
                   CalibrationTables* tables);
  void keep_chunks(const ChunkMore& more, const char* table, CalibrationTables* tables) const;
  void say(const std::string& text) const {
    if (request_.progress) request_.progress(text);
  }

  const CalibrationRequest& request_;
  const DeviceModel* const model_;
  StepBench& plain_;
  MeasuredDevice& out_;
  const StepPace pace_;
  const StepRounds decodes_;
  // Their prompts are really computed, which takes most of the time. So there are only as many as it takes to
  // measure some short chunks behind the warm-up.
  const uint32_t mixed_requests_;
  const std::string heads_;
  std::unique_ptr<MeasuredCost> cost_;
};

double FormatCalibration::attention(const StepShape& shape) {
  for (const StepPart& part : cost_->ops(shape)) {
    if (part.kind == PartKind::kAttention) return us_of(part.each);
  }
  return 0;
}

// The whole difference to the bf16 step is attributed to attention.
void FormatCalibration::keep_decode(const StepShape& shape, const std::vector<double>& wall,
                                    const char* table, CalibrationTables* tables) {
  const double rest = priced(shape) - attention(shape) * request_.llm.layers;
  const Measured m = measured_of(wall);
  const auto layer = [&](double us) { return std::max(0.0, (us - rest) / request_.llm.layers); };
  tables->keep(table, heads_, shape.decodes, static_cast<uint32_t>(shape.decode_context_sum),
               {layer(m.us), layer(m.p10), layer(m.p90)});
}

// Longer chunks are assumed to be like those of kManyTokens.
void FormatCalibration::keep_chunks(const ChunkMore& more, const char* table,
                                    CalibrationTables* tables) const {
  const auto layer = [&](double us) { return std::max(0.0, us / request_.llm.layers); };
  const auto keep = [&](uint32_t tokens, const std::map<uint32_t, std::vector<double>>& by_entries) {
    for (const auto& [kv_entries, us] : by_entries) {
      const Measured m = middle_of(us);
      tables->keep(table, heads_, tokens, kv_entries, {layer(m.us), layer(m.p10), layer(m.p90)});
    }
  };
  keep(kFewTokens, more.few);
  keep(kManyTokens, more.many);
  keep(2 * kManyTokens, more.many);
}

double FormatCalibration::chunk_us(StepBench* bench, const ChunkPoint& at, bool samples) const {
  const BenchRequest bench_request{at.tokens, at.context, samples};
  const StepRounds rounds = pace_.chunks(at.tokens);
  rest(bench);
  return measured_of(bench->measure({&bench_request, 1}, at.tokens, rounds.warm, rounds.steps).wall).us;
}

void FormatCalibration::packed_decodes(StepBench* bench, CalibrationTables* tables) {
  for (const uint32_t count : {1u, 2u, 4u, 8u, 16u, 32u, 64u, 128u}) {
    for (const uint32_t context : {64u, 1024u, 4096u, 16384u}) {
      if (request_.quick && (count % 16 != 1 || context > 1024)) continue;
      const std::vector<BenchRequest> requests(count, BenchRequest{1, context, true});
      if (!bench->fits(requests)) continue;
      const StepTimes found = bench->measure(requests, count, decodes_.warm, decodes_.steps);
      keep_decode(BenchShape(requests, count, decodes_.middle()).shape, found.wall, "decode attention",
                  tables);
    }
  }
}

void FormatCalibration::packed_chunks(StepBench* bench, CalibrationTables* tables) {
  ChunkMore more;
  const auto visit = [&](const ChunkPoint& at, uint32_t pairs, std::vector<double>* us) {
    for (uint32_t i = 0; i < (request_.quick ? 1 : std::min(pairs, pace_.singles() - 1)); ++i) {
      const double before = i % 2 == 0 ? chunk_us(&plain_, at, true) : 0;
      const double packed = chunk_us(bench, at, true);
      us->push_back(packed - (i % 2 == 0 ? before : chunk_us(&plain_, at, true)));
    }
  };
  const uint32_t longest = request_.quick ? 1024 : 8192;
  for (const uint32_t kv_entries : {0u, 1024u, 8192u}) {
    if (kv_entries <= longest) visit({kFewTokens, kv_entries}, kFewPairs, &more.few[kv_entries]);
  }
  for (const uint32_t kv_entries : {0u, longest})
    visit({kManyTokens, kv_entries}, kManyPairs, &more.many[kv_entries]);
  keep_chunks(more, "chunk packing", tables);
}

Result<void> FormatCalibration::packed(const std::string& name, Format format) {
  StepBenchConfig config;
  // Packed KV takes a half of bf16's bytes (fp8) or less, its scales included.
  const Result<uint32_t> pages =
      next_engine_pages(request_.llm, kPage, request_.llm.kv_bytes_per_token() * 9 / 16, kTokensGpu);
  if (!pages) return tl::unexpected<Error>(pages.error());
  config.page_tokens = kPage, config.pages_gpu = *pages;
  config.rows_max = kRowsMax, config.samples_max = kRequestsMax, config.row_sizes = kRowSizes;
  config.packed = PackedOptions{.format = format, .group = kGroup};
  Result<std::unique_ptr<StepBench>> bench = StepBench::make(config, request_.llm, model_);
  if (!bench) return tl::unexpected<Error>(bench.error());
  CalibrationTables tables(request_.llm.name, request_.llm.layers);
  packed_decodes(bench->get(), &tables);
  packed_chunks(bench->get(), &tables);
  out_.formats.push_back({name, kPage, format == Format::kFp8 ? 0 : kGroup, tables.tables()});
  say(fmt::format("{} is measured", name));
  return packed_held_out(name, bench->get());
}

Result<void> FormatCalibration::packed_held_out(const std::string& name, StepBench* bench) {
  auto cost =
      MeasuredCost::make(out_, request_.llm, {}, "what was just measured", DecodeGraphs::kPrepared, name);
  if (!cost) return tl::unexpected<Error>(cost.error());
  std::vector<BenchRequest> skewed;
  for (uint32_t i = 0; i < 24; ++i) skewed.push_back({1, 100 + i * i * 20});
  const std::pair<const char*, std::vector<BenchRequest>> steps[] = {
      {"12 decodes of 3000", std::vector<BenchRequest>(12, {1, 3000})},
      {"24 decodes of 100 to 10680", skewed},
      {"chunks of 700, 324 behind 3000, 500", {{700, 3000}, {324, 500}}}};
  for (const auto& [what, requests] : steps) {
    if (!bench->fits(requests)) continue;
    const bool chunk = requests.front().tokens > 1;
    const uint32_t padded = chunk ? 1024 : static_cast<uint32_t>(requests.size());
    if (chunk) rest(bench);
    const StepRounds rounds = chunk ? pace_.chunks(padded) : decodes_;
    const StepTimes found = bench->measure(requests, padded, rounds.warm, rounds.steps);
    const BenchShape at(requests, padded, rounds.middle());
    const double predicted = us_of((*cost)->step(at.shape).device);
    out_.held_out.push_back({fmt::format("{}: {}", name, what), measured_of(found.wall).us, predicted});
  }
  return {};
}

StepShape decodes_of(const MixedBench& bench, uint32_t requests, uint32_t back) {
  StepShape shape;
  shape.decodes = shape.tokens = shape.tokens_padded = shape.logits_rows = requests;
  for (uint32_t i = 0; i < requests; ++i) {
    const uint32_t context = bench.context(i) - back;
    shape.decode_context_sum += context, shape.decode_low_bit_sum += bench.low_bit(i);
    shape.decode_context_max = std::max(shape.decode_context_max, context);
  }
  return shape;
}

std::vector<double> decode_steps(MixedBench* bench, uint32_t requests, const StepRounds& rounds) {
  std::vector<double> out;
  for (uint32_t i = 0; i < rounds.warm + rounds.steps; ++i) {
    const double us = bench->decode(requests);
    if (i >= rounds.warm) out.push_back(us);
  }
  return out;
}

void rest(MixedBench* bench, uint32_t requests) {
  for (double spent = 0; spent < kIdleUs;) spent += bench->decode(requests);
}

// Computes one chunk of each request, all with the same context; the first ones are warm-up.
double FormatCalibration::mixed_chunks(MixedBench* bench, uint32_t tokens) {
  const uint32_t context = bench->context(0);
  const StepRounds rounds = pace_.chunks(tokens);
  rest(&plain_);  // the other bench, because decodes here would lengthen the prompts
  std::vector<double> wall;
  for (uint32_t i = 0; i < mixed_requests_; ++i) {
    const double us = bench->chunk(i, tokens);
    if (i >= rounds.warm && wall.size() < rounds.steps) wall.push_back(us);
  }
  KVT_CHECK(!wall.empty());
  return measured_of(wall).us - chunk_us(&plain_, {tokens, context}, false);
}

// Measures prompts while they grow. Decodes extend them too, by a few 4-bit KV entries.
void FormatCalibration::mixed_fraction(MixedBench* bench, LowBitEntries kv_entries,
                                       CalibrationTables* tables) {
  const bool low_bit = kv_entries == LowBitEntries::kAll;
  const char* const decode = low_bit ? "decode attention low-bit" : "decode attention";
  ChunkMore more;
  // Files the measurements under the context in the middle of the rounds.
  const auto few = [&] {
    std::vector<double>& us = more.few[bench->context(0) + kMixedRounds / 2 * kFewTokens];
    for (uint32_t i = 0; i < kMixedRounds; ++i) us.push_back(mixed_chunks(bench, kFewTokens));
  };
  const auto decodes = [&](std::initializer_list<uint32_t> counts) {
    rest(bench, *counts.begin());  // the clock recovers from chunks
    for (const uint32_t requests : counts) {
      const std::vector<double> wall = decode_steps(bench, requests, decodes_);
      keep_decode(decodes_of(*bench, requests, decodes_.steps / 2), wall, decode, tables);
    }
  };
  bench->begin(mixed_requests_, kv_entries);
  few();
  for (uint32_t i = 0; i < (request_.quick ? 1 : kMixedRounds); ++i) {
    bench->begin(mixed_requests_, kv_entries);
    more.many[0].push_back(mixed_chunks(bench, kManyTokens));
  }
  few();
  decodes({mixed_requests_, 8, 4, 2, 1});
  if (!request_.quick) {
    for (uint32_t i = 0; i < 2 * mixed_requests_; ++i) bench->chunk(i % mixed_requests_, 1024);
    decodes({mixed_requests_, 8, 4, 2, 1});
    for (uint32_t i = 0; i < mixed_requests_; ++i) {
      while (bench->context(i) < 8192) bench->chunk(i, 1024);
    }
    few();
    const uint32_t longest = bench->context(0);
    more.many[longest].push_back(mixed_chunks(bench, kManyTokens));
    decodes({kMixedLong, 4, 2, 1});
  }
  keep_chunks(more, low_bit ? "chunk packing low-bit" : "chunk packing", tables);
}

Result<void> FormatCalibration::mixed_held_out(MixedBench* bench) {
  auto cost = MeasuredCost::make(out_, request_.llm, {}, "what was just measured", DecodeGraphs::kPrepared,
                                 "triaxial");
  if (!cost) return tl::unexpected<Error>(cost.error());
  bench->begin(6, LowBitEntries::kHalf);
  for (uint32_t i = 0; i < 6; ++i) {
    bench->chunk(i, 1024);
    bench->chunk(i, 512);
  }
  const std::vector<double> wall = decode_steps(bench, 6, decodes_);
  out_.held_out.push_back({"triaxial: 6 decodes of 1536, half of it in 2 bits", measured_of(wall).us,
                           us_of((*cost)->step(decodes_of(*bench, 6, decodes_.steps / 2)).device)});
  return {};
}

Result<void> FormatCalibration::mixed() {
  MixedBenchConfig config;
  config.page_tokens = kPage, config.group = kGroup;
  config.pages = mixed_requests_ * 12288 / kPage;
  config.rows_max = kRowsMax, config.samples_max = mixed_requests_, config.row_sizes = kRowSizes;
  Result<std::unique_ptr<MixedBench>> bench = MixedBench::make(config, request_.llm, model_);
  if (!bench) return tl::unexpected<Error>(bench.error());
  CalibrationTables tables(request_.llm.name, request_.llm.layers);
  mixed_fraction(bench->get(), LowBitEntries::kNone, &tables);
  mixed_fraction(bench->get(), LowBitEntries::kAll, &tables);
  out_.formats.push_back({"triaxial", kPage, kGroup, tables.tables()});
  say("triaxial is measured");
  return mixed_held_out(bench->get());
}

// A head size that cannot be packed is not an error: the file then has bf16 tables only.
Result<void> FormatCalibration::run() {
  if (check_packed(Format::kInt2, kGroup, request_.llm, kPage)) return {};
  auto cost = MeasuredCost::make(out_, request_.llm, {}, "what was just measured");
  if (!cost) return tl::unexpected<Error>(cost.error());
  cost_ = std::move(*cost);
  out_.formats.clear();
  if (Result<void> ok = packed("fp8", Format::kFp8); !ok) return ok;
  if (Result<void> ok = packed("int4", Format::kInt4); !ok) return ok;
  return mixed();
}

}  // namespace

Result<void> calibrate_formats(const CalibrationRequest& request, const DeviceModel* model, StepBench* plain,
                               MeasuredDevice* device) {
  return FormatCalibration(request, model, plain, device).run();
}

Result<MeasuredDevice> with_formats(const CalibrationRequest& request, MeasuredDevice device) {
  if (Result<void> ok = check_gpu(); !ok) return tl::unexpected<Error>(ok.error());
  Result<std::unique_ptr<DeviceModel>> model =
      DeviceModel::make(ModelWeights::random_outline(request.llm, request.seed));
  if (!model) return tl::unexpected<Error>(model.error());
  StepBenchConfig config;
  config.page_tokens = device.page_tokens;
  const Result<uint32_t> pages = first_engine_pages(request.llm, std::max(1u, device.page_tokens));
  if (!pages) return tl::unexpected<Error>(pages.error());
  config.pages_gpu = *pages;
  config.rows_max = kRowsMax, config.samples_max = kRequestsMax, config.row_sizes = kRowSizes;
  Result<std::unique_ptr<StepBench>> plain = StepBench::make(config, request.llm, model->get());
  if (!plain) return tl::unexpected<Error>(plain.error());
  std::erase_if(device.held_out,
                [](const HeldOutStep& step) { return step.step.find(": ") != step.step.npos; });
  if (Result<void> ok = calibrate_formats(request, model->get(), plain->get(), &device); !ok)
    return tl::unexpected<Error>(ok.error());
  return device;
}

}  // namespace kvtwin::cuda
