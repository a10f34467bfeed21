// Which pages stay on the GPU, what a step reads, and which choices retrieval combines with.

#include "engine/methods/retrieval_spec.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/methods/registry.h"
#include "tests/support/retrieval_names.h"

using namespace kvtwin;
using kvtwin::testing::kArkvale;
using kvtwin::testing::kFreekv;
using kvtwin::testing::kInfinigen;
using kvtwin::testing::kQuest;
using kvtwin::testing::kShadowkv;
using kvtwin::testing::RetrievalName;

namespace {

constexpr uint32_t kSpecPage = 32;

CoreConfig freekv_config() {
  CoreConfig config;
  config.page_tokens = config.unit_tokens = kSpecPage;
  config.pages_gpu = 1000;
  config.pages_host = 4000;
  config.prefix_cache = false;
  config.policies.placement = "resident";
  config.policies.retrieval = "freekv";
  return config;
}

}  // namespace

TEST_CASE(
    "retrieval: a budget of 2048 tokens with sinks and window of 512 gives "
    "docs/design/methods/freekv.md#defaults") {
  const RetrievalSpec spec = retrieval_defaults(kFreekv);
  CHECK(resident_pages(spec, kSpecPage) == 64);
  CHECK(selectable_pages(spec, kSpecPage) == 32);
  CHECK(!request_retrieves(spec, kSpecPage, 2048));
  CHECK(request_retrieves(spec, kSpecPage, 2049));
  CHECK(candidate_pages(spec, kSpecPage, 2048) == 0);
  CHECK(candidate_pages(spec, kSpecPage, 32768) == 1024 - 16 - 16);
}

TEST_CASE("retrieval: a step reads all of a request that fits, and never more than the budget") {
  const RetrievalSpec spec = retrieval_defaults(kFreekv);
  for (uint32_t tokens = 1; tokens < 6000; ++tokens) {
    CAPTURE(tokens);
    const uint32_t read = tokens_read(spec, kSpecPage, tokens);
    CHECK(read <= tokens);
    CHECK(read <= spec.budget_tokens);
    CHECK((read == tokens || tokens > spec.budget_tokens));
    // All pages are whole except the last, which is filled like the context's last page.
    CHECK(read % kSpecPage == tokens % kSpecPage);
    CHECK(read + kSpecPage > std::min(tokens, spec.budget_tokens));
  }
}

TEST_CASE("retrieval: pages held grow by at most one per page, and never beyond the context") {
  for (const uint32_t fraction : {0u, 1u, 1u << 27, 1u << 31, UINT32_MAX}) {
    RetrievalSpec spec = retrieval_defaults(kFreekv);
    spec.resident_fraction_q32 = fraction;
    uint32_t before = 0;
    for (uint32_t pages = 1; pages < 3000; ++pages) {
      const uint32_t held = gpu_pages_held(spec, kSpecPage, pages);
      REQUIRE(held <= pages);
      REQUIRE(held >= before);
      REQUIRE(held <= before + 1);
      REQUIRE(held >= std::min(pages, 64u));
      before = held;
    }
  }
  // Summaries take 1/32 of every page: 64 + 1024 / 32.
  RetrievalSpec spec = retrieval_defaults(kFreekv);
  spec.resident_fraction_q32 = 1u << 27;
  CHECK(gpu_pages_held(spec, kSpecPage, 1024) == 64 + 32);
}

struct Refused {
  void (*change)(CoreConfig*);
  const char* message;
  const char* way_out;
};

void check_refused(const std::vector<Refused>& rows) {
  REQUIRE(!validate_core_config(freekv_config()).has_value());
  for (const Refused& row : rows) {
    CoreConfig config = freekv_config();
    row.change(&config);
    const auto problem = validate_core_config(config);
    REQUIRE(problem.has_value());
    CAPTURE(*problem);
    CHECK(problem->find(row.message) != std::string::npos);
    CHECK(problem->find(row.way_out) != std::string::npos);
  }
}

