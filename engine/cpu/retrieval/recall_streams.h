// RecallStreams copies pages of one KV head from the host into arena slots, behind the back of the step:
// The streamed recall of docs/design/methods/freekv.md#recall as an order of copies.
//
// Task number n goes through staging buffer n mod B on stream n mod B: its pages are copied to the buffer,
// then scattered into their slots, while the other stream does the same for task n + 1. Streams keep their
// own order and know nothing of one another. Two tasks never share a buffer at a time, whatever layers and
// requests they belong to: that is the strict order that the released code lacks (hazard 2).
//
// Nothing runs before somebody waits, unless `delays` is set: then pass_time() runs some copies of either
// stream, as drawn. Whoever asks does so when nobody reads the slots any more (hazard 1), and waits before
// reading them; so no result may depend on `delays`.

#ifndef KVTWIN_ENGINE_CPU_RETRIEVAL_RECALL_STREAMS_H_
#define KVTWIN_ENGINE_CPU_RETRIEVAL_RECALL_STREAMS_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "engine/common/retrieval/retrieval_witness.h"
#include "engine/cpu/kv_store.h"
#include "kernels/cache_ops/host_page.h"

namespace kvtwin::cpu {

// One layer of `page`, which lies on the host.
kernels::HostPage host_page(const KvStore& kv, uint32_t layer, uint32_t page, kernels::HostPageLayout layout);

struct RecallTask {
  struct Move {
    uint32_t from = 0;  // page on the host
    uint32_t to = 0;    // page on the gpu; one head of it
  };
  RequestId request{};
  uint32_t layer = 0;
  uint32_t head = 0;
  std::vector<Move> moves;
};

class RecallStreams {
 public:
  struct Options {
    kernels::HostPageLayout layout = kernels::HostPageLayout::kHnd;
    uint32_t buffers = 2;
    uint64_t delays = 0;  // 0: copies run when they are waited for
    bool poison = false;  // slots hold NaN from the moment a task is asked for
    RetrievalWitness* witness = nullptr;
  };
  // `kv` must outlive this. REQUIRES: buffers is 1 or 2.
  RecallStreams(KvStore* kv, const Options& options) : kv_(kv), options_(options) {}

  void ask(RecallTask task);
  // The event recall_done[layer] of the request: all that was asked for has arrived.
  void wait(RequestId request, uint32_t layer);
  // The request is gone: what is still to be copied for it never is.
  void discard(RequestId request);
  void pass_time();

  bool idle() const { return streams_[0].empty() && streams_[1].empty(); }

 private:
  struct Task {
    RecallTask what;
    bool staged = false;
  };
  void advance(uint32_t stream);

  KvStore* const kv_;
  const Options options_;
  std::deque<Task> streams_[2];
  std::vector<float> staging_[2];  // [pages of the task][2][page_tokens][head_dim]
  uint64_t asked_ = 0, moments_ = 0;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_RETRIEVAL_RECALL_STREAMS_H_
