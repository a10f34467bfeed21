// Every kind of transfer, for each way that it can end: no page is lost, and none is freed twice.

#include "engine/kv/store/transfer_manager.h"

#include <doctest/doctest.h>

#include <array>
#include <initializer_list>
#include <vector>

using namespace kvtwin;

namespace {

constexpr RequestId kRequest{7};
constexpr uint32_t kIndex = 3;
constexpr std::array<uint64_t, 1> kNoneReserved = {0};

struct Engine {
  Engine() : Engine(CopyDownLimits{.batch_pages = 4}) {}
  explicit Engine(const CopyDownLimits& limits)
      : manager(EngineId{2}, {&gpu, &host, &disk, &index, &index, &index}, limits, &digest) {}

  // A pin over the first `pages` pages of a prompt that others share.
  Pin cached(uint32_t pages) {
    const std::vector<UnitRun> identity{{1, 0, pages}};
    Pin pin;
    std::vector<PageId> own;
    take(&gpu, pages, &own);
    CHECK(index.insert(0, identity, own, &pin));
    return pin;
  }
  // The same, as a request's shared pages.
  SharedPages shared(uint32_t pages) {
    SharedPages all{cached(pages), {}};
    index.gpu_pages(all.pin, &all.pages);
    return all;
  }
  static void take(PagePool* pool, uint32_t pages, std::vector<PageId>* out) {
    for (uint32_t i = 0; i < pages; ++i) out->push_back(pool->acquire());
  }
  // Ends the transfer; `there`: the request still waits for it.
  void end(TransferId id, bool arrived, bool there) {
    if (!there) manager.leave(kRequest);
    Transfer& transfer = manager.find(id);
    manager.settle(&transfer, arrived, &out);
    manager.close(&transfer, arrived);
  }
  const StartTransfer& submitted() const { return std::get<StartTransfer>(out.back()); }
  // Owned outside of the index and of transfers, by tier.
  void check_owned(uint64_t on_gpu, uint64_t on_host) const {
    const TransferManager::PagesInFlight in_flight = manager.pages_in_flight();
    CHECK(gpu.pages_owned() - index.pages_gpu() - in_flight.gpu == on_gpu);
    CHECK(host.pages_owned() - index.pages_host() - in_flight.host == on_host);
    CHECK(disk.pages_owned() - index.pages_disk() - in_flight.disk == 0);
    index.check_invariants();
  }

  PagePool gpu{PageId{0}, 16, PageOrder::kLowestFirst};
  PagePool host{PageId{100}, 16, PageOrder::kLowestFirst};
  PagePool disk{PageId{200}, 16, PageOrder::kLowestFirst};
  PrefixIndex index{1, &gpu, &host, make_lru_eviction(), nullptr, &disk};
  DecisionDigest digest;
  TransferManager manager;
  std::vector<Command> out;
};

struct End {
  bool arrived, there;
};
constexpr std::initializer_list<End> kEnds = {{true, true}, {true, false}, {false, true}, {false, false}};

}  // namespace

TEST_CASE("transfers: a swap-out gives the request host pages, and frees its GPU pages in every case") {
  for (const End& end : kEnds) {
    CAPTURE(end.arrived);
    CAPTURE(end.there);
    Engine e;
    std::vector<PageId> own;
    Engine::take(&e.gpu, 3, &own);
    Transfer& transfer = e.manager.swap_out(e.shared(2), &own);
    e.manager.wait(&transfer, kIndex, kRequest);
    CHECK(own.empty());
    CHECK(e.manager.pages_coming() == 3);
    e.check_owned(0, 0);
    e.manager.submit(&transfer, &e.out);
    CHECK(e.submitted().source.size() == 5);
    CHECK(e.submitted().target_tier == Tier::kHost);
    e.end(transfer.id, end.arrived, end.there);
    CHECK(e.manager.pages_coming() == 0);
    CHECK(e.manager.swaps_out() == 0);
    e.check_owned(0, end.arrived && end.there ? 5 : 0);
    CHECK(e.index.pages_evictable() == 2);
  }
}

TEST_CASE("transfers: a swap-out that was not submitted ends with its request") {
  Engine e;
  std::vector<PageId> own;
  Engine::take(&e.gpu, 3, &own);
  e.manager.wait(&e.manager.swap_out({}, &own), kIndex, kRequest);
  e.manager.leave(kRequest);
  CHECK(e.manager.live() == 0);
  CHECK(e.out.empty());
  e.check_owned(0, 0);
}

