#include "models/cost_tables/table_cost.h"

#include <doctest/doctest.h>

#include <cmath>
#include <span>

#include "engine/base/prng.h"
#include "models/catalog/catalog.h"
#include "models/cost_tables/cost_factory.h"
#include "tests/unit/models/profile_files.h"
#include "tests/unit/models/test_data.h"
#include "tests/unit/models/tiny_device.h"

namespace kvtwin {
namespace {

// tiny() has 1 KV head, and 7 SMs: 0.8 * 2 * 7 = 11.2, so up to 11 requests are split, 12 and more are not.
std::unique_ptr<TableCost> model(const ProfileFiles& files) {
  const auto tables = load_cost_tables(files.dir(), 1);
  REQUIRE(tables);
  auto made = TableCost::make(*tables, tiny(), 1, 7, {}, {});
  REQUIRE(made);
  return std::move(*made);
}

StepShape table_decodes(uint32_t count, uint64_t sum, uint32_t longest) {
  StepShape s;
  s.decodes = s.tokens = s.tokens_padded = s.logits_rows = count;
  s.decode_context_sum = sum, s.decode_context_max = longest;
  return s;
}

StepPart attention(CostModel& m, const StepShape& shape) {
  for (const StepPart& op : m.ops(shape)) {
    if (op.kind == PartKind::kAttention) return op;
  }
  FAIL("no attention");
  return {};
}
double attention_us(CostModel& m, const StepShape& shape) {
  return static_cast<double>(attention(m, shape).each) / kTicksPerNs / 1e3;
}
doctest::Approx about_us(double value) { return doctest::Approx(value).epsilon(1e-6); }

TEST_CASE("table_cost: a step is its kernels, dense ones on the padded tokens") {
  const ProfileFiles files;
  const auto m = model(files);
  StepShape s = table_decodes(3, 3 * 16, 16);
  s.tokens_padded = 4;
  // Embedding and final norm once; 2 layer norms and six more operations in each of 3 layers.
  double expected = dense_us(0, 4) + dense_us(8, 4) + 2 * head_us(3) + 3 * (2 * dense_us(1, 4));
  for (size_t i = 2; i <= 7; ++i) expected += 3 * dense_us(i, 4);
  expected += 3 * pure_us(3, 16);
  CHECK(static_cast<double>(m->step(s).device) / kTicksPerNs / 1e3 == about_us(expected));
}

TEST_CASE("table_cost: decodes are interpolated within their split regime, and never across its border") {
  const ProfileFiles files;
  const auto m = model(files);
  CHECK(attention_us(*m, table_decodes(3, 3 * 100, 100)) == about_us(pure_us(3, 100)));
  CHECK_MESSAGE(attention_us(*m, table_decodes(11, 11 * 100, 100)) == about_us(pure_us(11, 100)),
                "beyond 8, still split");
  CHECK_MESSAGE(attention_us(*m, table_decodes(12, 12 * 100, 100)) == about_us(pure_unsplit_us(12, 100)),
                "before 16, unsplit");
  StepShape padded = table_decodes(10, 10 * 100, 100);
  padded.tokens_padded = 16;
  CHECK_MESSAGE(attention_us(*m, padded) == about_us(pure_unsplit_us(10, 100)),
                "the padded batch chooses the kernel");
  CHECK(attention_us(*m, table_decodes(2, 2 * 3000, 3000)) == about_us(pure_us(2, 3000)));
  CHECK_MESSAGE(attention_us(*m, table_decodes(2, 2, 1)) == about_us(pure_us(2, 16)),
                "constant below the first point");
}

TEST_CASE("table_cost: evidence says measured, interpolated or extrapolated") {
  const ProfileFiles files;
  const auto m = model(files);
  const auto evidence = [&](const StepShape& s) { return attention(*m, s).evidence; };
  CHECK(evidence(table_decodes(4, 4 * 64, 64)) == Evidence::kMeasured);
  CHECK(evidence(table_decodes(3, 3 * 64, 64)) == Evidence::kInterpolated);
  CHECK(evidence(table_decodes(4, 4 * 65, 65)) == Evidence::kInterpolated);
  CHECK(evidence(table_decodes(4, 4 * 2000, 2000)) == Evidence::kExtrapolated);
  CHECK(evidence(table_decodes(10, 10 * 64, 64)) == Evidence::kExtrapolated);
  const StepCost cost = m->step(table_decodes(4, 4 * 64, 64));
  Ticks sum = 0;
  for (const Ticks t : cost.by_evidence) sum += t;
  CHECK(sum == cost.device);
  CHECK_MESSAGE(cost.by_evidence[static_cast<size_t>(Evidence::kInterpolated)] > 0,
                "4 tokens lie between 1 and 8");
  CHECK(cost.by_evidence[static_cast<size_t>(Evidence::kRoofline)] == 0);
}

TEST_CASE("table_cost: unequal contexts move a batch towards its longest request by alpha") {
  const ProfileFiles files;
  const auto m = model(files);
  // alpha(2) = 0.4, alpha(8) = 0.1; 4 lies halfway between them on both logarithmic axes: 0.2.
  const auto skewed = [&](uint32_t n, double alpha) {
    const double mean = pure_us(n, 100), longest = pure_us(n, 400);
    CHECK(attention_us(*m, table_decodes(n, n * 100, 400)) == about_us(mean + alpha * (longest - mean)));
  };
  skewed(2, 0.4);
  skewed(4, 0.2);
  skewed(8, 0.1);
  CHECK_MESSAGE(attention_us(*m, table_decodes(1, 100, 100)) == about_us(pure_us(1, 100)),
                "one request has no skew");
  const double mean = pure_unsplit_us(16, 100), longest = pure_unsplit_us(16, 400);
  CHECK(attention_us(*m, table_decodes(16, 16 * 100, 400)) == about_us(mean + 0.5 * (longest - mean)));
}

TEST_CASE("table_cost: the chunk with most work is read together with the decodes, others are added") {
  const ProfileFiles files;
  const auto m = model(files);
  const ChunkShape main{40, 100}, small{32, 16};
  const std::vector<ChunkShape> both = {small, main};
  StepShape s = table_decodes(4, 4 * 100, 100);
  s.chunks = {&main, 1};
  s.tokens = s.tokens_padded = 44;
  CHECK(attention_us(*m, s) == about_us(mixed_us(40, 100, 4, 100)));
  s.chunks = both;
  const double other = prefill_us(32, 16) - prefill_us(16, 0);
  CHECK(attention_us(*m, s) == about_us(mixed_us(40, 100, 4, 100) + other));
  s.decodes = 0;
  CHECK(attention_us(*m, s) == about_us(prefill_us(40, 100) + other));
  s.decodes = 4, s.decode_context_max = 300, s.chunks = {&main, 1};
  const double mean = mixed_us(40, 100, 4, 100), longest = mixed_us(40, 100, 4, 300);
  CHECK(attention_us(*m, s) == about_us(mean + 0.25 * (longest - mean)));
}

TEST_CASE("table_cost: operations sum to the step for every shape, also far outside the tables") {
  const ProfileFiles files;
  const auto m = model(files);
  Prng draws(3);
  for (int i = 0; i < 2000; ++i) {
    std::vector<ChunkShape> chunks(draws.range(0, 3));
    for (ChunkShape& c : chunks) {
      c = {static_cast<uint32_t>(draws.range(1, 100000)), static_cast<uint32_t>(draws.range(0, 2000000))};
    }
    const auto count = static_cast<uint32_t>(draws.range(0, draws.chance(1, 2) ? 40 : 100000));
    const auto longest = static_cast<uint32_t>(draws.range(0, 2000000));
    StepShape s = table_decodes(count, count * draws.range(0, longest), count == 0 ? 0 : longest);
    s.chunks = chunks;
    for (const ChunkShape& c : chunks) s.tokens += c.tokens;
    s.tokens_padded = s.tokens + static_cast<uint32_t>(draws.range(0, 10));
    const StepCost cost = m->step(s);
    Ticks sum = 0, evidence = 0;
    for (const StepPart& op : m->ops(s)) {
      CHECK(op.each >= 0);
      sum += op.times * op.each;
    }
    for (const Ticks t : cost.by_evidence) evidence += t;
    CHECK(sum == cost.device);
    CHECK(evidence == cost.device);
    CHECK(m->step(s).device == cost.device);
  }
}

TEST_CASE("table_cost: a profile of another model is refused") {
  const ProfileFiles files;
  files.write("meta.yaml",
              "tp_degrees: [1, 2]\nengine_effective:\n  hf_overrides:\n    num_attention_heads: 2\n"
              "    num_key_value_heads: 1\n    intermediate_size: 64\n    vocab_size: 50\n" +
                  files.read("meta.yaml").substr(files.read("meta.yaml").find("attention_grid")));
  const auto tables = load_cost_tables(files.dir(), 1);
  REQUIRE(tables);
  CHECK_MESSAGE(TableCost::make(*tables, tiny(), 1, 7, {}, {}), "4 heads cut in two are 2");
  LlmSpec other = tiny();
  other.intermediate = 100;
  const auto problem = TableCost::make(*tables, other, 1, 7, {}, {});
  REQUIRE_FALSE(problem);
  CHECK(problem.error().text().find("was measured with 64 MLP columns, tiny has 100") != std::string::npos);
}

TEST_CASE("table_cost: prices agree with an independent implementation of the same rules") {
  // Computed in Python while the rules were derived from the real vLLM runs; us of the whole step.
  const struct {
    const char *profile, *device;
    double dec20, dec40, dec100, pre2048, mix, mix200;
  } gpus[] = {{"RTX4090", "rtx-4090", 23148.6, 28607.9, 38230.6, 193004.7, 200709.1, 31205.1},
              {"RTXPRO6000", "rtx-pro-6000", 14504.4, 18476.8, 24496.1, 82945.3, 87098.7, 17535.3}};
  for (const auto& gpu : gpus) {
    CAPTURE(std::string(gpu.profile));
    const std::string folder =
        std::string("llmservingsim/profiles/") + gpu.profile + "/meta-llama/Llama-3.1-8B";
    if (!have_test_data(folder)) {
      MESSAGE("no LLMServingSim profiles below $KVTWIN_DATA: skipped");
      return;
    }
    CostModelSpec spec{
        *Catalog().llm("llama-3.1-8b"), *Catalog().device(gpu.device), 1, {}, test_data(folder)};
    auto made = make_cost_model(spec);
    REQUIRE_MESSAGE(made, (made ? std::string() : made.error().text()));
    const auto check = [&](StepShape s, uint32_t padded, uint32_t rows, std::span<const ChunkShape> chunks,
                           double expected) {
      s.tokens = s.decodes, s.tokens_padded = padded, s.logits_rows = rows, s.chunks = chunks;
      for (const ChunkShape& c : chunks) s.tokens += c.tokens;
      const double step_us = static_cast<double>((*made)->step(s).device) / kTicksPerNs / 1e3;
      CHECK(std::abs(step_us - expected) < 0.1);
    };
    const auto ramp = [](uint32_t count, uint32_t first, uint32_t step) {
      return table_decodes(count, uint64_t{count} * first + uint64_t{step} * count * (count - 1) / 2,
                           first + step * (count - 1));
    };
    check(ramp(20, 500, 100), 24, 20, {}, gpu.dec20);
    check(ramp(40, 300, 60), 40, 40, {}, gpu.dec40);
    check(ramp(100, 200, 20), 104, 100, {}, gpu.dec100);
    const ChunkShape whole[] = {{2048, 0}}, three[] = {{1000, 300}, {600, 0}, {400, 16}},
                     small[] = {{180, 64}};
    check({}, 2048, 0, whole, gpu.pre2048);
    check(ramp(30, 300, 60), 2030, 33, three, gpu.mix);
    check(ramp(20, 1000, 0), 200, 21, small, gpu.mix200);
  }
}

TEST_CASE("table_cost: the roofline of the same device, beside the measured kernels") {
  // The error of a user without measurements: mean over a grid of steps, in percent of the measured time.
  for (const auto& [profile, device] : {std::pair{"RTX4090", "rtx-4090"}, {"RTXPRO6000", "rtx-pro-6000"}}) {
    const std::string folder = std::string("llmservingsim/profiles/") + profile + "/meta-llama/Llama-3.1-8B";
    if (!have_test_data(folder)) {
      MESSAGE("no LLMServingSim profiles below $KVTWIN_DATA: skipped");
      return;
    }
    CostModelSpec spec{*Catalog().llm("llama-3.1-8b"), *Catalog().device(device), 1, {}, test_data(folder)};
    auto measured = make_cost_model(spec);
    spec.profile.clear();
    auto predicted = make_cost_model(spec);
    REQUIRE(measured);
    REQUIRE(predicted);
    double decode_error = 0, prefill_error = 0;
    int decode_steps = 0, prefill_steps = 0;
    const auto error = [&](const StepShape& s) {
      const double real = static_cast<double>((*measured)->step(s).device);
      return std::abs(static_cast<double>((*predicted)->step(s).device) / real - 1) * 100;
    };
    for (const uint32_t count : {1u, 4u, 16u, 64u, 128u}) {
      for (const uint32_t context : {128u, 512u, 2048u, 8192u}) {
        decode_error += error(table_decodes(count, uint64_t{count} * context, context)), ++decode_steps;
      }
    }
    for (const uint32_t tokens : {128u, 512u, 1024u, 2048u}) {
      for (const uint32_t context : {0u, 2048u, 16384u}) {
        const ChunkShape chunk{tokens, context};
        StepShape s;
        s.chunks = {&chunk, 1}, s.tokens = s.tokens_padded = tokens, s.logits_rows = 1;
        prefill_error += error(s), ++prefill_steps;
      }
    }
    decode_error /= decode_steps, prefill_error /= prefill_steps;
    MESSAGE(std::string(device) << ": roofline off by " << decode_error << " % on decode steps, "
                                << prefill_error << " % on prefill steps (means)");
    CHECK(decode_error < 6);
    CHECK(prefill_error < 12);
  }
}

TEST_CASE("table_cost: published RTX 4090 times are returned where they were measured") {
  const std::string folder = "llmservingsim/profiles/RTX4090/meta-llama/Llama-3.1-8B";
  if (!have_test_data(folder)) {
    MESSAGE("no LLMServingSim profiles below $KVTWIN_DATA: skipped");
    return;
  }
  CostModelSpec spec{*Catalog().llm("llama-3.1-8b"), *Catalog().device("rtx-4090"), 1, {}, test_data(folder)};
  auto made = make_cost_model(spec);
  REQUIRE_MESSAGE(made, (made ? std::string() : made.error().text()));
  // attention.csv 0,0,1,128 and dense.csv, per_sequence.csv at 1.
  CHECK(attention_us(**made, table_decodes(1, 128, 128)) == about_us(12.98));
  for (const StepPart& op : (*made)->ops(table_decodes(1, 128, 128))) {
    CHECK(op.evidence == Evidence::kMeasured);
    if (op.name == std::string("lm_head"))
      CHECK(static_cast<double>(op.each) / kTicksPerNs / 1e3 == about_us(1096.93));
  }
  spec.llm = *Catalog().llm("qwen3-8b");
  CHECK_FALSE(make_cost_model(spec));
  spec.llm = *Catalog().llm("llama-3.1-8b"), spec.tp = 2;
  CHECK_FALSE(make_cost_model(spec));
}

}  // namespace
}  // namespace kvtwin
