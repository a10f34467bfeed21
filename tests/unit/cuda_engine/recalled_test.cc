// Recall of the retained entries of a prompt on CUDA (recalled_entries.h), compared step by step with the
// CPU engine. Pages are poisoned before they are written, so reading a page that was not handed over gives
// NaN.

#include <doctest/doctest.h>

#include "tests/support/retrieval_names.h"
#include "tests/unit/cuda_engine/both_engines.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

// Some prompts retain more pages than there are resident pages (7 of 16 tokens), some fewer; the last is
// shorter than the budget.
const std::vector<RetrievalRequest> kRequests = {
    {0, 300, 40}, {0, 390, 30}, {900, 401, 24}, {900, 350, 90}, {2'000, 40, 60}};

RetrievalSetting setting_of(RetrievalName method, const char* scorer, const char* budget) {
  RetrievalSetting out;
  out.retrieval = method == kFreekv ? "freekv" : "arkvale";
  out.page_tokens = 16, out.pages_gpu = 160, out.pages_host = 150, out.step_tokens_max = 96;
  out.copies = recall_copies(method);
  RetrievalSpec& spec = out.spec;
  spec = retrieval_defaults(method);
  spec.sink_tokens = 16, spec.window_tokens = 32, spec.budget_tokens = 112, spec.layers_dense = 1;
  spec.extra_tokens = 0;
  spec.tau_q32 = 2 * kOneQ32;  // every head is corrected, so a near tie has no effect on the next step
  out.scorer = scorer, out.budget = budget;
  out.budget_spec.sinks = 3, out.budget_spec.window = 8;
  out.budget_spec.kv_entries = 183;
  out.budget_spec.ratio = kWhole * 6 / 10;
  return out;
}

LlmSpec model() {
  LlmSpec m = tiny_model("llama", 8, 2);
  m.head_dim = 64, m.layers = 3, m.hidden = 256, m.intermediate = 256, m.vocab = 256;
  return m;
}

}  // namespace

TEST_CASE(
    "G-2 cuda recalled KV entries: retained entries of prompts are recalled as the CPU engine recalls them") {
  const struct {
    RetrievalName method;
    const char *scorer, *budget;
  } rows[] = {{kFreekv, "knorm", "uniform"}, {kArkvale, "knorm", "ratio"}, {kFreekv, "snapkv", "uniform"}};
  for (const auto& row : rows) {
    const std::string name = std::string(row.scorer) + " " + row.budget;
    CAPTURE(name);
    const Compared got =
        run_both(setting_of(row.method, row.scorer, row.budget), row.method, kRequests, model());
    MESSAGE(name << ": relative error of logits, median " << quantile(got.errors, 0.5) << ", 90 % "
                 << quantile(got.errors, 0.9) << ", worst " << got.errors.back() << "; pages recalled "
                 << got.blocking_gpu << " of " << got.blocking_cpu << ", " << got.compressions
                 << " compressions");
    CHECK(got.compressions > 3);
    CHECK(got.samples_that_chose > 50);
    CHECK(quantile(got.errors, 0.5) < bf16_tolerance(model()));
    CHECK(std::abs(static_cast<double>(got.chosen_gpu) / static_cast<double>(got.chosen_cpu) - 1) < 0.02);
  }
}
