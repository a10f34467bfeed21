// The policy side of all scorers, as one table: the triggers that each allows, its causality, and what it
// adds to a step.
//
// Sources: docs/design/methods/uniform.md for the triggers, docs/design/methods/composition.md#causality,
// docs/design/methods/judge-q.md#inference and docs/design/methods/uniform.md#kvzip for extra tokens. A
// scorer can be prefix-closed only at chunk ends: there the KV entries retained of the tokens before a
// boundary depend on these tokens alone. At the end of a prompt the same scorer ranks them against what
// follows.

#include <algorithm>
#include <iterator>
#include <vector>

#include "engine/base/check.h"
#include "engine/methods/axis_factories.h"
#include "engine/methods/scorer_spec.h"
#include "engine/methods/scorer_traits.h"

namespace kvtwin {
namespace {

constexpr uint32_t bit(CompressionTrigger compression_trigger) {
  return 1u << static_cast<uint32_t>(compression_trigger);
}
constexpr uint32_t kChunk = bit(CompressionTrigger::kChunkEnd), kPrompt = bit(CompressionTrigger::kPromptEnd),
                   kTurn = bit(CompressionTrigger::kTurnStart), kStep = bit(CompressionTrigger::kDecodeStep),
                   kNever = bit(CompressionTrigger::kAtNoTime);

// Whether the KV entries retained at the end of a chunk depend only on the tokens before it.
enum class Closed : uint8_t {
  kYes,
  kWithItsWindow,  // yes if its query window is ranked with the chunk; no if it is carried into the next
  kNo,
};

struct Row {
  std::string_view name;
  std::string_view description;
  CompressionTrigger own;  // used if ScorerSpec names no trigger
  uint32_t allowed;        // bits of allowed triggers
  Closed closed;
  bool all_layers;        // one threshold, or one score, over all layers
  uint32_t query_tokens;  // tokens whose queries are captured; 0: none, or all
  uint32_t probe_tokens;
  ScorerTraits traits = {};
};

constexpr Row kRows[] = {
    {"none",
     "Nothing is scored; every KV entry is retained.",
     CompressionTrigger::kAtNoTime,
     kNever,
     Closed::kYes,
     false,
     0,
     0,
     {.by_position = true}},
    {"streaming_llm",
     "The first entries and the most recent ones (StreamingLLM).",
     CompressionTrigger::kChunkEnd,
     kChunk | kPrompt | kTurn | kStep,
     Closed::kYes,
     false,
     0,
     0,
     {.by_position = true}},
    {"h2o",
     "Entries that have gathered most attention so far, beside the most recent (H2O, at every step).",
     CompressionTrigger::kDecodeStep,
     kStep,
     Closed::kNo,
     false,
     0,
     0,
     {.reads_decodes = true, .gathers = true}},
    {"h2o_prefill",
     "Attention gathered over the prompt once: column sums (KVCache-Factory), or per row that can see the KV "
     "entry (kvpress ObservedAttention).",
     CompressionTrigger::kPromptEnd,
     kPrompt | kChunk,
     Closed::kWithItsWindow,
     false,
     0,
     0,
     {.gathers = true}},
    {"snapkv", "Attention of the prompt's last queries, smoothed (SnapKV; the variants of five code bases).",
     CompressionTrigger::kPromptEnd, kPrompt | kChunk, Closed::kWithItsWindow, false, 64, 0},
    {"pyramidkv", "SnapKV's scores; made for budgets that shrink with depth (PyramidKV).",
     CompressionTrigger::kPromptEnd, kPrompt | kChunk, Closed::kWithItsWindow, false, 64, 0},
    {"tova",
     "Attention of the last query, all heads together (TOVA).",
     CompressionTrigger::kPromptEnd,
     kPrompt | kChunk | kStep,
     Closed::kWithItsWindow,
     false,
     1,
     0,
     {.reads_decodes = true, .heads_alike = true}},
    {"knorm", "Entries with short keys (Knorm).", CompressionTrigger::kChunkEnd,
     kChunk | kPrompt | kTurn | kStep, Closed::kYes, false, 0, 0},
    {"keydiff", "Entries whose keys differ from the mean key (KeyDiff).", CompressionTrigger::kChunkEnd,
     kChunk | kPrompt | kTurn, Closed::kYes, false, 0, 0},
    {"expected_attention", "Expected attention of future queries, from the mean and covariance of past ones.",
     CompressionTrigger::kPromptEnd, kPrompt | kChunk, Closed::kYes, false, 0, 0},
    {"kvzip",
     "Attention of the model while it repeats its context; one more pass over it (KVzip).",
     CompressionTrigger::kPromptEnd,
     kPrompt | kChunk,
     Closed::kYes,
     true,
     0,
     0,
     {.repeats = true}},
    {"fastkvzip", "A trained gate on each token's hidden state that predicts KVzip (FastKVzip).",
     CompressionTrigger::kChunkEnd, kChunk | kPrompt | kTurn | kStep, Closed::kYes, false, 0, 0},
    {"trimkv", "A trained gate that sets how fast each KV entry's worth decays (TrimKV).",
     CompressionTrigger::kChunkEnd, kChunk | kPrompt | kStep, Closed::kYes, false, 0, 0},
    {"raas",
     "Pages by when they last drew attention; the stalest goes first (RaaS).",
     CompressionTrigger::kDecodeStep,
     kStep,
     Closed::kNo,
     false,
     1,
     0,
     {.reads_decodes = true, .heads_apart = true, .gathers = true}},
    {"duo_attention",
     "Streaming heads beside full ones (DuoAttention): positions; the mask is the budget's.",
     CompressionTrigger::kChunkEnd,
     kChunk | kPrompt | kStep,
     Closed::kYes,
     false,
     0,
     0,
     {.by_position = true}},
    {"razor_attention",
     "The same with RazorAttention's mask.",
     CompressionTrigger::kChunkEnd,
     kChunk | kPrompt | kStep,
     Closed::kYes,
     false,
     0,
     0,
     {.by_position = true}},
    {"judge_q", "Attention of 32 trained soft tokens after the prompt (Judge Q).",
     CompressionTrigger::kPromptEnd, kPrompt, Closed::kNo, false, 0, 32},
    {"intent_rule",
     "One score per token: attention of the session's remembered queries (IntentKV's rule).",
     CompressionTrigger::kPromptEnd,
     kPrompt | kTurn,
     Closed::kNo,
     true,
     0,
     0,
     {.scores_tokens = true, .reads_roles = true}},
    {"intent_residual",
     "The rule, corrected by a small trained head (IntentKV).",
     CompressionTrigger::kPromptEnd,
     kPrompt | kTurn,
     Closed::kNo,
     true,
     0,
     0,
     {.scores_tokens = true, .reads_roles = true}},
    {"finch", "SnapKV whose window is the question (FINCH).", CompressionTrigger::kPromptEnd,
     kPrompt | kChunk, Closed::kNo, false, 32, 0},
    {"critical_kv",
     "SnapKV for half of the budget, then weighted by what a KV entry adds to the output (CriticalKV).",
     CompressionTrigger::kPromptEnd,
     kPrompt | kChunk,
     Closed::kWithItsWindow,
     false,
     64,
     0,
     {.heads_apart = true}},
    {"r_kv",
     "Attention of the last queries less the redundancy of keys that resemble others; while decoding (R-KV).",
     CompressionTrigger::kDecodeStep,
     kPrompt | kChunk | kStep,
     Closed::kWithItsWindow,
     false,
     8,
     0,
     {.reads_decodes = true}},
    {"external",
     "Scores from a program of the user's (scorer_options.command); its choice stays in the session.",
     CompressionTrigger::kPromptEnd, kPrompt | kChunk, Closed::kNo, false, 32, 0},
    {"random", "A draw per KV entry: the floor that a scorer must beat.", CompressionTrigger::kChunkEnd,
     kChunk | kPrompt | kTurn | kStep, Closed::kYes, false, 0, 0},
};

const Row* find(std::string_view name) {
  const auto at =
      std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& row) { return row.name == name; });
  return at == std::end(kRows) ? nullptr : &*at;
}

