// A prefix cache with resident pages on CUDA, compared step by step with the CPU engine: turns start with
// other requests' host pages. GPU pages are poisoned before they are written, so reading a page that was not
// fetched gives NaN.

#include <doctest/doctest.h>

#include "tests/support/retrieval_names.h"
#include "tests/unit/cuda_engine/both_engines.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

// In pages of 16: 1 sink, a window of 2, 4 selected. Every head is corrected, so that a near tie of one step
// has no effect on the next.
RetrievalSetting setting_of(const std::string& name, RetrievalName method) {
  RetrievalSetting setting;
  setting.retrieval = name;
  setting.page_tokens = 16, setting.pages_gpu = 120, setting.pages_host = 150, setting.step_tokens_max = 96;
  setting.prefix_cache = true;
  setting.copies = recall_copies(method);
  RetrievalSpec& spec = setting.spec;
  spec = retrieval_defaults(method);
  spec.sink_tokens = 16, spec.window_tokens = 32, spec.budget_tokens = 112;
  spec.extra_tokens = method == kShadowkv ? 32 : 0;
  spec.layers_dense = 1, spec.rank = 24;
  spec.tau_q32 = 2 * kOneQ32;
  return setting;
}

}  // namespace

TEST_CASE("X-5 cuda: turns that start with prefixes on the host read the pages that the CPU engine reads") {
  const struct {
    std::string name;
    RetrievalName method;
  } rows[] = {{"freekv", kFreekv}, {"arkvale", kArkvale}, {"shadowkv", kShadowkv}, {"infinigen", kInfinigen}};
  const std::vector<RetrievalRequest> requests = turns_of_sessions(16, 3, 4, 1);
  LlmSpec llm = tiny_model("llama", 8, 2);
  llm.head_dim = 64, llm.layers = 3, llm.hidden = 256, llm.intermediate = 256, llm.vocab = 256;
  for (const auto& row : rows) {
    CAPTURE(row.name);
    // FreeKV's host pages have layout NHD and are fetched by a kernel; the others' are copied.
    const Compared got = run_both(setting_of(row.name, row.method), row.method, requests, llm);
    MESSAGE(row.name << ": relative error of logits, median " << quantile(got.errors, 0.5) << ", 90 % "
                     << quantile(got.errors, 0.9) << ", worst " << got.errors.back() << "; "
                     << got.pages_reused << " pages reused; selected tokens that agree " << got.tokens_agree);
    CHECK(got.pages_reused > 60);
    CHECK(got.samples_that_chose > 50);
    CHECK(got.tokens_agree > 0.95);
    CHECK(quantile(got.errors, 0.5) < bf16_tolerance(llm));
    CHECK(std::abs(static_cast<double>(got.chosen_gpu) / static_cast<double>(got.chosen_cpu) - 1) < 0.02);
  }
}
