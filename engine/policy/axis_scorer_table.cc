// All scorers' policy halves, as one table: when each may work, who may share what it kept, what it adds.
//
// Sources: METHODS 1.x for the moments, 7.3 for causality, 5.2 and 1.7 for extra rows. A scorer is
// prefix-closed only at chunk ends: there the cells kept of the tokens before a boundary depend on these
// alone. The same scorer at the end of a prompt ranks them against what follows.

#include <algorithm>
#include <iterator>

#include "engine/base/check.h"
#include "engine/policy/axis_factories.h"
#include "engine/policy/scorer_spec.h"

namespace kvtwin {
namespace {

constexpr uint32_t bit(Moment moment) { return 1u << static_cast<uint32_t>(moment); }
constexpr uint32_t kChunk = bit(Moment::kChunkEnd), kPrompt = bit(Moment::kPromptEnd),
                   kTurn = bit(Moment::kTurnStart), kStep = bit(Moment::kDecodeStep),
                   kNever = bit(Moment::kAtNoTime);

// Whether what is kept at a chunk's end depends on the tokens before it alone.
enum class Closed : uint8_t {
  kYes,
  kWithItsWindow,  // its query window is part of the chunk; carried on, it is ranked with the next
  kNo,
};

struct Row {
  std::string_view name;
  Moment own;        // where ScorerSpec names no moment
  uint32_t allowed;  // moments
  Closed closed;
  bool all_layers;      // one threshold, or one score, over all layers
  uint32_t query_rows;  // whose queries are captured; 0: none, or all
  uint32_t probe_rows;
};

constexpr Row kRows[] = {
    {"none", Moment::kAtNoTime, kNever, Closed::kYes, false, 0, 0},
    {"streaming_llm", Moment::kChunkEnd, kChunk | kPrompt | kTurn | kStep, Closed::kYes, false, 0, 0},
    {"h2o", Moment::kDecodeStep, kStep, Closed::kNo, false, 0, 0},
    {"h2o_prefill", Moment::kPromptEnd, kPrompt | kChunk, Closed::kWithItsWindow, false, 0, 0},
    {"snapkv", Moment::kPromptEnd, kPrompt | kChunk, Closed::kWithItsWindow, false, 64, 0},
    {"pyramidkv", Moment::kPromptEnd, kPrompt | kChunk, Closed::kWithItsWindow, false, 64, 0},
    {"tova", Moment::kPromptEnd, kPrompt | kChunk | kStep, Closed::kWithItsWindow, false, 1, 0},
    {"knorm", Moment::kChunkEnd, kChunk | kPrompt | kTurn | kStep, Closed::kYes, false, 0, 0},
    {"keydiff", Moment::kChunkEnd, kChunk | kPrompt | kTurn, Closed::kYes, false, 0, 0},
    {"expected_attention", Moment::kPromptEnd, kPrompt | kChunk, Closed::kYes, false, 0, 0},
    {"kvzip", Moment::kPromptEnd, kPrompt, Closed::kNo, true, 0, 0},
    {"fastkvzip", Moment::kChunkEnd, kChunk | kPrompt | kTurn | kStep, Closed::kYes, false, 0, 0},
    {"trimkv", Moment::kChunkEnd, kChunk | kPrompt | kStep, Closed::kYes, false, 0, 0},
    {"raas", Moment::kDecodeStep, kStep, Closed::kNo, false, 1, 0},
    {"duo_attention", Moment::kChunkEnd, kChunk | kPrompt | kStep, Closed::kYes, false, 0, 0},
    {"razor_attention", Moment::kChunkEnd, kChunk | kPrompt | kStep, Closed::kYes, false, 0, 0},
    {"judge_q", Moment::kPromptEnd, kPrompt, Closed::kNo, false, 0, 32},
    {"intent_rule", Moment::kPromptEnd, kPrompt | kTurn, Closed::kNo, true, 0, 0},
    {"intent_residual", Moment::kPromptEnd, kPrompt | kTurn, Closed::kNo, true, 0, 0},
    {"finch", Moment::kPromptEnd, kPrompt | kChunk, Closed::kNo, false, 32, 0},
    {"critical_kv", Moment::kPromptEnd, kPrompt | kChunk, Closed::kWithItsWindow, false, 64, 0},
    {"random", Moment::kChunkEnd, kChunk | kPrompt | kTurn | kStep, Closed::kYes, false, 0, 0},
};

const Row* find(std::string_view name) {
  const auto at =
      std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& row) { return row.name == name; });
  return at == std::end(kRows) ? nullptr : &*at;
}

