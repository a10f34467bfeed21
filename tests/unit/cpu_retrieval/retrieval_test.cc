// The retrieval methods on real data: the requirements of docs/design/methods/freekv.md#numbers (F-1 is in
// tests/unit/kernels/page_retrieval_test.cc). Pages are poisoned when allocated, and slots before a recall,
// so reading absent data gives NaN.

#include <doctest/doctest.h>

#include <algorithm>
#include <tuple>

#include "engine/common/retrieval/partial_keys.h"
#include "engine/common/retrieval/query_projection.h"
#include "kernels/cache_ops/rope_append.h"
#include "tests/support/retrieval_names.h"
#include "tests/unit/cpu_engine/tiny_models.h"
#include "tests/unit/cpu_retrieval/retrieval_oracle.h"
#include "tests/unit/cpu_retrieval/retrieval_run.h"
#include "tests/unit/kernels/floats.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

// Prompts larger than the resident pages (7 pages of 8), within them and outgrowing them, and one that stays
// within.
const std::vector<RetrievalRequest> kReadRequests = {
    {0, 150, 40}, {0, 40, 60}, {900, 201, 24}, {2'000, 20, 12}};

std::vector<LlmSpec> three_layer_models() {
  std::vector<LlmSpec> all = tiny_models();  // GQA 4:1, MHA, biases, norms
  for (LlmSpec& llm : all) llm.layers = 3;
  return all;
}

using kvtwin::testing::RetrievalName;
constexpr RetrievalName kByPage[] = {kQuest, kArkvale, kFreekv};

std::vector<RetrievalName> all_methods() {
  std::vector<RetrievalName> out(std::begin(kByPage), std::end(kByPage));
  out.push_back(kShadowkv);
  out.push_back(kInfinigen);
  return out;
}

RetrievalSetting setting_of(const RetrievalName& method) {
  RetrievalSetting out;
  out.retrieval = method.name;
  out.spec = small_spec(method);
  out.copies = recall_copies(method);
  return out;
}

int64_t q32(double x) { return static_cast<int64_t>(x * static_cast<double>(kOneQ32)); }

std::vector<std::tuple<uint32_t, uint32_t, uint32_t>> recalls_of(const RetrievalOutcome& run) {
  std::vector<std::tuple<uint32_t, uint32_t, uint32_t>> out;
  for (const DataOutcomes& step : run.steps) {
    for (const LayerRecall& recall : step.recalls)
      out.emplace_back(recall.blocking, recall.background, recall.corrected);
  }
  return out;
}

}  // namespace

TEST_CASE("F-2 F-3 F-4 X-2 retrieval: an oracle without slots reads, recalls and computes the same") {
  for (const RetrievalName& method : kByPage) {
    for (const LlmSpec& llm : three_layer_models()) {
      CAPTURE(method.name);
      CAPTURE(llm.family);
      const ModelWeights weights = ModelWeights::random(llm, 3);
      RetrievalSetting setting = setting_of(method);
      setting.spec.tau_q32 = q32(0.1);
      setting.spec.layers_dense = llm.family == "qwen2" ? 1 : 0;
      RetrievalOracle oracle(setting, llm);
      setting.witness = &oracle;
      const RetrievalOutcome run = run_retrieval(setting, weights, kReadRequests);
      CHECK(oracle.compared == oracle.reads);
      CHECK(oracle.worst_output == 0);
      CHECK(oracle.reads == run.recalled.heads);
      CHECK(oracle.reads > 150);
      CHECK(oracle.corrected == run.recalled.corrected);
      if (method == kQuest) {
        CHECK(run.recalled.blocking + run.recalled.background == 0);
        continue;
      }
      oracle.check_recalls();
      CHECK(run.recalled.blocking > 0);
      const bool speculates = method == kFreekv;
      CHECK((run.recalled.background > 0) == speculates);
      CHECK((oracle.speculated > 20) == speculates);
      CHECK((oracle.corrected > 20) == speculates);
    }
  }
}

TEST_CASE("F-5 retrieval: tau above 1 is blocking retrieval bit for bit; tau at -1 is speculation alone") {
  for (const LlmSpec& llm : three_layer_models()) {
    CAPTURE(llm.family);
    const ModelWeights weights = ModelWeights::random(llm, 4);
    RetrievalSetting setting = setting_of(kByPage[2]);
    setting.spec.tau_q32 = kOneQ32 + 1;
    const RetrievalOutcome always = run_retrieval(setting, weights, kReadRequests);
    setting.spec.tau_q32 = -kOneQ32;
    const RetrievalOutcome never = run_retrieval(setting, weights, kReadRequests);
    setting.spec.speculation = false;
    const RetrievalOutcome blocking = run_retrieval(setting, weights, kReadRequests);
    // ArkVale with FreeKV's summaries and pooling makes the same selection.
    setting.retrieval = "arkvale";
    setting.copies.layout = HostPageLayout::kNhd;
    const RetrievalOutcome arkvale = run_retrieval(setting, weights, kReadRequests);
    CHECK(always.logits == blocking.logits);
    CHECK(arkvale.logits == blocking.logits);
    CHECK(never.logits != blocking.logits);
    CHECK(always.recalled.blocking == blocking.recalled.blocking);
    CHECK(always.recalled.background == 0);
    // All but the first step of each of three requests, in three layers.
    CHECK(always.recalled.corrected == always.recalled.heads - 3 * 3 * llm.kv_heads);
    CHECK(blocking.recalled.corrected == 0);
    CHECK(never.recalled.corrected == 0);
    CHECK(never.recalled.background > never.recalled.blocking);
  }
}

TEST_CASE("F-6 G-2 X-1 retrieval: a budget that no request outgrows moves nothing and is dense, to the bit") {
  for (const LlmSpec& llm : three_layer_models()) {
    const ModelWeights weights = ModelWeights::random(llm, 5);
    RetrievalSetting dense;
    dense.retrieval = "all";
    const RetrievalOutcome expected = run_retrieval(dense, weights, kReadRequests);
    for (const RetrievalName& method : all_methods()) {
      CAPTURE(method.name);
      RetrievalSetting setting = setting_of(method);
      CHECK(run_retrieval(setting, weights, kReadRequests).logits != expected.logits);
      setting.spec.budget_tokens = 232;  // no request has more than 225 tokens
      const RetrievalOutcome run = run_retrieval(setting, weights, kReadRequests);
      CHECK(run.logits == expected.logits);
      CHECK(run.recalled.blocking + run.recalled.background + run.recalled.heads == 0);
      // With all layers dense the result is the same for every budget.
      setting = setting_of(method);
      setting.spec.layers_dense = llm.layers;
      CHECK(run_retrieval(setting, weights, kReadRequests).logits == expected.logits);
    }
  }
}

TEST_CASE("F-7 X-8 retrieval: the time of copies changes nothing, and no copy targets a page that is read") {
  const LlmSpec llm = three_layer_models()[2];
  const ModelWeights weights = ModelWeights::random(llm, 6);
  for (const uint32_t buffers : {1u, 2u}) {
    RetrievalSetting setting = setting_of(kByPage[2]);
    setting.spec.tau_q32 = q32(0.1);
    setting.copies.staging_buffers = buffers;
    const RetrievalOutcome expected = run_retrieval(setting, weights, kReadRequests);
    uint64_t concurrent = 0;
    for (uint64_t delays = 1; delays <= 12; ++delays) {
      CAPTURE(delays);
      RetrievalOracle oracle(setting, llm);
      RetrievalSetting delayed = setting;
      delayed.delays = delays;
      delayed.witness = &oracle;
      const RetrievalOutcome run = run_retrieval(delayed, weights, kReadRequests);
      CHECK(run.logits == expected.logits);
      CHECK(recalls_of(run) == recalls_of(expected));
      CHECK(oracle.writes_into_reads == 0);
      concurrent += oracle.writes_during_reads;
    }
    CHECK(concurrent > 100);  // copies ran during reads
  }
}

TEST_CASE("X-8 retrieval: a copy into a page that is read would be detected") {
  const LlmSpec llm = three_layer_models()[0];
  RetrievalSetting setting = setting_of(kInfinigen);
  RetrievalOracle oracle(setting, llm);
  const kernels::ReadRun runs[] = {{5, 0, 3}, {9, 0, 3}};
  const cpu::RetrievalWitness::Read read{{RequestId{1}, 1, 0, 2}, runs, {}, false};
  oracle.reads_began(read);
  oracle.wrote(9, 0, 0);
  oracle.wrote(8, 1, 0);
  CHECK(oracle.writes_into_reads == 0);
  oracle.wrote(9, 1, 0);
  CHECK(oracle.writes_into_reads == 1);
  CHECK(oracle.writes_during_reads == 3);
}

TEST_CASE("retrieval: the host's layout and the number of staging buffers change no bit") {
  const LlmSpec llm = three_layer_models()[0];
  const ModelWeights weights = ModelWeights::random(llm, 7);
  RetrievalSetting setting = setting_of(kByPage[2]);
  setting.spec.tau_q32 = q32(0.1);
  const RetrievalOutcome expected = run_retrieval(setting, weights, kReadRequests);
  setting.copies.layout = HostPageLayout::kNhd;
  CHECK(run_retrieval(setting, weights, kReadRequests).logits == expected.logits);
  setting.copies.staging_buffers = 1;
  CHECK(run_retrieval(setting, weights, kReadRequests).logits == expected.logits);
  for (const GroupPooling pooling : {GroupPooling::kMaxS, GroupPooling::kMeanQk, GroupPooling::kMaxQk,
                                     GroupPooling::kMeanQ, GroupPooling::kMaxQ}) {
    setting.spec.pooling = pooling;
    CHECK(run_retrieval(setting, weights, kReadRequests).logits != expected.logits);
  }
}

TEST_CASE(
    "X-9 retrieval: other requests, chunks, coalescing and steps in flight change no logit of a request") {
  for (const RetrievalName& method : all_methods()) {
    for (const LlmSpec& llm : {three_layer_models()[0], three_layer_models()[1]}) {
      CAPTURE(method.name);
      const ModelWeights weights = ModelWeights::random(llm, 8);
      RetrievalSetting setting = setting_of(method);
      setting.spec.tau_q32 = q32(0.1);
      const RetrievalOutcome together = run_retrieval(setting, weights, kReadRequests);
      CHECK(together.preemptions == 0);
      setting.requests_max = 1;
      setting.step_tokens_max = 23;
      setting.in_flight = 2;
      const RetrievalOutcome apart = run_retrieval(setting, weights, kReadRequests);
      CHECK(apart.logits == together.logits);
      CHECK(apart.recalled.blocking == together.recalled.blocking);
      CHECK(apart.recalled.background == together.recalled.background);
      CHECK(apart.recalled.corrected == together.recalled.corrected);
    }
  }
}

TEST_CASE("X-3 retrieval: requests preempted in every step, also during copies, resume") {
  const LlmSpec llm = three_layer_models()[3];
  const ModelWeights weights = ModelWeights::random(llm, 9);
  uint64_t preemptions = 0;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    CAPTURE(seed);
    RetrievalSetting setting = setting_of(all_methods()[1 + seed % 4]);
    setting.spec.tau_q32 = q32(0.05);
    setting.seed = seed;
    setting.delays = seed % 3;
    setting.in_flight = 1 + static_cast<uint32_t>(seed % 2);
    setting.pages_gpu = 30 + static_cast<uint32_t>(seed % 5);
    setting.pages_host = 60;
    setting.page_tokens = 8;
    preemptions += run_retrieval(setting, weights, kReadRequests).preemptions;
  }
  CHECK(preemptions > 10);
}

