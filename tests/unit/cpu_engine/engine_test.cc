// The CPU engine's results do not depend on pages, chunks, batches, reuse or tiers, to the bit, and equal the
// formulas in double precision. All pages are poisoned when allocated.

#include <doctest/doctest.h>

#include <numeric>

#include "tests/unit/cpu_engine/dense_forward.h"
#include "tests/unit/cpu_engine/steps.h"
#include "tests/unit/cpu_engine/tiny_models.h"
#include "tests/unit/kernels/floats.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

constexpr RequestId kA{1}, kB{2}, kC{3};
constexpr uint64_t kWeightSeed = 7;

cpu::KvMemory memory_of(uint32_t page_tokens, uint32_t pages = 200) {
  return {.page_tokens = page_tokens, .pages_gpu = pages, .poison = true};
}

// Runs `ids` as a forced request, with prefill chunks of the given sizes and decodes for the rest. Returns
// the logits of its last token.
std::vector<float> last_logits(const ModelWeights& weights, const std::vector<uint32_t>& ids,
                               const std::vector<uint32_t>& chunks, uint32_t page_tokens, uint64_t seed) {
  const auto prompt = std::max(1u, std::accumulate(chunks.begin(), chunks.end(), 0u));
  GivenTokens tokens;
  tokens.give(kA, ids, prompt);
  Steps steps(memory_of(page_tokens), &weights, &tokens, seed);
  steps.begin(kA);
  std::vector<float> logits;
  uint32_t at = 0;
  for (const uint32_t chunk : chunks) {
    at += chunk;
    logits = steps.run({{kA, chunk, at == prompt}});
  }
  for (; at < ids.size(); ++at) logits = steps.run({{kA, 1, true}});
  return logits;
}

struct PreparedEngine {
  PreparedEngine(const LlmSpec& llm, uint32_t count) : weights(ModelWeights::random(llm, kWeightSeed)) {
    ids = random_tokens(3, count, llm.vocab);
    tokens.give(kA, ids, count);
  }
  ModelWeights weights;
  std::vector<uint32_t> ids;
  GivenTokens tokens;
};

}  // namespace

TEST_CASE("G-3 forward: paged fp32 equals an unpaged forward in double precision") {
  for (const LlmSpec& llm : tiny_models()) {
    CAPTURE(llm.family);
    const PreparedEngine p(llm, 53);
    const std::vector<double> dense = dense_logits(p.weights, p.ids);
    const std::vector<double> last(dense.end() - llm.vocab, dense.end());
    for (const uint32_t page : {1u, 5u, 16u, 53u}) {
      CAPTURE(page);
      CHECK(distance(last_logits(p.weights, p.ids, {53}, page, 9), last) < 2e-5);
    }
  }
}

TEST_CASE("forward: chunked prefill and decode equal the whole prefill, to the bit, on any pages") {
  for (const LlmSpec& llm : tiny_models()) {
    CAPTURE(llm.family);
    const PreparedEngine p(llm, 50);
    const std::vector<float> whole = last_logits(p.weights, p.ids, {50}, 16, 0);
    CHECK(std::all_of(whole.begin(), whole.end(), [](float x) { return std::isfinite(x); }));
    CHECK(last_logits(p.weights, p.ids, {16, 16, 18}, 16, 1) == whole);
    CHECK(last_logits(p.weights, p.ids, {1, 7, 42}, 4, 2) == whole);
    CHECK(last_logits(p.weights, p.ids, {49, 1}, 3, 3) == whole);
    CHECK(last_logits(p.weights, p.ids, {20}, 1, 4) == whole);  // 30 decodes
    CHECK(last_logits(p.weights, p.ids, {}, 16, 5) == whole);   // 50 decodes
  }
}

