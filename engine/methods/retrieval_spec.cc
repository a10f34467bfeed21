#include "engine/methods/retrieval_spec.h"

#include <algorithm>

#include "engine/methods/traits.h"

namespace kvtwin {

uint32_t resident_pages(const RetrievalSpec& spec, uint32_t page_tokens) {
  return (spec.budget_tokens + spec.extra_tokens) / page_tokens;
}

uint32_t selectable_pages(const RetrievalSpec& spec, uint32_t page_tokens) {
  return (spec.budget_tokens - spec.sink_tokens - spec.window_tokens) / page_tokens;
}

uint32_t gpu_pages_held(const RetrievalSpec& spec, uint32_t page_tokens, uint32_t pages) {
  const uint64_t resident = (uint64_t{pages} * spec.resident_fraction_q32 + (uint64_t{1} << 32) - 1) >> 32;
  return static_cast<uint32_t>(std::min<uint64_t>(pages, resident_pages(spec, page_tokens) + resident));
}

bool request_retrieves(const RetrievalSpec& spec, uint32_t page_tokens, uint32_t tokens) {
  return (uint64_t{tokens} + page_tokens - 1) / page_tokens > resident_pages(spec, page_tokens);
}

uint32_t tokens_read(const RetrievalSpec& spec, uint32_t page_tokens, uint32_t tokens) {
  if (!request_retrieves(spec, page_tokens, tokens)) return tokens;
  const uint32_t unfilled = (page_tokens - tokens % page_tokens) % page_tokens;  // of the last page
  return resident_pages(spec, page_tokens) * page_tokens - unfilled;
}

uint32_t candidate_pages(const RetrievalSpec& spec, uint32_t page_tokens, uint32_t tokens) {
  if (!request_retrieves(spec, page_tokens, tokens)) return 0;
  const uint32_t pages = (tokens + page_tokens - 1) / page_tokens;
  return pages - (spec.sink_tokens + spec.window_tokens) / page_tokens;
}

std::optional<std::string> check_retrieval_spec(const RetrievalSpec& spec, const RetrievalTraits& traits,
                                                uint32_t page_tokens) {
  const auto number = [](uint64_t value) { return std::to_string(value); };
  const std::pair<const char*, uint32_t> tokens[] = {{"budget_tokens", spec.budget_tokens},
                                                     {"sink_tokens", spec.sink_tokens},
                                                     {"window_tokens", spec.window_tokens},
                                                     {"extra_tokens", spec.extra_tokens}};
  for (const auto& [name, value] : tokens) {
    if (value > 1u << 30) return std::string(name) + " is " + number(value) + ", but must be at most 2^30";
    if (value % page_tokens != 0) {
      return std::string(name) + " is " + number(value) + ", but must be whole pages of " +
             number(page_tokens) + " tokens; change it, or memory.page_tokens";
    }
  }
  if (spec.window_tokens < page_tokens) {
    return "window_tokens is " + number(spec.window_tokens) +
           ", but holds the page being written; use at least " + number(page_tokens);
  }
  if (spec.budget_tokens < uint64_t{spec.sink_tokens} + spec.window_tokens + page_tokens) {
    return "budget_tokens is " + number(spec.budget_tokens) + ", which leaves no page to choose beside " +
           number(spec.sink_tokens) + " tokens of sinks and " + number(spec.window_tokens) +
           " of window; raise it, or lower those";
  }
  if (spec.speculation && !traits.may_speculate && !traits.reads_everything()) {
    return "speculation is on, but this retrieval chooses no pages for the next step; set it false, or "
           "choose "
           "retrieval freekv";
  }
  if (traits.learns_columns() && spec.layers_dense == 0) {
    return "layers_dense is 0, but nothing can be chosen for the first layer from the layer before it; use 1 "
           "or more";
  }
  if (traits.joins_heads() && spec.rank == 0) return "rank is 0, but keys are rebuilt from it";
  if (traits.learns_columns() && (spec.columns_q32 <= 0 || spec.columns_q32 > kOneQ32)) {
    return "the fraction of scored key columns must be above 0 and at most 1";
  }
  return std::nullopt;
}

}  // namespace kvtwin
