// The step graphs of retrieval (docs/design/methods/freekv.md#recall, #timelines): their dependencies and
// the resulting times.

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "engine/base/prng.h"
#include "engine/steps/step_graph_retrieval.h"
#include "tests/support/retrieval_names.h"

using namespace kvtwin;
using kvtwin::testing::kArkvale;
using kvtwin::testing::kFreekv;
using kvtwin::testing::kInfinigen;
using kvtwin::testing::kQuest;
using kvtwin::testing::kReadAll;
using kvtwin::testing::kShadowkv;
using kvtwin::testing::RetrievalName;

namespace {

constexpr uint32_t kGraphLayers = 6;

RetrievalStepSpec spec_of(RetrievalName method) {
  RetrievalStepSpec spec;
  spec.kind = method;
  spec.speculation = method == kFreekv;
  spec.layers = kGraphLayers;
  spec.layers_dense = method == kInfinigen ? 1 : 0;
  spec.converts = method == kFreekv;
  return spec;
}

// Durations in ticks; recalls and conversions per page.
struct Durations {
  Ticks query = 10, append = 1, attention = 20, rest = 30;
  Ticks cosine = 2, score = 5, top_k = 3, sync = 4, reconstruct = 15, reproject = 6;
  Ticks recall = 7, convert = 1, summarise = 1, offload = 9;
};

void set_costs(RetrievalStep* step, const Durations& d) {
  const auto fixed = [&](OpId op, Ticks ticks) {
    if (op != kNoOp) step->graph.set_cost(op, {.fixed = ticks});
  };
  const auto each = [&](OpId op, Ticks ticks, uint64_t bytes) {
    if (op != kNoOp) step->graph.set_cost(op, {.unit = ticks, .unit_bytes = bytes});
  };
  for (const RetrievalLayerOps& ops : step->layers) {
    fixed(ops.query, d.query), fixed(ops.append, d.append), fixed(ops.attention, d.attention);
    fixed(ops.rest, d.rest), fixed(ops.cosine, d.cosine), fixed(ops.sync, d.sync);
    for (const OpId op : {ops.score_now, ops.score_next}) fixed(op, d.score);
    for (const OpId op : {ops.top_k_now, ops.top_k_next}) fixed(op, d.top_k);
    fixed(ops.reconstruct, d.reconstruct), fixed(ops.reproject, d.reproject);
    for (const OpId op : {ops.recall_now, ops.recall_next}) each(op, d.recall, 16384);
    for (const OpId op : {ops.convert_now, ops.convert_next}) each(op, d.convert, 0);
    each(ops.summarise, d.summarise, 0), each(ops.offload, d.offload, 131072);
  }
}

struct Counts {
  uint32_t blocking = 0, background = 0;
  bool flagged = false;
  uint32_t filled = 0;
};

std::vector<uint32_t> outcomes(const RetrievalStep& step, const Counts& counts) {
  std::vector<uint32_t> out(step.outcome_count());
  for (uint32_t l = 0; l < step.layers.size(); ++l) {
    out[step.blocking(l)] = counts.blocking;
    out[step.background(l)] = counts.background;
    out[step.flagged(l)] = counts.flagged;
    out[step.unflagged(l)] = !counts.flagged;
  }
  out[step.filled()] = counts.filled;
  return out;
}

// The last of `steps` equal steps, each starting at the end of the previous one.
StepTiming run(RetrievalStep* step, const Counts& counts, int steps = 1) {
  StepCarry carry;
  StepTiming timing;
  Ticks start = 0;
  for (int i = 0; i < steps; ++i) {
    start = timing.end;
    timing = step->graph.evaluate(start, outcomes(*step, counts), &carry);
  }
  timing.end -= start;
  return timing;
}

// True if `op` cannot start before `cause` has ended, within the step.
bool waits(const StepGraph& graph, OpId op, OpId cause) {
  if (op == cause) return true;
  const auto causes = graph.causes(op);
  return std::any_of(causes.begin(), causes.end(), [&](OpId c) { return waits(graph, c, cause); });
}

}  // namespace