const char* words(Moment moment) {
  switch (moment) {
    case Moment::kAtNoTime:
      return "at no time";
    case Moment::kChunkEnd:
      return "at chunk ends";
    case Moment::kPromptEnd:
      return "at the end of the prompt";
    case Moment::kTurnStart:
      return "at the start of a turn";
    case Moment::kDecodeStep:
      return "at decode steps";
  }
  return "";
}

std::string allowed_words(uint32_t allowed) {
  std::string out;
  for (const Moment moment :
       {Moment::kChunkEnd, Moment::kPromptEnd, Moment::kTurnStart, Moment::kDecodeStep}) {
    if ((allowed & bit(moment)) != 0) out += (out.empty() ? "" : ", ") + std::string(words(moment));
  }
  return out.empty() ? "at no time" : out;
}

class TableScorer final : public Scorer {
 public:
  TableScorer(const Row& row, const ScorerSpec& spec)
      : moment_(spec.moment.value_or(row.own)),
        probe_rows_(row.probe_rows > 0 && spec.probe_rows > 0 ? spec.probe_rows : row.probe_rows),
        all_layers_(row.all_layers) {
    const bool closed =
        row.closed == Closed::kYes || (row.closed == Closed::kWithItsWindow && spec.window_closed);
    const bool early = moment_ == Moment::kChunkEnd || moment_ == Moment::kAtNoTime;
    causality_ = closed && early ? Causality::kPrefixClosed : Causality::kSuffixDependent;
  }
  Moment moment() const override { return moment_; }
  Causality causality() const override { return causality_; }
  uint32_t probe_rows() const override { return probe_rows_; }
  bool needs_all_layers() const override { return all_layers_; }

 private:
  Moment moment_;
  Causality causality_;
  uint32_t probe_rows_;
  bool all_layers_;
};

constexpr uint32_t kRowsMax = 65'536;  // of queries or probes: more than any published method has

}  // namespace

std::unique_ptr<Scorer> make_scorer(std::string_view name, const ScorerSpec& spec) {
  const Row* row = find(name);
  KVT_CHECK(row != nullptr);
  return std::make_unique<TableScorer>(*row, spec);
}

std::optional<std::string> validate_scorer(std::string_view name, const ScorerSpec& spec) {
  const Row* row = find(name);
  KVT_CHECK(row != nullptr);
  const std::string scorer = "scorer " + std::string(name);
  if (spec.moment && (row->allowed & bit(*spec.moment)) == 0) {
    return scorer + " cannot work " + words(*spec.moment) + "; it works " + allowed_words(row->allowed);
  }
  if (spec.probe_rows > 0 && row->probe_rows == 0) {
    return scorer + " has no probe rows, but probe_rows is " + std::to_string(spec.probe_rows) +
           "; set it to 0, or choose scorer judge_q";
  }
  if (spec.query_rows > 0 && row->query_rows == 0) {
    return scorer + " looks at no window of queries, but query_rows is " + std::to_string(spec.query_rows) +
           "; set it to 0";
  }
  for (const uint32_t rows : {spec.probe_rows, spec.query_rows}) {
    if (rows > kRowsMax) {
      return scorer + " is given " + std::to_string(rows) + " rows of queries; at most " +
             std::to_string(kRowsMax) + " are";
    }
  }
  if (spec.window_closed && row->closed != Closed::kWithItsWindow) {
    return scorer + " has no window to close at a chunk's end; set window_closed: false";
  }
  if (spec.repeat_tokens == 0) return scorer + " repeats the context in pieces of repeat_tokens, which is 0";
  return std::nullopt;
}

uint32_t captured_rows(std::string_view name, const ScorerSpec& spec) {
  const Row* row = find(name);
  KVT_CHECK(row != nullptr);
  if (row->probe_rows > 0) return spec.probe_rows > 0 ? spec.probe_rows : row->probe_rows;
  return row->query_rows > 0 && spec.query_rows > 0 ? spec.query_rows : row->query_rows;
}

uint64_t repeated_rows(std::string_view name, const ScorerSpec& spec, uint32_t context_tokens) {
  if (name != "kvzip" || context_tokens == 0) return 0;
  KVT_CHECK(spec.repeat_tokens > 0);
  const uint64_t pieces = div_ceil(uint64_t{context_tokens}, uint64_t{spec.repeat_tokens});
  const uint64_t tail = std::min(spec.repeat_tail, spec.repeat_tokens);
  return context_tokens + pieces * spec.repeat_instruction + (pieces - 1) * tail;
}

}  // namespace kvtwin
