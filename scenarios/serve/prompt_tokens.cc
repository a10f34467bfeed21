#include "scenarios/serve/prompt_tokens.h"

#include <algorithm>
#include <array>

#include "engine/base/prng.h"
#include "engine/base/prompt_span_finder.h"

namespace kvtwin::serve {
namespace {

enum Kind : uint64_t { kId = 0, kText = 1, kRole = 2, kEnd = 3 };

constexpr uint64_t token_of(Kind kind, uint32_t content) { return uint64_t{kind} << 32 | content; }

// A short last piece has the high bytes 0, and its length in bits that no content uses.
uint64_t text_token(std::string_view bytes) {
  uint32_t content = 0;
  for (size_t i = 0; i < bytes.size(); ++i)
    content |= uint32_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return token_of(kText, content) | uint64_t{kBytesPerToken - bytes.size()} << 40;
}

constexpr std::array<std::string_view, 64> kWords = {
    " the", " and", " for", " are", " but", " not", " you", " all", " any", " can", " her", " was", " one",
    " our", " out", " day", " get", " has", " him", " his", " how", " man", " new", " now", " old", " see",
    " two", " way", " who", " boy", " did", " its", " let", " put", " say", " she", " too", " use", " dad",
    " mom", " act", " add", " age", " ago", " air", " art", " ask", " bad", " bag", " bed", " big", " bit",
    " box", " bus", " buy", " car", " cup", " cut", " dog", " eat", " end", " eye", " far", " few"};

}  // namespace

void PromptTokens::add(uint64_t token, Semantic semantic) {
  tokens_.push_back(token);
  const TokenRole role{turn_, Modal::kText, semantic};
  if (roles_.empty() || !(roles_.back().role == role)) roles_.push_back({role, 0});
  ++roles_.back().count;
}

void PromptTokens::add_id(uint32_t id) { add(token_of(kId, id), semantic_); }

void PromptTokens::add_text(std::string_view text) {
  for (size_t at = 0; at < text.size(); at += kBytesPerToken)
    add(text_token(text.substr(at, kBytesPerToken)), semantic_);
}

void PromptTokens::begin_message(Semantic semantic, bool opens_turn) {
  has_messages_ = true;
  turn_ += opens_turn;
  semantic_ = semantic;
  add(token_of(kRole, static_cast<uint32_t>(semantic)), Semantic::kDelim);
}

void PromptTokens::end_message() { add(token_of(kEnd, 0), Semantic::kDelim); }

uint32_t PromptTokens::first_message_end() const {
  uint32_t end = 0;
  for (const RoleRun& run : roles_) {
    end += run.count;
    if (has_messages_ && run.role.semantic == Semantic::kUser) return end;
  }
  return 0;
}

PromptSpans PromptTokens::spans() const {
  PromptSpanFinder finder;
  for (const RoleRun& run : roles_) finder.add(run.role.semantic, false, run.count);
  return has_messages_ ? finder.find() : PromptSpans{};
}

uint64_t PromptTokens::hash() const {
  uint64_t hash = 0;
  for (const uint64_t token : tokens_) hash = draw({hash, token});
  return hash;
}

std::string_view generated_token(uint64_t seed, uint32_t index) {
  return kWords[draw({seed, index}) % kWords.size()];
}

uint64_t generated_token_value(uint64_t seed, uint32_t index) {
  return text_token(generated_token(seed, index));
}

std::vector<UnitRun> identity_of(const PromptTokens& prompt, uint64_t seed, uint32_t output_tokens,
                                 uint32_t unit_tokens) {
  std::vector<UnitRun> runs;
  const uint64_t total = uint64_t{prompt.count()} + output_tokens;
  runs.reserve(total / unit_tokens);
  uint64_t hash = 0;
  for (uint64_t unit = 0; unit < total / unit_tokens; ++unit) {
    for (uint64_t at = unit * unit_tokens; at < (unit + 1) * unit_tokens; ++at) {
      hash = draw({hash, at < prompt.count()
                             ? prompt.tokens()[at]
                             : generated_token_value(seed, static_cast<uint32_t>(at - prompt.count()))});
    }
    runs.push_back({hash & ~kPrivateSpace, unit, 1});
  }
  return runs;
}

}  // namespace kvtwin::serve
