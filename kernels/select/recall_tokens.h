// Recalls chosen tokens of each KV head from HND host pages into consecutive slots of the GPU's pages, one by
// one (InfiniGen, docs/design/methods/freekv.md#timelines): token i of the list goes to slot i. A kernel
// reads the host's pinned memory: a warp has several tokens in flight, of 4 * head_dim bytes each.
//
// Bound: 4 * head_dim bytes for each token and KV head at 55.4 GB/s (PCIe, large copies).

#ifndef KVTWIN_KERNELS_SELECT_RECALL_TOKENS_H_
#define KVTWIN_KERNELS_SELECT_RECALL_TOKENS_H_

#include "kernels/cache_ops/recall_pages.h"
#include "kernels/select/partial_choice.h"

namespace kvtwin {

struct RecallTokensArgs {
  HostPool host;  // HND; head_dim is 64 or 128
  __nv_bfloat16* pool = nullptr;
  TokenChoiceArgs choice;   // rows, lists, chosen and numbers are read
  uint32_t first_host = 0;  // host page `p` of the lists is p - first_host
  // The slots behind the last token, as far as there are some, become NaN (for tests).
  bool poison = false;
};
cudaError_t recall_tokens(const RecallTokensArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_SELECT_RECALL_TOKENS_H_
