// RequestTable holds the requests of one engine, and the queues that they are in. Places are recycled, so its
// memory follows the number of requests that are live at once.

#ifndef KVTWIN_ENGINE_SCHEDULER_REQUEST_TABLE_H_
#define KVTWIN_ENGINE_SCHEDULER_REQUEST_TABLE_H_

#include <deque>
#include <span>
#include <vector>

#include "engine/base/id_map.h"
#include "engine/kv/managers/kv_context.h"
#include "engine/scheduler/request.h"

namespace kvtwin {

class RequestTable {
 public:
  static constexpr RequestIndex kNone = IdMap::kNone;

  // *context must outlive it; it holds the requests' progress.
  explicit RequestTable(KvContext* context) : progress_(context->progress) {}

  // A place for a new request, whose state is that of `event`; it is in no queue.
  RequestIndex open(const RequestReady& event);
  // The request has ended on this engine.
  void close(RequestIndex request);
  // kNone: no such request is live.
  RequestIndex find(RequestId request) const { return index_of_.find(raw(request)); }

  Request& operator[](RequestIndex request) { return requests_[request]; }
  const Request& operator[](RequestIndex request) const { return requests_[request]; }
  RequestProgress& progress(RequestIndex request) { return progress_[request]; }
  const RequestProgress& progress(RequestIndex request) const { return progress_[request]; }
  uint32_t live() const { return static_cast<uint32_t>(index_of_.size()); }

  const std::deque<RequestIndex>& waiting() const { return waiting_; }
  const std::vector<RequestIndex>& running() const { return running_; }  // in order of admission
  void enqueue(RequestIndex request);
  // To the head of the queue: it waited before.
  void requeue(RequestIndex request);
  // The head of the queue waits for a transfer instead.
  void load_first();
  // Starts running, from the head of the queue or from a transfer.
  void run_first();
  void run(RequestIndex request);
  // The newest running request stops.
  RequestIndex stop_last();
  // Removes it from the queue that it is in.
  void remove(RequestIndex request);
  void check_invariants(uint32_t loading, std::vector<RequestIndex>* live) const;

 private:
  std::vector<RequestProgress>& progress_;
  std::vector<Request> requests_;
  std::vector<RequestIndex> unused_;
  IdMap index_of_;  // by RequestId
  std::deque<RequestIndex> waiting_;
  std::vector<RequestIndex> running_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_SCHEDULER_REQUEST_TABLE_H_
