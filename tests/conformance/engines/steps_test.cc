// Conformance of engines, step by step: whatever pages, chunks, batches, reuse and tiers a request has, it
// computes what it computes alone. Pages are poisoned when allocated, so reading an entry that was never
// written gives NaN.

#include <doctest/doctest.h>

#include <map>
#include <numeric>
#include <utility>

#include "tests/conformance/engines/definition.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

constexpr RequestId kA{1}, kB{2}, kC{3};
using StepsOf = EngineSteps<TestedEngine>;

// A model with random weights, and the tokens of up to three requests.
struct PreparedEngine {
  explicit PreparedEngine(const LlmSpec& llm)
      : weights(ModelWeights::random(llm, 7)), model(tested_model(weights)) {}
  // The request has `count` tokens, of which `prompt` are its prompt.
  const std::vector<uint32_t>& give(RequestId request, uint32_t count, uint32_t prompt) {
    return give(request, random_tokens(raw(request), count, weights.llm().vocab), prompt);
  }
  const std::vector<uint32_t>& give(RequestId request, std::vector<uint32_t> all, uint32_t prompt) {
    tokens.give(request, all, prompt);
    return ids[request] = std::move(all);
  }
  Definition definition(RequestId request) const { return {weights, ids.at(request)}; }
  StepsOf steps(const EngineSetup& setup, uint64_t seed) const {
    return {setup.page_tokens, setup.pages_gpu, seed, model->engine(setup, &tokens)};
  }
  ModelWeights weights;
  std::unique_ptr<TestedModel> model;
  GivenTokens tokens;
  std::map<RequestId, std::vector<uint32_t>> ids;
};

// The row of the sample `index` in the logits of some steps.
std::span<const float> row(const std::vector<float>& logits, size_t index, const LlmSpec& llm) {
  return std::span(logits).subspan(index * llm.vocab, llm.vocab);
}

}  // namespace

TEST_CASE("G-3 engine: chunked prefill and decode equal the definition, on any pages") {
  for (const LlmSpec& llm : tested_kind().models) {
    PreparedEngine p(llm);
    p.give(kA, 50, 50);
    const Definition expected = p.definition(kA);
    // Logits of the last token after prefill chunks of these sizes.
    const auto last = [&](const std::vector<uint32_t>& chunks, uint32_t page_tokens, uint64_t seed) {
      StepsOf steps = p.steps({.page_tokens = page_tokens}, seed);
      steps.begin(kA);
      std::vector<float> logits;
      uint32_t at = 0;
      for (const uint32_t chunk : chunks) logits = steps.run({{kA, chunk, (at += chunk) == 50}});
      expected.check(logits, 50);
      return logits;
    };
    const std::vector<float> whole = last({50}, 16, 0);
    CHECK(last({50}, 16, 4) == whole);  // on other pages: to the bit
    last({50}, 1, 1), last({50}, 5, 2), last({50}, 32, 3);
    last({16, 16, 18}, 16, 1);
    last({1, 7, 42}, 4, 2);
    last({49, 1}, 3, 3);
    last(std::vector<uint32_t>(50, 1), 16, 5);
  }
}

TEST_CASE("X-9 engine: a request's logits do not depend on other requests or on coalescing") {
  for (const LlmSpec& llm : tested_kind().models) {
    for (const uint32_t page : {1u, 5u, 16u, 32u}) {
      CAPTURE(page);
      PreparedEngine p(llm);
      p.give(kA, 90, 53), p.give(kB, 90, 33), p.give(kC, 90, 1);
      const std::map<RequestId, Definition> expected = {
          {kA, p.definition(kA)}, {kB, p.definition(kB)}, {kC, p.definition(kC)}};
      StepsOf steps = p.steps({.page_tokens = page}, 9);
      steps.begin(kB), steps.begin(kA), steps.begin(kC);
      std::map<RequestId, uint32_t> reached;
      // Runs steps and checks the logits of every sample.
      const auto run = [&](const std::vector<StepsOf::Want>& wants, uint32_t repeat = 1) {
        const std::vector<float> logits = steps.run(wants, repeat);
        size_t at = 0;
        for (uint32_t offset = 0; offset < repeat; ++offset) {
          for (const StepsOf::Want& want : wants) {
            reached[want.request] += want.tokens;
            if (want.samples) expected.at(want.request).check(row(logits, at++, llm), reached[want.request]);
          }
        }
        CHECK(logits.size() == at * llm.vocab);
      };
      run({{kA, 53}});
      run({{kA, 1}}, 3);
      run({{kA, 1}, {kB, 20, false}, {kC, 1}});
      run({{kB, 13}, {kC, 1}});
      for (int i = 0; i < 5; ++i) run({{kA, 1}, {kC, 1}});
      run({{kC, 1}, {kB, 1}, {kA, 1}}, 20);
    }
  }
}

