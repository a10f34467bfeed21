#include "traces/replay/replay_identity.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <numeric>

#include "engine/base/prng.h"
#include "engine/base/units.h"

namespace kvtwin {
namespace {

constexpr uint64_t kSpansListedMax = 300'000'000;        // over all prompts; bounds the time of resolve()
constexpr uint64_t kSpansListedSessionMax = 10'000'000;  // bounds its memory
constexpr uint64_t kDatasetSalt = 1;
constexpr uint64_t kGlobalSalt = 2;

// The kind of a span's key; part of the key, so that keys of different kinds are never equal.
enum KeyKind : uint64_t { kByTokens = 1, kByHash = 2, kByPlace = 3 };

uint64_t salt_of(v1::Scope scope, uint64_t session) {
  return scope == v1::SCOPE_GLOBAL ? kGlobalSalt : scope == v1::SCOPE_DATASET ? kDatasetSalt : 3 + session;
}

void add_bytes(Hash128* hash, const std::string& bytes) {
  hash->add(bytes.size());
  for (size_t at = 0; at < bytes.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<size_t>(8, bytes.size() - at));
    hash->add(word);
  }
}

}  // namespace

void Hash128::add(uint64_t word) {
  low = mix64(low ^ word) + 0x9e3779b97f4a7c15u;
  high = mix64(std::rotl(high, 23) ^ (word * 0xd6e8feb86659fd93u)) + word;
}

void IdentityStore::header(const v1::TraceHeader& header) {
  block_tokens_ = header.block_tokens();
  chained_ = header.block_ids_chained();
  tail_hashed_ = header.tail_block_hashed();
}

uint32_t IdentityStore::unit_tokens(uint32_t page_tokens) const {
  return std::gcd(block_tokens_, page_tokens);
}

SpanInfo IdentityStore::span_info(const v1::Span& span, uint64_t table, uint64_t session, uint64_t index) {
  SpanInfo info;
  info.tokens = span.tokens();
  const v1::Scope scope = span.scope();
  // A shared table is identified by its place in the file; only GLOBAL contents compare beyond the file.
  const bool comparable = table == 0 ? scope != v1::SCOPE_NONE : scope == v1::SCOPE_GLOBAL;
  info.everywhere = table != 0 || scope == v1::SCOPE_GLOBAL;
  const auto ids = static_cast<uint32_t>(span.token_ids_size());
  if (comparable && ids == span.tokens() && ids > 0) {
    info.key.add(kByTokens);
    info.key.add(salt_of(scope, session));
    info.literal = pool_.size() + 1;
    pool_.insert(pool_.end(), span.token_ids().begin(), span.token_ids().end());
  } else if (comparable && !span.content_hash().empty()) {
    info.key.add(kByHash);
    info.key.add(salt_of(scope, session));
    info.key.add(span.tokens());
    add_bytes(&info.key, span.content_hash());
  } else {
    info.key.add(kByPlace);
    info.key.add(table);
    info.key.add(table == 0 ? session : 0);
    info.key.add(index);
    info.everywhere = table != 0;
  }
  return info;
}

Result<void> IdentityStore::shared_spans(const v1::SharedSpanTable& table) {
  const std::string where = fmt::format("shared span table {}", table.table());
  if (table.table() == 0)
    return make_error(where, "table 0 is the session's own spans", "number tables from 1");
  auto [slot, fresh] = tables_.try_emplace(table.table());
  if (!fresh) return make_error(where, "appears twice", "give each table its own number");
  uint64_t index = 0;
  for (const v1::Span& span : table.spans())
    slot->second.push_back(span_info(span, table.table(), 0, index++));
  return {};
}

void IdentityStore::begin_session(const v1::Session& session) {
  SessionIdentity identity;
  spans_listed_session_ = 0;
  identity.span_first = static_cast<uint32_t>(spans_.size());
  identity.span_count = static_cast<uint32_t>(session.spans_size());
  identity.request_first = static_cast<uint32_t>(requests_.size());
  uint64_t index = 0;
  for (const v1::Span& span : session.spans())
    spans_.push_back(span_info(span, 0, sessions_.size(), index++));
  sessions_.push_back(identity);
}

