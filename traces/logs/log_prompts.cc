#include "traces/logs/log_prompts.h"

#include <algorithm>
#include <numeric>

namespace kvtwin {
namespace {

// Splits `tokens` over texts in proportion to their characters, at least one each. The sum is exact.
// REQUIRES: tokens >= texts.size() > 0.
std::vector<uint32_t> split(uint64_t tokens, const std::vector<LoggedText>& texts, size_t from) {
  const size_t count = texts.size() - from;
  uint64_t chars = 0;
  for (size_t i = from; i < texts.size(); ++i) chars += texts[i].chars;
  const uint64_t spare = tokens - count;
  std::vector<uint32_t> out;
  uint64_t seen = 0, given = 0;
  for (size_t i = from; i < texts.size(); ++i) {
    seen += texts[i].chars;
    const bool last = i + 1 == texts.size();
    const uint64_t up_to = last || chars == 0 ? (last ? spare : 0) : spare * seen / chars;
    out.push_back(static_cast<uint32_t>(1 + up_to - given));
    given = up_to;
  }
  return out;
}

void set_hash(v1::Span* span, const TextHash& hash) {
  std::string& bytes = *span->mutable_content_hash();
  for (const uint64_t word : {hash.low, hash.high}) {
    for (int shift = 0; shift < 64; shift += 8) bytes.push_back(static_cast<char>(word >> shift));
  }
  span->set_scope(v1::SCOPE_DATASET);
}

}  // namespace

Piece LogPrompts::plain_span(uint32_t tokens, v1::Role role) {
  const Piece piece = session_.add_span({.role = role, .tokens = tokens});
  session_.span(piece).set_scope(v1::SCOPE_SESSION);
  return piece;
}

Piece LogPrompts::text_span(const LoggedText& text, const TextHash& hash, uint32_t tokens) {
  const auto [it, added] = spans_.try_emplace({hash, tokens});
  if (added) {
    it->second = session_.add_span({.role = text.role, .tokens = tokens, .chars = text.chars});
    set_hash(&session_.span(it->second), hash);
  }
  return it->second;
}

// Messages that were sent before have the tokens they had then; the rest of the prompt's tokens belong to the
// new messages. A prompt that is too short for that (a template that strips reasoning from earlier answers)
// keeps fewer of the messages that were sent before.
History LogPrompts::prompt_of_texts(const TimedRequest& request, TextHash* hash) {
  const std::vector<LoggedText>& texts = request.source->prompt;
  std::vector<TextHash> hashes;
  std::vector<uint32_t> tokens;
  for (const LoggedText& text : texts)
    hashes.push_back(chain_text(hashes.empty() ? TextHash{} : hashes.back(), text.hash));
  *hash = hashes.back();
  for (const TextHash& one : hashes) {
    const auto known = prefixes_.find(one);
    if (known == prefixes_.end()) break;
    tokens.push_back(known->second);
  }
  uint64_t sum = std::accumulate(tokens.begin(), tokens.end(), uint64_t{0});
  const auto short_of = [&] {
    const size_t left = texts.size() - tokens.size();
    return left == 0 ? sum != request.prompt_tokens : sum + left > request.prompt_tokens;
  };
  while (!tokens.empty() && short_of()) {
    sum -= tokens.back();
    tokens.pop_back();
  }
  History prompt;
  if (tokens.empty() && request.prompt_tokens < texts.size()) {  // fewer tokens than messages
    prompt.add(plain_span(request.prompt_tokens, v1::ROLE_UNKNOWN));
    return prompt;
  }
  if (tokens.size() < texts.size()) {
    const size_t known = tokens.size();
    for (const uint32_t one : split(request.prompt_tokens - sum, texts, known)) tokens.push_back(one);
    for (size_t i = known; i < texts.size(); ++i) prefixes_.try_emplace(hashes[i], tokens[i]);
  }
  for (size_t i = 0; i < texts.size(); ++i) prompt.add(text_span(texts[i], hashes[i], tokens[i]));
  return prompt;
}

std::optional<uint32_t> LogPrompts::continued(const TimedRequest& request) const {
  std::optional<uint32_t> found;
  TextHash hash;
  for (const LoggedText& text : request.source->prompt) {
    hash = chain_text(hash, text.hash);
    const auto thread = thread_of_.find(hash);
    if (thread == thread_of_.end()) continue;
    if (threads_[thread->second].end_ns <= request.start_ns) found = threads_[thread->second].node;
  }
  return found;
}

// Continues the longest earlier prompt that fits into this one, with its output if that fits too.
History LogPrompts::prompt_of_lengths(const TimedRequest& request, std::optional<uint32_t>* data) {
  const Thread* longest = nullptr;
  for (const Thread& thread : threads_) {
    const bool fits = thread.end_ns <= request.start_ns && thread.prompt.tokens() <= request.prompt_tokens;
    if (fits && (longest == nullptr || thread.prompt.tokens() >= longest->prompt.tokens())) longest = &thread;
  }
  History prompt;
  if (longest != nullptr) {
    prompt = longest->whole.tokens() <= request.prompt_tokens ? longest->whole : longest->prompt;
    *data = longest->node;
  }
  if (prompt.tokens() < request.prompt_tokens)
    prompt.add(plain_span(static_cast<uint32_t>(request.prompt_tokens - prompt.tokens()), v1::ROLE_UNKNOWN));
  return prompt;
}

std::vector<Piece> LogPrompts::output_of(const TimedRequest& request, const TextHash& prompt) {
  if (request.output_tokens == 0) return {};
  const LoggedRequest& source = *request.source;
  if (!source.output || source.prompt.empty())
    return {plain_span(request.output_tokens, source.output ? source.output->role : v1::ROLE_UNKNOWN)};
  const TextHash hash = chain_text(prompt, source.output->hash);
  prefixes_.try_emplace(hash, request.output_tokens);
  return {text_span(*source.output, hash, request.output_tokens)};
}

uint32_t LogPrompts::add(const TimedRequest& request, std::optional<uint32_t>* data) {
  Thread thread;
  const bool texts = !request.source->prompt.empty();
  if (texts) *data = continued(request);
  thread.prompt = texts ? prompt_of_texts(request, &thread.prompt_hash) : prompt_of_lengths(request, data);
  const std::vector<Piece> output = output_of(request, thread.prompt_hash);
  thread.node = session_.add_llm(0, thread.prompt, output);
  thread.end_ns = request.end_ns;
  thread.whole = thread.prompt;
  thread.whole.add(output);
  if (texts) thread_of_[thread.prompt_hash] = threads_.size();
  threads_.push_back(std::move(thread));
  return threads_.back().node;
}

}  // namespace kvtwin
