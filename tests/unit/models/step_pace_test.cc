#include "engine/calibrate/step_pace.h"

#include <doctest/doctest.h>

#include "models/catalog/catalog.h"

namespace kvtwin::cuda {
namespace {

LlmSpec llm(const char* name) {
  const auto found = Catalog().llm(name);
  REQUIRE(found);
  return *found;
}

}  // namespace

TEST_CASE("step pace: decodes read the weights, long chunks compute") {
  // Llama-3.1-8B: 6.98e9 weights of layers, 0.53e9 of logits.
  const StepPace pace(llm("llama-3.1-8b"));
  CHECK(pace.us(1) == doctest::Approx((6.979e9 + 0.525e9) * 2 / 3.0e6).epsilon(0.001));
  CHECK(pace.us(64) == pace.us(1));
  CHECK(pace.us(2048) == doctest::Approx(2048 * 2 * 6.979e9 / 630e6).epsilon(0.001));
}

TEST_CASE("step pace: measurements of larger models have fewer steps, as long in time") {
  const StepPace small(llm("llama-3.1-8b")), large(llm("qwen3-32b"));
  CHECK(small.decodes().warm == 6);
  CHECK(small.decodes().steps == 14);
  CHECK(small.decodes().middle() == 13);
  CHECK(small.singles() == 6);
  CHECK(large.singles() == 3);
  CHECK(large.decodes().warm == 3);
  CHECK(large.decodes().steps == 6);
  for (const uint32_t tokens : {64u, 256u, 1024u, 4096u}) {
    CAPTURE(tokens);
    for (const StepPace& pace : {small, large}) {
      const StepRounds rounds = pace.chunks(tokens);
      CHECK(rounds.warm * pace.us(tokens) > kLoadWindowUs);  // the window is full
      CHECK((rounds.warm - 1) * pace.us(tokens) <= kLoadWindowUs);
      CHECK(rounds.steps >= 3);
      CHECK((rounds.steps == 3 || rounds.steps * pace.us(tokens) <= kShortBusyUs));
    }
    CHECK(large.chunks(tokens).warm <= small.chunks(tokens).warm);
  }
}

}  // namespace kvtwin::cuda