const char* words(CompressionTrigger compression_trigger) {
  switch (compression_trigger) {
    case CompressionTrigger::kAtNoTime:
      return "at no time";
    case CompressionTrigger::kChunkEnd:
      return "at chunk ends";
    case CompressionTrigger::kPromptEnd:
      return "at the end of the prompt";
    case CompressionTrigger::kTurnStart:
      return "at the start of a turn";
    case CompressionTrigger::kDecodeStep:
      return "at decode steps";
  }
  return "";
}

std::string allowed_words(uint32_t allowed) {
  std::string out;
  for (const CompressionTrigger compression_trigger :
       {CompressionTrigger::kChunkEnd, CompressionTrigger::kPromptEnd, CompressionTrigger::kTurnStart,
        CompressionTrigger::kDecodeStep}) {
    if ((allowed & bit(compression_trigger)) != 0)
      out += (out.empty() ? "" : ", ") + std::string(words(compression_trigger));
  }
  return out.empty() ? "at no time" : out;
}

class TableScorer final : public Scorer {
 public:
  TableScorer(const Row& row, const ScorerSpec& spec)
      : compression_trigger_(spec.compression_trigger.value_or(row.own)),
        spec_(spec),
        probe_tokens_(row.probe_tokens > 0 && spec.probe_tokens > 0 ? spec.probe_tokens : row.probe_tokens),
        all_layers_(row.all_layers),
        repeats_(row.traits.repeats) {
    const bool closed =
        row.closed == Closed::kYes || (row.closed == Closed::kWithItsWindow && spec.window_closed);
    const bool early = compression_trigger_ == CompressionTrigger::kChunkEnd ||
                       compression_trigger_ == CompressionTrigger::kAtNoTime;
    causality_ = closed && early ? Causality::kPrefixClosed : Causality::kSuffixDependent;
  }
  CompressionTrigger compression_trigger() const override { return compression_trigger_; }
  Causality causality() const override { return causality_; }
  ProbePasses passes(uint32_t sinks) const override {
    return repeats_ ? ProbePasses::of_repeats(spec_, sinks) : ProbePasses::of_soft_tokens(probe_tokens_);
  }
  bool needs_all_layers() const override { return all_layers_; }

