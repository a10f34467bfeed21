// Conversion of the policy's poolings and summaries to those of the kernels.

#ifndef KVTWIN_ENGINE_COMMON_RETRIEVAL_PAGE_POOLING_H_
#define KVTWIN_ENGINE_COMMON_RETRIEVAL_PAGE_POOLING_H_

#include "engine/base/check.h"
#include "engine/methods/retrieval_spec.h"
#include "kernels/select/page_score.h"
#include "kernels/select/page_summary.h"

namespace kvtwin::cpu {

inline kernels::PagePooling pooling_of(GroupPooling pooling) {
  switch (pooling) {
    case GroupPooling::kMeanS:
      return kernels::PagePooling::kMeanS;
    case GroupPooling::kMaxS:
      return kernels::PagePooling::kMaxS;
    case GroupPooling::kMeanQk:
      return kernels::PagePooling::kMeanQk;
    case GroupPooling::kMaxQk:
      return kernels::PagePooling::kMaxQk;
    case GroupPooling::kMeanQ:
      return kernels::PagePooling::kMeanQ;
    case GroupPooling::kMaxQ:
      return kernels::PagePooling::kMaxQ;
  }
  KVT_CHECK(!"a pooling that no kernel knows");
  return {};
}

inline kernels::SummaryKind kind_of(PageSummary summary) {
  switch (summary) {
    case PageSummary::kMinMax:
      return kernels::SummaryKind::kMinMax;
    case PageSummary::kCuboid:
      return kernels::SummaryKind::kCuboid;
    case PageSummary::kMean:
      return kernels::SummaryKind::kMean;
  }
  KVT_CHECK(!"a summary that no kernel makes");
  return {};
}

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_RETRIEVAL_PAGE_POOLING_H_
