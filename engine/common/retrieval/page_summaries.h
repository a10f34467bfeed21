// PageSummaries stores the summaries of full pages, which are copied with their pages
// (kernels/select/page_summary.h defines them).

#ifndef KVTWIN_ENGINE_COMMON_RETRIEVAL_PAGE_SUMMARIES_H_
#define KVTWIN_ENGINE_COMMON_RETRIEVAL_PAGE_SUMMARIES_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/base/check.h"
#include "kernels/select/page_score.h"
#include "kernels/select/page_summary.h"
#include "models/catalog/llm.h"

namespace kvtwin::cpu {

class PageSummaries {
 public:
  // For page numbers below `pages`.
  PageSummaries(const LlmSpec& llm, uint64_t pages)
      : heads_(llm.kv_heads), dim_(llm.head_dim), layers_(llm.layers), of_(pages) {}

  //   keys [tokens][head_dim]
  void summarise(kernels::SummaryKind kind, uint32_t page, uint32_t layer, uint32_t head, const float* keys,
                 uint32_t tokens) {
    if (of_[page] == nullptr) of_[page] = std::make_unique<float[]>(numbers());
    float* const high = at(page, layer, head);
    kernels::summarise_page_ref(kind, keys, tokens, dim_, high, high + dim_);
  }
  kernels::PageVectors vectors(uint32_t page, uint32_t layer, uint32_t head) const {
    KVT_CHECK(of_[page] != nullptr);
    const float* const high = at(page, layer, head);
    return {high, high + dim_};
  }
  void copy(uint32_t source, uint32_t target) {
    if (of_[source] == nullptr) return of_[target].reset();
    of_[target] = std::make_unique<float[]>(numbers());
    std::copy_n(of_[source].get(), numbers(), of_[target].get());
  }

 private:
  size_t numbers() const { return size_t{layers_} * heads_ * 2 * dim_; }
  float* at(uint32_t page, uint32_t layer, uint32_t head) const {
    return of_[page].get() + (size_t{layer} * heads_ + head) * 2 * dim_;
  }

  const uint32_t heads_, dim_, layers_;
  std::vector<std::unique_ptr<float[]>> of_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_RETRIEVAL_PAGE_SUMMARIES_H_
