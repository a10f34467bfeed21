#include "engine/base/prompt_span_finder.h"

namespace kvtwin {

void PromptSpanFinder::add(std::optional<Semantic> semantic, bool marked, uint32_t tokens) {
  if (tokens == 0) return;
  const uint32_t begin = pieces_.empty() ? 0 : pieces_.back().end;
  pieces_.push_back({semantic, marked, begin, begin + tokens});
}

// The index of the newest message's last piece, from `first` on; pieces_.size(): there is none.
size_t PromptSpanFinder::newest_message(size_t first) const {
  const size_t none = pieces_.size();
  size_t found = none;
  for (size_t i = none; i-- > first;) {
    const Piece& piece = pieces_[i];
    if (piece.is(Semantic::kUser)) {
      if (piece.marked) return i;
      if (found == none) found = i;
    } else if (piece.is(Semantic::kObs)) {
      return found == none ? i : found;
    } else if (piece.is(Semantic::kAssistant) || piece.is(Semantic::kReasoning) ||
               piece.is(Semantic::kToolCall)) {
      if (found != none) return found;
    }
  }
  return found;
}

PromptSpans PromptSpanFinder::find() const {
  PromptSpans out;
  size_t first = 0;
  while (first < pieces_.size() &&
         (pieces_[first].is(Semantic::kInst) || pieces_[first].is(Semantic::kDelim)))
    out.prefix = pieces_[first++].end;
  const size_t last = newest_message(first);
  if (last == pieces_.size()) return {};
  size_t begin = last;
  for (size_t i = last; i-- > first;) {
    const Piece& piece = pieces_[i];
    if (piece.is(Semantic::kDelim)) continue;
    if (piece.semantic != pieces_[last].semantic || piece.marked != pieces_[last].marked) break;
    begin = i;
  }
  out.query = {pieces_[begin].begin, pieces_[last].end};
  out.around = out.query;
  for (size_t i = begin; i-- > first && pieces_[i].is(Semantic::kDelim);) out.around.begin = pieces_[i].begin;
  for (size_t i = last + 1; i < pieces_.size() && pieces_[i].is(Semantic::kDelim); ++i)
    out.around.end = pieces_[i].end;
  if (out.query.tokens() > kQueryTokensMax)
    out.query.begin = out.around.begin = out.query.end - kQueryTokensMax;
  return out;
}

}  // namespace kvtwin
