// RecallStreams copies pages of one KV head from the host to slots of resident pages, concurrently with the
// step: the streamed recall of docs/design/methods/freekv.md#recall, as an order of copies.
//
// Task n uses staging buffer n mod B on stream n mod B: its pages are copied to the buffer and then scattered
// to their slots, while the other stream does the same for task n + 1. Each stream keeps its own order, and
// the two are independent. Two tasks never use a buffer at the same time, whatever their layers and requests:
// this is the strict order that the released code lacks (hazard 2).
//
// Copies run when wait() is called. If `delays` is set, pass_time() runs some copies of either stream
// earlier, as drawn. The caller issues a task when the slots are no longer read (hazard 1), and waits before
// it reads them, so results must not depend on `delays`.

#ifndef KVTWIN_ENGINE_CPU_RETRIEVAL_RECALL_STREAMS_H_
#define KVTWIN_ENGINE_CPU_RETRIEVAL_RECALL_STREAMS_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "engine/common/retrieval/retrieval_witness.h"
#include "engine/cpu/kv_store.h"
#include "kernels/cache_ops/host_page.h"

namespace kvtwin::cpu {

// One layer of `page`, which is on the host.
kernels::HostPage host_page(const KvStore& kv, uint32_t layer, uint32_t page, kernels::HostPageLayout layout);

struct RecallTask {
  struct Move {
    uint32_t from = 0;  // host page
    uint32_t to = 0;    // GPU page; one head of it
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
    uint64_t delays = 0;  // seed of early copies; 0: copies run in wait()
    bool poison = false;  // fill slots with NaN when a task is issued
    RetrievalWitness* witness = nullptr;
  };
  // `kv` must outlive this. REQUIRES: buffers is 1 or 2.
  RecallStreams(KvStore* kv, const Options& options) : kv_(kv), options_(options) {}

  void ask(RecallTask task);
  // The event recall_done[layer] of the request: all issued tasks are complete on return.
  void wait(RequestId request, uint32_t layer);
  // The request has ended: its remaining copies are dropped.
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
