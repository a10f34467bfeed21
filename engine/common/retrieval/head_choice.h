// Selection for one KV head of a request with resident pages
// (docs/design/methods/freekv.md#page-scores, #timelines), among pages that are full and outside sinks and
// window. Used by every engine that selects on the host.

#ifndef KVTWIN_ENGINE_COMMON_RETRIEVAL_HEAD_CHOICE_H_
#define KVTWIN_ENGINE_COMMON_RETRIEVAL_HEAD_CHOICE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/common/retrieval/resident_request.h"
#include "engine/methods/retrieval_spec.h"
#include "kernels/select/page_score.h"
#include "models/catalog/llm.h"

namespace kvtwin::cpu {

// Pages [first, end) can be selected, except those of `stays` (ascending).
struct PageCandidates {
  uint32_t first = 0, end = 0;
  std::span<const uint32_t> stays;
  std::function<kernels::PageVectors(uint32_t page)> vectors;  // their summaries
};
struct HeadChoice {
  std::vector<uint32_t> chosen;  // pages, ascending
  std::vector<float> scores;     // of the candidates, from `first` on; -inf for pages of `stays`
};
// Selects the `count` best pages for the queries q [group][head_dim], rotated. *nan, if given, is incremented
// by the scores that are NaN.
HeadChoice choose_pages(const RetrievalSpec& spec, const LlmSpec& llm, uint32_t count,
                        const PageCandidates& candidates, const float* q, uint64_t* nan = nullptr);

// InfiniGen: a token counts if its score is within this of the largest
// (docs/design/methods/freekv.md#timelines: 5 for Llama).
constexpr float kNearTop = 5;

// InfiniGen: the positions in [first, end) that each KV head reads, ascending. All heads read the same number
// of tokens: the mean number of tokens close to each query head's best, at most `most`. q
// [query_heads][head_dim], rotated.
std::vector<std::vector<uint32_t>> choose_tokens(const RetrievalSpec& spec, const LlmSpec& llm,
                                                 const PartialKeys& partial, const float* q, uint32_t first,
                                                 uint32_t end, uint32_t most);

// The state of a head when its request, whose page p is in slot p so far, outgrows its resident pages: the
// pages of `extra` (ascending) stay; all others between sinks and window can be overwritten.
HeadResidentPages outgrown_head(const ResidentShape& shape, std::vector<uint32_t> extra);

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_RETRIEVAL_HEAD_CHOICE_H_