TEST_CASE(
    "retrieval: choices that cannot work together are refused with a remedy "
    "(docs/design/methods/composition.md#pairs)") {
  const std::vector<Refused> rows = {
      {[](CoreConfig* c) { c->policies.placement = "gpu", c->pages_host = 0; },
       "keeps none of a running request", "set placement: resident"},
      {[](CoreConfig* c) { c->policies.placement = "host"; }, "keeps none of a running request",
       "retrieval: quest"},
      {[](CoreConfig* c) { c->policies.retrieval = "all"; }, "leaves a request only part of its pages",
       "set placement: gpu"},
      {[](CoreConfig* c) { c->policies.retrieval = "quest"; }, "leaves a request only part of its pages",
       "set placement: gpu"},
      {[](CoreConfig* c) { c->pages_host = 0; }, "needs a host tier", "give it room"},
      {[](CoreConfig* c) { c->policies.retrieval_spec.budget_tokens = 1024; }, "leaves no page to choose",
       "raise it"},
      {[](CoreConfig* c) { c->policies.retrieval_spec.sink_tokens = 40; }, "whole pages of 32", "change it"},
      {[](CoreConfig* c) { c->policies.retrieval_spec.window_tokens = 0; }, "the page being written",
       "at least 32"},
      {[](CoreConfig* c) { c->policies.retrieval = "arkvale"; }, "speculation is on", "set it false"},
      {[](CoreConfig* c) {
         c->policies.retrieval = "infinigen";
         c->policies.retrieval_spec = retrieval_defaults(kInfinigen);
         c->policies.retrieval_spec.layers_dense = 0;
       },
       "the layer before it", "use 1 or more"},
      {[](CoreConfig* c) { c->policies.precision = "kivi_int2"; }, "are not built together",
       "precision: fp8, int4 or fp4"},
      {[](CoreConfig* c) {
         c->policies.retrieval = "shadowkv", c->policies.retrieval_spec = retrieval_defaults(kShadowkv);
         c->policies.precision = "fp8";
       },
       "packed pages are recalled only where", "retrieval: freekv or arkvale"},
      {[](CoreConfig* c) { c->policies.retrieval = "freekw"; }, "there is no retrieval \"freekw\"", "freekv"},
  };
  check_refused(rows);
}

// The pages of all heads, or resident pages per group.
TEST_CASE(
    "retrieval: dropping entries together with page recall is refused with a remedy "
    "(docs/design/methods/composition.md#pairs)") {
  const std::vector<Refused> rows = {
      {[](CoreConfig* c) {
         c->policies.scorer = "snapkv", c->policies.budget = "uniform", c->policies.layout = "compact";
         c->policies.budget_spec.kv_entries = 512, c->policies.identity = "none";
         c->policies.retrieval = "shadowkv";
         c->policies.retrieval_spec = retrieval_defaults(kShadowkv);
       },
       "factorises the keys of a token in all heads together", "set retrieval: freekv, arkvale or quest"},
      {[](CoreConfig* c) {
         c->policies.scorer = "intent_rule", c->policies.budget = "uniform";
         c->policies.layout = "page_mask", c->policies.identity = "session";
         c->policies.budget_spec.kv_entries = 512;
       },
       "leaves pages with holes", "budget: all with layout: paged"},
      {[](CoreConfig* c) {
         c->policies.scorer = "snapkv", c->policies.budget = "ratio", c->policies.layout = "compact_rerotate";
         c->policies.budget_spec.ratio = kWhole / 2, c->policies.identity = "none";
       },
       "turns the keys when they move", "set layout: compact"},
      {[](CoreConfig* c) {
         c->policies.scorer = "snapkv", c->policies.budget = "ada", c->policies.layout = "ragged";
         c->policies.budget_spec.kv_entries = 512, c->policies.identity = "none";
       },
       "has one table for each group of them", "set layout: compact"},
      {[](CoreConfig* c) {
         c->policies.scorer = "knorm", c->policies.budget = "ratio", c->policies.layout = "compact";
         c->policies.scorer_spec.compression_trigger = CompressionTrigger::kChunkEnd,
         c->policies.budget_spec.chunk_tokens = 64;
         c->policies.budget_spec.ratio = kWhole / 2;
       },
       "drops entries more than once", "a scorer that works at the prompt's end"},
      {[](CoreConfig* c) {
         c->policies.scorer = "snapkv", c->policies.budget = "ratio", c->policies.layout = "compact";
         c->policies.budget_spec.ratio = kWhole / 2, c->policies.identity = "session";
         c->prefix_cache = true;
       },
       "cannot be reused", "set prefix_cache: false"},
  };
  check_refused(rows);
}

// Decisions count pages, and packed pages are as many: only their bytes differ.
TEST_CASE("retrieval: pages that are packed token by token are recalled as others are") {
  for (const RetrievalName& method : {kFreekv, kArkvale}) {
    for (const char* const precision : {"bf16", "fp8", "int4", "fp4"}) {
      CAPTURE(precision);
      CoreConfig config = freekv_config();
      config.policies.retrieval = method.text();
      config.policies.retrieval_spec = retrieval_defaults(method);
      config.policies.precision = precision;
      CHECK(validate_core_config(config).value_or("") == "");
    }
  }
}

TEST_CASE("retrieval: every method's own defaults are accepted") {
  for (const RetrievalName& method : {kQuest, kArkvale, kShadowkv, kInfinigen, kFreekv}) {
    CAPTURE(method.name);
    CoreConfig config = freekv_config();
    config.policies.retrieval = method.text();
    config.policies.retrieval_spec = retrieval_defaults(method);
    if (method == kQuest) {
      config.policies.placement = "gpu";
      config.pages_host = 0;
    }
    CHECK(validate_core_config(config).value_or("") == "");
  }
}