TEST_CASE(
    "F-2 F-3 retrieval: ShadowKV reads the pages its landmarks select, outliers always, and values exactly") {
  for (const LlmSpec& llm : three_layer_models()) {
    CAPTURE(llm.family);
    const ModelWeights weights = ModelWeights::random(llm, 10);
    const uint32_t width = llm.kv_heads * llm.head_dim;
    double off[2];
    for (const uint32_t rank : {width, width / 4}) {
      RetrievalSetting setting = setting_of(kShadowkv);
      setting.spec.rank = rank;
      RetrievalOracle oracle(setting, llm);
      setting.witness = &oracle;
      const RetrievalOutcome run = run_retrieval(setting, weights, kReadRequests);
      CHECK(oracle.compared == oracle.reads);
      CHECK(oracle.reads > 150);
      oracle.check_recalls();
      CHECK(run.recalled.blocking > 0);
      CHECK(run.recalled.background + run.recalled.corrected == 0);
      off[rank == width ? 0 : 1] = oracle.worst_output;
    }
    MESSAGE(llm.family << ": outputs are off by " << off[0] << " at full rank, " << off[1]
                       << " at a quarter");
    CHECK(off[0] < 1e-4);  // all directions: the keys themselves, except for rounding
    CHECK(off[1] > 1e-3);
  }
}

