// ShadowKV and InfiniGen on CUDA compared with the CPU engine. Both get the same launches, so differing
// reads are detected. Scores use bf16 rows: where two pages are nearly as good, the two engines may select
// differently, and that sample's logits differ by the weight of a page. InfiniGen selects single tokens, for
// which near ties are common: the CPU engine reads the GPU's tokens, and how many it would have selected too
// is a check of its own.

#include <doctest/doctest.h>

#include <cmath>

#include "engine/cuda/device/happens_before.h"
#include "tests/support/retrieval_names.h"
#include "tests/unit/cuda_engine/both_engines.h"
#include "tests/unit/cuda_engine/issued_lists.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

const std::vector<RetrievalRequest> kRequests = {
    {0, 400, 40}, {0, 90, 180}, {50, 333, 20}, {60, 30, 25}, {5'000, 257, 60}};

LlmSpec model_of(uint32_t head_dim, uint32_t query_heads, uint32_t kv_heads) {
  LlmSpec m = tiny_model("llama", query_heads, kv_heads);
  m.head_dim = head_dim, m.layers = 3, m.hidden = 256, m.intermediate = 256, m.vocab = 256;
  return m;
}

// In pages of 16: 1 sink, a window of 2, 4 selected; ShadowKV keeps 2 more.
RetrievalSetting setting_of(RetrievalName method) {
  RetrievalSetting setting;
  const bool shadow = method == kShadowkv;
  setting.retrieval = shadow ? "shadowkv" : "infinigen";
  setting.page_tokens = 16, setting.pages_gpu = 160, setting.pages_host = 150, setting.step_tokens_max = 96;
  RetrievalSpec& spec = setting.spec;
  spec = retrieval_defaults(method);
  spec.sink_tokens = 16, spec.window_tokens = 32, spec.budget_tokens = 112;
  spec.extra_tokens = shadow ? 32 : 0, spec.layers_dense = 1, spec.rank = 24;
  return setting;
}

// Of every step of one of them: with any rows, choices and completed pages.
ListTexts possible_lists(RetrievalName method) {
  ListTexts out;
  for (uint32_t bits = 1; bits < 128; ++bits) {
    const auto bit = [&](uint32_t i) { return (bits >> i & 1) != 0; };
    const AttentionRows rows{bit(0), bit(1), false};
    const StepListSpec spec = method == kShadowkv
                                  ? shadowkv_list(rows, bit(2), bit(3), bit(4))
                                  : infinigen_list(rows, bit(6), bit(1), bit(2), bit(3), bit(4));
    // Values or tokens that are chosen are waited for by attention of some rows.
    if (bit(2) && !rows.decodes && !rows.chunks && method == kShadowkv) continue;
    out.insert(NamedList{"", spec, bit(5)}.text());
  }
  return out;
}

}  // namespace

TEST_CASE("cuda: steps of ShadowKV and InfiniGen start the operations of their lists") {
  for (const RetrievalName method : {kShadowkv, kInfinigen}) {
    const RetrievalSetting setting = setting_of(method);
    ListTexts found;
    WatchOnGpu watch;
    watch.issued = [&](const LaunchStep&, uint32_t, const StepList& issued) { found.insert(issued.text()); };
    run_both(setting, method, kRequests, model_of(64, 8, 2), watch);
    check_lists(found, possible_lists(method), setting.retrieval);
  }
}

TEST_CASE(
    "X-8 cuda: ShadowKV and InfiniGen give the same bits when streams are late, and order every access") {
  for (const RetrievalName method : {kShadowkv, kInfinigen}) {
    const RetrievalSetting setting = setting_of(method);
    CAPTURE(setting.retrieval);
    const LlmSpec llm = model_of(64, 8, 2);
    const Compared expected = run_both(setting, method, kRequests, llm);
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      cuda::HappensBefore watch;
      const Compared late =
          run_both(setting, method, kRequests, llm, {{.delays = seed, .watch = &watch}, {}});
      CHECK(late.logits == expected.logits);
      CHECK(late.blocking_gpu == expected.blocking_gpu);
      CHECK(watch.operations() > 1000);
      for (const std::string& finding : watch.findings()) FAIL_CHECK(finding);
    }
  }
}

TEST_CASE("X-8 cuda: the recorder finds each dependency that ShadowKV or InfiniGen lacks") {
  for (const RetrievalName method : {kShadowkv, kInfinigen}) {
    for (const Edge edge : {Edge::kRecalled, Edge::kSealed, Edge::kOffloaded, Edge::kChosen}) {
      CAPTURE(method);
      CAPTURE(static_cast<int>(edge));
      cuda::HappensBefore watch;
      run_both(setting_of(method), method, {kRequests[0], kRequests[1]}, model_of(64, 8, 2),
               {{.left_out = edge, .watch = &watch}, {}});
      CHECK(!watch.findings().empty());
    }
  }
}

TEST_CASE("cuda: ShadowKV and InfiniGen select, move and read as the CPU engine does, except for near ties") {
  for (const RetrievalName method : {kShadowkv, kInfinigen}) {
    const RetrievalSetting setting = setting_of(method);
    CAPTURE(setting.retrieval);
    for (const LlmSpec& llm :
         {model_of(64, 8, 2), model_of(128, 4, 1)}) {  // 128 dimensions: eigenvectors are slow
      const Compared got = run_both(setting, method, kRequests, llm);
      MESSAGE(setting.retrieval << ", heads of " << llm.head_dim << ": relative error of logits, median "
                                << quantile(got.errors, 0.5) << ", 90 % " << quantile(got.errors, 0.9)
                                << ", worst " << got.errors.back() << "; pages recalled " << got.blocking_gpu
                                << " of " << got.blocking_cpu << ", chosen " << got.chosen_gpu << " of "
                                << got.chosen_cpu << "; selected tokens that agree " << got.tokens_agree);
      CHECK(got.samples_that_chose > 300);
      CHECK(quantile(got.errors, 0.5) < bf16_tolerance(llm));
      CHECK(std::abs(static_cast<double>(got.blocking_gpu) / static_cast<double>(got.blocking_cpu) - 1) <
            0.02);
      CHECK(got.tokens_agree > 0.95);
      CHECK(std::abs(static_cast<double>(got.chosen_gpu) / static_cast<double>(got.chosen_cpu) - 1) < 0.02);
    }
  }
}

TEST_CASE("F-6 cuda: with a budget beyond every request ShadowKV and InfiniGen are dense attention") {
  for (const RetrievalName method : {kShadowkv, kInfinigen}) {
    RetrievalSetting setting = setting_of(method);
    CAPTURE(setting.retrieval);
    setting.spec.budget_tokens = 960, setting.pages_gpu = 200;
    const LlmSpec llm = model_of(64, 8, 2);
    const Compared got = run_both(setting, method, kRequests, llm);
    CHECK(got.samples_that_chose == 0);
    CHECK(got.blocking_gpu == 0);
    CHECK(got.errors.back() < bf16_tolerance(llm));
  }
}

TEST_CASE("cuda: requests preempted under ShadowKV and InfiniGen resume and end with finite logits") {
  for (const RetrievalName method : {kShadowkv, kInfinigen}) {
    uint64_t preemptions = 0;
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      RetrievalSetting setting = setting_of(method);
      setting.seed = seed, setting.pages_gpu = 40, setting.in_flight = 1 + seed % 2;
      preemptions += run_both(setting, method, kRequests, model_of(64, 8, 2)).preemptions;
    }
    MESSAGE(preemptions << " preemptions");
    CHECK(preemptions > 0);
  }
}
