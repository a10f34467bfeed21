// IntentKV on the GPU: the session memory, and the rule, which is scored on the device and retains the
// entries that its definition retains of the same bf16 KV entries.

#include "engine/cuda/compression/intent_scores.h"
#include "kernels/common/small_floats.h"
#include "tests/unit/cuda_engine/compress_both.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

const SessionId kSession{7};

struct Form {
  kernels::IntentMode mode;
  bool pre_rope = false;
  kernels::MemoryForm memory = kernels::MemoryForm::kSum;
  kernels::QueryNorm norm = kernels::QueryNorm::kUnit;

  void set(kernels::ScoreSpec* spec) const {
    spec->intent_mode = mode, spec->intent.memory_pre_rope = pre_rope;
    spec->intent.memory = memory, spec->intent.query_norm = norm;
  }
};
const Form kForms[] = {
    {kernels::IntentMode::kMemory},
    {kernels::IntentMode::kQuery},
    {kernels::IntentMode::kMemory, true},
    {kernels::IntentMode::kMemory, false, kernels::MemoryForm::kMaxOverTurns},
    {kernels::IntentMode::kMemory, false, kernels::MemoryForm::kSum, kernels::QueryNorm::kRaw}};

kernels::ScoreSpec rule(const Form& form) {
  kernels::ScoreSpec spec = kernels::score_spec("intent_rule");
  form.set(&spec);
  return spec;
}

// A head with a last layer that is not zero. Drawn heads have zeros there.
cpu::ScorerWeights residual_weights(const LlmSpec& llm) {
  cpu::ScorerWeights out;
  out.residual = kernels::make_intent_residual(llm.head_dim, 5);
  for (uint32_t i = 0; i < out.residual.w2.size(); ++i)
    out.residual.w2[i] = static_cast<float>(draw({7, i}) % 1024) / 512.0f - 1.0f;
  out.residual.b2 = 0.25f, out.residual.gain = 0.75f;
  return out;
}

// Runs a prompt of `tokens` tokens with drawn queries in two steps. Returns those at positions `query`, by
// layer.
std::vector<cpu::Queries> capture_prompt(const LlmSpec& llm, uint32_t tokens, TokenRange query, uint64_t seed,
                                         cuda::DeviceScorer* scores, cuda::DeviceScorer::State* state) {
  const uint32_t width = llm.query_heads * llm.head_dim;
  std::vector<cpu::Queries> out(llm.layers);
  std::vector<cuda::DeviceLists> sent;  // alive until the capture is complete
  for (uint32_t begin = 0, end = tokens / 3; begin < tokens; begin = end, end = tokens) {
    if (begin == end) continue;
    cpu::StepRows rows;
    rows.tokens = end - begin, rows.context = rows.phase = begin, rows.prompt = true;
    rows.samples = end == tokens, rows.query = query;
    scores->begin_rows(rows, state);
    for (uint32_t l = 0; l < llm.layers; ++l) {
      std::vector<uint16_t> bits;
      for (uint64_t i = 0; i < uint64_t{rows.tokens} * width; ++i) {
        const auto drawn = static_cast<float>(draw({seed, l, begin * width + i}) % 4096) / 512.0f - 4.0f;
        bits.push_back(kernels::to_bf16(drawn));
        const uint64_t position = begin + i / width;
        if (position >= query.begin && position < query.end)
          out[l].rows.push_back(kernels::from_bf16(bits.back()));
      }
      cuda::DeviceLists& q = sent.emplace_back();
      const auto at = q.add(bits);
      q.send(nullptr);
      scores->capture(l, rows, reinterpret_cast<const __nv_bfloat16*>(q.at(at)), state, nullptr);
    }
    scores->captured(rows, state);
  }
  for (cpu::Queries& layer : out) {
    for (uint32_t p = query.begin; p < query.end; ++p) layer.phases.push_back(p);
    layer.positions = layer.phases;
  }
  const std::vector<cpu::Queries> fetched = scores->fetch_queries(*state, nullptr);
  for (uint32_t l = 0; l < llm.layers; ++l) {
    CHECK(fetched[l].rows == out[l].rows);
    CHECK(fetched[l].phases == out[l].phases);
  }
  return out;
}

}  // namespace