TEST_CASE("F-2 F-3 retrieval: InfiniGen reads exact tokens; with all columns, those of exact products") {
  for (const LlmSpec& llm : three_layer_models()) {
    CAPTURE(llm.family);
    const ModelWeights weights = ModelWeights::random(llm, 11);
    for (const uint32_t selectable : {4u, 14u}) {
      RetrievalSetting setting = setting_of(kInfinigen);
      setting.spec.columns_q32 = kOneQ32;
      setting.spec.budget_tokens = (3 + selectable) * 8;
      RetrievalOracle oracle(setting, llm);
      setting.witness = &oracle;
      const RetrievalOutcome run = run_retrieval(setting, weights, kReadRequests);
      CHECK(oracle.compared == oracle.reads);
      CHECK(oracle.reads > 100);
      CHECK(oracle.worst_output == 0);
      CHECK(run.recalled.blocking == run.recalled.chosen);  // no page is retained between steps
      CHECK(run.recalled.heads == oracle.reads);
      CHECK(run.recalled.background + run.recalled.corrected == 0);
      // The threshold decides the number where there is room for more.
      if (selectable == 14) CHECK(run.recalled.chosen < run.recalled.heads * 12);
      // Few columns select other tokens.
      setting.witness = nullptr;
      setting.spec.columns_q32 = q32(0.2);
      CHECK(run_retrieval(setting, weights, kReadRequests).logits != run.logits);
    }
  }
}