TEST_CASE("retrieval graph: without retrieval it is a chain of layers") {
  RetrievalStep step = make_retrieval_step(spec_of(kReadAll));
  set_costs(&step, {});
  CHECK(run(&step, {}).end == kGraphLayers * (10 + 1 + 20 + 30));
  CHECK(run(&step, {}).exposed == 0);
}

TEST_CASE("retrieval graph: each method's layer takes the time of docs/design/methods/freekv.md#timelines") {
  const Ticks layer = 10 + 1 + 20 + 30, select = 5 + 3;
  struct Row {
    RetrievalName method;
    Counts counts;
    Ticks want;
  };
  const std::vector<Row> rows = {
      {kQuest, {.flagged = true}, layer + select},
      {kArkvale, {.blocking = 4, .flagged = true}, layer + select + 4 + 4 * 7},
      // max(values, keys): 4 pages take 28, rebuilding 15; then 1 page, 7 against 15.
      {kShadowkv, {.blocking = 4, .flagged = true}, layer + select + 4 + 28},
      {kShadowkv, {.blocking = 1, .flagged = true}, layer + select + 4 + 15},
      // FreeKV without a correction: only the check; the later recall is hidden.
      {kFreekv, {.background = 4}, layer + 2},
      {kFreekv, {.blocking = 2, .background = 2, .flagged = true}, layer + 2 + select + 2 * 7 + 2},
  };
  for (const Row& row : rows) {
    CAPTURE(row.method.name);
    RetrievalStep step = make_retrieval_step(spec_of(row.method));
    set_costs(&step, {});
    CHECK(run(&step, row.counts, 5).end == kGraphLayers * row.want);
  }
}

TEST_CASE("retrieval graph: InfiniGen hides a layer's recall during the previous layer") {
  const Ticks layer = 10 + 1 + 20 + 30, ahead = 6 + 5 + 3;
  RetrievalStep step = make_retrieval_step(spec_of(kInfinigen));
  set_costs(&step, {});
  // Slack from its selection in the previous layer to its attention: that layer, then 14 + 11 of its own.
  CHECK(run(&step, {.blocking = 8, .flagged = true}).end ==
        kGraphLayers * layer + (kGraphLayers - 1) * ahead);
  CHECK(run(&step, {.blocking = 8, .flagged = true}).exposed == 0);
  const StepTiming late = run(&step, {.blocking = 40, .flagged = true});
  CHECK(late.exposed > 0);
  CHECK(late.end == kGraphLayers * layer + (kGraphLayers - 1) * ahead + late.exposed);
}

TEST_CASE("F-5 retrieval graph: with every head corrected, speculation saves nothing and costs its check") {
  RetrievalStepSpec spec = spec_of(kFreekv);
  RetrievalStep corrected = make_retrieval_step(spec);
  spec.speculation = false;
  RetrievalStep blocking = make_retrieval_step(spec);
  Durations durations;
  set_costs(&corrected, durations);
  set_costs(&blocking, durations);
  const Counts counts{.blocking = 5, .flagged = true};
  const StepTiming a = run(&corrected, counts, 4), b = run(&blocking, counts, 4);
  CHECK(a.bytes_in == b.bytes_in);
  // The check replaces the synchronisation of a selection without speculation.
  CHECK(a.end - kGraphLayers * durations.cosine == b.end - kGraphLayers * durations.sync);
  CHECK(a.exposed == b.exposed);
}

