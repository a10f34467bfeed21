#include "models/serving/server_cost.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "models/serving/server_profile.h"

namespace kvtwin {
namespace {

// 1000 ns, 10 per decode, 1 per token of context, 100 per token of a chunk.
class LinearCost final : public CostModel {
 public:
  StepCost step(const StepShape& shape) override {
    int64_t ns = 1000 + 10 * int64_t{shape.decodes} + static_cast<int64_t>(shape.decode_context_sum);
    for (const ChunkShape& chunk : shape.chunks) ns += 100 * int64_t{chunk.tokens};
    StepCost cost;
    cost.device = ns * kTicksPerNs;
    cost.host = 7 * kTicksPerNs;
    cost.by_evidence[1] = cost.device / 4;
    cost.by_evidence[3] = cost.device - cost.by_evidence[1];
    return cost;
  }
  std::vector<StepPart> ops(const StepShape& shape) override {
    return {{"all", PartKind::kGemm, PartPlace::kLayer, 1, step(shape).device, Evidence::kMeasured}};
  }
};

StepShape shape_of(uint32_t decodes, uint64_t context, std::span<const ChunkShape> chunks) {
  StepShape shape;
  shape.decodes = decodes;
  shape.decode_context_sum = context;
  shape.chunks = chunks;
  shape.tokens = decodes;
  for (const ChunkShape& chunk : chunks) shape.tokens += chunk.tokens;
  shape.tokens_padded = shape.tokens;
  return shape;
}

ServerCost cost_with(const ServerTimes& times) { return {times, std::make_unique<LinearCost>()}; }

TEST_CASE("server cost: nothing fitted is the base model") {
  ServerCost cost = cost_with({});
  const ChunkShape chunk{50, 0};
  for (const StepShape& shape :
       {shape_of(3, 500, {}), shape_of(3, 500, {&chunk, 1}), shape_of(0, 0, {&chunk, 1})}) {
    CHECK(cost.step(shape).device == LinearCost().step(shape).device);
    CHECK(cost.step(shape).host == 7 * kTicksPerNs);
  }
}

TEST_CASE("server cost: each figure scales its part") {
  const ChunkShape chunk{50, 0};
  const struct {
    ServerTimes times;
    StepShape shape;
    int64_t device_ns, host_ns;
  } table[] = {
      {{.weights = 2}, shape_of(3, 500, {}), 2 * 1030 + 500, 7},
      {{.kv = 2}, shape_of(3, 500, {}), 1030 + 2 * 500, 7},
      {{.prefill = 2}, shape_of(3, 500, {}), 1530, 7},
      {{.prefill = 2}, shape_of(3, 500, {&chunk, 1}), 1530 + 2 * 5000, 7},
      {{.weights = 2, .kv = 3, .prefill = 4},
       shape_of(3, 500, {&chunk, 1}),
       2 * 1030 + 3 * 500 + 4 * 5000,
       7},
      // Without decodes the floor is that of one token, of which the chunk has the 10 ns.
      {{.weights = 2}, shape_of(0, 0, {&chunk, 1}), 2 * 1010 + 4990, 7},
      {{.host_step_ns = 100, .host_request_ns = 5}, shape_of(3, 500, {&chunk, 1}), 6530, 7 + 100 + 4 * 5},
  };
  for (const auto& row : table) {
    ServerCost cost = cost_with(row.times);
    const StepCost step = cost.step(row.shape);
    CHECK(step.device == row.device_ns * kTicksPerNs);
    CHECK(step.host == row.host_ns * kTicksPerNs);
  }
}

TEST_CASE("server cost: evidence and operations sum to the step") {
  ServerCost cost = cost_with({.weights = 1.037, .kv = 0.911, .prefill = 1.213});
  const ChunkShape chunk{51, 0};
  const StepShape shape = shape_of(7, 12345, {&chunk, 1});
  const StepCost step = cost.step(shape);
  Ticks evidence = 0, operations = 0;
  for (const Ticks ticks : step.by_evidence) evidence += ticks;
  for (const StepPart& part : cost.ops(shape)) operations += part.times * part.each;
  CHECK(evidence == step.device);
  CHECK(operations == step.device);
}

TEST_CASE("server profile: a file reads back unchanged") {
  ServerProfile profile;
  profile.name = "mine", profile.source = "log.jsonl", profile.model = "llama-3.1-8b",
  profile.device = "h100";
  profile.tensor_parallel = 2, profile.base = "tables";
  profile.times = {1e6, 2e4, 1.1, 0.9, 1.2, 5'000'000};
  profile.seen = {30, 4000, 5000, 64, 0.25};
  const std::string text = server_profile_textproto(profile);
  CHECK(is_server_profile(text));
  const Result<ServerProfile> read = parse_server_profile(text, "mine.textproto");
  REQUIRE(read.has_value());
  CHECK(server_profile_textproto(*read) == text);
}

TEST_CASE("server profile: impossible figures are errors") {
  for (const char* line : {"host_step_ns: -1", "host_request_ns: nan", "weights: 0", "kv: -2", "prefill: 101",
                           "first_step_ns: -5", "unknown: 1"}) {
    CHECK_FALSE(parse_server_profile(line, "mine.textproto").has_value());
  }
  CHECK(parse_server_profile("", "mine.textproto").has_value());
  CHECK_FALSE(is_server_profile("# proto-message: kvtwin.v1.MeasuredDevice\n"));
}

}  // namespace
}  // namespace kvtwin
