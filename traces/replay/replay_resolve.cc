#include "traces/replay/replay_resolve.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/prng.h"

namespace kvtwin {
namespace {

constexpr uint32_t kIdBits = 20;  // low bits of an id

RunScope direct_scope(v1::Scope scope, bool tail) {
  if (scope == v1::SCOPE_GLOBAL) return tail ? RunScope::kGlobalTail : RunScope::kGlobal;
  if (scope == v1::SCOPE_DATASET) return tail ? RunScope::kDatasetTail : RunScope::kDataset;
  return tail ? RunScope::kSessionTail : RunScope::kSession;
}

}  // namespace

SessionResolver::SessionResolver(const IdentityStore* store, ReplayTable* table)
    : store_(*store), table_(*table), unit_(table->unit_tokens) {
  if (store_.block_tokens_ != 0) ratio_ = store_.block_tokens_ / unit_;
}

void SessionResolver::push_run(uint64_t first, uint64_t count, RunScope scope) {
  if (count == 0) return;
  if (runs_.size() > run_begin_) {
    TableRun& last = runs_.back();
    if (last.scope == scope && last.first + last.count == first) {
      last.count += static_cast<uint32_t>(count);
      return;
    }
  }
  runs_.push_back({first, static_cast<uint32_t>(count), scope});
}

// Chained ids mean the same everywhere: id = high x 2^20 + low is unit high x 2^32 + low x ratio.
void SessionResolver::direct_run(v1::Scope scope, int64_t id, uint32_t blocks, bool tail,
                                 uint32_t tail_units) {
  while (blocks > 0) {
    const int64_t high = id >> kIdBits;
    const auto low = static_cast<uint64_t>(id) & ((uint64_t{1} << kIdBits) - 1);
    const auto here = static_cast<uint32_t>(std::min<uint64_t>(blocks, (uint64_t{1} << kIdBits) - low));
    uint64_t number = static_cast<uint64_t>(high);
    if (high < 0 || high >= (int64_t{1} << 31)) {
      number = far_ids_.try_emplace(high, (uint64_t{1} << 31) + far_ids_.size()).first->second;
    }
    const uint64_t units = tail ? tail_units : uint64_t{here} * ratio_;
    push_run((number << 32) + low * ratio_, units, direct_scope(scope, tail));
    id += here;
    blocks -= here;
  }
}

void SessionResolver::key_run(const KeyRun& run, uint32_t blocks, bool tail, uint32_t tail_units) {
  const int64_t id = tail ? run.first + run.count - 1 : run.first;
  if (store_.chained_) return direct_run(run.scope, id, blocks, tail, tail_units);
  everywhere_ = everywhere_ && run.scope == v1::SCOPE_GLOBAL;
  Hash128 key;
  key.add(tail);
  key.add(static_cast<uint64_t>(run.scope));
  key.add(run.scope == v1::SCOPE_SESSION ? session_ : 0);
  // A run may be longer in another prompt: reserve numbers for the longest prompt.
  const uint64_t number = chains_.number(parent_, key, static_cast<uint64_t>(id), uint64_t{1} << 32);
  const uint64_t units = tail ? tail_units : uint64_t{blocks} * ratio_;
  push_run(number, units, everywhere_ ? RunScope::kChainGlobal : RunScope::kChainReplica);
  if (!tail) parent_ = number + units - 1;
}

void SessionResolver::key_prompt(const RequestIdentity& request, const TableNode& node, Prompt* prompt) {
  prompt->by_key = true;
  const uint32_t whole = node.prompt_tokens / store_.block_tokens_;
  uint32_t blocks = 0;
  for (uint32_t i = 0; i < request.key_count; ++i) {
    KeyRun run = store_.keys_[request.key_first + i];
    if (run.scope == v1::SCOPE_NONE) break;  // shared with no request, nor is anything after it
    // Runs that continue each other are one, because numbers must depend on ids alone.
    while (i + 1 < request.key_count) {
      const KeyRun& next = store_.keys_[request.key_first + i + 1];
      if (next.scope != run.scope || next.first != run.first + run.count) break;
      run.count += next.count;
      ++i;
    }
    const uint32_t full = std::min(run.count, whole - blocks);
    if (full > 0) key_run(run, full, false, 0);
    blocks += full;
    if (run.count == full) continue;
    prompt->units = blocks * ratio_;
    const uint32_t tail_units = (node.prompt_tokens - blocks * store_.block_tokens_) / unit_;
    if (store_.tail_hashed_ && tail_units > 0) key_run(run, 1, true, tail_units);
    prompt->extendable = !store_.tail_hashed_ && blocks > 0;
    return;
  }
  prompt->units = blocks * ratio_;
  prompt->extendable =
      blocks > 0 && blocks == whole && !(store_.tail_hashed_ && node.prompt_tokens % store_.block_tokens_);
}

SessionResolver::Word SessionResolver::word_at(const Prompt& prompt, uint32_t position) const {
  const Piece* begin = pieces_.data() + prompt.piece_first;
  const Piece* piece = std::upper_bound(begin, begin + prompt.piece_count, position,
                                        [](uint32_t at, const Piece& p) { return at < p.at; }) -
                       1;
  const uint32_t offset = piece->offset + (position - piece->at);
  if (piece->span->literal == 0) return {piece->span->key, offset};
  return {piece->span->key, store_.pool_[piece->span->literal - 1 + offset]};
}

TableRun SessionResolver::unit_at(const Prompt& prompt, uint32_t unit) const {
  for (uint32_t i = prompt.run_first;; ++i) {
    if (unit < runs_[i].count) return {runs_[i].first + unit, 1, runs_[i].scope};
    unit -= runs_[i].count;
  }
}

// Whether the first `length` tokens of both are equal and `later` is longer.
bool SessionResolver::extends(const Prompt& later, const Prompt& prompt, uint32_t length) const {
  if (later.by_key != prompt.by_key) return false;
  if (prompt.by_key) {
    if (later.units <= prompt.units) return false;
  } else {
    const Piece* last =
        later.piece_count == 0 ? nullptr : &pieces_[later.piece_first + later.piece_count - 1];
    if (last == nullptr || last->at + last->tokens <= length) return false;
  }
  const uint32_t units = prompt.by_key ? prompt.units : length / unit_;
  if (units > 0) {
    const TableRun a = unit_at(prompt, units - 1);
    const TableRun b = unit_at(later, units - 1);
    if (a.first != b.first || a.scope != b.scope) return false;
  }
  if (prompt.by_key) return true;
  for (uint32_t at = units * unit_; at < length; ++at) {
    if (word_at(prompt, at) != word_at(later, at)) return false;
  }
  return true;
}

// Writes the request's own runs and those that the first extending request of the session adds.
void SessionResolver::finish_key(uint32_t index, uint32_t count, const TableNode& node) {
  const Prompt prompt = prompts_[index];
  const uint32_t units = (node.prompt_tokens + node.output_tokens) / unit_;
  run_begin_ = runs_.size();
  for (uint32_t i = 0; i < prompt.run_count; ++i) {
    const TableRun run = runs_[prompt.run_first + i];
    push_run(run.first, run.count, run.scope);
  }
  if (!prompt.extendable || units <= prompt.units) return;
  const uint32_t end = std::min(count, index + 1 + kLookahead);
  for (uint32_t later = index + 1; later < end; ++later) {
    const Prompt& next = prompts_[later];
    if (!extends(next, prompt, 0)) continue;
    uint32_t at = 0;
    for (uint32_t i = 0; i < next.run_count && at < std::min(units, next.units); ++i) {
      const TableRun run = runs_[next.run_first + i];
      const uint32_t from = std::max(at, prompt.units);
      const uint32_t to = std::min({at + run.count, units, next.units});
      if (from < to) push_run(run.first + (from - at), to - from, run.scope);
      at += run.count;
    }
    return;
  }
}

Result<void> SessionResolver::finish_spans(uint32_t session, uint32_t index, const TableNode& node) {
  const SessionIdentity& owner = store_.sessions_[session];
  const RequestIdentity& request = store_.requests_[owner.request_first + index];
  const Prompt prompt = prompts_[index];
  const uint32_t total = node.prompt_tokens + node.output_tokens;
  const size_t begin = pieces_.size();
  for (uint32_t i = 0; i < prompt.piece_count; ++i) {
    const Piece piece = pieces_[prompt.piece_first + i];
    push_piece(piece.span, piece.offset, piece.tokens, begin);
  }
  if (prompt.extendable) {
    if (auto read = list(session, request.output_first, request.output_count, total, begin); !read)
      return read;
    const uint32_t length = pieces_.back().at + pieces_.back().tokens;
    const uint32_t end = std::min(owner.request_count, index + 1 + kLookahead);
    for (uint32_t later = index + 1; length < total && length == node.prompt_tokens && later < end; ++later) {
      const Prompt next = prompts_[later];
      if (!extends(next, prompt, length)) continue;
      for (uint32_t i = 0; i < next.piece_count; ++i) {
        const Piece piece = pieces_[next.piece_first + i];
        const uint32_t from = std::max(piece.at, length);
        const uint32_t to = std::min(piece.at + piece.tokens, total);
        if (from < to) push_piece(piece.span, piece.offset + (from - piece.at), to - from, begin);
      }
      break;
    }
  }
  run_begin_ = runs_.size();
  parent_ = ChainTable::kRoot;
  everywhere_ = true;
  chain(pieces_.data() + begin, pieces_.data() + pieces_.size(), total);
  pieces_.resize(begin);
  return {};
}

Result<void> SessionResolver::session(uint32_t index) {
  session_ = index;
  const SessionIdentity& owner = store_.sessions_[index];
  prompts_.assign(owner.request_count, {});
  pieces_.clear();
  runs_.clear();
  for (uint32_t i = 0; i < owner.request_count; ++i) {
    const RequestIdentity& request = store_.requests_[owner.request_first + i];
    const TableNode& node = table_.nodes[request.node];
    Prompt& prompt = prompts_[i];
    run_begin_ = runs_.size();
    parent_ = ChainTable::kRoot;
    everywhere_ = true;
    prompt.run_first = static_cast<uint32_t>(runs_.size());
    prompt.piece_first = static_cast<uint32_t>(pieces_.size());
    if (request.key_count > 0) {
      key_prompt(request, node, &prompt);
    } else {
      const size_t begin = pieces_.size();
      if (auto read = list(index, request.prompt_first, request.prompt_count, node.prompt_tokens, begin);
          !read)
        return read;
      chain(pieces_.data() + begin, pieces_.data() + pieces_.size(), node.prompt_tokens);
      const uint32_t known = pieces_.size() > begin ? pieces_.back().at + pieces_.back().tokens : 0;
      prompt.piece_count = static_cast<uint32_t>(pieces_.size() - begin);
      prompt.extendable = known > 0 && known == node.prompt_tokens;
    }
    prompt.run_count = static_cast<uint32_t>(runs_.size()) - prompt.run_first;
  }
  for (uint32_t i = 0; i < owner.request_count; ++i) {
    const RequestIdentity& request = store_.requests_[owner.request_first + i];
    TableNode& node = table_.nodes[request.node];
    if (request.key_count > 0) {
      finish_key(i, owner.request_count, node);
    } else if (auto done = finish_spans(index, i, node); !done) {
      return done;
    }
    node.run_first = static_cast<uint32_t>(table_.runs.size());
    node.run_count = static_cast<uint32_t>(runs_.size() - run_begin_);
    table_.runs.insert(table_.runs.end(), runs_.begin() + static_cast<ptrdiff_t>(run_begin_), runs_.end());
    runs_.resize(run_begin_);
  }
  return {};
}

Result<void> IdentityStore::resolve(ReplayTable* table) const {
  if (block_tokens_ / table->unit_tokens > 4096) {
    return make_error(
        "header",
        fmt::format("block_tokens is {}, {} units of {} tokens", block_tokens_,
                    block_tokens_ / table->unit_tokens, table->unit_tokens),
        "at most 4096 units per block: choose a page that shares a larger divisor with the block");
  }
  SessionResolver resolver(this, table);
  for (uint32_t index = 0; index < sessions_.size(); ++index) {
    if (auto done = resolver.session(index); !done) return done;
  }
  return {};
}

}  // namespace kvtwin