TEST_CASE(
    "G-2 engine: reused pages, also after a round trip to the host tier, equal computed ones to the bit") {
  for (const LlmSpec& llm : tested_kind().models) {
    PreparedEngine p(llm);
    const std::vector<uint32_t> ids = p.give(kA, 64, 64);
    p.give(kB, ids, 64), p.give(kC, ids, 64);
    const Definition definition = p.definition(kA);
    for (const bool concurrent : {false, true}) {
      if (concurrent && !tested_kind().concurrent_copies) continue;
      EngineSetup setup{.pages_host = 20, .concurrent_copies = concurrent};
      StepsOf steps = p.steps(setup, 6);
      steps.begin(kA);
      steps.run({{kA, 48, false}});
      const std::vector<PageId> source = steps.pages(kA);
      REQUIRE(source.size() == 3);
      const std::vector<float> expected = steps.run({{kA, 16}});
      definition.check(expected, 64);
      steps.begin(kB, source);
      CHECK(steps.run({{kB, 16}}) == expected);
      std::vector<PageId> host, target;
      for (uint32_t i = 0; i < 3; ++i)
        host.push_back(PageId{setup.pages_gpu + 3 * i}), target.push_back(steps.take());
      const auto copy = [&](uint64_t number, TransferKind kind, bool out) {
        steps.engine().notify(StartTransfer{{},
                                            TransferId{number},
                                            kind,
                                            out ? Tier::kGpu : Tier::kHost,
                                            out ? Tier::kHost : Tier::kGpu,
                                            out ? source : host,
                                            out ? host : target});
        if (concurrent) CHECK(steps.engine().copy_time(TransferId{number}).ns > 0);
      };
      copy(1, TransferKind::kOffload, true);
      copy(2, TransferKind::kLoad, false);
      steps.begin(kC, target);
      CHECK(steps.run({{kC, 16}}) == expected);
    }
  }
}

TEST_CASE("G-2 engine: a request may reuse pages that another request of the same step fills") {
  const LlmSpec llm = tested_kind().models[0];
  PreparedEngine p(llm);
  const std::vector<uint32_t> ids = p.give(kA, 40, 40);
  p.give(kB, ids, 40);
  const EngineSetup setup{.page_tokens = 8};
  StepsOf steps = p.steps(setup, 6), twin = p.steps(setup, 6);
  // The pages that kA gets now are the ones that kB reads in the same step, so they must be known beforehand.
  steps.begin(kA), twin.begin(kA);
  steps.run({{kA, 8, false}}), twin.run({{kA, 8, false}});
  twin.run({{kA, 24, false}});
  steps.begin(kB, {twin.pages(kA).begin(), twin.pages(kA).begin() + 4});
  p.definition(kA).check(steps.run({{kA, 24, false}, {kB, 8, true}}), 40);
}

TEST_CASE("engine: greedy decoding feeds back its samples, stops at an end, and survives preemption") {
  for (const LlmSpec& llm : tested_kind().models) {
    PreparedEngine p(llm);
    const std::vector<uint32_t> prompt = p.give(kA, 10, 10);
    EngineSetup setup{.page_tokens = 8, .decoding = cpu::Decoding::kGreedy};
    // Forced to its own samples, the definition has the same logits.
    const auto check = [&](StepsOf* steps, const std::vector<float>& last) {
      std::vector<uint32_t> all = prompt;
      const std::vector<uint32_t>& sampled = steps->sampled(kA);
      REQUIRE(sampled.size() == 20);
      all.insert(all.end(), sampled.begin(), sampled.end() - 1);
      Definition(p.weights, all).check(last, 29);
    };
    StepsOf steady = p.steps(setup, 6);
    steady.begin(kA);
    steady.run({{kA, 10}});
    const std::vector<float> coalesced = steady.run({{kA, 1}}, 19);
    check(&steady, {coalesced.end() - llm.vocab, coalesced.end()});

    StepsOf preempted = p.steps(setup, 7);
    preempted.begin(kA);
    preempted.run({{kA, 10}});
    preempted.run({{kA, 1}}, 6);
    preempted.end(kA, DropRequestState::Reason::kPreempted);
    preempted.begin(kA);
    preempted.run({{kA, 17}});  // the prompt and seven outputs; it samples the eighth
    const std::vector<float> after = preempted.run({{kA, 1}}, 12);
    check(&preempted, {after.end() - llm.vocab, after.end()});

    const std::vector<uint32_t> sampled = steady.sampled(kA);
    setup.end_tokens = {sampled[7]};
    StepsOf ending = p.steps(setup, 8);
    ending.begin(kA);
    ending.run({{kA, 10}});
    for (size_t i = 1; ending.values().eos.empty(); ++i) {
      REQUIRE(i < 20);
      ending.run({{kA, 1}});
    }
    CHECK(ending.values().eos == std::vector<RequestId>{kA});
    CHECK(ending.sampled(kA).back() == sampled[7]);

    steady.end(kA), preempted.end(kA);
    CHECK(steady.engine().samples_digest() != 0);
    // Rounding differs between a chunk and decodes, except in exact engines.
    if (tested_kind().exact) CHECK(preempted.engine().samples_digest() == steady.engine().samples_digest());
  }
}
