#include "scenarios/observe/prompt_ids.h"

#include <array>

#include "engine/base/prng.h"
#include "traces/format/block_key.h"
#include "traces/logs/request_log.h"

namespace kvtwin {
namespace {

enum Kind : uint64_t { kSpan = 1, kBlock = 2, kAlone = 3 };

uint32_t id_of(uint64_t key, uint64_t offset) {
  return kObserveFirstId + static_cast<uint32_t>(draw({key, offset}) % kObserveIds);
}

void append(uint64_t key, uint64_t tokens, std::vector<uint32_t>* out) {
  for (uint64_t i = 0; i < tokens; ++i) out->push_back(id_of(key, i));
}

}  // namespace

void PromptIds::add_span(const v1::Span& span, uint64_t place, uint32_t tokens, uint64_t seed,
                         std::vector<uint32_t>* out) const {
  if (span.token_ids_size() > 0 && static_cast<uint32_t>(span.token_ids_size()) == span.tokens()) {
    out->insert(out->end(), span.token_ids().begin(),
                span.token_ids().begin() + static_cast<ptrdiff_t>(tokens));
    return;
  }
  const bool hashed = !span.content_hash().empty() && span.scope() != v1::SCOPE_NONE;
  append(draw({seed, kSpan, hashed ? hash_text(span.content_hash()).low : place}), tokens, out);
}

std::vector<uint32_t> PromptIds::of(const v1::Session& session, uint64_t session_index,
                                    const v1::LlmRequest& request, uint64_t seed) const {
  std::vector<uint32_t> out;
  out.reserve(request.prompt_tokens());
  const Result<IdRuns> runs = decode_key(request.prompt_key());
  if (request.has_prompt_key() && block_tokens_ > 0 && runs) {
    for (const IdRun& run : *runs) {
      const uint64_t scope =
          run.scope == v1::SCOPE_SESSION || run.scope == v1::SCOPE_NONE ? session_index + 1 : 0;
      for (uint32_t i = 0; i < run.count && out.size() < request.prompt_tokens(); ++i) {
        const uint64_t left = request.prompt_tokens() - out.size();
        append(draw({seed, kBlock, scope, static_cast<uint64_t>(run.first) + i}),
               std::min<uint64_t>(block_tokens_, left), &out);
      }
    }
  } else {
    for (const v1::SpanRun& run : request.prompt()) {
      const auto table = tables_.find(run.table());
      const auto& spans =
          run.table() == 0 || table == tables_.end() ? session.spans() : table->second.spans();
      const uint64_t owner = run.table() == 0 ? session_index + 1 : uint64_t{run.table()} << 32;
      for (uint32_t i = run.first(); i < run.first() + run.count(); ++i) {
        const v1::Span& span = spans.Get(static_cast<int>(i));
        const bool last = i + 1 == run.first() + run.count() && run.keep_tokens() != 0;
        add_span(span, draw({owner, i}), last ? run.keep_tokens() : span.tokens(), seed, &out);
      }
    }
  }
  // Tokens without identity are shared with no other prompt.
  const uint64_t alone = draw({seed, kAlone, session_index, static_cast<uint64_t>(request.recorded_at_ns()),
                               request.turn(), request.prompt_tokens()});
  for (uint64_t i = out.size(); i < request.prompt_tokens(); ++i) out.push_back(id_of(alone, i));
  return out;
}

std::string words_of(const std::vector<uint32_t>& ids) {
  static constexpr std::array<const char*, 32> kWords = {
      "the", "of",  "and",  "to",  "in",   "is",   "that", "for",  "it",   "was",  "on",
      "are", "as",  "with", "his", "they", "at",   "be",   "this", "from", "have", "or",
      "by",  "one", "had",  "not", "but",  "what", "all",  "were", "when", "we"};
  std::string out;
  for (const uint32_t id : ids) {
    if (!out.empty()) out += ' ';
    out += kWords[id % kWords.size()];
  }
  return out;
}

}  // namespace kvtwin
