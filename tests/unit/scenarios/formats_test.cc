#include "scenarios/app/formats.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "models/cost_tables/measured_device.h"
#include "models/profiles/retention_profile.h"
#include "models/profiles/tag_map.h"
#include "scenarios/app/compose.h"
#include "scenarios/app/compose_parts.h"
#include "tests/support/source_dir.h"

namespace kvtwin {
namespace {

const std::string kFormatsPath = testing::source_dir() + "/scenarios/test.textproto";
const std::string kFormatsGood =
    "model { name: \"llama-3.1-8b\" }\n"
    "hardware { node: \"h200\" }\n"
    "memory { page_tokens: 128 }\n"
    "trace { path: \"../tests/unit/scenarios/scenario_test.cc\" format: \"azure\" }\n";

tl::expected<Composed, Errors> composed(std::vector<std::string> sets) {
  const auto scenario = parse_scenario(kFormatsGood, kFormatsPath, sets);
  if (!scenario) return tl::unexpected(scenario.error());
  return compose_engines(*scenario);
}

const CoreConfig& config_of(const tl::expected<Composed, Errors>& c) {
  REQUIRE_MESSAGE(c, (c ? std::string() : c.error().front().text()));
  return c->options.engines.front();
}

std::string complaint(std::vector<std::string> sets) {
  const auto c = composed(std::move(sets));
  return c ? "" : c.error().front().text();
}

PartitionSpec partition_of(const std::vector<std::string>& sets) {
  const auto scenario = parse_scenario(kFormatsGood, kFormatsPath, sets);
  const auto c = composed(sets);
  REQUIRE(scenario);
  REQUIRE(c);
  Errors errors;
  const PartitionSpec out = load_partition(*scenario, c->llm, &errors);
  CHECK(errors.empty());
  return out;
}

bool message(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// A file in a temporary folder.
struct TextFile {
  explicit TextFile(const std::string& text) : path(dir() / "file.textproto") {
    std::filesystem::create_directories(dir());
    std::ofstream(path) << text;
  }
  ~TextFile() { std::filesystem::remove_all(dir()); }
  static std::filesystem::path dir() {
    return std::filesystem::temp_directory_path() / "kvtwin_formats_test";
  }
  const std::filesystem::path path;
};

// Host time of a step of `decodes` requests in ns, on an H100 whose measurements have `figures` too.
int64_t host_ns(const std::vector<MeasuredFigure>& figures, uint32_t in_flight, uint32_t decodes) {
  Result<MeasuredDevice> device =
      load_measured_device(testing::source_dir() + "/models/measured/h100.textproto");
  REQUIRE(device);
  std::erase_if(device->figures,
                [](const MeasuredFigure& one) { return one.name.starts_with("host between steps"); });
  device->figures.insert(device->figures.end(), figures.begin(), figures.end());
  const TextFile profile(measured_device_textproto(*device));
  const auto scenario = parse_scenario(
      "model { name: \"llama-3.1-8b\" }\nhardware { node: \"h100\" }\n"
      "trace { path: \"coding_agents_small.kvtrace\" format: \"kvtwin\" }\n",
      testing::source_dir() + "/traces/data/x.textproto",
      {"cost.profile=" + profile.path.string(), "cost.host_ns_per_step=500",
       "limits.steps_in_flight_max=" + std::to_string(in_flight)});
  REQUIRE(scenario);
  const auto c = compose(*scenario);
  REQUIRE_MESSAGE(c, (c ? std::string() : c.error().front().text()));
  StepShape shape;
  shape.decodes = decodes, shape.decode_context_sum = 100 * decodes, shape.decode_context_max = 100;
  shape.tokens = shape.tokens_padded = shape.logits_rows = decodes;
  return c->cost->step(shape).host / kTicksPerNs;
}

}  // namespace

TEST_CASE("formats: measured host time between steps adds to the scenario's, unless two are in flight") {
  const MeasuredFigure step{"host between steps", "us", 20, 18, 25};
  const MeasuredFigure request{"host between steps, a request", "us", 0.25, 0.2, 0.3};
  CHECK(host_ns({}, 1, 8) == 500);
  CHECK(host_ns({step}, 1, 8) == 20'500);
  CHECK(host_ns({step, request}, 1, 8) == 22'500);
  CHECK(host_ns({step, request}, 1, 64) == 36'500);
  CHECK(host_ns({step, request}, 2, 8) == 500);
}

TEST_CASE("formats: a precision multiplies the pages that fit, scales included") {
  const double bf16 = config_of(composed({})).pages_gpu;
  const struct {
    const char* precision;
    const char* group;
    double times;
  } rows[] = {{"fp8", "32", 2},
              {"int4", "32", 3.2},
              {"int4", "64", 512.0 / 144},
              {"int4", "128", 512.0 / 136},
              {"fp4", "32", 512.0 / 144}};
  for (const auto& row : rows) {
    CAPTURE(row.precision);
    const auto c = composed({std::string("policies.precision=") + row.precision,
                             std::string("policies.precision_options.group=") + row.group});
    CHECK(config_of(c).pages_gpu / bf16 == doctest::Approx(row.times).epsilon(1e-4));
    CHECK(config_of(c).policies.precision == row.precision);
  }
  // KIVI keeps 128 tokens of each of 256 requests in bf16: 4.3 GB less for pages.
  const auto kivi = composed({"policies.precision=kivi_int2"});
  const double page = 128 * 32 * 8 * 96.0, exact = 256.0 * 128 * 131'072;
  CHECK(config_of(kivi).pages_gpu == doctest::Approx((bf16 * 128 * 131'072 - exact) / page).epsilon(1e-4));
}

TEST_CASE("formats: options reach the policy") {
  const std::vector<std::string> sets = {
      "policies.precision=int4", "policies.precision_options.group=128", "policies.partition=aot",
      "policies.partition_options.aot_weight=budget_sum", "policies.partition_options.tile=32"};
  const auto c = composed(sets);
  const PolicySet& set = config_of(c).policies;
  CHECK(set.precision_spec.group == 128);
  CHECK(set.partition == "aot");
  const PartitionSpec partition = partition_of(sets);
  CHECK(partition.aot_weight == AotWeight::kBudgetSum);
  CHECK(partition.tile == 32);
  CHECK(partition.head_budgets.empty());
}

TEST_CASE("formats: a tag map is read, and its errors are reported at the field that names it") {
  TagMap map;
  map.bits = 2.7;
  map.four_bit_tags = 5;
  const TextFile file(tag_map_textproto(map));
  const std::string named = "policies.precision_options.tag_map=" + file.path.string();
  const auto scenario = parse_scenario(kFormatsGood, kFormatsPath, {named});
  REQUIRE(scenario);
  PolicySet set;
  Errors errors;
  load_format_specs(*scenario, {}, &set, &errors);
  CHECK(errors.empty());
  CHECK(set.precision_spec.four_bit_tags == 5);
  CHECK(set.precision_spec.bits_above_two == doctest::Approx(0.7 * 0x1p32).epsilon(1e-9));
  CHECK(message(resolved_textproto(*scenario), file.path.c_str()));
  std::ofstream(file.path) << "bits: 9";
  CHECK(message(complaint({named}), "bits is 9"));
  CHECK(message(complaint({"policies.precision_options.tag_map=/no/such.textproto"}), "does not exist"));
}

TEST_CASE("formats: mixed precision holds x4.32 (B = 2.7) and x4.57 (B = 2.5) of the KV entries of bf16") {
  const auto c = composed({"model.name=qwen3-32b", "hardware.node=h200", "memory.page_tokens=32"});
  const double bf16 = config_of(c).pages_gpu;
  for (const auto& [bits, times] : {std::pair(2.7, 512 / 118.4), {2.5, 512 / 112.0}}) {
    PrecisionSpec spec;
    spec.bits_above_two = static_cast<uint64_t>((bits - 2) * 0x1p32);
    const MixedPrecisionPoolSize pools =
        mixed_precision_pool_pages(c->llm, 1, 32, static_cast<uint64_t>(c->memory.kv_bytes), spec);
    CHECK((pools.pages_2 + pools.pages_4) / bf16 == doctest::Approx(times).epsilon(1e-3));
    CHECK(pools.pages_2 / (pools.pages_2 + 1.0 * pools.pages_4) ==
          doctest::Approx((4 - bits) / 2).epsilon(1e-4));
  }
}

TEST_CASE("formats: AOT's budgets come from a profile of the same model") {
  RetentionProfile p;
  p.name = "small", p.base_ratio = 0.3, p.layers = 32, p.kv_heads = 8;
  for (uint32_t i = 0; i < 32; ++i) p.layer_ids.push_back(i);
  p.mu.assign(256, 0.25), p.sigma.assign(256, 0.125);
  p.fraction_mu.assign(256, 1), p.fraction_sigma.assign(256, 0.5);
  TextFile file(retention_textproto(p, 2));
  const std::string named = "policies.partition_options.profile=" + file.path.string();
  CHECK(partition_of({"policies.partition=aot", named, "policies.partition_options.alpha=1"}).head_budgets ==
        std::vector<uint64_t>(256, (3ull << 32) / 8));
  CHECK(message(complaint({named, "model.name=qwen3-8b"}), "32 layers of 8 KV heads, qwen3-8b has 36 of 8"));
}

TEST_CASE("formats: KV entries are read from lists where pages of several bf16 tokens have dropped slots") {
  const std::string cut = "policies.budget_options.kv_entries=4096";
  const auto lists = [&](const std::string& layout, uint32_t page, const std::string& more) {
    const auto c =
        composed({"policies.identity=none", "policies.scorer=snapkv", "policies.budget=uniform", cut,
                  "policies.layout=" + layout, "memory.page_tokens=" + std::to_string(page), more});
    return lists_entries(config_of(c));
  };
  CHECK(lists("page_mask", 16, cut));
  CHECK(lists("page_mask", 128, cut));
  CHECK_FALSE(lists("slot_mask", 1, cut));
  CHECK_FALSE(lists("compact", 16, "limits.prefix_cache=false"));
  CHECK_FALSE(lists("page_mask", 128, "policies.precision=fp8"));
  CHECK_FALSE(lists("page_mask", 32, "policies.retrieval=quest"));
  CHECK_FALSE(lists_entries(config_of(composed({}))));
}

TEST_CASE("formats: the shipped scenarios of uniform formats compose") {
  for (const char* name : {"fp8", "int4", "fp4", "kivi", "triaxial"}) {
    CAPTURE(name);
    const auto scenario =
        load_scenario(testing::source_dir() + "/scenarios/methods/" + name + ".textproto", {});
    REQUIRE_MESSAGE(scenario, (scenario ? std::string() : scenario.error().front().text()));
    const auto c = compose_engines(*scenario);
    CHECK(config_of(c).policies.precision.starts_with(name));
    CHECK(config_of(c).pages_gpu > 20'000);
  }
}

TEST_CASE("formats: a measured profile prices its formats, with the page sizes it measured") {
  Result<MeasuredDevice> device =
      load_measured_device(testing::source_dir() + "/models/measured/h200.textproto");
  REQUIRE(device);
  const std::string heads = "32/8x128";
  const auto table = [&](const char* name, double us) {
    return MeasuredTable{name, heads, {1, 1}, {0, 1000}, {{us, us, us}, {2 * us, 2 * us, 2 * us}}};
  };
  device->formats = {{"int4", 32, 32, {table("decode attention", 20), table("chunk packing", 5)}}};
  const TextFile file(measured_device_textproto(*device));
  const auto errors_of = [&](std::vector<std::string> sets) {
    sets.push_back("model.name=llama-3.1-8b");
    sets.push_back("cost.profile=" + file.path.string());
    sets.push_back("trace.path=" + testing::source_dir() + "/scenarios/suites/validation_traces/mixed.csv");
    const auto scenario = parse_scenario(kFormatsGood, kFormatsPath, sets);
    REQUIRE(scenario);
    const auto c = compose(*scenario);
    return c ? std::string() : c.error().front().text();
  };
  CHECK(errors_of({"policies.precision=int4", "memory.page_tokens=32"}) == "");
  CHECK(errors_of({"memory.page_tokens=16"}) == "");
  CHECK(
      message(errors_of({"policies.precision=fp8", "memory.page_tokens=32"}), "calibrate device --formats"));
  CHECK(message(errors_of({"policies.precision=int4"}),
                "pages of 32 tokens and groups of 32, the scenario has 128 and 32"));
  CHECK(message(
      errors_of({"policies.precision=int4", "memory.page_tokens=32", "policies.precision_options.group=64"}),
      "groups of 32, the scenario has 32 and 64"));
}

TEST_CASE("formats: chunks that are scored as a whole need steps that are longer") {
  const auto notes = [](const char* step) {
    const auto c = composed({"policies.scorer=keydiff", "policies.budget=ratio", "policies.layout=compact",
                             "policies.identity=none", "limits.prefix_cache=false",
                             "policies.scorer_options.compression_trigger=chunk_end",
                             "policies.budget_options.chunk_tokens=1024",
                             std::string("limits.step_tokens_max=") + step});
    REQUIRE_MESSAGE(c, (c ? std::string() : c.error().front().text()));
    return std::count_if(c->notes.begin(), c->notes.end(), [](const std::string& one) {
      return message(one, "whole chunks of 1024 tokens") && message(one, "limits.step_tokens_max=2048");
    });
  };
  CHECK(notes("1024") == 1);
  CHECK(notes("1025") == 0);
}

}  // namespace kvtwin
