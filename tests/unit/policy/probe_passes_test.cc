// Which passes of probe tokens precede a compression.

#include "engine/methods/probe_passes.h"

#include <doctest/doctest.h>

#include <vector>

#include "engine/methods/config.h"

using namespace kvtwin;

namespace {

ProbePasses repeats(uint32_t sinks, uint32_t tokens, uint32_t tail, uint32_t instruction) {
  ScorerSpec spec;
  spec.repeat_tokens = tokens, spec.repeat_tail = tail, spec.repeat_instruction = instruction;
  return ProbePasses::of_repeats(spec, sinks);
}

}  // namespace

TEST_CASE("probe passes: repeated parts cover the context, and repeat the end of the part before") {
  struct Row {
    uint32_t sinks, repeat, tail, instruction, tokens;
    struct Pass {
      uint32_t begin, end, repeated, tokens;
    };
    std::vector<Pass> passes;
  };
  const Row rows[] = {
      {10, 2048, 8, 16, 5000, {{10, 2058, 10, 2064}, {2058, 4106, 2050, 2072}, {4106, 5000, 4098, 918}}},
      {0, 2, 8, 0, 3, {{0, 2, 0, 2}, {2, 3, 0, 3}}},  // the tail is no longer than what came before
      {4, 100, 8, 16, 104, {{4, 104, 4, 116}}},       // exactly one part
      {4, 100, 0, 1, 105, {{4, 104, 4, 101}, {104, 105, 104, 2}}},
      {7, 100, 8, 16, 7, {}},  // all sinks
      {7, 100, 8, 16, 3, {}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.tokens);
    const ProbePasses passes = repeats(row.sinks, row.repeat, row.tail, row.instruction);
    CHECK(passes.any());
    REQUIRE(passes.count(row.tokens) == row.passes.size());
    for (uint32_t i = 0; i < row.passes.size(); ++i) {
      const ProbePass pass = passes.at(row.tokens, i);
      CHECK(pass.begin == row.passes[i].begin);
      CHECK(pass.end == row.passes[i].end);
      CHECK(pass.repeated == row.passes[i].repeated);
      CHECK(pass.repeats());
      CHECK(pass.first == (i == 0));
      CHECK(passes.tokens(pass) == row.passes[i].tokens);
      CHECK(passes.tokens(pass) <= passes.tokens_max());
    }
  }
}

TEST_CASE("probe passes: by chunk they cover the newest chunk and the window before it") {
  struct Row {
    uint32_t tokens;
    std::vector<TokenRange> repeated;
  };
  const Row rows[] = {
      {100, {{4, 64}, {64, 100}}},     // the first chunk is whole: no window before it
      {200, {{92, 152}, {152, 200}}},  // the second
      {203, {{192, 203}}},             // and part of the third
      {101, {{92, 101}}},
      {4, {}},  // all sinks
      {5, {{4, 5}}},
  };
  const ProbePasses passes = repeats(4, 60, 0, 2).by_chunk(100, 8);
  for (const Row& row : rows) {
    CAPTURE(row.tokens);
    REQUIRE(passes.count(row.tokens) == row.repeated.size());
    for (uint32_t i = 0; i < row.repeated.size(); ++i) {
      const ProbePass pass = passes.at(row.tokens, i);
      CHECK(TokenRange{pass.begin, pass.end} == row.repeated[i]);
      CHECK(pass.repeated == pass.begin);
      CHECK(pass.first == (i == 0));
    }
  }
  // The tail of a chunk's first pass is the end of the chunk before, of the first chunk's the sinks' end.
  CHECK(repeats(4, 60, 8, 2).by_chunk(100, 0).at(200, 0).repeated == 92);
  CHECK(repeats(4, 60, 8, 2).by_chunk(100, 0).at(100, 0).repeated == 4);
}

TEST_CASE("probe passes: soft tokens are one pass, which ranks everything") {
  const ProbePasses passes = ProbePasses::of_soft_tokens(32);
  REQUIRE(passes.count(5000) == 1);
  const ProbePass pass = passes.at(5000, 0);
  CHECK(pass.begin == 0);
  CHECK(pass.end == 5000);
  CHECK_FALSE(pass.repeats());
  CHECK(passes.tokens(pass) == 32);
  CHECK(passes.tokens_max() == 32);
}

TEST_CASE("probe passes: none where nothing is dropped, or where the scorer has none") {
  PolicySet set;
  set.scorer = "kvzip", set.budget = "all";
  CHECK_FALSE(probe_passes(set).any());
  set.budget = "ratio";
  CHECK(probe_passes(set).tokens_max() == 2072);
  set.scorer = "snapkv";
  CHECK_FALSE(probe_passes(set).any());
  CHECK(ProbePasses::of_soft_tokens(0).count(100) == 0);
}
