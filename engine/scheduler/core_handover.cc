// Core: disaggregated prefill and decode. How a request leaves one engine and arrives at another.
//
// The prefilling engine computes the prompt, samples the first token, keeps the request's pages and sends
// HandOver. The decoding engine takes pages of its own when it has room, fetches the pages that it lacks
// (StartTransfer kReceive), and then runs the request as if it had prefilled it. It pulls, because only it
// knows when it has room and what its prefix index holds; so a page is reused only after its transfer ended,
// and no page is promised twice.
//
// A decoding engine that preempts the request computes everything again itself: the source is freed by then.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/scheduler/core_state.h"

namespace kvtwin {

// --- the prefilling engine

void Core::State::hand_over(RequestIndex request_index) {
  RequestState& request = requests[request_index];
  KVT_CHECK(request.phase == RequestState::Phase::kRunning);
  KVT_CHECK(request.kv >= request.prompt);
  transfers.allow_offloads();
  running.erase(std::find(running.begin(), running.end(), request_index));
  entries_held -= kv_entries_of(request, request.kv);
  pages_running -= table_pages(request);
  publish_pages(&request, std::min(pages_settled(request, request.kv), request.pages_public));
  HeldPages& held = handed_over.emplace_back();
  held.request = request.id;
  held.pin = request.pin;
  held.own.swap(request.pages);
  index.gpu_pages(held.pin, &held.all);
  held.all.insert(held.all.end(), held.own.begin(), held.own.end());
  held.all.resize(div_ceil(request.prompt, config.page_tokens));
  index.mark(held.pin, request.key.session);
  request.pin = {};
  reserved_total -= request.reserved;
  digest.add(kHandedOver, done, raw(request.id), chained_all(held.all));
  out->push_back(HandOver{config.engine, request.id, held.all});
  out->push_back(DropRequestState{config.engine, request.id, DropRequestState::Reason::kFinished});
  forget(request_index);
}

void Core::State::on(const PagesTaken& event) {
  const auto held = std::find_if(handed_over.begin(), handed_over.end(),
                                 [&](const HeldPages& one) { return one.request == event.request; });
  if (held == handed_over.end()) return;  // from a modified log
  for (auto page = held->own.rbegin(); page != held->own.rend(); ++page) free_page(*page);
  index.release(held->pin, true);
  handed_over.erase(held);
  transfers.allow_offloads();
  digest.add(kTaken, raw(event.request));
}

uint64_t Core::State::pages_handed_over() const {
  uint64_t pages = 0;
  for (const HeldPages& held : handed_over) {
    for (const PageId page : held.all) KVT_CHECK(gpu.owned(page));
    pages += held.own.size();
  }
  return pages;
}

// --- the decoding engine

void Core::State::begin_arrival(const RequestReady& event, RequestState* request) {
  request->arrives = true;
  request->from = event.from;
  request->source.assign(event.source.begin(), event.source.end());
  request->sampled = request->emitted = std::min(event.emitted, event.output_tokens);
  while (request->next_trigger < request->triggers.size() &&
         request->triggers[request->next_trigger] <= request->emitted)
    ++request->next_trigger;
  KVT_CHECK(request->source.size() == div_ceil(request->prompt, config.page_tokens));
}

// Stops waiting for the source. Computing everything here is always possible.
void Core::State::drop_source(RequestState* request) {
  request->arrives = false;
  out->push_back(SourceRead{config.engine, request->id, request->from});
}

Core::State::Admitted Core::State::receive_first(RequestIndex request_index) {
  RequestState& request = requests[request_index];
  Match match;
  if (request.pages_known > 0) {  // pages that are only on the host come from the other engine as well
    const uint32_t pages_max = std::min(request.prompt / config.page_tokens, request.pages_known);
    match = index.acquire_on_gpu(request.name_space, request.identity, pages_max);
  }
  const uint32_t cached = match.pin.pages;
  const uint32_t missing = static_cast<uint32_t>(request.source.size()) - cached;
  const uint64_t pages = std::max<uint64_t>(missing, pages_to_admit(request, cached * config.page_tokens, 1));
  // Steps in flight may still write pages that a preempted request released: no copy may use them yet.
  const bool unsafe = preempted_until > done;
  if (unsafe || pages + config.watermark_pages > pages_available(request)) {
    admission_open = admission_open || unsafe;
    index.release(match.pin, false);
    return Admitted::kBlocked;
  }
  const auto lacking = std::span<const PageId>(request.source).subspan(cached);
  Transfer& transfer = transfers.receive(match.pin, request.from, lacking, request.id);
  take_pages(missing, &transfer.target);
  if (config.admission == AdmissionKind::kFullReservation) {
    request.reserved = static_cast<uint32_t>(pages - missing);
    reserved_total += request.reserved;
  }
  begin_loading(request_index, &transfer);
  transfers.submit(&transfer, out);
  return Admitted::kNotHere;
}

// The request has the pages of its prompt.
void Core::State::attach_received(RequestState* request) {
  request->arrives = false;
  request->kv = request->prompt;
  request->fill = request->known();
  request->arrived_now = true;
  ++request->attempt;
  entries_held += kv_entries_of(*request, request->kv);
  pages_running += request->pages_held();
  publish_pages(request, std::min(pages_settled(*request, request->kv), request->pages_public));
}

// The first entry lists all filled pages; those taken for the entry itself are allocations.
void Core::State::reuse_arrived(RequestState* request, size_t allocated_before) {
  index.gpu_pages(request->pin, &reused);
  const size_t filled = request->pages.size() - (allocated.size() - allocated_before);
  reused.insert(reused.end(), request->pages.begin(),
                request->pages.begin() + static_cast<ptrdiff_t>(filled));
  request->arrived_now = false;
  request->admitted_now = true;
}

}  // namespace kvtwin
