#include "engine/kv/store/transfer_manager.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin {

// --- copies that a request waits for

Transfer& TransferManager::open(TransferKind kind, Tier source, Tier target) {
  auto place = std::find_if(transfers_.begin(), transfers_.end(), [](const Transfer& t) { return !t.live; });
  if (place == transfers_.end()) place = transfers_.emplace(transfers_.end());
  place->id = TransferId{next_++};
  place->kind = kind;
  place->source_tier = source;
  place->target_tier = target;
  place->to_request = place->submitted = false;
  place->live = true;
  place->pin = {};
  place->first = 0;
  place->source.clear();
  place->target.clear();
  place->numbers.clear();
  place->own.clear();
  place->waiting.clear();
  ++live_;
  return *place;
}

// Undoes open() exactly. REQUIRES: it is the newest, and was not submitted.
void TransferManager::undo(Transfer* transfer) {
  drop(transfer);
  --next_;
}

void TransferManager::drop(Transfer* transfer) {
  if (transfer->kind != TransferKind::kSwapOut)
    requests_loading_ -= static_cast<uint32_t>(transfer->waiting.size());
  transfer->live = false;
  --live_;
}

Transfer& TransferManager::load(const Match& match) {
  Transfer& transfer = open(TransferKind::kLoad, Tier::kHost, Tier::kGpu);
  transfer.pin = match.pin;
  transfer.first = match.pages_gpu;
  std::vector<PageId>& source = transfer.source;
  tiers_.index->host_pages(match.pin, match.pages_gpu, &source);
  const bool from_disk = tiers_.index->on_disk(source.front());
  if (from_disk) transfer.source_tier = Tier::kDisk;
  const auto on_same_tier = [&](PageId page) { return tiers_.index->on_disk(page) == from_disk; };
  source.erase(std::find_if_not(source.begin(), source.end(), on_same_tier), source.end());
  return transfer;
}

Transfer& TransferManager::fetch(const Pin& prefix) {
  Transfer& transfer = open(TransferKind::kLoad, Tier::kHost, Tier::kGpu);
  transfer.to_request = true;
  transfer.pin = prefix;
  tiers_.index->gpu_pages(prefix, &transfer.source);
  return transfer;
}

Transfer& TransferManager::receive(const Pin& cached, EngineId from, std::span<const PageId> source,
                                   RequestId request) {
  Transfer& transfer = open(TransferKind::kReceive, Tier::kGpu, Tier::kGpu);
  transfer.pin = cached;
  transfer.first = cached.pages;
  transfer.from = from;
  transfer.request = request;
  transfer.source.assign(source.begin(), source.end());
  return transfer;
}

Transfer& TransferManager::swap_out(const SharedPages& shared, std::vector<PageId>* own) {
  Transfer& transfer = open(TransferKind::kSwapOut, Tier::kGpu, Tier::kHost);
  transfer.pin = shared.pin;
  transfer.source = shared.copied;
  if (shared.copied.empty()) {
    transfer.source = shared.pages;
    transfer.source.insert(transfer.source.end(), own->begin(), own->end());
  }
  for (size_t i = 0; i < transfer.source.size(); ++i) transfer.target.push_back(tiers_.host->acquire());
  ++swaps_out_;
  pages_coming_ += static_cast<uint32_t>(own->size());
  transfer.own.swap(*own);
  return transfer;
}

Transfer& TransferManager::swap_in(const Pin& cached, std::vector<PageId>* host_pages) {
  Transfer& transfer = open(TransferKind::kSwapIn, Tier::kHost, Tier::kGpu);
  transfer.pin = cached;
  transfer.first = cached.pages;
  transfer.source.assign(host_pages->begin() + cached.pages, host_pages->end());
  for (uint32_t i = 0; i < cached.pages; ++i) tiers_.free_host((*host_pages)[i]);
  host_pages->clear();
  return transfer;
}

void TransferManager::wait(Transfer* transfer, uint32_t index, RequestId request) {
  transfer->waiting.push_back({index, request});
  if (transfer->kind != TransferKind::kSwapOut) ++requests_loading_;
}

void TransferManager::submit(Transfer* transfer, std::vector<Command>* out) {
  KVT_CHECK(transfer->source.size() == transfer->target.size());
  transfer->submitted = true;
  if (transfer->target_tier == Tier::kGpu && transfer->own.empty()) transfer->own = transfer->target;
  if (transfer->kind == TransferKind::kLoad && !transfer->to_request) {
    if (transfer->numbers.empty()) transfer->numbers = transfer->target;
    tiers_.index->start_load(transfer->pin, transfer->first, raw(transfer->id));
  }
  const std::span<const PageId> source = transfer->source, target = transfer->target;
  digest_->add(DecisionDigest::kTransfer, raw(transfer->id), transfer->kind, transfer->source_tier,
               transfer->target_tier, chained_all(source), chained_all(target));
  StartTransfer command{engine_, transfer->id, transfer->kind, transfer->source_tier, transfer->target_tier,
                        source,  target};
  if (transfer->kind == TransferKind::kReceive) {
    command.from = transfer->from;
    command.request = transfer->request;
  }
  out->push_back(command);
}