 private:
  CompressionTrigger compression_trigger_;
  Causality causality_;
  ScorerSpec spec_;
  uint32_t probe_tokens_;
  bool all_layers_, repeats_;
};

constexpr uint32_t kRowsMax = 65'536;  // query or probe tokens: more than any published method uses

}  // namespace

void append_scorers(std::vector<PolicyInfo>* out) {
  for (const Row& row : kRows) out->push_back({"scorer", row.name, row.description});
}

ScorerTraits scorer_traits(std::string_view name) {
  const Row* row = find(name);
  return row == nullptr ? ScorerTraits() : row->traits;
}

std::unique_ptr<Scorer> make_scorer(std::string_view name, const ScorerSpec& spec) {
  const Row* row = find(name);
  KVT_CHECK(row != nullptr);
  return std::make_unique<TableScorer>(*row, spec);
}

std::optional<std::string> validate_scorer(std::string_view name, const ScorerSpec& spec) {
  const Row* row = find(name);
  KVT_CHECK(row != nullptr);
  const std::string scorer = "scorer " + std::string(name);
  if (spec.compression_trigger && (row->allowed & bit(*spec.compression_trigger)) == 0) {
    return scorer + " cannot work " + words(*spec.compression_trigger) + "; it works " +
           allowed_words(row->allowed);
  }
  if (spec.probe_tokens > 0 && row->probe_tokens == 0) {
    return scorer + " has no probe tokens, but probe_tokens is " + std::to_string(spec.probe_tokens) +
           "; set it to 0, or choose scorer judge_q";
  }
  if (spec.query_tokens > 0 && row->query_tokens == 0) {
    return scorer + " has no window of queries, but query_tokens is " + std::to_string(spec.query_tokens) +
           "; set it to 0";
  }
  for (const uint32_t rows : {spec.probe_tokens, spec.query_tokens}) {
    if (rows > kRowsMax) {
      return scorer + " is given " + std::to_string(rows) + " query or probe tokens; at most " +
             std::to_string(kRowsMax) + " are";
    }
  }
  if (spec.window_closed && row->closed != Closed::kWithItsWindow) {
    return scorer + " has no window to close at a chunk's end; set window_closed: false";
  }
  if (spec.repeat_tokens == 0) return scorer + " repeats the context in parts of repeat_tokens, which is 0";
  return std::nullopt;
}

bool runs_passes(std::string_view name) {
  const Row* row = find(name);
  return row != nullptr && (row->probe_tokens > 0 || row->traits.repeats);
}

uint32_t captured_queries(std::string_view name, const ScorerSpec& spec) {
  const Row* row = find(name);
  KVT_CHECK(row != nullptr);
  if (row->probe_tokens > 0) return spec.probe_tokens > 0 ? spec.probe_tokens : row->probe_tokens;
  return row->query_tokens > 0 && spec.query_tokens > 0 ? spec.query_tokens : row->query_tokens;
}

}  // namespace kvtwin
