#include "traces/replay/replay_roles.h"

#include <algorithm>
#include <optional>

#include "engine/base/prompt_span_finder.h"

namespace kvtwin {

std::optional<Semantic> semantic_of(v1::Role role) {
  switch (role) {
    case v1::INST:
      return Semantic::kInst;
    case v1::USER:
      return Semantic::kUser;
    case v1::ASSISTANT:
      return Semantic::kAssistant;
    case v1::REASONING:
      return Semantic::kReasoning;
    case v1::TOOL_CALL:
      return Semantic::kToolCall;
    case v1::OBS:
      return Semantic::kObs;
    case v1::DELIM:
      return Semantic::kDelim;
    default:
      return std::nullopt;
  }
}

Modal modal_of(v1::Modality modality) {
  return modality == v1::IMAGE || modality == v1::VIDEO ? Modal::kImage : Modal::kText;
}

namespace {

class Prompt {
 public:
  explicit Prompt(const v1::LlmRequest& request) : turn_(request.turn()), left_(request.prompt_tokens()) {}

  void add(const v1::Span& span, uint32_t tokens) {
    const std::optional<Semantic> semantic = semantic_of(span.role());
    put({std::min(span.turn(), turn_), modal_of(span.modality()), semantic.value_or(Semantic::kUser)}, tokens,
        !semantic);
  }
  PromptRoles finish() {
    put({turn_, Modal::kText, Semantic::kUser}, left_, true);
    return std::move(out_);
  }

 private:
  void put(const TokenRole& role, uint32_t tokens, bool unknown) {
    tokens = std::min(tokens, left_);
    if (tokens == 0) return;
    left_ -= tokens;
    if (unknown) out_.unknown_tokens += tokens;
    if (!out_.runs.empty() && out_.runs.back().role == role) {
      out_.runs.back().count += tokens;
    } else {
      out_.runs.push_back({role, tokens});
    }
  }

  const uint32_t turn_;
  uint32_t left_;
  PromptRoles out_;
};

// visit(span, tokens) for each span of the prompt, in order; `tokens` of it are in the prompt.
template <typename Visit>
void each_span(const v1::LlmRequest& request, const FindSpan& find, Visit visit) {
  for (const v1::SpanRun& run : request.prompt()) {
    for (uint32_t i = 0; i < run.count(); ++i) {
      const v1::Span* const span = find(run.table(), run.first() + i);
      if (span == nullptr) break;
      const bool cut = i + 1 == run.count() && run.keep_tokens() != 0;
      visit(*span, cut ? std::min(span->tokens(), run.keep_tokens()) : span->tokens());
    }
  }
}

}  // namespace

PromptRoles prompt_roles(const v1::LlmRequest& request, const FindSpan& find) {
  Prompt prompt(request);
  each_span(request, find, [&](const v1::Span& span, uint32_t tokens) { prompt.add(span, tokens); });
  return prompt.finish();
}

PromptSpans prompt_spans(const v1::LlmRequest& request, uint32_t prompt_tokens, const FindSpan& find) {
  PromptSpanFinder finder;
  uint32_t left = prompt_tokens;
  each_span(request, find, [&](const v1::Span& span, uint32_t tokens) {
    tokens = std::min(tokens, left);
    left -= tokens;
    finder.add(semantic_of(span.role()), span.query_span(), tokens);
  });
  return finder.find();
}

}  // namespace kvtwin