TEST_CASE("F-6 retrieval graph: requests that fit their resident pages move nothing and wait for nothing") {
  for (const RetrievalName method : {kArkvale, kShadowkv, kInfinigen, kFreekv}) {
    RetrievalStep step = make_retrieval_step(spec_of(method));
    Durations durations;
    durations.cosine = 0;  // no request to check
    set_costs(&step, durations);
    std::vector<uint32_t> none(step.outcome_count());
    StepCarry carry;
    const StepTiming timing = step.graph.evaluate(0, none, &carry);
    CHECK(timing.end == kGraphLayers * (10 + 1 + 20 + 30));
    CHECK(timing.bytes_in + timing.bytes_out == 0);
    CHECK(timing.exposed == 0);
  }
}

TEST_CASE("F-3 retrieval graph: the bytes moved are those of the missed pages, 2 P d values each") {
  RetrievalStep step = make_retrieval_step(spec_of(kFreekv));
  set_costs(&step, {});
  const StepTiming timing = run(&step, {.blocking = 3, .background = 4, .flagged = true, .filled = 2});
  CHECK(timing.bytes_in == kGraphLayers * (3 + 4) * 2 * 32 * 128 * 2);
  CHECK(timing.bytes_out == kGraphLayers * 2 * 8 * 2 * 32 * 128 * 2);
}

TEST_CASE("F-7 retrieval graph: the dependencies that the released code lacks") {
  RetrievalStep step = make_retrieval_step(spec_of(kFreekv));
  const StepGraph& graph = step.graph;
  for (const RetrievalLayerOps& ops : step.layers) {
    CHECK(waits(graph, ops.score_next, ops.append));       // score after the query exists
    CHECK(waits(graph, ops.convert_next, ops.attention));  // scatter after the attention that reads the slots
    CHECK(waits(graph, ops.attention, ops.convert_now));
    CHECK(waits(graph, ops.recall_now, ops.top_k_now));
    CHECK(!waits(graph, ops.attention, ops.recall_next));  // no further dependencies
  }
  // Attention of the next step waits for the recall: slow recalls show one step later, not in the first step.
  Durations slow;
  slow.recall = 100;
  set_costs(&step, slow);
  CHECK(run(&step, {.background = 4}, 1).end == kGraphLayers * (10 + 1 + 2 + 20 + 30));
  const StepTiming second = run(&step, {.background = 4}, 2);
  CHECK(second.end > kGraphLayers * 100);
  CHECK(second.exposed > 0);
  // PCIe is one FIFO: in the long run a step takes as long as its recalls.
  CHECK(run(&step, {.background = 4}, 50).end == doctest::Approx(kGraphLayers * 400).epsilon(0.02));
}

TEST_CASE("F-7 retrieval graph: a slot is reused when the page in it has been offloaded") {
  RetrievalStep step = make_retrieval_step(spec_of(kArkvale));
  Durations durations;
  durations.offload = 5000;
  set_costs(&step, durations);
  const Ticks free = kGraphLayers * (10 + 1 + 1 + 20 + 30);
  CHECK(run(&step, {.filled = 1}, 1).end == free);
  const StepTiming second = run(&step, {.filled = 1}, 2);
  CHECK(second.end > 5000);
  CHECK(second.exposed > 0);
}

TEST_CASE("F-7 retrieval graph: with one staging buffer a recall waits for the previous conversion") {
  RetrievalStepSpec spec = spec_of(kFreekv);
  Durations durations;
  durations.recall = 100;
  durations.convert = 40;
  RetrievalStep two = make_retrieval_step(spec);
  spec.staging_buffers = 1;
  RetrievalStep one = make_retrieval_step(spec);
  set_costs(&two, durations);
  set_costs(&one, durations);
  const Counts counts{.background = 2};
  CHECK(run(&two, counts, 40).end == doctest::Approx(kGraphLayers * 200).epsilon(0.02));
  CHECK(run(&one, counts, 40).end == doctest::Approx(kGraphLayers * 280).epsilon(0.02));
  for (size_t l = 1; l < one.layers.size(); ++l) {
    CHECK(waits(one.graph, one.layers[l].recall_next, one.layers[l - 1].convert_next));
  }
}