TEST_CASE("X-9 forward: a request's logits do not depend on other requests or on coalescing") {
  for (const LlmSpec& llm : tiny_models()) {
    CAPTURE(llm.family);
    const PreparedEngine p(llm, 40);
    GivenTokens tokens = p.tokens;
    tokens.give(kA, p.ids, 20);
    tokens.give(kB, random_tokens(4, 60, llm.vocab), 33);
    tokens.give(kC, random_tokens(5, 60, llm.vocab), 1);
    Steps alone(memory_of(8), &p.weights, &tokens, 1), concurrent(memory_of(8), &p.weights, &tokens, 2);
    alone.begin(kA);
    std::vector<float> expected = alone.run({{kA, 20}});
    const auto more = alone.run({{kA, 1}}, 10);
    expected.insert(expected.end(), more.begin(), more.end());

    concurrent.begin(kB), concurrent.begin(kA), concurrent.begin(kC);
    std::vector<float> got;
    const auto of_a = [&](const std::vector<float>& logits, size_t index) {
      const auto first = logits.begin() + static_cast<ptrdiff_t>(index * llm.vocab);
      got.insert(got.end(), first, first + llm.vocab);
    };
    of_a(concurrent.run({{kB, 33}, {kA, 20}, {kC, 1}}), 1);
    for (int i = 0; i < 5; ++i) of_a(concurrent.run({{kA, 1}, {kC, 1}}), 0);
    const auto coalesced = concurrent.run({{kC, 1}, {kA, 1}, {kB, 1}}, 5);
    for (size_t i = 0; i < 5; ++i) of_a(coalesced, 3 * i + 1);
    CHECK(got == expected);
  }
}

TEST_CASE("G-2 forward: a reused prefix gives the logits of the computed one, to the bit") {
  for (const LlmSpec& llm : tiny_models()) {
    CAPTURE(llm.family);
    const PreparedEngine p(llm, 48);
    GivenTokens tokens = p.tokens;
    std::vector<uint32_t> other(p.ids.begin(), p.ids.begin() + 32);
    const auto tail = random_tokens(8, 16, llm.vocab);
    other.insert(other.end(), tail.begin(), tail.end());
    tokens.give(kB, other, 48);
    Steps steps(memory_of(8), &p.weights, &tokens, 6);
    steps.begin(kA);
    steps.run({{kA, 48}});
    const std::vector<PageId> shared(steps.pages(kA).begin(), steps.pages(kA).begin() + 4);
    steps.end(kA);
    steps.begin(kB, shared);
    const auto reused = steps.run({{kB, 16}});
    CHECK(reused == last_logits(p.weights, other, {48}, 8, 7));
  }
}

TEST_CASE("forward: a request may reuse pages that another request of the same step fills") {
  const LlmSpec llm = tiny_models()[0];
  const PreparedEngine p(llm, 40);
  GivenTokens tokens = p.tokens;
  tokens.give(kB, p.ids, 40);
  Steps steps(memory_of(8), &p.weights, &tokens, 6);
  steps.begin(kA);
  steps.run({{kA, 8, false}});
  // The pages that kA gets now are the ones that kB reads in the same step, so they must be known beforehand.
  Steps twin(memory_of(8), &p.weights, &tokens, 6);
  twin.begin(kA);
  twin.run({{kA, 8, false}});
  twin.run({{kA, 24, false}});
  steps.begin(kB, {twin.pages(kA).begin(), twin.pages(kA).begin() + 4});
  const auto logits = steps.run({{kA, 24, false}, {kB, 8, true}});
  CHECK(logits == last_logits(p.weights, p.ids, {40}, 8, 1));
}

TEST_CASE("forward: pages that were on the host tier and came back elsewhere are unchanged") {
  const LlmSpec llm = tiny_models()[3];
  const PreparedEngine p(llm, 48);
  GivenTokens tokens = p.tokens;
  tokens.give(kB, p.ids, 48);
  cpu::KvMemory memory = memory_of(8);
  memory.pages_host = 20;
  Steps steps(memory, &p.weights, &tokens, 6);
  steps.begin(kA);
  steps.run({{kA, 32, false}});
  const std::vector<PageId> source = steps.pages(kA);
  std::vector<PageId> host, target;
  for (uint32_t i = 0; i < 4; ++i)
    host.push_back(PageId{memory.pages_gpu + 3 * i}), target.push_back(steps.take());
  const StartTransfer out{{}, TransferId{1}, TransferKind::kOffload, Tier::kGpu, Tier::kHost, source, host};
  const StartTransfer in{{}, TransferId{2}, TransferKind::kLoad, Tier::kHost, Tier::kGpu, host, target};
  steps.engine().notify(out);
  steps.engine().notify(in);
  steps.begin(kB, target);
  CHECK(steps.run({{kB, 16}}) == last_logits(p.weights, p.ids, {48}, 8, 7));
}