namespace {

// The transfer that the request waits for.
template <typename Transfers>
auto awaited_by(Transfers& transfers, RequestId request) {
  const auto is_one = [request](const Transfer::Waiter& waiter) { return waiter.request == request; };
  const auto found = std::find_if(transfers.begin(), transfers.end(), [&](const Transfer& t) {
    return t.live && std::any_of(t.waiting.begin(), t.waiting.end(), is_one);
  });
  KVT_CHECK(found != transfers.end());
  return found;
}

}  // namespace

void TransferManager::submit_swap_out(RequestId request, std::vector<Command>* out) {
  const auto transfer = awaited_by(transfers_, request);
  KVT_CHECK(transfer->kind == TransferKind::kSwapOut);
  KVT_CHECK(!transfer->submitted);
  submit(&*transfer, out);
}

void TransferManager::leave(RequestId request) {
  const auto transfer = awaited_by(transfers_, request);
  if (transfer->kind != TransferKind::kSwapOut) --requests_loading_;
  std::erase_if(transfer->waiting,
                [request](const Transfer::Waiter& waiter) { return waiter.request == request; });
  if (transfer->submitted) return;
  settle_swap_out(*transfer, false);
  drop(&*transfer);
}

// --- ends

Transfer& TransferManager::find(TransferId id) {
  const auto found = std::find_if(transfers_.begin(), transfers_.end(),
                                  [id](const Transfer& t) { return t.live && t.id == id; });
  KVT_CHECK(found != transfers_.end());
  return *found;
}

void TransferManager::settle(Transfer* transfer, bool arrived, std::vector<Command>* out) {
  switch (transfer->kind) {
    case TransferKind::kLoad:
      return transfer->to_request ? settle_to_request(*transfer, arrived) : settle_load(*transfer, arrived);
    case TransferKind::kReceive:
      out->push_back(SourceRead{engine_, transfer->request, transfer->from});
      return settle_to_request(*transfer, arrived);
    case TransferKind::kSwapOut:
      return settle_swap_out(*transfer, arrived);
    case TransferKind::kSwapIn:
      return settle_swap_in(*transfer, arrived);
    case TransferKind::kOffload:
      return settle_offload(*transfer, arrived);
    case TransferKind::kSpill:
      return settle_spill(*transfer, arrived);
  }
}

void TransferManager::close(Transfer* transfer, bool arrived) {
  digest_->add(DecisionDigest::kTransferEnded, raw(transfer->id), arrived);
  drop(transfer);
}

void TransferManager::settle_load(const Transfer& transfer, bool arrived) {
  if (arrived) {
    if (tiers_.watch != nullptr) tiers_.watch->arrived(transfer.numbers, transfer.target);
    tiers_.index->loaded(transfer.pin, transfer.first, transfer.numbers);
  } else {
    tiers_.index->load_failed(transfer.pin, transfer.first);
    for (const PageId page : transfer.own) tiers_.free_gpu(page);
  }
  tiers_.index->release(transfer.pin, arrived);
}

void TransferManager::settle_to_request(const Transfer& transfer, bool arrived) {
  if (arrived && !transfer.waiting.empty()) return;
  for (auto page = transfer.own.rbegin(); page != transfer.own.rend(); ++page) tiers_.free_gpu(*page);
  tiers_.index->release(transfer.pin, false);
}

void TransferManager::settle_swap_out(const Transfer& transfer, bool arrived) {
  for (auto page = transfer.own.rbegin(); page != transfer.own.rend(); ++page) tiers_.free_gpu(*page);
  pages_coming_ -= static_cast<uint32_t>(transfer.own.size());
  tiers_.index->release(transfer.pin, true);
  --swaps_out_;
  if (arrived && !transfer.waiting.empty()) return;
  for (const PageId page : transfer.target) tiers_.free_host(page);
}

void TransferManager::settle_swap_in(const Transfer& transfer, bool arrived) {
  for (const PageId page : transfer.source) tiers_.free_host(page);
  if (arrived && !transfer.waiting.empty()) return;
  for (const PageId page : transfer.own) tiers_.free_gpu(page);
  tiers_.index->release(transfer.pin, arrived);
}

TransferManager::PagesInFlight TransferManager::pages_in_flight() const {
  PagesInFlight pages;
  uint64_t live = 0, loading = 0, swaps_out = 0, coming = 0, offloads = 0, spills = 0;
  for (const Transfer& t : transfers_) {
    if (!t.live) continue;
    ++live;
    if (t.target_tier == Tier::kHost) pages.host += t.target.size();
    if (t.target_tier == Tier::kDisk) pages.disk += t.target.size();
    if (t.kind == TransferKind::kSwapIn) pages.host += t.source.size();
    pages.gpu += t.own.size();
    coming += t.kind == TransferKind::kSwapOut ? t.own.size() : 0;
    swaps_out += t.kind == TransferKind::kSwapOut ? 1 : 0;
    loading += t.kind == TransferKind::kSwapOut ? 0 : t.waiting.size();
    offloads += t.kind == TransferKind::kOffload ? t.source.size() : 0;
    spills += t.kind == TransferKind::kSpill ? t.source.size() : 0;
  }
  KVT_CHECK(live == live_);
  KVT_CHECK(loading == requests_loading_);
  KVT_CHECK(swaps_out == swaps_out_);
  KVT_CHECK(coming == pages_coming_);
  KVT_CHECK(offloads == offloads_.pages);
  KVT_CHECK(spills == spills_.pages);
  return pages;
}

}  // namespace kvtwin