TEST_CASE("X-8 retrieval graph: for any durations, no slot is written while attention reads it") {
  for (const RetrievalName method : {kArkvale, kShadowkv, kFreekv}) {
    for (uint64_t seed = 1; seed <= 200; ++seed) {
      CAPTURE(seed);
      Prng prng(seed);
      RetrievalStepSpec spec = spec_of(method);
      spec.converts = prng.chance(1, 2);
      spec.staging_buffers = static_cast<uint32_t>(prng.range(1, 2));
      // Earlier recalls delay this step's, which would hide a missing dependency.
      const uint64_t rare = prng.range(1, 40);
      RetrievalStep step = make_retrieval_step(spec);
      StepCarry carry;
      Ticks end = 0;
      std::vector<Ticks> delivered(kGraphLayers, 0),
          offloaded(kGraphLayers, 0);  // by layer, of the previous steps
      for (int i = 0; i < 6; ++i) {
        for (uint32_t op = 0; op < step.graph.op_count(); ++op) {
          // Transfers that often outlast their step.
          const uint64_t slow = is_transfer(step.graph.op(OpId{op}).kind) ? 1500 : 60;
          step.graph.set_cost(OpId{op}, {.fixed = static_cast<Ticks>(prng.range(0, 90)),
                                         .unit = static_cast<Ticks>(prng.range(0, slow))});
        }
        std::vector<uint32_t> counts(step.outcome_count());
        for (uint32_t& count : counts)
          count = prng.chance(1, rare) ? static_cast<uint32_t>(prng.range(1, 2)) : 0;
        for (uint32_t l = 0; l < kGraphLayers; ++l)
          counts[step.background(l)] = static_cast<uint32_t>(prng.range(0, 2));
        for (uint32_t l = 0; l < kGraphLayers; ++l) counts[step.unflagged(l)] = counts[step.flagged(l)] == 0;
        end = step.graph.evaluate(end, counts, &carry).end;
        std::vector<OpTime> times;
        step.graph.times(&times);
        const auto of = [&](OpId op) { return times[static_cast<size_t>(op)]; };
        const auto happens = [&](uint32_t outcome) { return counts[outcome] > 0; };
        for (uint32_t l = 0; l < kGraphLayers; ++l) {
          const RetrievalLayerOps& ops = step.layers[l];
          // Pages recalled for this step, in it or before it, are present; a page that left its slot is
          // offloaded.
          REQUIRE(of(ops.attention).start >= delivered[l]);
          REQUIRE(of(ops.append).start >= offloaded[l]);
          const OpId now = spec.converts ? ops.convert_now : ops.recall_now;
          if (happens(step.blocking(l))) REQUIRE(of(ops.attention).start >= of(now).end);
          if (happens(step.filled())) offloaded[l] = of(ops.offload).end;
          if (method != kFreekv || !happens(step.background(l))) continue;
          const OpId next = spec.converts ? ops.convert_next : ops.recall_next;
          REQUIRE(of(next).start >= of(ops.attention).end);
          if (happens(step.unflagged(l))) REQUIRE(of(ops.recall_next).start >= of(ops.top_k_next).end);
          if (happens(step.unflagged(l))) REQUIRE(of(ops.score_next).start >= of(ops.append).end);
          delivered[l] = of(next).end;
        }
      }
    }
  }
}

TEST_CASE("retrieval graph: dense layers neither select nor move pages") {
  RetrievalStepSpec spec = spec_of(kFreekv);
  spec.layers_dense = 2;
  const RetrievalStep step = make_retrieval_step(spec);
  for (uint32_t l = 0; l < kGraphLayers; ++l) {
    CHECK((step.layers[l].recall_next == kNoOp) == (l < 2));
    CHECK((step.layers[l].offload == kNoOp) == (l < 2));
    CHECK(step.layers[l].attention != kNoOp);
  }
}
