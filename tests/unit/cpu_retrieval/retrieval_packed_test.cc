// Recall of packed pages: what is read are the values that packed pages give back.

#include <doctest/doctest.h>

#include "tests/support/retrieval_names.h"
#include "tests/unit/cpu_engine/tiny_models.h"
#include "tests/unit/cpu_retrieval/retrieval_oracle.h"
#include "tests/unit/cpu_retrieval/retrieval_run.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

const std::vector<RetrievalRequest> kRequests = {
    {0, 150, 12}, {10, 61, 30}, {20'000, 200, 5}, {30'000, 33, 20}, {40'000, 96, 16}};
constexpr const char* kFormats[] = {"fp8", "int4", "fp4"};

LlmSpec three_layers() {
  LlmSpec llm = tiny_models()[0];
  llm.layers = 3;
  return llm;
}

RetrievalSetting setting_of(const RetrievalName& method, const char* precision, uint32_t layers_dense) {
  RetrievalSetting out;
  out.retrieval = method.text();
  out.spec = small_spec(method);
  out.copies = recall_copies(method);
  out.spec.layers_dense = layers_dense;
  out.precision = precision;
  return out;
}

}  // namespace

TEST_CASE(
    "retrieval, packed: while all pages are resident, packed pages and recalled ones compute the same") {
  const LlmSpec llm = three_layers();
  const ModelWeights weights = ModelWeights::random(llm, 3);
  for (const char* const precision : kFormats) {
    CAPTURE(precision);
    RetrievalSetting whole;
    whole.retrieval = "all";
    whole.precision = precision;
    const RetrievalOutcome packed = run_retrieval(whole, weights, kRequests);
    whole.precision = "bf16";
    CHECK(run_retrieval(whole, weights, kRequests).logits != packed.logits);
    for (const uint32_t dense : {0u, 1u}) {
      CAPTURE(dense);
      for (const RetrievalName& method : {kFreekv, kArkvale}) {
        CAPTURE(method.name);
        RetrievalSetting setting = setting_of(method, precision, dense);
        setting.spec.budget_tokens = 256;  // more than any context
        const RetrievalOutcome recalled = run_retrieval(setting, weights, kRequests);
        CHECK(recalled.recalled.blocking + recalled.recalled.background == 0);
        CHECK(recalled.logits == packed.logits);
      }
    }
  }
}

TEST_CASE("retrieval, packed: an oracle without slots chooses, recalls and computes the same") {
  const LlmSpec llm = three_layers();
  const ModelWeights weights = ModelWeights::random(llm, 5);
  for (const char* const precision : kFormats) {
    CAPTURE(precision);
    for (const RetrievalName& method : {kFreekv, kArkvale}) {
      CAPTURE(method.name);
      RetrievalSetting setting = setting_of(method, precision, 0);
      setting.spec.tau_q32 = kOneQ32 / 10;
      setting.in_flight = 2;
      RetrievalOracle oracle(setting, llm);
      setting.witness = &oracle;
      const RetrievalOutcome run = run_retrieval(setting, weights, kRequests);
      CHECK(oracle.compared == oracle.reads);
      CHECK(oracle.reads > 100);
      CHECK(oracle.worst_output == 0);
      oracle.check_recalls();
      CHECK(run.recalled.blocking > 0);
    }
  }
}
