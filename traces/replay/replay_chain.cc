// Prompts identified span by span: their pieces, and the numbers of their units.

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/prng.h"
#include "traces/replay/replay_resolve.h"

namespace kvtwin {

size_t ChainTable::PlaceHash::operator()(const Place& place) const {
  return mix64(place.parent ^ mix64(place.key.low + place.offset));
}

uint64_t ChainTable::number(uint64_t parent, const Hash128& key, uint64_t offset, uint64_t length) {
  const auto [slot, fresh] = first_.try_emplace(Place{parent, key, offset}, next_);
  if (fresh) next_ += length;
  return slot->second;
}

void SessionResolver::push_piece(const SpanInfo* span, uint32_t offset, uint32_t tokens, size_t begin) {
  if (tokens == 0) return;
  const uint32_t at = pieces_.size() > begin ? pieces_.back().at + pieces_.back().tokens : 0;
  if (at > 0) {
    Piece& last = pieces_.back();
    if (last.span == span && last.offset + last.tokens == offset) {
      last.tokens += tokens;
      return;
    }
  }
  pieces_.push_back({span, at, offset, tokens});
}

// Appends the spans of refs [first, first + count) to the prompt whose pieces start at `begin`.
Result<void> SessionResolver::list(uint32_t session, uint32_t first, uint32_t count, uint32_t tokens_max,
                                   size_t begin) {
  const SessionIdentity& owner = store_.sessions_[session];
  for (uint32_t i = first; i < first + count; ++i) {
    const SpanRef& ref = store_.refs_[i];
    const SpanInfo* spans = store_.spans_.data() + owner.span_first;
    if (ref.table != 0) {
      const auto table = store_.tables_.find(ref.table);
      const size_t size = table == store_.tables_.end() ? 0 : table->second.size();
      if (ref.first > size || ref.count > size - ref.first) {
        return make_error(fmt::format("session \"{}\"", table_.sessions[session].id),
                          fmt::format("lists spans {} to {} of shared table {}, which has {}", ref.first,
                                      uint64_t{ref.first} + ref.count, ref.table, size));
      }
      spans = table == store_.tables_.end() ? nullptr : table->second.data();
    }
    for (uint32_t k = 0; k < ref.count; ++k) {
      const SpanInfo* span = spans + ref.first + k;
      const uint32_t done = pieces_.size() > begin ? pieces_.back().at + pieces_.back().tokens : 0;
      if (done >= tokens_max) return {};
      uint32_t tokens = span->tokens;
      if (k + 1 == ref.count && ref.keep != 0) tokens = std::min(tokens, ref.keep);
      push_piece(span, 0, std::min(tokens, tokens_max - done), begin);
    }
  }
  return {};
}

// The content of the unit at `at`, which begins in *piece: token ids one by one, other spans as pieces, so
// that equal contents have one representation. False if the pieces end before the unit does.
bool SessionResolver::unit_content(const Piece* piece, const Piece* end, uint32_t at, Hash128* content) {
  Hash128 key{0, 0};
  uint32_t done = 0;
  for (; done < unit_ && piece != end; ++piece) {
    const uint32_t inside = at + done - piece->at;
    const uint32_t from = piece->offset + inside;
    const uint32_t take = std::min(unit_ - done, piece->tokens - inside);
    everywhere_ = everywhere_ && piece->span->everywhere;
    if (piece->span->key != key) {
      key = piece->span->key;
      content->add(key.low);
      content->add(key.high);
    }
    if (piece->span->literal == 0) {
      content->add(from);
      content->add(take);
    } else {
      const uint32_t* ids = store_.pool_.data() + (piece->span->literal - 1) + from;
      for (uint32_t k = 0; k < take; ++k) content->add(ids[k]);
    }
    done += take;
  }
  return done == unit_;
}

// Numbers the whole units of the first `tokens` tokens of the pieces.
void SessionResolver::chain(const Piece* piece, const Piece* end, uint32_t tokens) {
  uint32_t at = 0;
  while (piece != end && at + unit_ <= tokens) {
    const uint32_t inside = at - piece->at;
    const uint32_t left = std::min(piece->tokens - inside, tokens - at);
    const SpanInfo& span = *piece->span;
    uint64_t number = 0;
    uint32_t count = 1;
    if (span.literal == 0 && left >= unit_) {
      const uint32_t offset = piece->offset + inside;
      everywhere_ = everywhere_ && span.everywhere;
      count = left / unit_;
      number = chains_.number(parent_, span.key, offset, (span.tokens - offset) / unit_);
    } else {
      Hash128 content;
      if (!unit_content(piece, end, at, &content)) return;
      number = chains_.number(parent_, content, 0, 1);
    }
    push_run(number, count, everywhere_ ? RunScope::kChainGlobal : RunScope::kChainReplica);
    parent_ = number + count - 1;
    at += count * unit_;
    while (piece != end && at >= piece->at + piece->tokens) ++piece;
  }
}

}  // namespace kvtwin