TEST_CASE("retrieval: a layer's input projects to its queries, to the bit") {
  for (const LlmSpec& llm : three_layer_models()) {
    const ModelWeights weights = ModelWeights::random(llm, 12);
    const RopeFrequencies rope = rope_frequencies(llm);
    class Compare final : public cpu::LayerAttention {
     public:
      Compare(const ModelWeights& weights, const RopeFrequencies& rope) : weights_(weights), rope_(rope) {}
      void hidden(uint32_t, const float* x) override { x_ = x; }
      void attend(uint32_t layer, float* q, float*, const float*, float* out) override {
        const LlmSpec& m = weights_.llm();
        std::vector<float> own(m.query_heads * m.head_dim);
        cpu::QueryProjection(weights_, layer).apply(rope_, 17, x_, own.data());
        kernels::rope_ref({rope_.inverse, rope_.scale}, 17, m.query_heads, m.head_dim, q);
        CHECK(std::equal(own.begin(), own.end(), q));
        std::fill_n(out, own.size(), 0.5f);
        ++layers;
      }
      uint32_t layers = 0;

     private:
      const ModelWeights& weights_;
      const RopeFrequencies& rope_;
      const float* x_ = nullptr;
    } compare(weights, rope);
    cpu::Forward forward(&weights);
    std::vector<float> logits;
    const std::vector<uint32_t> token = {7}, sampling = {0};
    forward.run(token, sampling, &compare, &logits);
    CHECK(compare.layers == llm.layers);
  }
}

TEST_CASE("retrieval: rotating queries and keys changes no product; the selected columns carry most of it") {
  const LlmSpec llm = three_layer_models()[2];
  const uint32_t dim = llm.head_dim, group = llm.query_heads / llm.kv_heads;
  // Queries and keys mostly within a few directions, like trained ones.
  const std::vector<float> noise = random_floats(1, 200 * llm.query_heads * dim, 0.1f);
  const std::vector<float> main = random_floats(2, 3 * dim),
                           parts = random_floats(3, 200 * llm.query_heads * 3);
  const auto rows = [&](uint32_t heads, uint64_t skip) {
    std::vector<float> out(size_t{200} * heads * dim);
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = noise[(i + skip) % noise.size()];
      for (uint32_t m = 0; m < 3; ++m)
        out[i] += parts[(i / dim * 3 + m + skip) % parts.size()] * main[m * dim + i % dim];
    }
    return out;
  };
  const std::vector<float> q = rows(llm.query_heads, 5), k = rows(llm.kv_heads, 77);
  double lost[2];
  for (const double fraction : {1.0, 0.25}) {
    cpu::PartialKeys partial(llm, q32(fraction));
    CHECK(partial.columns() == dim * fraction);
    for (uint32_t t = 0; t < 150; ++t)
      partial.add(q.data() + t * llm.query_heads * dim, k.data() + t * llm.kv_heads * dim);
    partial.choose_columns();
    for (uint32_t t = 150; t < 200; ++t)
      partial.add(q.data() + t * llm.query_heads * dim, k.data() + t * llm.kv_heads * dim);
    double off = 0, all = 0;
    for (uint32_t t = 0; t < 200; ++t) {
      for (uint32_t j = 0; j < llm.query_heads; ++j) {
        const float* const query = q.data() + (199 * llm.query_heads + j) * dim;
        const float* const key = k.data() + (t * llm.kv_heads + j / group) * dim;
        std::vector<float> turned(partial.columns());
        partial.project(j / group, query, turned.data());
        double exact = 0, few = 0;
        for (uint32_t i = 0; i < dim; ++i)
          exact += static_cast<double>(query[i]) * static_cast<double>(key[i]);
        for (uint32_t c = 0; c < partial.columns(); ++c)
          few += static_cast<double>(turned[c]) * static_cast<double>(partial.key(t, j / group)[c]);
        off += (exact - few) * (exact - few), all += exact * exact;
      }
    }
    lost[fraction < 1 ? 1 : 0] = off / all;
  }
  CHECK(lost[0] < 1e-10);
  CHECK(lost[1] < 0.05);
  CHECK(lost[1] > 1e-6);
}