TEST_CASE("transfers: a swap-in frees the host pages in every case") {
  for (const End& end : kEnds) {
    CAPTURE(end.arrived);
    CAPTURE(end.there);
    Engine e;
    std::vector<PageId> host_pages;
    Engine::take(&e.host, 5, &host_pages);
    Transfer& transfer = e.manager.swap_in(e.cached(2), &host_pages);
    CHECK(transfer.source.size() == 3);
    Engine::take(&e.gpu, 3, &transfer.target);
    e.manager.wait(&transfer, kIndex, kRequest);
    e.manager.submit(&transfer, &e.out);
    CHECK(e.manager.requests_loading() == 1);
    e.check_owned(0, 0);
    e.end(transfer.id, end.arrived, end.there);
    CHECK(e.manager.requests_loading() == 0);
    const bool attached = end.arrived && end.there;
    e.check_owned(attached ? 3 : 0, 0);
    CHECK(e.index.pages_evictable() == (attached ? 0 : 2));  // the request has the pin
  }
}

TEST_CASE("transfers: pages from another engine belong to the request, and their source is released") {
  for (const End& end : kEnds) {
    CAPTURE(end.arrived);
    CAPTURE(end.there);
    Engine e;
    const std::vector<PageId> source{PageId{11}, PageId{12}};
    Transfer& transfer = e.manager.receive(e.cached(1), EngineId{5}, source, kRequest);
    Engine::take(&e.gpu, 2, &transfer.target);
    e.manager.wait(&transfer, kIndex, kRequest);
    e.manager.submit(&transfer, &e.out);
    CHECK(e.submitted().from == EngineId{5});
    CHECK(e.submitted().request == kRequest);
    e.end(transfer.id, end.arrived, end.there);
    CHECK(std::get<SourceRead>(e.out.back()).from == EngineId{5});
    e.check_owned(end.arrived && end.there ? 2 : 0, 0);
  }
}

TEST_CASE("transfers: prefixes are offloaded and loaded again, and two requests wait for one load") {
  for (const bool arrived : {true, false}) {
    CAPTURE(arrived);
    Engine e({.offload_pages_target = 16, .batch_pages = 4});
    e.index.release(e.cached(4), true);
    CHECK(e.manager.start_copies_down(kNoneReserved, true, &e.out));
    CHECK(e.submitted().kind == TransferKind::kOffload);
    CHECK(e.submitted().source.size() == 4);
    e.check_owned(0, 0);
    const TransferId offload = e.submitted().transfer;
    e.manager.settle(&e.manager.find(offload), true, &e.out);
    e.manager.close(&e.manager.find(offload), true);
    CHECK(e.index.pages_host() == 4);
    for (int i = 0; i < 4; ++i) e.gpu.release(e.index.evict_gpu_page(), e.index.tick());

    const std::vector<UnitRun> identity{{1, 0, 4}};
    Transfer& load = e.manager.load(e.index.acquire(0, identity, 4));
    Engine::take(&e.gpu, 4, &load.target);
    e.manager.wait(&load, kIndex, kRequest);
    e.manager.submit(&load, &e.out);
    const Match again = e.index.acquire(0, identity, 4);
    CHECK(again.load == raw(load.id));
    e.index.release(again.pin, false);
    e.manager.wait(&e.manager.find(TransferId{again.load}), kIndex + 1, RequestId{8});
    CHECK(e.manager.requests_loading() == 2);
    e.end(load.id, arrived, true);
    CHECK(e.index.pages_gpu() == (arrived ? 4 : 0));
    e.check_owned(0, 0);
  }
}

TEST_CASE("transfers: a failed offload bars the next one until a request arrives or ends") {
  Engine e({.offload_pages_target = 16, .batch_pages = 4});
  e.index.release(e.cached(4), true);
  CHECK(e.manager.start_copies_down(kNoneReserved, true, &e.out));
  const TransferId id = e.submitted().transfer;
  e.manager.settle(&e.manager.find(id), false, &e.out);
  e.manager.close(&e.manager.find(id), false);
  e.check_owned(0, 0);
  CHECK_FALSE(e.manager.start_copies_down(kNoneReserved, true, &e.out));
  e.manager.allow_copies_down();
  CHECK(e.manager.start_copies_down(kNoneReserved, true, &e.out));
}

TEST_CASE("transfers: no offload makes reserved pages unavailable") {
  Engine e({.offload_pages_target = 16, .batch_pages = 4});
  e.index.release(e.cached(4), true);
  CHECK_FALSE(e.manager.start_copies_down(std::array{uint64_t{13}}, true, &e.out));  // 12 are free
  CHECK(e.manager.live() == 0);
  e.check_owned(0, 0);
}
