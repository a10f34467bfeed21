// RetrievalWitness is notified of each action of a RetrievedCache, so that tests can recompute and order
// them.

#ifndef KVTWIN_ENGINE_COMMON_RETRIEVAL_RETRIEVAL_WITNESS_H_
#define KVTWIN_ENGINE_COMMON_RETRIEVAL_RETRIEVAL_WITNESS_H_

#include <cstdint>
#include <span>

#include "engine/base/units.h"
#include "kernels/common/kv_pages.h"

namespace kvtwin::cpu {

// One KV head of one layer of one request, at the position of the current token.
struct HeadAt {
  RequestId request{};
  uint32_t layer = 0;
  uint32_t head = 0;
  uint32_t position = 0;
};

class RetrievalWitness {
 public:
  virtual ~RetrievalWitness() = default;
  // A token of a layer was rotated: q [query_heads][head_dim], k and v [kv_heads][head_dim].
  virtual void rotated(RequestId /*request*/, uint32_t /*layer*/, uint32_t /*position*/, const float* /*q*/,
                       const float* /*k*/, const float* /*v*/) {}
  // InfiniGen: the queries [query_heads][head_dim] that a layer's input gives for the next layer.
  virtual void projected(RequestId /*request*/, uint32_t /*layer*/, uint32_t /*position*/,
                         const float* /*q*/) {}
  // A token that selects: attention reads the first positions.size() KV entries of `runs`, which are at these
  // positions of the request. `corrected`: FreeKV selected again for this head. `out` is [group][head_dim].
  struct Read {
    HeadAt at;
    std::span<const kernels::ReadRun> runs;
    std::span<const uint32_t> positions;
    bool corrected = false;
  };
  virtual void attends(const Read& /*read*/) {}
  virtual void attended(const Read& /*read*/, const float* /*out*/) {}
  // `pages` pages were requested.
  virtual void recalls(const HeadAt& /*at*/, bool /*before_attention*/, uint32_t /*pages*/) {}
  // A copy overwrote KV entries of a GPU page.
  virtual void wrote(uint32_t /*page*/, uint32_t /*layer*/, uint32_t /*head*/) {}
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_RETRIEVAL_RETRIEVAL_WITNESS_H_
