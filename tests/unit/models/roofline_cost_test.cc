#include "models/cost/roofline_cost.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "engine/base/prng.h"
#include "models/catalog/catalog.h"
#include "models/cost/kv_price.h"
#include "models/cost_tables/cost_factory.h"

namespace kvtwin {
namespace {

LlmSpec llm(const char* name) {
  const auto m = Catalog().llm(name);
  REQUIRE(m);
  return *m;
}

DeviceSpec device(const char* name) {
  const auto d = Catalog().device(name);
  REQUIRE(d);
  return *d;
}

// The device with kernels that reach the datasheet and have no overhead.
DeviceSpec ideal(DeviceSpec d) {
  for (Figure* f :
       {&d.read_fraction, &d.gemm_fraction, &d.prefill_fraction, &d.decode_fraction, &d.nvlink_fraction})
    f->value = 1;
  for (Figure* f : {&d.gemm_fixed_ns, &d.attention_fixed_ns, &d.small_fixed_ns, &d.sampler_fixed_ns,
                    &d.all_reduce_fixed_ns})
    f->value = 0;
  d.all_reduce.clear();  // measured all-reduces
  d.sustained_fraction = d.gemm_read_fraction = d.mixed_decode_rows = d.attention_fill_tokens = Figure{};
  return d;
}

double ms(Ticks ticks) { return static_cast<double>(ticks) / kTicksPerNs / 1e6; }

StepShape even_decodes(uint32_t count, uint32_t context) {
  StepShape s;
  s.decodes = s.tokens = s.tokens_padded = s.logits_rows = count;
  s.decode_context_sum = uint64_t{count} * context, s.decode_context_max = context;
  return s;
}

StepShape chunk(const ChunkShape& c) {
  StepShape s;
  s.chunks = {&c, 1};
  s.tokens = s.tokens_padded = c.tokens, s.logits_rows = 1;
  return s;
}

double us_of(CostModel& model, const StepShape& shape, const std::string& name) {
  for (const StepPart& op : model.ops(shape)) {
    if (op.name == name) return static_cast<double>(op.each) / kTicksPerNs / 1e3;
  }
  FAIL("no operation " << name);
  return 0;
}

TEST_CASE("roofline: one decode of Llama-3.1-8B on an ideal H200 takes the time to read the weights") {
  RooflineCost model(llm("llama-3.1-8b"), ideal(device("h200")), 1, {});
  // 8.030 B parameters in bf16 = 16.06 GB, less the embedding table (1.05 GB), of which one row is read:
  // 15.01 GB / 4.8 TB/s = 3.127 ms. Activations of one token add 0.2 %.
  CHECK(ms(model.step(even_decodes(1, 1)).device) == doctest::Approx(3.127).epsilon(0.005));
  // 64 requests of 8,192 tokens add 64 * 8,193 * 131,072 B / 4.8 TB/s = 14.32 ms.
  const double with = ms(model.step(even_decodes(64, 8192)).device),
               without = ms(model.step(even_decodes(64, 0)).device);
  CHECK(with - without == doctest::Approx(14.32).epsilon(0.001));
}

TEST_CASE("roofline: a long prompt on an ideal H200 takes the time of its arithmetic") {
  RooflineCost model(llm("llama-3.1-8b"), ideal(device("h200")), 1, {});
  const ChunkShape c{8192, 0};
  double gemm = 0;
  for (const StepPart& op : model.ops(chunk(c)))
    gemm += op.kind == PartKind::kGemm ? ms(op.times * op.each) : 0;
  // 2 * 8,192 * 6.979 G weights of the layers / 989.5 TFLOP/s.
  CHECK(gemm == doctest::Approx(2 * 8192 * 6.979e9 / 989.5e12 * 1e3).epsilon(0.005));
  // 4 * 128 * 32 heads * 8,192 * 8,193 / 2 pairs / 989.5 TFLOP/s.
  CHECK(us_of(model, chunk(c), "attention") ==
        doctest::Approx(4.0 * 4096 * 8192 * 8193 / 2 / 989.5e6).epsilon(0.001));
}

TEST_CASE("roofline: requantised KV entries are read once and written once") {
  LlmSpec packed = llm("llama-3.1-8b");
  packed.kv = kv_tensor_format(Format::kInt4, {32, 128, 32});
  packed.kv_low_bit = kv_tensor_format(Format::kInt2, {32, 128, 32});
  RooflineCost model(packed, ideal(device("h200")), 1, {});
  StepShape step = even_decodes(1, 100);
  const Ticks before = model.step(step).device;
  step.requantised = 100'000;
  // 8 heads * (160 + 96) B in each of 32 layers, at 4.8 TB/s.
  const double us = 1e5 * 8 * (160 + 96) / 4.8e6;
  CHECK(us_of(model, step, "requantise") == doctest::Approx(us).epsilon(0.001));
  CHECK(ms(model.step(step).device - before) == doctest::Approx(32 * us / 1e3).epsilon(0.001));
}

TEST_CASE("roofline: products read their weights at their own fraction of the bandwidth") {
  DeviceSpec half = ideal(device("h200"));
  half.gemm_read_fraction = half.read_fraction;
  half.gemm_read_fraction.value = 0.5;
  RooflineCost plain(llm("llama-3.1-8b"), ideal(device("h200")), 1, {}),
      slow(llm("llama-3.1-8b"), half, 1, {});
  const StepShape one = even_decodes(1, 1);
  for (const char* product : {"qkv", "output", "gate_up", "down", "lm_head"})
    CHECK(us_of(slow, one, product) == doctest::Approx(2 * us_of(plain, one, product)).epsilon(0.01));
  for (const char* other : {"attention", "attention_norm", "sampler"})
    CHECK(us_of(slow, one, other) == us_of(plain, one, other));
  // A long prompt is bound by arithmetic.
  const ChunkShape c{8192, 0};
  CHECK(us_of(slow, chunk(c), "gate_up") == doctest::Approx(us_of(plain, chunk(c), "gate_up")).epsilon(0.01));
}

TEST_CASE("roofline: H200 kernels are predicted as measured") {
  DeviceSpec rested = device("h200");  // kernels were measured one by one
  rested.sustained_fraction = Figure{};
  RooflineCost model(llm("llama-3.1-8b"), rested, 1, {});
  // us, cuBLAS bf16 under CUDA graphs.
  const struct {
    uint32_t tokens;
    double qkv, output, gate_up, down;
  } gemms[] = {{1, 16.1, 13.3, 56.9, 31.9},
               {8, 16.9, 13.2, 56.4, 32.1},
               {32, 17.0, 13.7, 57.9, 33.5},
               {128, 17.7, 14.3, 66.8, 37.4},
               {2048, 131.4, 87.2, 607.2, 293.6}};
  for (const auto& g : gemms) {
    CAPTURE(g.tokens);
    const StepShape s = even_decodes(g.tokens, 16);
    const double qkv = us_of(model, s, "qkv"), output = us_of(model, s, "output");
    const double gate_up = us_of(model, s, "gate_up"), down = us_of(model, s, "down");
    CHECK(qkv == doctest::Approx(g.qkv).epsilon(0.09));
    CHECK(output == doctest::Approx(g.output).epsilon(0.09));
    CHECK(gate_up == doctest::Approx(g.gate_up).epsilon(0.06));
    CHECK(down == doctest::Approx(g.down).epsilon(0.09));
    CHECK(qkv + output + gate_up + down ==
          doctest::Approx(g.qkv + g.output + g.gate_up + g.down).epsilon(0.04));
  }
  // us, FlashInfer paged decode, page 16 (requests, context, time of one layer).
  const struct {
    uint32_t requests, context;
    double us;
  } paged[] = {{1, 8192, 19.5},   {1, 32768, 43.0},   {8, 8192, 73.1},    {32, 2048, 70.2},
               {32, 8192, 247.8}, {32, 32768, 961.6}, {128, 8192, 957.4}, {128, 32768, 3770.7}};
  for (const auto& p : paged) {
    CAPTURE(p.requests);
    CAPTURE(p.context);
    CHECK(us_of(model, even_decodes(p.requests, p.context), "attention") ==
          doctest::Approx(p.us).epsilon(0.04));
  }
  // us, FA3 causal prefill of one prompt.
  for (const auto& [tokens, us] : {std::pair<uint32_t, double>{2048, 61}, {8192, 777}, {32768, 12880}}) {
    const ChunkShape c{tokens, 0};
    CHECK(us_of(model, chunk(c), "attention") == doctest::Approx(us).epsilon(0.04));
  }
}

// LLMServingSim's microbenchmarks of FlashAttention 2 (tests/golden/vllm/*/profile/tp1/attention.csv): a
// layer of Llama-3.1-8B, decodes alone and in a step with a chunk of 128 tokens. Without the tiles, the rows
// of mixed steps were 30 to 49 % too short.
TEST_CASE("roofline: attention of steps with chunks computes a tile for each query head of a decode") {
  struct Row {
    const char* device;
    uint32_t decodes, context;
    double alone_us, mixed_us;
  };
  constexpr Row kRows[] = {{"rtx-pro-6000", 64, 256, 68.5, 121.9}, {"rtx-pro-6000", 64, 512, 127.4, 187.1},
                           {"rtx-pro-6000", 128, 512, 0, 398.7},   {"rtx-4090", 64, 256, 113.6, 236.3},
                           {"rtx-4090", 64, 512, 191.9, 374.7},    {"rtx-4090", 128, 512, 0, 809.8}};
  for (const Row& row : kRows) {
    RooflineCost model(llm("llama-3.1-8b"), device(row.device), 1, {});
    StepShape shape = even_decodes(row.decodes, row.context);
    CAPTURE(row.device);
    CAPTURE(row.decodes);
    CAPTURE(row.context);
    if (row.alone_us > 0)
      CHECK(us_of(model, shape, "attention") == doctest::Approx(row.alone_us).epsilon(0.15));
    const ChunkShape chunk{.tokens = 128};
    shape.chunks = {&chunk, 1}, shape.tokens += 128;
    CHECK(us_of(model, shape, "attention") == doctest::Approx(row.mixed_us).epsilon(0.15));
  }
  // Hopper's FlashAttention 3 packs the query heads in all steps: the decodes add what they read.
  RooflineCost model(llm("llama-3.1-8b"), device("h200"), 1, {});
  const ChunkShape chunk{.tokens = 128};
  StepShape shape = even_decodes(64, 512);
  const double alone = us_of(model, shape, "attention");
  shape.chunks = {&chunk, 1}, shape.tokens += 128;
  CHECK(us_of(model, shape, "attention") - alone < 2);
}

// calibrate device on five H100s and H200s: a chunk of 1,024 tokens takes 0.865 to 0.887 after a pause, and
// half a window of load has a third of the effect at most (models/measured, "chunk after load").
TEST_CASE("roofline: prompts without a pause lower the clock; decodes and short chunks do not see it") {
  RooflineCost model(llm("llama-3.1-8b"), device("h200"), 1, {});
  CHECK(model.load_window() == 40'000'000 * kTicksPerNs);
  const auto after = [&](uint32_t tokens, uint32_t load) {
    const ChunkShape c{tokens, 0};
    StepShape shape = chunk(c);
    shape.chunk_load = load;
    return ms(model.step(shape).device);
  };
  CHECK(after(1024, 0) / after(1024, 1000) == doctest::Approx(0.87).epsilon(0.015));
  CHECK(after(1024, 500) / after(1024, 0) < 1.05);
  CHECK(after(1024, 750) < after(1024, 1000));
  CHECK(after(4096, 0) / after(4096, 1000) > 0.92);  // its own load: 0.912 to 0.947 were measured
  CHECK(after(128, 0) == after(128, 1000));
  StepShape decodes = even_decodes(512, 100);
  const double idle = ms(model.step(decodes).device);
  decodes.chunk_load = 0;
  CHECK(ms(model.step(decodes).device) == idle);
  CHECK(RooflineCost(llm("llama-3.1-8b"), device("b200"), 1, {}).load_window() == 0);
}

TEST_CASE("roofline: the experts used follow from the tokens, and their weights are read once") {
  const LlmSpec m = llm("qwen3-30b-a3b");
  RooflineCost model(m, ideal(device("h200")), 1, {});
  const double expert_bytes = 2.0 * 2048 * 2 * 768;  // gate and up of one expert
  // One token touches its 8 experts; many tokens touch all 128.
  const double one = us_of(model, even_decodes(1, 1), "experts_gate_up");
  CHECK(one == doctest::Approx(8 * expert_bytes / 4.8e6).epsilon(0.01));
  const double two = us_of(model, even_decodes(2, 1), "experts_gate_up");
  CHECK(two == doctest::Approx((8 + 8 * 120 / 128.0) * expert_bytes / 4.8e6).epsilon(0.01));
  const double many = us_of(model, even_decodes(200, 1), "experts_gate_up");
  CHECK(many == doctest::Approx(128 * expert_bytes / 4.8e6).epsilon(0.03));
}

TEST_CASE("roofline: sliding layers attend to at most the window") {
  const LlmSpec m = llm("gpt-oss-20b");  // 12 of 24 layers with a window of 128
  RooflineCost model(m, ideal(device("h200")), 1, {});
  const double kv_entry = 2.0 * 8 * 64 * 2;
  CHECK(us_of(model, even_decodes(4, 10000), "attention_window") ==
        doctest::Approx(4 * 128 * kv_entry / 4.8e6).epsilon(0.01));
  CHECK(us_of(model, even_decodes(4, 99), "attention_window") ==
        doctest::Approx(4 * 100 * kv_entry / 4.8e6).epsilon(0.01));
  CHECK(us_of(model, even_decodes(4, 9999), "attention") ==
        doctest::Approx(4 * 10000 * kv_entry / 4.8e6).epsilon(0.01));
  // A chunk of 1,000: the first 127 tokens attend to 1..127, the others to 128.
  const ChunkShape c{1000, 0};
  const double pairs = 127 * 128 / 2 + 873 * 128;
  CHECK(us_of(model, chunk(c), "attention_window") ==
        doctest::Approx(pairs * 4 * 64 * 64 / 989.5e6).epsilon(0.001));
}

TEST_CASE("roofline: tensor parallelism splits work and adds two all-reduces per layer") {
  const LlmSpec m = llm("llama-3.1-70b");
  RooflineCost one(m, ideal(device("h200")), 1, {}), four(m, ideal(device("h200")), 4, {});
  const StepShape s = even_decodes(64, 4096);
  Ticks reduced = 0;
  uint32_t count = 0;
  for (const StepPart& op : four.ops(s)) {
    if (op.kind != PartKind::kAllReduce || op.place != PartPlace::kLayer) continue;
    reduced += op.times * op.each, count += op.times;
    // 2 * 3/4 of 64 tokens * 8,192 * 2 B over 450 GB/s.
    CHECK(static_cast<double>(op.each) / kTicksPerNs ==
          doctest::Approx(1.5 * 64 * 8192 * 2 / 450).epsilon(0.001));
  }
  CHECK(count == 160);
  CHECK(us_of(four, s, "gate_up") == doctest::Approx(us_of(one, s, "gate_up") / 4).epsilon(0.02));
  CHECK(us_of(four, s, "attention") == doctest::Approx(us_of(one, s, "attention") / 4).epsilon(0.001));
  CHECK(four.step(s).device < one.step(s).device / 3);
}

TEST_CASE("roofline: quantised weights are read as stored, and fp8 ones are multiplied as fp8") {
  LlmSpec m = llm("llama-3.1-8b");
  RooflineCost bf16(m, ideal(device("h200")), 1, {});
  m.weights = {NumberFormat::kInt4, 128, 16, 0};
  RooflineCost int4(m, ideal(device("h200")), 1, {});
  m.weights = {NumberFormat::kFp8, 0, 0, 0};
  RooflineCost fp8(m, ideal(device("h200")), 1, {});
  const StepShape small = even_decodes(1, 1);
  CHECK(us_of(int4, small, "gate_up") ==
        doctest::Approx(us_of(bf16, small, "gate_up") * 4.125 / 16).epsilon(0.01));
  CHECK(us_of(fp8, small, "gate_up") == doctest::Approx(us_of(bf16, small, "gate_up") / 2).epsilon(0.01));
  const ChunkShape c{8192, 0};
  CHECK(us_of(int4, chunk(c), "gate_up") == doctest::Approx(us_of(bf16, chunk(c), "gate_up")).epsilon(0.005));
  CHECK(us_of(fp8, chunk(c), "gate_up") ==
        doctest::Approx(us_of(bf16, chunk(c), "gate_up") / 2).epsilon(0.01));
}

TEST_CASE("roofline: more work never takes less time, and operations sum to the step") {
  Prng draws(7);
  for (const char* name : {"llama-3.1-8b", "qwen3-30b-a3b", "gpt-oss-20b"}) {
    RooflineCost model(llm(name), device("h200"), 2, {});
    for (int i = 0; i < 300; ++i) {
      const auto requests = static_cast<uint32_t>(draws.range(1, 300)),
                 context = static_cast<uint32_t>(draws.range(0, 50000));
      const StepCost cost = model.step(even_decodes(requests, context));
      CHECK(cost.device <= model.step(even_decodes(requests + 1, context)).device);
      CHECK(cost.device <= model.step(even_decodes(requests, context + 1)).device);
      const ChunkShape c{requests, context}, longer{requests + 1, context}, later{requests, context + 1};
      CHECK(model.step(chunk(c)).device <= model.step(chunk(longer)).device);
      CHECK(model.step(chunk(c)).device <= model.step(chunk(later)).device);
      Ticks sum = 0, evidence = 0;
      for (const StepPart& op : model.ops(even_decodes(requests, context))) sum += op.times * op.each;
      for (const Ticks t : cost.by_evidence) evidence += t;
      CHECK(sum == cost.device);
      CHECK(evidence == cost.device);
      CHECK(cost.by_evidence[static_cast<size_t>(Evidence::kRoofline)] == cost.device);
    }
  }
}

TEST_CASE("roofline: every model is priced on every device, and host time is passed through") {
  const Catalog catalog;
  for (const std::string& m : catalog.names("llm")) {
    for (const std::string& d : catalog.names("device")) {
      CostModelSpec spec{llm(m.c_str()), device(d.c_str()), 1, {1000, 2000, -3000, 512}, ""};
      auto model = make_cost_model(spec);
      REQUIRE(model);
      const ChunkShape few{100, 0}, many{1000, 0};
      CHECK((*model)->step(even_decodes(8, 1000)).device > 0);
      CHECK((*model)->step(even_decodes(8, 1000)).host == 1000 * kTicksPerNs);
      CHECK((*model)->step(chunk(few)).host == 2000 * kTicksPerNs);
      CHECK((*model)->step(chunk(many)).host == -3000 * kTicksPerNs);
    }
  }
  CostModelSpec problem{llm("qwen2.5-7b"), device("h200"), 8, {}, ""};
  CHECK_FALSE(make_cost_model(problem));
}

TEST_CASE("roofline: tensor parallelism of four, by hand") {
  DeviceSpec d = ideal(device("h200"));
  const Figure fixed{10'000, Basis::kMeasured, "test"}, rate{300e9, Basis::kMeasured, "test"};
  d.all_reduce = {{4, fixed, rate}};
  RooflineCost model(llm("llama-3.1-8b"), d, 4, {});
  double gemm = 0, reduce = 0;
  for (const StepPart& op : model.ops(even_decodes(1, 0))) {
    const double us = 1e3 * ms(op.times * op.each);
    if (op.kind == PartKind::kGemm) gemm += us;
    if (op.kind == PartKind::kAllReduce) reduce += us;
  }
  // A quarter of each layer's 4096 * (6144 + 4096 + 28672 + 14336) weights: 109.05 MB, times 32, at 4.8 TB/s.
  CHECK(gemm == doctest::Approx(727.0).epsilon(0.003));
  // Two all-reduces of one row of 8,192 B in each of 32 layers: 10 us + 2 * 3/4 * 8,192 B / 300 GB/s =
  // 10.041 us. For the logits: half an all-reduce of 256,512 B, 10 us + 2 * 3/4 * 128,256 B / 300 GB/s =
  // 10.641 us.
  CHECK(reduce == doctest::Approx(64 * 10.04096 + 10.64128).epsilon(1e-5));
}

}  // namespace
}  // namespace kvtwin