TEST_CASE(
    "3.4 cuda intent: a session's memory equals the definition's, turn after turn, until it is forgotten") {
  for (const LlmSpec& llm : models()) {
    const RopeFrequencies rope = rope_frequencies(llm);
    const cpu::ScorerWeights weights;
    for (const Form& form : kForms) {
      const kernels::ScoreSpec spec = rule(form);
      auto scores =
          cuda::DeviceScorer::make({spec, CompressionTrigger::kPromptEnd}, &llm, nullptr, weights, 64);
      REQUIRE(scores);
      cuda::IntentScores mine(spec, &llm, &weights);
      cpu::IntentMemory theirs(spec, &llm, &rope, &weights);
      for (uint32_t turn = 0; turn < 4; ++turn) {
        // In one step, over both, and at the end: a query of turn 1 begins in the first step.
        const uint32_t tokens = 5 + 20 * turn;
        const TokenRange asks[] = {{2, 4}, {5, 20}, {29, 45}, {3, 17}};
        cuda::DeviceScorer::State state;
        const std::vector<cpu::Queries> queries =
            capture_prompt(llm, tokens, asks[turn], turn, &*scores, &state);
        mine.remember(kSession, *scores, state, tokens, nullptr);
        theirs.remember(kSession, queries, tokens);
        REQUIRE(mine.memory().find(kSession) != nullptr);
        CHECK(*mine.memory().find(kSession) == *theirs.find(kSession));
      }
      // Another session has no memory; a forgotten session is unknown and scores zero.
      CHECK(mine.memory().find(SessionId{8}) == nullptr);
      mine.forget(kSession);
      CHECK(mine.memory().find(kSession) == nullptr);
      constexpr uint32_t kRows = 40, kCopies = 3;
      auto pinned = cuda::Buffer::make(cuda::Buffer::Kind::kPinned, kRows * kCopies * 4, "scores", "");
      REQUIRE(pinned);
      const std::span<float> got(pinned->as<float>(), kRows * kCopies);
      std::fill(got.begin(), got.end(), 1.0f);
      IntentScoreArgs what;
      what.rows = kRows;
      mine.score(kSession, what, {}, {got.data(), kRows, kCopies}, {}, nullptr);
      cuda::DeviceScorer::State state;
      capture_prompt(llm, 9, {0, 9}, 9, &*scores, &state);  // waits for the stream
      CHECK(std::count(got.begin(), got.end(), 0.0f) == kRows * kCopies);
    }
  }
}

TEST_CASE("3.4 cuda intent: rule and residual on the device retain what the definitions on the host retain") {
  const Method all[] = {{"intent_rule", "uniform", "slot_mask"},
                        {"intent_rule", "uniform", "page_mask"},
                        {"intent_rule", "ratio", "page_mask"},
                        {"intent_rule", "uniform", "compact"},
                        {"intent_rule", "uniform", "compact", 0, Clustering::kAdjacent, {}, "int4"},
                        {"intent_residual", "uniform", "slot_mask"},
                        {"intent_residual", "ratio", "page_mask"},
                        {"intent_residual", "uniform", "compact"},
                        {"intent_residual", "uniform", "compact", 0, Clustering::kAdjacent, {}, "int4"}};
  for (const Method& method : all) {
    uint64_t compressions = 0, steps = 0, unequal = 0;
    for (const LlmSpec& llm : models()) {
      for (uint64_t seed = 1; seed <= 2 * std::size(kForms); ++seed) {
        ExpectedOutcome what{.llm = llm, .config = cuda_config(method, llm), .seed = seed, .on_host = true};
        what.spans = seed > std::size(kForms);
        if (kernels::find_scorer(method.scorer)->weights == kernels::TrainedWeights::kResidual)
          what.weights = residual_weights(llm);
        what.adjust = [&](kernels::ScoreSpec* spec) {
          kForms[(seed - 1) % std::size(kForms)].set(spec);
          spec->rule_norm = std::array{kernels::RuleNorm::kTimesCandidates, kernels::RuleNorm::kZScore,
                                       kernels::RuleNorm::kNone}[seed % 3];
        };
        const PairedEngines result = run_both(what);
        compressions += result.compressions, steps += result.steps, unequal += result.unequal;
      }
    }
    MESSAGE(name_of(method) << ": " << compressions << " compressions; of " << steps << " steps " << unequal
                            << " differ");
    CHECK(compressions > 20);
    CHECK(unequal == 0);
  }
}
