#include "engine/methods/retrieval_spec.h"

#include <algorithm>

namespace kvtwin {

RetrievalSpec retrieval_defaults(RetrievalMethod method) {
  RetrievalSpec spec;
  switch (method) {
    case RetrievalMethod::kAll:
      break;
    case RetrievalMethod::kFreekv:
      spec.host_copy = HostCopy::kKernel;
      break;
    case RetrievalMethod::kQuest:
      spec.layers_dense = 2;
      spec.pooling = GroupPooling::kMaxQk;  // FreeKV's adaptation to grouped queries
      spec.scale = ScoreScale::kOne;
      spec.sink_tokens = 0;
      spec.window_tokens = 32;
      spec.speculation = false;
      break;
    case RetrievalMethod::kArkvale:
      spec.pooling = GroupPooling::kMeanQk;
      spec.summary = PageSummary::kCuboid;
      spec.scale = ScoreScale::kOne;
      spec.host_layout = HostLayout::kNhd;
      spec.host_copy = HostCopy::kKernel;
      spec.staging_buffers = 1;
      spec.speculation = false;
      break;
    case RetrievalMethod::kShadowkv:
      spec.pooling = GroupPooling::kMaxS;
      spec.summary = PageSummary::kMean;
      spec.sink_tokens = 0;
      spec.window_tokens = 128;         // 4 local chunks
      spec.extra_tokens = 48 * 32;      // outlier chunks
      spec.budget_tokens = 2048 + 128;  // local chunks are read in addition to the selected ones
      spec.speculation = false;
      break;
    case RetrievalMethod::kInfinigen:
      spec.layers_dense = 1;
      spec.pooling = GroupPooling::kMeanQk;
      spec.sink_tokens = 0;
      spec.window_tokens = 32;
      spec.speculation = false;
      break;
  }
  return spec;
}

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

std::optional<std::string> check_retrieval_spec(const RetrievalSpec& spec, RetrievalMethod method,
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
  if (spec.staging_buffers < 1 || spec.staging_buffers > 2) {
    return "staging_buffers is " + number(spec.staging_buffers) + ", but must be 1 or 2";
  }
  if (spec.speculation && method != RetrievalMethod::kFreekv && method != RetrievalMethod::kAll) {
    return "speculation is retrieval freekv's; set it false, or choose retrieval freekv";
  }
  if (method == RetrievalMethod::kInfinigen && spec.layers_dense == 0) {
    return "layers_dense is 0, but nothing can be chosen for the first layer from the layer before it; use 1 "
           "or more";
  }
  if (method == RetrievalMethod::kShadowkv && spec.rank == 0)
    return "rank is 0, but keys are rebuilt from it";
  if (method == RetrievalMethod::kInfinigen && (spec.columns_q32 <= 0 || spec.columns_q32 > kOneQ32)) {
    return "the fraction of scored key columns must be above 0 and at most 1";
  }
  return std::nullopt;
}

}  // namespace kvtwin
