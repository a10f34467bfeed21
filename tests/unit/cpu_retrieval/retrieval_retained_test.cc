// Recall of the retained entries of a prompt (recalled_entries.h), on real data. Quest over the same KV
// entries has all of them on the GPU and no slots, so it is an oracle for the selection and the reads.

#include <doctest/doctest.h>

#include "tests/support/retrieval_names.h"
#include "tests/unit/cpu_engine/tiny_models.h"
#include "tests/unit/cpu_retrieval/retrieval_run.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

// Some prompts retain more pages than there are resident pages (7 of 8 tokens), some fewer; the last is
// shorter than a budget of 83 KV entries.
const std::vector<RetrievalRequest> kRetainedRequests = {
    {0, 150, 40}, {0, 190, 30}, {900, 201, 24}, {2'000, 20, 60}};

RetrievalSetting retained_setting(RetrievalName method, const char* scorer, const char* budget) {
  RetrievalSetting out;
  out.retrieval = method == kFreekv ? "freekv" : "arkvale";
  out.spec = small_spec(method);
  out.copies = recall_copies(method);
  out.spec.tau_q32 = kOneQ32 / 10;
  out.scorer = scorer, out.budget = budget;
  out.budget_spec.sinks = 3, out.budget_spec.window = 8;
  out.budget_spec.kv_entries = 83;
  out.budget_spec.ratio = kWhole * 6 / 10;
  return out;
}

struct Cut {
  const char* scorer;
  const char* budget;
};
// The last two run passes of probe tokens in the steps after the prompt; KVzip's have a step of their own.
constexpr Cut kCuts[] = {{"snapkv", "uniform"},
                         {"knorm", "ratio"},
                         {"expected_attention", "ratio"},
                         {"judge_q", "uniform"},
                         {"kvzip", "ratio"}};

}  // namespace

TEST_CASE(
    "X-1 G-2 recalled KV entries: resident pages that hold all retained entries give the dropping method "
    "alone") {
  for (const Cut& cut : kCuts) {
    for (const size_t index : {size_t{0}, size_t{1}}) {  // GQA 4:1, MHA
      CAPTURE(cut.scorer);
      const ModelWeights weights = ModelWeights::random(three_layers(index), 3);
      RetrievalSetting setting = retained_setting(kFreekv, cut.scorer, cut.budget);
      const RetrievalOutcome chosen = run_retrieval(setting, weights, kRetainedRequests);
      const uint64_t cut_prompts = std::string(cut.budget) == "ratio" ? 4 : 3;
      CHECK(chosen.compressions == cut_prompts);
      CHECK(chosen.recalled.heads > 100);
      CHECK(chosen.recalled.blocking + chosen.recalled.background > 50);
      setting.spec.budget_tokens = 240;
      const RetrievalOutcome dequantized = run_retrieval(setting, weights, kRetainedRequests);
      CHECK(dequantized.recalled.heads == 0);
      setting.retrieval = "all";
      const RetrievalOutcome alone = run_retrieval(setting, weights, kRetainedRequests);
      CHECK(dequantized.logits == alone.logits);
      CHECK(chosen.logits != alone.logits);
      CHECK(alone.compressions == cut_prompts);
    }
  }
}

TEST_CASE(
    "F-2 F-4 F-5 recalled KV entries: with every head corrected, reads equal Quest's over the same KV "
    "entries") {
  for (const Cut& cut : kCuts) {
    for (const size_t index : {size_t{0}, size_t{1}}) {
      CAPTURE(cut.scorer);
      const ModelWeights weights = ModelWeights::random(three_layers(index), 4);
      RetrievalSetting setting = retained_setting(kFreekv, cut.scorer, cut.budget);
      setting.spec.tau_q32 = kOneQ32 + 1;
      setting.spec.layers_dense = index == 1 ? 1 : 0;
      const RetrievalOutcome always = run_retrieval(setting, weights, kRetainedRequests);
      setting.spec.speculation = false;
      setting.retrieval = "arkvale";
      setting.copies.layout = HostPageLayout::kNhd;
      const RetrievalOutcome blocking = run_retrieval(setting, weights, kRetainedRequests);
      setting.retrieval = "quest";
      const RetrievalOutcome quest = run_retrieval(setting, weights, kRetainedRequests);
      CHECK(always.logits == blocking.logits);
      CHECK(blocking.logits == quest.logits);
      CHECK(quest.recalled.heads == blocking.recalled.heads);
      CHECK(blocking.recalled.heads > 100);
      CHECK(blocking.recalled.blocking > 50);
      CHECK(always.recalled.blocking == blocking.recalled.blocking);
    }
  }
}

TEST_CASE(
    "F-7 X-8 X-9 recalled KV entries: copies, chunks, other requests and steps in flight change no bit") {
  const ModelWeights weights = ModelWeights::random(three_layers(2), 5);
  for (const Cut& cut : kCuts) {
    CAPTURE(cut.scorer);
    RetrievalSetting setting = retained_setting(kFreekv, cut.scorer, cut.budget);
    const RetrievalOutcome expected = run_retrieval(setting, weights, kRetainedRequests);
    for (uint32_t delays = 1; delays <= 4; ++delays) {
      setting.delays = delays;
      setting.copies.staging_buffers = 1 + delays % 2;
      setting.in_flight = 1 + delays % 2;
      setting.step_tokens_max = 20 + 13 * delays;
      setting.requests_max = delays;
      const RetrievalOutcome run = run_retrieval(setting, weights, kRetainedRequests);
      CHECK(run.logits == expected.logits);
      CHECK(run.recalled.corrected == expected.recalled.corrected);
    }
  }
}

TEST_CASE("X-3 recalled KV entries: preempted requests resume, and their pages are accounted for") {
  const ModelWeights weights = ModelWeights::random(three_layers(0), 6);
  uint64_t preemptions = 0, compressions = 0;
  for (uint64_t seed = 1; seed <= 16; ++seed) {
    CAPTURE(seed);
    RetrievalSetting setting = retained_setting(seed % 2 == 0 ? kFreekv : kArkvale, "knorm", "ratio");
    setting.seed = seed;
    setting.delays = seed % 3;
    setting.in_flight = 1 + static_cast<uint32_t>(seed % 2);
    setting.pages_gpu = 30 + static_cast<uint32_t>(seed % 5);
    setting.pages_host = 40;
    const RetrievalOutcome run = run_retrieval(setting, weights, kRetainedRequests);
    preemptions += run.preemptions;
    compressions += run.compressions;
  }
  CHECK(preemptions > 5);
  CHECK(compressions > 48);
}
