// Prices of compressions computed by hand, with figures that are easy to divide by.

#include "models/cost/compression_cost.h"

#include <doctest/doctest.h>

#include "models/cost/pass_cost.h"

using namespace kvtwin;

namespace {

constexpr uint32_t kLayers = 4;

LlmSpec small_llm() {
  LlmSpec llm;
  llm.layers = kLayers;
  return llm;
}

DeviceSpec easy_device() {
  DeviceSpec device;
  const auto figure = [](double value) { return Figure{value, Basis::kAssumed, "easy"}; };
  device.hbm_bytes_per_s = figure(1e12);  // 1,000 bytes per ns; KV entries move at 800
  device.read_fraction = figure(1);
  device.bf16_flop_per_s = figure(16e12);  // 16,000 products per ns, 1,000 by vector arithmetic
  device.gemm_fraction = figure(1);
  device.small_fixed_ns = figure(1000);
  return device;
}

// A model that takes 1 us, plus 1 us per token and 10 us per logits row.
class OneOperation final : public CostModel {
 public:
  StepCost step(const StepShape& shape) override {
    StepCost cost;
    cost.device = (1 + shape.tokens + 10 * shape.logits_rows) * 1000 * kTicksPerNs;
    cost.by_evidence[static_cast<size_t>(Evidence::kMeasured)] = cost.device;
    seen.push_back({shape.tokens, shape.chunks.empty() ? 0 : shape.chunks[0].context});
    return cost;
  }
  std::vector<StepPart> ops(const StepShape& shape) override {
    return {{"all", PartKind::kAttention, PartPlace::kLayer, 1, step(shape).device, Evidence::kMeasured},
            {"end", PartKind::kLmHead, PartPlace::kAfter, 1, 0, Evidence::kMeasured}};
  }
  StepRange range(const StepShape& shape) override {
    const Ticks device = step(shape).device;
    return {device, device + 1000 * kTicksPerNs};
  }
  struct Seen {
    uint32_t tokens = 0, context = 0;
    bool operator==(const Seen&) const = default;
  };
  static inline std::vector<Seen> seen;
};

CompressionCost priced(const CompressionWork& work) {
  OneOperation::seen.clear();
  return CompressionCost(small_llm(), easy_device(), work, std::make_unique<OneOperation>());
}

StepCost price(const CompressionWork& work, const StepShape& shape) { return priced(work).step(shape); }

double ns(const StepCost& cost, CompressionPart part) {
  return static_cast<double>(cost.compression[static_cast<size_t>(part)]) / kTicksPerNs;
}

// 3,000 tokens of which 2,400 KV entries are held; 2,000 of them are ranked, and 500 are retained.
constexpr CompressionShape kOne{.tokens = 3000, .held = 2400, .ranked = 2000, .retained = 500};

}  // namespace

