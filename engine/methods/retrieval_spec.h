// RetrievalSpec holds the integers of in-step retrieval (docs/design/methods/freekv.md): how much of a
// request stays on the GPU, and which pages can be selected. Values (queries, summaries, scores) belong to
// the backends; so does how pages are copied (engine/base/recall_copies.h).
//
// A request whose pages all fit its resident pages reads all of them. Beyond that, the resident pages hold
// for every KV head: sinks + window (its last page is the one being written) + selectable pages + extra pages
// that a method retains whatever the query. Numbers of tokens are multiples of the page size.

#ifndef KVTWIN_ENGINE_METHODS_RETRIEVAL_SPEC_H_
#define KVTWIN_ENGINE_METHODS_RETRIEVAL_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>

namespace kvtwin {

// What a step does about the tokens that it does not read. A method is a row of axis_retrieval.cc.
enum class RetrievalKind : uint8_t {
  kReadsAll,       // there are none
  kPagesOnGpu,     // chosen pages are read; all pages stay on the GPU
  kRecallsPages,   // chosen pages that are absent are recalled from the host
  kRecallsValues,  // their values are, while keys are rebuilt from low-rank factors on the GPU
  kRecallsTokens,  // single tokens are, chosen during the layer before
};
constexpr bool recalls(RetrievalKind kind) { return kind >= RetrievalKind::kRecallsPages; }
// Whether pages for the next step are selected in the background; `speculation` is the option.
constexpr bool speculates(RetrievalKind kind, bool speculation) {
  return kind == RetrievalKind::kRecallsPages && speculation;
}

// How the scores of the query heads of one KV head are combined (docs/design/methods/freekv.md#page-scores).
// Suffix S: after a softmax over pages.
enum class GroupPooling : uint8_t { kMeanS, kMaxS, kMeanQk, kMaxQk, kMeanQ, kMaxQ };
enum class PageSummary : uint8_t { kMinMax, kCuboid, kMean };
enum class ScoreScale : uint8_t { kOne, kInverseSqrt };  // 1 or 1 / sqrt(d), before the softmax

constexpr int64_t kOneQ32 = int64_t{1} << 32;

struct RetrievalSpec {
  uint32_t budget_tokens = 2048;  // tokens that every KV head reads in a step
  uint32_t sink_tokens = 512;
  uint32_t window_tokens = 512;
  uint32_t extra_tokens = 0;           // in addition to the budget (outlier and local chunks)
  uint32_t layers_dense = 0;           // leading layers that read everything and stay on the GPU
  int64_t tau_q32 = kOneQ32 / 10 * 9;  // a head whose query similarity is below it is corrected; Q31.32
  bool speculation = true;             // select for the next step, in the background
  GroupPooling pooling = GroupPooling::kMeanS;
  PageSummary summary = PageSummary::kMinMax;
  ScoreScale scale = ScoreScale::kInverseSqrt;
  uint32_t rank = 160;                     // kRecallsValues: rank of the factorised keys
  int64_t columns_q32 = kOneQ32 * 3 / 10;  // kRecallsTokens: fraction of the key columns that are scored
  // GPU memory that a page beyond the resident pages still needs, as a fraction of a page: summaries,
  // factors, dense layers. Set by the caller that knows the model's shape.
  uint32_t resident_fraction_q32 = 0;

  friend bool operator==(const RetrievalSpec&, const RetrievalSpec&) = default;
};

// Pages of one request on the GPU, without those of resident_fraction_q32.
uint32_t resident_pages(const RetrievalSpec& spec, uint32_t page_tokens);
uint32_t selectable_pages(const RetrievalSpec& spec, uint32_t page_tokens);
// GPU pages that a request with `pages` pages of context holds once its prompt is complete: all of them while
// they fit the resident pages. Increases by at most one per page.
uint32_t gpu_pages_held(const RetrievalSpec& spec, uint32_t page_tokens, uint32_t pages);

// For a request with `tokens` tokens of context, the one being computed included: whether this step selects
// pages for it, and how many tokens every KV head reads.
bool request_retrieves(const RetrievalSpec& spec, uint32_t page_tokens, uint32_t tokens);
uint32_t tokens_read(const RetrievalSpec& spec, uint32_t page_tokens, uint32_t tokens);
// Pages that can be selected: full ones outside sinks and window. 0 if the request reads everything.
uint32_t candidate_pages(const RetrievalSpec& spec, uint32_t page_tokens, uint32_t tokens);

struct RetrievalTraits;  // traits.h
// Returns one sentence that names the error and a remedy; nullopt: valid.
std::optional<std::string> check_retrieval_spec(const RetrievalSpec& spec, const RetrievalTraits& traits,
                                                uint32_t page_tokens);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_RETRIEVAL_SPEC_H_