Result<void> IdentityStore::request(const v1::Session& session, const v1::LlmRequest& request, uint32_t node,
                                    uint32_t prompt, const std::string& where) {
  RequestIdentity identity;
  identity.node = node;
  identity.key_first = static_cast<uint32_t>(keys_.size());
  if (request.has_prompt_key() && request.prompt_key().count_size() > 0) {
    if (auto read = add_key(request.prompt_key(), prompt, where); !read) return read;
  }
  identity.key_count = static_cast<uint32_t>(keys_.size()) - identity.key_first;
  const auto session_spans = static_cast<uint32_t>(session.spans_size());
  identity.prompt_first = static_cast<uint32_t>(refs_.size());
  identity.output_first = identity.prompt_first;
  if (identity.key_count == 0) {  // a key takes precedence over spans
    if (auto read = add_refs(request.prompt(), session_spans, where); !read) return read;
    identity.output_first = static_cast<uint32_t>(refs_.size());
    if (auto read = add_refs(request.output(), session_spans, where); !read) return read;
  }
  identity.prompt_count = identity.output_first - identity.prompt_first;
  identity.output_count = static_cast<uint32_t>(refs_.size()) - identity.output_first;
  requests_.push_back(identity);
  ++sessions_.back().request_count;
  return {};
}

Result<void> IdentityStore::add_key(const v1::BlockKey& key, uint32_t prompt, const std::string& where) {
  if (block_tokens_ == 0) {
    return make_error(where, "has a prompt_key, but the header's block_tokens is 0",
                      "state the size of a hash block");
  }
  if (key.first_delta_size() != key.count_size() ||
      (key.scope_size() != 0 && key.scope_size() != key.count_size())) {
    return make_error(where,
                      fmt::format("prompt_key has {} first_delta, {} count and {} scope",
                                  key.first_delta_size(), key.count_size(), key.scope_size()),
                      "one of each per run (scope may be empty)");
  }
  const uint64_t blocks_max = div_ceil<uint64_t>(prompt, block_tokens_);
  uint64_t blocks = 0;
  int64_t end = 0;
  for (int run = 0; run < key.count_size(); ++run) {
    int64_t first = 0;
    const uint32_t count = key.count(run);
    const bool overflow = __builtin_add_overflow(end, key.first_delta(run), &first) ||
                          __builtin_add_overflow(first, static_cast<int64_t>(count), &end);
    if (overflow) return make_error(where, fmt::format("run {} of prompt_key leaves 64 bits", run));
    blocks += count;
    if (blocks > blocks_max) {
      return make_error(
          where,
          fmt::format("prompt_key has {} or more blocks of {} tokens, but the prompt has {} tokens", blocks,
                      block_tokens_, prompt),
          fmt::format("at most {} blocks", blocks_max));
    }
    if (count == 0) continue;
    const v1::Scope scope = key.scope_size() != 0 ? key.scope(run) : key.default_scope();
    if (!v1::Scope_IsValid(scope)) {
      return make_error(where, fmt::format("scope {} of prompt_key is unknown", static_cast<int>(scope)));
    }
    keys_.push_back({first, count, scope});
  }
  return {};
}

Result<void> IdentityStore::add_refs(const google::protobuf::RepeatedPtrField<v1::SpanRun>& runs,
                                     uint32_t session_spans, const std::string& where) {
  for (const v1::SpanRun& run : runs) {
    // Shared tables may come later in the file: resolve() checks those.
    if (run.table() == 0 && (run.first() > session_spans || run.count() > session_spans - run.first())) {
      return make_error(where,
                        fmt::format("lists spans {} to {}", run.first(), uint64_t{run.first()} + run.count()),
                        fmt::format("the session has {} spans", session_spans));
    }
    spans_listed_ += run.count();
    spans_listed_session_ += run.count();
    if (spans_listed_ > kSpansListedMax || spans_listed_session_ > kSpansListedSessionMax) {
      return make_error(
          where,
          fmt::format("with it, prompts list {} spans ({} in this session)", spans_listed_,
                      spans_listed_session_),
          fmt::format("at most {} ({} in a session): join spans that always go together, or cut the trace",
                      kSpansListedMax, kSpansListedSessionMax));
    }
    refs_.push_back({run.table(), run.first(), run.count(), run.keep_tokens()});
  }
  return {};
}

}  // namespace kvtwin
