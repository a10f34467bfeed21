// A prefix cache with resident pages on real data: a request that starts with other requests' host pages
// samples the same, bit for bit, as one that computes its whole prompt
// (docs/design/methods/composition.md#causality, X-5). GPU pages, host pages and slots are poisoned before
// they are written, so reading a page that was not fetched gives NaN.

#include <doctest/doctest.h>

#include "tests/support/retrieval_names.h"
#include "tests/unit/cpu_engine/tiny_models.h"
#include "tests/unit/cpu_retrieval/retrieval_run.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

constexpr const char* kRecallingNames[] = {"freekv", "arkvale", "shadowkv", "infinigen"};
constexpr RetrievalName kRecallingMethods[] = {kFreekv, kArkvale, kShadowkv, kInfinigen};
constexpr uint32_t kPrefixPage = 8;

RetrievalSetting prefix_setting(size_t method) {
  RetrievalSetting out;
  out.retrieval = kRecallingNames[method];
  out.spec = small_spec(kRecallingMethods[method]);
  out.copies = recall_copies(kRecallingMethods[method]);
  out.spec.tau_q32 = kOneQ32 / 10;
  out.page_tokens = kPrefixPage;
  return out;
}

}  // namespace

TEST_CASE("X-1 X-5 retrieval: turns that start with prefixes on the host sample the same as without") {
  const std::vector<RetrievalRequest> requests = turns_of_sessions(kPrefixPage, 3, 3, 1);
  for (size_t method = 0; method < 4; ++method) {
    for (const size_t index : {size_t{0}, size_t{1}}) {  // GQA 4:1, MHA
      CAPTURE(kRecallingNames[method]);
      const LlmSpec llm = three_layers(index);
      CAPTURE(llm.family);
      const ModelWeights weights = ModelWeights::random(llm, 3);
      RetrievalSetting setting = prefix_setting(method);
      setting.spec.layers_dense = std::max<uint32_t>(setting.spec.layers_dense, index == 1);
      const RetrievalOutcome apart = run_retrieval(setting, weights, requests);
      setting.prefix_cache = true;
      setting.copies.layout = index == 0 ? HostPageLayout::kHnd : HostPageLayout::kNhd;
      const RetrievalOutcome shared = run_retrieval(setting, weights, requests);
      CHECK(apart.tokens_reused == 0);
      CHECK(shared.tokens_reused > 6 * 64);
      CHECK(shared.logits == apart.logits);
      CHECK(shared.recalled.blocking == apart.recalled.blocking);
      CHECK(shared.recalled.background == apart.recalled.background);
      CHECK(shared.recalled.corrected == apart.recalled.corrected);
      CHECK(shared.recalled.heads > 100);
    }
  }
}

TEST_CASE("X-5 retrieval: with identity session no request starts with another session's pages") {
  const std::vector<RetrievalRequest> requests =
      turns_of_sessions(kPrefixPage, 4, 1, 2);  // one turn each: prefixes are shared between sessions only
  const LlmSpec llm = three_layers(0);
  const ModelWeights weights = ModelWeights::random(llm, 4);
  RetrievalSetting setting = prefix_setting(0);
  setting.prefix_cache = true;
  setting.requests_max = 1;  // one request at a time
  const RetrievalOutcome shared = run_retrieval(setting, weights, requests);
  CHECK(shared.tokens_reused == 3 * 32);
  setting.identity = "session";
  const RetrievalOutcome own = run_retrieval(setting, weights, requests);
  CHECK(own.tokens_reused == 0);
  CHECK(own.logits == shared.logits);
}

TEST_CASE("F-5 retrieval: tau above 1 is blocking retrieval bit for bit after a prefix too") {
  const std::vector<RetrievalRequest> requests = turns_of_sessions(kPrefixPage, 2, 3, 3);
  const LlmSpec llm = three_layers(2);
  const ModelWeights weights = ModelWeights::random(llm, 5);
  RetrievalSetting setting = prefix_setting(0);
  setting.prefix_cache = true;
  setting.spec.tau_q32 = kOneQ32 + 1;
  const RetrievalOutcome always = run_retrieval(setting, weights, requests);
  setting.spec.speculation = false;
  const RetrievalOutcome blocking = run_retrieval(setting, weights, requests);
  CHECK(always.tokens_reused > 0);
  CHECK(always.logits == blocking.logits);
  CHECK(always.recalled.blocking == blocking.recalled.blocking);
}

TEST_CASE(
    "F-7 X-8 X-9 retrieval: copies, chunks, other requests and little memory change no bit after a prefix") {
  uint64_t preemptions = 0, reused = 0, rows = 0;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    CAPTURE(seed);
    const size_t method = seed % 4;
    const LlmSpec llm = three_layers(seed % 3);
    const ModelWeights weights = ModelWeights::random(llm, seed);
    const std::vector<RetrievalRequest> requests = turns_of_sessions(kPrefixPage, 3, 3, seed);
    RetrievalSetting setting = prefix_setting(method);
    setting.seed = seed;
    const RetrievalOutcome expected = run_retrieval(setting, weights, requests);
    setting.prefix_cache = true;
    setting.delays = seed;
    setting.in_flight = 1 + static_cast<uint32_t>(seed % 2);
    setting.step_tokens_max = 20 + 9 * static_cast<uint32_t>(seed % 5);
    setting.requests_max = 1 + static_cast<uint32_t>(seed % 4);
    setting.copies.staging_buffers = 1 + static_cast<uint32_t>(seed % 2);
    setting.pages_gpu = 38 + static_cast<uint32_t>(seed % 5);
    setting.pages_host = 38 + static_cast<uint32_t>(seed % 20);
    const RetrievalOutcome scarce = run_retrieval(setting, weights, requests);
    preemptions += scarce.preemptions;
    reused += scarce.tokens_reused;
    for (const auto& [request, logits] : scarce.logits) {
      // A preempted request's emitted tokens are a part of its prompt when it resumes, and attend to the
      // whole context.
      if (scarce.preempted.contains(request)) continue;
      CAPTURE(raw(request));
      CHECK(logits == expected.logits.at(request));
      ++rows;
    }
  }
  MESSAGE(preemptions << " preemptions, " << reused << " tokens reused, " << rows << " requests compared");
  CHECK(preemptions > 10);
  CHECK(reused > 2'000);
  CHECK(rows > 100);
}
