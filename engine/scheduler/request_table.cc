#include "engine/scheduler/request_table.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace kvtwin {

using Phase = Request::Phase;

RequestIndex RequestTable::open(const RequestReady& event) {
  if (unused_.empty()) {
    unused_.push_back(static_cast<RequestIndex>(requests_.size()));
    requests_.emplace_back();
    progress_.emplace_back();
  }
  const RequestIndex index = unused_.back();
  unused_.pop_back();
  Request fresh;
  fresh.triggers = std::move(requests_[index].triggers);  // keeps the allocated capacity
  fresh.triggers.assign(event.triggers.begin(), event.triggers.end());
  fresh.id = event.request;
  fresh.key = event.key();
  requests_[index] = std::move(fresh);
  progress_[index] = {.prompt = event.prompt_tokens, .output = event.output_tokens};
  index_of_.insert(raw(event.request), index);
  return index;
}

void RequestTable::close(RequestIndex request) {
  index_of_.erase(raw(requests_[request].id));
  requests_[request].phase = Phase::kUnused;
  unused_.push_back(request);
}

void RequestTable::enqueue(RequestIndex request) {
  requests_[request].phase = Phase::kWaiting;
  waiting_.push_back(request);
}

void RequestTable::requeue(RequestIndex request) {
  requests_[request].phase = Phase::kWaiting;
  waiting_.push_front(request);
}

void RequestTable::load_first() {
  requests_[waiting_.front()].phase = Phase::kLoading;
  waiting_.pop_front();
}

void RequestTable::run_first() {
  run(waiting_.front());
  waiting_.pop_front();
}

void RequestTable::run(RequestIndex request) {
  requests_[request].phase = Phase::kRunning;
  requests_[request].first = true;
  running_.push_back(request);
}

RequestIndex RequestTable::stop_last() {
  const RequestIndex request = running_.back();
  running_.pop_back();
  return request;
}

void RequestTable::remove(RequestIndex request) {
  switch (requests_[request].phase) {
    case Phase::kWaiting:
      waiting_.erase(std::find(waiting_.begin(), waiting_.end(), request));
      return;
    case Phase::kRunning:
      running_.erase(std::find(running_.begin(), running_.end(), request));
      return;
    case Phase::kLoading:
    case Phase::kSwappedOut:
    case Phase::kUnused:
      return;
  }
}

void RequestTable::check_invariants(uint32_t loading, std::vector<RequestIndex>* live) const {
  uint32_t loads = 0, runs = 0;
  for (RequestIndex request = 0; request < requests_.size(); ++request) {
    const Request& r = requests_[request];
    if (r.phase == Phase::kUnused) continue;
    live->push_back(request);
    loads += r.phase == Phase::kLoading ? 1 : 0;
    runs += r.phase == Phase::kRunning ? 1 : 0;
    KVT_CHECK(find(r.id) == request);
    KVT_CHECK(r.emitted <= progress_[request].sampled);
    KVT_CHECK(progress_[request].sampled <= progress_[request].output);
  }
  KVT_CHECK(live->size() == index_of_.size());
  KVT_CHECK(live->size() + unused_.size() == requests_.size());
  KVT_CHECK(loads == loading);
  KVT_CHECK(runs == running_.size());
}

}  // namespace kvtwin
