// Core: when copies down start, and what the end of a copy means for the requests that wait for it. The
// copies themselves are TransferManager's.

#include "engine/base/check.h"
#include "engine/base/planted.h"
#include "engine/scheduler/core_state.h"

namespace kvtwin {

void Core::State::start_copies_down() {
  // Steps in flight may still write pages that a preempted request released: no copy may use them yet.
  const bool unsafe = preempted_until > done && !KVT_PLANTED(unsafe_copy);
  if (transfers.start_copies_down(reserved_total, tiered() && !unsafe, out)) evicted_now = true;
}

void Core::State::on(const TransferDone& event) { finish_transfer(event.transfer, true); }
void Core::State::on(const TransferFailed& event) { finish_transfer(event.transfer, false); }

void Core::State::finish_transfer(TransferId id, bool arrived) {
  Transfer& transfer = transfers.find(id);
  transfers.settle(&transfer, arrived, out);
  // They were at the head of the queue, and return there in the same order.
  for (auto waiter = transfer.waiting.rbegin(); waiter != transfer.waiting.rend(); ++waiter) {
    KVT_CHECK(requests[waiter->index].id == waiter->request);
    deliver(transfer, waiter->index, arrived);
  }
  transfers.close(&transfer, arrived);
}

// The copy that the request waits for has ended.
void Core::State::deliver(const Transfer& transfer, RequestIndex request_index, bool arrived) {
  RequestState& request = requests[request_index];
  const bool to_request = transfer.kind != TransferKind::kLoad || transfer.to_request;
  if (transfer.kind == TransferKind::kSwapOut) {
    if (arrived) request.host_pages = transfer.target;
  } else if (arrived && to_request) {
    return attach(request_index, transfer);
  }
  if (transfer.kind == TransferKind::kLoad) request.load_barred = !arrived;
  if (transfer.kind == TransferKind::kReceive) request.arrives = false;
  if (!arrived) {
    request.kv = 0;  // to be computed again
    drop_reservation(&request);
  }
  return_to_queue(request_index);
}

void Core::State::return_to_queue(RequestIndex request_index) {
  requests[request_index].phase = RequestState::Phase::kWaiting;
  waiting.push_front(request_index);
}

// The request runs with the pages that have arrived.
void Core::State::attach(RequestIndex request_index, const Transfer& transfer) {
  RequestState& request = requests[request_index];
  running.push_back(request_index);
  request.phase = RequestState::Phase::kRunning;
  request.pin = transfer.pin;
  request.pages.assign(transfer.target.begin(), transfer.target.end());
  switch (transfer.kind) {
    case TransferKind::kLoad:
      return attach_fetched(&request);
    case TransferKind::kReceive:
      return attach_received(&request);
    case TransferKind::kSwapIn:
      return attach_swapped_in(&request);
    case TransferKind::kSwapOut:
    case TransferKind::kOffload:
    case TransferKind::kSpill:
      KVT_CHECK(!"a copy from the GPU brings no pages to a request");
  }
}

// The first waiting request waits for the copy instead, and others may pass it.
void Core::State::begin_loading(RequestIndex request_index, Transfer* transfer) {
  RequestState& request = requests[request_index];
  waiting.pop_front();
  request.phase = RequestState::Phase::kLoading;
  transfers.wait(transfer, request_index, request.id);
}

void Core::State::drop_reservation(RequestState* request) {
  reserved_total -= request->reserved;
  reserved_host_total -= request->reserved_host;
  request->reserved = request->reserved_host = 0;
}

}  // namespace kvtwin