TEST_CASE("compression cost: each part is the larger of bytes and arithmetic, plus its kernels") {
  const CompressionShape two[] = {kOne, kOne};
  StepShape shape;
  shape.compressions = two;
  CompressionWork work;
  work.kv_heads = 8;
  work.selects = true;
  work.score_kernels = 2;
  // 4,000 ranked KV entries. The bytes decide first, then the products, then the vector arithmetic.
  work.score = {.bytes = 1000, .product_flop = 15'999, .vector_flop = 999};
  CHECK(ns(price(work, shape), CompressionPart::kScore) == doctest::Approx(kLayers * (4000 + 2000)));
  work.score.product_flop = 32'000;
  CHECK(ns(price(work, shape), CompressionPart::kScore) == doctest::Approx(kLayers * (8000 + 2000)));
  work.score.vector_flop = 3'000;
  CHECK(ns(price(work, shape), CompressionPart::kScore) == doctest::Approx(kLayers * (12'000 + 2000)));
  // All tokens of the prompt are query tokens, and half of the pairs are causal: 2 requests x 3,000 x 2,000
  // / 2 pairs.
  work.score = {}, work.score_pair = {.bytes = 0, .product_flop = 16, .vector_flop = 0};
  CHECK(ns(price(work, shape), CompressionPart::kScore) == doctest::Approx(kLayers * (6000 + 2000)));
  // Five passes over four bytes of each score, in five kernels.
  CHECK(ns(price(work, shape), CompressionPart::kSelect) ==
        doctest::Approx(kLayers * (4000 * 8 * 20 / 1000.0 + 5000)));
  CHECK(ns(price(work, shape), CompressionPart::kMove) == 0);
  CHECK(ns(price(work, shape), CompressionPart::kBookkeeping) == 0);
}

TEST_CASE("compression cost: a memory of several turns is scored once for each, up to its bound") {
  StepShape shape;
  CompressionWork work;
  work.score_kernels = 2;
  work.score = {.bytes = 1000, .product_flop = 0, .vector_flop = 0};
  const auto scored = [&](uint32_t turn) {
    CompressionShape one = kOne;
    one.turn = turn;
    shape.compressions = {&one, 1};
    return ns(price(work, shape), CompressionPart::kScore);
  };
  CHECK(scored(1) == doctest::Approx(kLayers * (2000 + 2000)));
  CHECK(scored(9) == scored(1));
  work.score_turns = 64;
  CHECK(scored(1) == doctest::Approx(kLayers * (2000 + 2000)));
  CHECK(scored(9) == doctest::Approx(9 * kLayers * (2000 + 2000)));
  CHECK(scored(1000) == scored(64));
}

TEST_CASE("compression cost: the retained ranked KV entries move, or all held ones") {
  const CompressionShape one[] = {kOne};
  StepShape shape;
  shape.compressions = one;
  CompressionWork work;
  work.kv_entry_bytes = 4000;
  work.bookkeeping_ns = 700;
  CHECK(ns(price(work, shape), CompressionPart::kMove) == 0);
  work.moves = true;
  const auto moved = [&](double kv_entries) { return kLayers * (2 * kv_entries * 4000 / 800 + 1000); };
  CHECK(ns(price(work, shape), CompressionPart::kMove) == doctest::Approx(moved(500)));
  work.moves_all = true;  // includes the 400 that were not ranked
  CHECK(ns(price(work, shape), CompressionPart::kMove) == doctest::Approx(moved(900)));
  // The data decides the count: a fraction, capped by a number.
  CompressionShape unknown = kOne;
  unknown.retained = CompressionShape::kUnknown;
  shape.compressions = {&unknown, 1};
  work.moves_all = false, work.retained_fraction = 0.3;
  CHECK(ns(price(work, shape), CompressionPart::kMove) == doctest::Approx(moved(600)));
  work.retained_entries = 100;
  CHECK(ns(price(work, shape), CompressionPart::kMove) == doctest::Approx(moved(100)));
  CHECK(ns(price(work, shape), CompressionPart::kBookkeeping) == doctest::Approx(700));
}

TEST_CASE(
    "compression cost: a prefix checkpoint's tail is read and written, whether or not the step compresses") {
  StepShape shape;
  shape.copied_pages = 60;
  CompressionWork work;
  CHECK(ns(price(work, shape), CompressionPart::kMove) == 0);
  // Pages of 16 KV entries of 4 heads with 128 numbers, K and V in bf16: 32,768 bytes, a fourth of them in
  // each layer.
  work.page_bytes = 32'768.0 / kLayers;
  const double tails = kLayers * (2 * 60 * 8192 / 800.0 + 1000);
  CHECK(ns(price(work, shape), CompressionPart::kMove) == doctest::Approx(tails));
  CompressionCost cost = priced(work);
  Ticks parts = 0;
  for (const StepPart& part : cost.ops(shape)) parts += part.times * part.each;
  CHECK(parts == cost.step(shape).device);
  // In addition to the entries that a compression moves.
  const CompressionShape one[] = {kOne};
  shape.compressions = one;
  work.moves = true, work.kv_entry_bytes = 4000;
  const double moved = kLayers * (2 * 500 * 4000 / 800.0 + 1000);
  CHECK(ns(price(work, shape), CompressionPart::kMove) == doctest::Approx(tails + moved));
}

TEST_CASE("pass cost: each pass is a step of its own after the others, without logits") {
  const PassShape passes[] = {{32, 2400}, {820, 2400}};
  StepShape shape;
  shape.tokens = 7, shape.logits_rows = 1;
  shape.passes = passes;
  using Seen = std::vector<OneOperation::Seen>;
  struct Row {
    PricedPasses priced;
    Seen seen;
    double probe_ns;
  };
  const Row rows[] = {{PricedPasses::kAll, {{7, 0}, {32, 2400}, {820, 2400}}, 33'000 + 821'000},
                      {PricedPasses::kNone, {{7, 0}}, 0}};
  for (const Row& row : rows) {
    OneOperation::seen.clear();
    PassCost cost(row.priced, std::make_unique<OneOperation>());
    const StepCost step = cost.step(shape);
    CHECK(OneOperation::seen == row.seen);
    CHECK(ns(step, CompressionPart::kProbe) == doctest::Approx(row.probe_ns));
    Ticks parts = 0, evidence = 0;
    for (const StepPart& part : cost.ops(shape)) parts += part.times * part.each;
    for (const Ticks ticks : step.by_evidence) evidence += ticks;
    CHECK(parts == step.device);
    CHECK(evidence == step.device);
    CHECK(cost.range(shape).low <= step.device);
    CHECK(cost.range(shape).high >= step.device);
  }
}

TEST_CASE("pass cost: a step of passes alone has no other operations, and the host time of its first pass") {
  const PassShape passes[] = {{32, 2400}, {820, 2400}};
  StepShape shape;
  shape.passes = passes;
  PassCost cost(PricedPasses::kAll, std::make_unique<OneOperation>());
  const StepCost step = cost.step(shape);
  CHECK(step.device == (33 + 821) * 1000 * kTicksPerNs);
  StepShape alone;
  const ChunkShape chunk{.tokens = 32, .context = 2400};
  alone.chunks = {&chunk, 1};
  alone.tokens = alone.tokens_padded = 32;
  CHECK(step.host == OneOperation().step(alone).host);
  for (const StepPart& part : cost.ops(shape)) CHECK(part.kind == PartKind::kProbe);
  shape.passes = {};
  shape.tokens = 7;
  CHECK(cost.step(shape).device == OneOperation().step(shape).device);
}

TEST_CASE(
    "compression cost: capture is charged per token, pair and KV entry, also in steps without compressions") {
  const ChunkShape chunk{.tokens = 100, .context = 50};
  StepShape shape;
  shape.chunks = {&chunk, 1};
  shape.decodes = 2, shape.decode_context_sum = 4000, shape.tokens = 102;
  CompressionWork work;
  work.capture_kernels = 1;
  work.per_row.bytes = 5000, work.row_weight_bytes = 100'000;
  work.per_kv_entry.bytes = 10;
  CHECK(ns(price(work, shape), CompressionPart::kCapture) == doctest::Approx(kLayers * (500 + 100 + 1000)));
  work.captures_decodes = true;  // decodes are followed by compressions too
  CHECK(ns(price(work, shape), CompressionPart::kCapture) ==
        doctest::Approx(kLayers * (510 + 100 + 40 + 1000)));
  // Tokens 50 to 149 attend to 51 to 150 KV entries: 100 x 100.5 pairs.
  work.per_pair.vector_flop = 1000;
  CHECK(ns(price(work, shape), CompressionPart::kCapture) == doctest::Approx(kLayers * (10'050 + 1000)));
  CHECK(ns(price(work, {}), CompressionPart::kCapture) == 0);  // no tokens
}

TEST_CASE("compression cost: parts sum to the step, to the tick, in any order") {
  CompressionWork work;
  work.capture_kernels = work.score_kernels = 1;
  work.per_row.bytes = 333, work.score = {77, 1e5, 3e4};
  work.selects = work.moves = true;
  work.kv_entry_bytes = 999, work.bookkeeping_ns = 31.7;
  const CompressionShape two[] = {kOne, {.tokens = 9, .held = 9, .ranked = 9}};
  const PassShape pass{3, 2400};
  const ChunkShape chunk{.tokens = 100, .context = 50};
  StepShape shape;
  shape.tokens = 100;
  shape.chunks = {&chunk, 1};
  for (const bool compresses : {false, true}) {
    shape.compressions =
        compresses ? std::span<const CompressionShape>(two) : std::span<const CompressionShape>{};
    for (const bool after : {false, true}) {
      work.after_layers = after;
      shape.passes = std::span(&pass, compresses && after ? 1 : 0);
      CompressionCost cost(small_llm(), easy_device(), work,
                           std::make_unique<PassCost>(PricedPasses::kAll, std::make_unique<OneOperation>()));
      const StepCost whole = cost.step(shape);
      Ticks sum = 0, evidence = 0, compression = 0, compression_parts = 0;
      std::vector<std::string> names;
      for (const StepPart& part : cost.ops(shape)) {
        sum += part.times * part.each;
        if (is_compression(part.kind)) compression_parts += part.times * part.each;
        names.push_back(part.name);
      }
      for (const Ticks ticks : whole.by_evidence) evidence += ticks;
      for (const Ticks ticks : whole.compression) compression += ticks;
      CHECK(sum == whole.device);
      CHECK(evidence == whole.device);
      const StepRange range = cost.range(shape);  // the model's range is 1 us wide, also that of a pass
      CHECK(range.low == whole.device);
      CHECK(range.high == whole.device + Ticks{compresses && after ? 2 : 1} * 1000 * kTicksPerNs);
      CHECK(compression == compression_parts);
      const std::vector<std::string> want =
          !compresses ? std::vector<std::string>{"all", "capture", "end"}
          : after     ? std::vector<std::string>{"all",   "capture", "end",          "probe_pass",
                                                 "score", "select",  "move_entries", "bookkeeping"}
                      : std::vector<std::string>{"all",          "capture", "score",      "select",
                                                 "move_entries", "end",     "bookkeeping"};
      CHECK(names == want);
    }
  }
}