TEST_CASE("decode: greedy decoding feeds back its samples, and stops where it samples an end") {
  const LlmSpec llm = tiny_models()[2];
  const PreparedEngine p(llm, 10);
  cpu::CpuEngineConfig config;
  config.decoding = cpu::Decoding::kGreedy;
  Steps steps(memory_of(8), &p.weights, &p.tokens, 6, config);
  steps.begin(kA);
  steps.run({{kA, 10}});
  const auto last = steps.run({{kA, 1}}, 19);
  const std::vector<uint32_t> sampled = steps.sampled(kA);
  REQUIRE(sampled.size() == 20);
  // Forced to its own samples, the model samples the same.
  std::vector<uint32_t> all = p.ids;
  all.insert(all.end(), sampled.begin(), sampled.end() - 1);
  const auto again = last_logits(p.weights, all, {29}, 16, 3);
  CHECK(std::equal(again.begin(), again.end(), last.end() - llm.vocab));

  config.end_tokens = {sampled[7]};
  Steps ending(memory_of(8), &p.weights, &p.tokens, 6, config);
  ending.begin(kA);
  ending.run({{kA, 10}});
  for (size_t i = 1; ending.values().eos.empty(); ++i) {
    REQUIRE(i < 20);
    ending.run({{kA, 1}});
  }
  CHECK(ending.values().eos == std::vector<RequestId>{kA});
  CHECK(ending.sampled(kA).back() == sampled[7]);
}

TEST_CASE("decode: a preempted request continues with its samples") {
  const LlmSpec llm = tiny_models()[1];
  const PreparedEngine p(llm, 12);
  cpu::CpuEngineConfig config;
  config.decoding = cpu::Decoding::kGreedy;
  Steps steady(memory_of(8), &p.weights, &p.tokens, 6, config);
  Steps preempted(memory_of(8), &p.weights, &p.tokens, 7, config);
  steady.begin(kA), preempted.begin(kA);
  steady.run({{kA, 12}}), preempted.run({{kA, 12}});
  steady.run({{kA, 1}}, 15), preempted.run({{kA, 1}}, 6);
  preempted.end(kA, DropRequestState::Reason::kPreempted);
  preempted.begin(kA);
  preempted.run({{kA, 19}});  // the prompt and seven outputs; it samples the eighth
  preempted.run({{kA, 1}}, 8);
  CHECK(preempted.sampled(kA) == steady.sampled(kA));
  steady.end(kA), preempted.end(kA);
  CHECK(preempted.engine().samples_digest() == steady.engine().samples_digest());
  CHECK(steady.engine().samples_digest() != 0);
}

TEST_CASE("forward: dequantizing weights when they are needed changes no bit") {
  for (const LlmSpec& llm : tiny_models()) {
    const ModelWeights weights = ModelWeights::random(llm, 1);
    class Identity final : public cpu::LayerAttention {
     public:
      explicit Identity(const LlmSpec& m) : width_(m.query_heads * m.head_dim) {}
      void attend(uint32_t, float* q, float*, const float*, float* out) override {
        std::copy_n(q, 5 * width_, out);
      }

     private:
      const uint32_t width_;
    } identity(llm);
    const auto ids = random_tokens(3, 5, llm.vocab);
    const std::vector<uint32_t> sampling = {1, 4};
    cpu::Forward retained(&weights), widened(&weights, 0);
    std::vector<float> a, b;
    retained.run(ids, sampling, &identity, &a);
    widened.run(ids, sampling, &identity, &b);
    CHECK(a.size() == 2 * llm.vocab);
    CHECK(a == b);
  }
}
