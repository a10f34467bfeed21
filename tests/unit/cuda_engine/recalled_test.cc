// Recall of the retained entries of a prompt on CUDA (recalled_entries.h), compared step by step with the
// CPU engine. Pages are poisoned before they are written, so reading a page that was not handed over gives
// NaN.

#include <doctest/doctest.h>

#include "tests/support/retrieval_names.h"
#include "tests/unit/cuda_engine/both_engines.h"
#include "tests/unit/cuda_engine/issued_lists.h"

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

// Of every step: with any prompts, decodes, choices, compressions and pages that what is retained fills.
ListTexts possible_lists(bool state, bool captures) {
  ListTexts out;
  for (uint32_t bits = 0; bits < 1u << 15; ++bits) {
    const auto bit = [&](uint32_t i) { return (bits >> i & 1) != 0; };
    ListedPrompts prompts{.prompts = bit(0), .residents = bit(1), .last = bit(2)};
    prompts.attention.rows = {bit(3), bit(4), false};
    prompts.prompts_aside = bit(0) && bit(5), prompts.residents_aside = bit(1) && bit(6);
    const uint32_t behind = (bit(7) ? 1u : 0u) + (bit(8) ? 2u : 0u);
    NamedList list{
        "", retaining_list(
                true, prompts, bit(9), bit(10),
                {.plans_layers = bit(14), .state = state, .captures = captures && bit(11), .behind = behind},
                bit(12))};
    list.takes_over = behind > 0, list.enters = behind > 0 && bit(13);
    out.insert(list.text());
  }
  return out;
}

}  // namespace

TEST_CASE("cuda: steps that recall retained KV entries start the operations of their lists") {
  ListTexts found;
  WatchOnGpu watch;
  watch.issued = [&](const LaunchStep&, uint32_t, const StepList& issued) { found.insert(issued.text()); };
  run_both(setting_of(kFreekv, "knorm", "uniform"), kFreekv, kRequests, model(), watch);
  check_lists(found, possible_lists(false, false), "retained");
  found.clear();
  run_both(setting_of(kFreekv, "snapkv", "uniform"), kFreekv, kRequests, model(), watch);
  check_lists(found, possible_lists(false, true), "none");
}

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
