// KV formats other than bf16 in a profile: exact at measured points, linear between them, refused where not
// measured.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "models/cost_tables/cost_factory.h"
#include "models/cost_tables/device_drift.h"
#include "models/cost_tables/measured_cost.h"
#include "tests/unit/models/tiny_device.h"

namespace kvtwin {
namespace {

// Attention takes 30 us in bf16, 20 to 40 in fp8, 20 to 40 with int4 KV entries and 10 to 20 with int2 ones;
// every other operation takes 1 us.
MeasuredDevice kv_device() {
  MeasuredDevice out;
  out.gpu = "a GPU", out.model = "tiny", out.sm_count = 4;
  const MeasuredShapes s(tiny());
  const std::pair<const char*, std::string> flat[] = {
      {"embed", s.hidden}, {"norm", s.hidden},       {"qkv", s.qkv},
      {"append", s.heads}, {"gate up", s.gate_up},   {"attention out", s.attention_out},
      {"down", s.down},    {"logits", s.logits},     {"activation", s.intermediate},
      {"sample", s.vocab}, {"decode host", s.model}, {"chunk host", s.model}};
  for (const auto& [name, shape] : flat) out.tables.push_back({name, shape, {1, 4096}, {}, {us(1), us(1)}});
  out.tables.push_back({"decode attention", s.heads, {1, 1}, {1000, 9000}, {us(30), us(30)}});
  out.tables.push_back({"chunk attention", s.heads, {128, 128}, {0, 4096}, {us(30), us(30)}});
  const auto decode = [&](const char* name, double least) {
    return MeasuredTable{name,
                         s.heads,
                         {1, 1, 4, 4},
                         {1000, 9000, 1000, 9000},
                         {us(least), us(2 * least), us(least), us(2 * least)}};
  };
  const auto packing = [&](const char* name, double each) {
    return MeasuredTable{name,
                         s.heads,
                         {64, 64, 512, 512},
                         {0, 8000, 0, 8000},
                         {us(each), us(9 * each), us(2 * each), us(10 * each)}};
  };
  out.formats = {{"fp8", 32, 0, {decode("decode attention", 20), packing("chunk packing", 2)}},
                 {"triaxial",
                  32,
                  32,
                  {decode("decode attention", 20), decode("decode attention low-bit", 10),
                   packing("chunk packing", 2), packing("chunk packing low-bit", 1)}}};
  return out;
}

std::unique_ptr<MeasuredCost> model(const MeasuredDevice& from, const std::string& format) {
  auto made = MeasuredCost::make(from, tiny(), {}, "here", DecodeGraphs::kPrepared, format);
  REQUIRE(made);
  return std::move(*made);
}

StepShape decode(uint64_t kv_entries, uint64_t low_bit) {
  StepShape s;
  s.decodes = s.tokens = s.tokens_padded = s.logits_rows = 1;
  s.decode_context_sum = kv_entries, s.decode_context_max = static_cast<uint32_t>(kv_entries);
  s.decode_low_bit_sum = low_bit;
  return s;
}

StepShape chunks_of(std::span<const ChunkShape> chunks) {
  StepShape s;
  for (const ChunkShape& chunk : chunks) s.tokens += chunk.tokens;
  s.tokens_padded = s.tokens, s.chunks = chunks;
  return s;
}

double kv_us(Ticks ticks) { return static_cast<double>(ticks) / kTicksPerNs / 1e3; }

// The difference to bf16 of one layer's attention.
double more(const std::string& format, const StepShape& shape) {
  const Ticks here = model(kv_device(), format)->step(shape).device;
  return kv_us(here - model(kv_device(), "")->step(shape).device) / tiny().layers;
}

}  // namespace

TEST_CASE("formats: decodes take the measured time of packed KV entries, and linear times between") {
  CHECK(more("fp8", decode(1000, 0)) == doctest::Approx(-10).epsilon(1e-4));
  CHECK(more("fp8", decode(5000, 0)) == doctest::Approx(0).epsilon(1e-4));
  CHECK(more("fp8", decode(9000, 0)) == doctest::Approx(10).epsilon(1e-4));
  const StepCost on = model(kv_device(), "fp8")->step(decode(9000, 0));
  CHECK(on.by_evidence[static_cast<size_t>(Evidence::kMeasured)] == on.device);
  const StepCost beyond = model(kv_device(), "fp8")->step(decode(20'000, 0));
  CHECK(beyond.by_evidence[static_cast<size_t>(Evidence::kExtrapolated)] > 0);
}

TEST_CASE("formats: low-bit KV entries count by their fraction") {
  CHECK(more("triaxial", decode(9000, 0)) == doctest::Approx(10).epsilon(1e-4));
  CHECK(more("triaxial", decode(9000, 9000)) == doctest::Approx(-10).epsilon(1e-4));
  CHECK(more("triaxial", decode(9000, 2250)) == doctest::Approx(5).epsilon(1e-4));
  CHECK(more("fp8", decode(9000, 2250)) == doctest::Approx(10).epsilon(1e-4));  // fp8 ignores the int2 count
  const ChunkShape wide{64, 8000, 0}, low_bit{64, 8000, 8000}, quarter{64, 8000, 2000};
  CHECK(more("triaxial", chunks_of({&wide, 1})) == doctest::Approx(18).epsilon(1e-4));
  CHECK(more("triaxial", chunks_of({&low_bit, 1})) == doctest::Approx(9).epsilon(1e-4));
  CHECK(more("triaxial", chunks_of({&quarter, 1})) == doctest::Approx(15.75).epsilon(1e-4));
}

TEST_CASE("formats: every chunk's history is unpacked") {
  const ChunkShape alone{64, 0, 0}, behind{64, 4000, 0};
  CHECK(more("fp8", chunks_of({&alone, 1})) == doctest::Approx(2).epsilon(1e-4));
  CHECK(more("fp8", chunks_of({&behind, 1})) == doctest::Approx(10).epsilon(1e-4));
  const ChunkShape both[] = {behind,
                             behind};  // 128 tokens, 8,000 KV entries: a seventh of the way to 512 tokens
  CHECK(more("fp8", chunks_of(both)) == doctest::Approx(18 + 2.0 / 7).epsilon(1e-3));
}

TEST_CASE("formats: parts sum to the step, and ranges contain it") {
  const ChunkShape chunk{64, 4000, 100};
  StepShape mixed = decode(5000, 700);
  mixed.chunks = {&chunk, 1}, mixed.tokens = mixed.tokens_padded = 65;
  const auto m = model(kv_device(), "triaxial");
  Ticks sum = 0;
  for (const StepPart& part : m->ops(mixed)) sum += part.times * part.each;
  CHECK(sum == m->step(mixed).device);
  CHECK(m->range(mixed).low < sum);
  CHECK(m->range(mixed).high > sum);
}

TEST_CASE("formats: an unmeasured format is refused with a remedy") {
  const auto none =
      MeasuredCost::make(kv_device(), tiny(), {}, "h.textproto", DecodeGraphs::kPrepared, "kivi_int2");
  REQUIRE(!none);
  CHECK(none.error().what == "has no attention over kivi_int2 KV of 4/1x16");
  CHECK(none.error().hint.find("leave the profile out") != std::string::npos);
  MeasuredDevice half = kv_device();
  half.formats[0].tables.pop_back();
  CHECK(!MeasuredCost::make(half, tiny(), {}, "h.textproto", DecodeGraphs::kPrepared, "fp8"));
  CHECK(MeasuredCost::make(half, tiny(), {}, "h.textproto"));
}

TEST_CASE("formats: a written profile reads back, in one version") {
  const std::string text = measured_device_textproto(kv_device());
  const Result<MeasuredDevice> back = parse_measured_device(text, "x");
  REQUIRE(back);
  REQUIRE(back->formats.size() == 2);
  CHECK(back->format("triaxial")->group == 32);
  CHECK(back->format("triaxial")->page_tokens == 32);
  CHECK(back->format("fp8")->table("chunk packing", "4/1x16")->at[1].us == doctest::Approx(18));
  CHECK(back->table("decode attention", "4/1x16")->at[0].us == doctest::Approx(30));  // that of bf16
  CHECK(measured_device_textproto(*back) == text);
  std::string newer = text;
  newer.replace(newer.find("version: 1"), 10, "version: 2");
  const Result<MeasuredDevice> refused = parse_measured_device(newer, "x");
  REQUIRE(!refused);
  CHECK(refused.error().what == "format fp8: tables of version 2");
  std::string twice = text;
  twice.replace(twice.find("\"triaxial\""), 10, "\"fp8\"");
  CHECK(!parse_measured_device(twice, "x"));
}

TEST_CASE("formats: a slower GPU is slower in all of them") {
  const MeasuredDevice slower = rescaled(kv_device(), {.decodes = 0.1, .chunks = 0.2}, 256);
  CHECK(slower.format("fp8")->tables[0].at[0].us == doctest::Approx(22));
  CHECK(slower.format("fp8")->tables[1].at[0].us == doctest::Approx(2.4));
}

}  // namespace kvtwin
