#include "engine/kv/store/prefix_index.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/prng.h"
#include "tests/property/structures/naive_prefixes.h"

using namespace kvtwin;
using kvtwin::testing::NaivePrefixes;
using kvtwin::testing::Unit;
using kvtwin::testing::Units;

namespace {

constexpr uint32_t kPageTokens = 64;

// The same units as runs, split at random places, with empty runs in between.
std::vector<UnitRun> as_runs(const Units& units, Prng& prng) {
  std::vector<UnitRun> runs;
  for (const auto& [space, number] : units) {
    if (prng.chance(1, 20)) runs.push_back({prng.range(0, 3), 7, 0});
    const bool continues =
        !runs.empty() && runs.back().space == space && runs.back().first + runs.back().count == number;
    if (continues && prng.chance(4, 5)) {
      ++runs.back().count;
    } else {
      runs.push_back({space, number, 1});
    }
  }
  return runs;
}

// Applies the same operations to both structures.
class Pair {
 public:
  Pair(uint64_t seed, uint32_t units_per_page)
      : prng_(seed),
        units_per_page_(units_per_page),
        order_(prng_.chance(1, 2) ? PageOrder::kLowestFirst : PageOrder::kOldestFirst),
        pages_gpu_(static_cast<uint32_t>(prng_.range(1, 40))),
        pages_host_(prng_.chance(1, 3) ? 0 : static_cast<uint32_t>(prng_.range(1, 30))),
        pages_disk_(prng_.chance(1, 3) ? 0 : static_cast<uint32_t>(prng_.range(1, 20))),
        gpu_(PageId{0}, pages_gpu_, order_),
        host_(PageId{1'000}, pages_host_, order_),
        disk_(PageId{2'000}, pages_disk_, order_),
        index_(units_per_page, &gpu_, pages_host_ > 0 ? &host_ : nullptr, make_lru_eviction(), nullptr,
               has_disk() ? &disk_ : nullptr),
        naive_(units_per_page) {}

  void step() {
    switch (prng_.range(0, 10)) {
      case 0:
      case 1:
        acquire();
        break;
      case 2:
      case 3:
      case 4:
        insert();
        break;
      case 5:
        release();
        break;
      case 6:
        evict();
        break;
      case 7:
        start_offload();
        break;
      case 8:
        end_transfer();
        break;
      case 9:
        mark_dropped();
        break;
      case 10:
        start_spill();
        break;
    }
    expect_equal();
  }

  void drain() {
    while (!transfers_.empty()) end_transfer();
    while (!pins_.empty()) release();
    expect_equal();
    while (index_.pages_evictable() > 0) evict();
    expect_equal();
    CHECK(index_.pages_gpu() == 0);
    CHECK(gpu_.pages_free() == pages_gpu_);
  }

 private:
  struct Held {
    Pin pin;
    uint64_t name_space = 0;
    Units units;
    bool inserted = false;
    bool recalling = false;
  };
  // An offload (GPU to host), a spill (host to disk) or a load (host and disk to GPU) in progress.
  struct Transfer {
    bool offload = false;
    bool spill = false;
    Held held;
    uint32_t first = 0;
    std::vector<PageId> target;
  };

  // A new identity shares a random number of units with an old one, so that paths also diverge inside pages.
  Units draw_units() {
    Units units;
    if (!identities_.empty() && prng_.chance(9, 10)) {
      const Units& old = identities_[prng_.range(0, identities_.size() - 1)];
      if (prng_.chance(1, 3)) return old;
      units.assign(old.begin(), old.begin() + static_cast<ptrdiff_t>(prng_.range(0, old.size())));
    }
    const uint64_t more = prng_.range(0, 6 * units_per_page_);
    const uint64_t space = prng_.range(0, 3);
    const uint64_t first = prng_.range(0, 3);
    for (uint64_t i = 0; i < more; ++i) units.emplace_back(space, first + i);
    identities_.push_back(units);
    if (identities_.size() > 12) identities_.erase(identities_.begin());
    return units;
  }

  void acquire() {
    Held held;
    held.name_space = prng_.range(0, 1);
    held.units = draw_units();
    const uint32_t pages_max = prng_.chance(1, 3) ? static_cast<uint32_t>(prng_.range(0, 8)) : 1'000;
    const Match match = index_.acquire(held.name_space, as_runs(held.units, prng_), pages_max);
    held.pin = match.pin;
    const uint32_t expected = naive_.match(held.name_space, held.units, pages_max);
    REQUIRE(held.pin.pages == expected);
    REQUIRE(match.pages_gpu == naive_.pages_on_gpu(held.name_space, held.units, expected));
    naive_.lock(held.name_space, held.units, expected);
    const uint32_t missing = expected - match.pages_gpu;
    if (missing == 0) {
      pins_.push_back(held);
    } else if (match.load == Match::kNoLoad && !copied_on_the_way(held) && make_room(missing)) {
      start_load(held, match.pages_gpu);
    } else {
      index_.release(held.pin, false);
      naive_.unlock(held.name_space, held.units, expected, false);
    }
  }

  // An offload or a spill protects its whole node, and so protects later pages of it that come back from the
  // host. The naive model has no nodes and cannot predict this.
  bool copied_on_the_way(const Held& held) const {
    return std::any_of(transfers_.begin(), transfers_.end(), [&](const Transfer& transfer) {
      const Held& offloaded = transfer.held;
      return (transfer.offload || (transfer.spill && offloaded.units.size() < held.units.size())) &&
             offloaded.name_space == held.name_space && offloaded.units.size() <= held.units.size() &&
             std::equal(offloaded.units.begin(), offloaded.units.end(), held.units.begin());
    });
  }

  // The same test for pages of such a node that are on the host or disk.
  bool behind_a_copy(const NaivePrefixes::Key& key) const {
    return std::any_of(transfers_.begin(), transfers_.end(), [&](const Transfer& transfer) {
      const Held& copied = transfer.held;
      return (transfer.offload || transfer.spill) && copied.name_space == key.first &&
             copied.units.size() < key.second.size() &&
             std::equal(copied.units.begin(), copied.units.end(), key.second.begin());
    });
  }
  uint64_t stamp_of(const NaivePrefixes::Key& key) {
    return naive_.page(key.first, key.second, static_cast<uint32_t>(key.second.size()) / units_per_page_ - 1)
        .stamp;
  }

  // Evicts until `pages` GPU pages are free. Returns false if that is impossible.
  bool make_room(uint32_t pages) {
    while (gpu_.pages_free() < pages) {
      if (index_.pages_evictable() == 0) return false;
      evict();
    }
    return true;
  }

  void start_load(const Held& held, uint32_t first) {
    Transfer load{.offload = false, .held = held, .first = first, .target = {}};
    // All of them, or the first ones.
    const auto count = static_cast<uint32_t>(prng_.chance(2, 3) ? held.pin.pages - first
                                                                : prng_.range(1, held.pin.pages - first));
    for (uint32_t i = 0; i < count; ++i) load.target.push_back(gpu_.acquire());
    std::vector<PageId> source, expected;
    index_.host_pages(held.pin, first, &source);
    for (uint32_t i = first; i < held.pin.pages; ++i) {
      const auto& page = naive_.page(held.name_space, held.units, i);
      expected.push_back(page.host ? *page.host : *page.disk);
    }
    REQUIRE(source == expected);
    index_.start_load(held.pin, first, ++transfer_next_);
    transfers_.push_back(load);
  }

  void insert() {
    if (pins_.empty()) return;
    Held& held = pins_[prng_.range(0, pins_.size() - 1)];
    const auto whole = static_cast<uint32_t>(held.units.size() / units_per_page_);
    if (whole == held.pin.pages) return;
    const auto count = static_cast<uint32_t>(prng_.range(1, whole - held.pin.pages));
    if (!make_room(count)) return;
    std::vector<PageId> pages;
    for (uint32_t i = 0; i < count; ++i) pages.push_back(gpu_.acquire());
    const bool known = naive_.knows(held.name_space, held.units, held.pin.pages);
    const uint32_t before = held.pin.pages;
    const bool taken = index_.insert(held.name_space, as_runs(held.units, prng_), pages, &held.pin);
    REQUIRE(taken == !known);
    if (!taken) {
      CHECK(held.pin.pages == before);
      for (const PageId page : pages) gpu_.release(page, naive_.clock);
      return;
    }
    REQUIRE(held.pin.pages == before + count);
    held.inserted = true;
    for (uint32_t i = 0; i < count; ++i) naive_.add(held.name_space, held.units, before + i, pages[i]);
  }

  void release() {
    if (pins_.empty()) return;
    const auto at = pins_.begin() + static_cast<ptrdiff_t>(prng_.range(0, pins_.size() - 1));
    const bool used = at->inserted || prng_.chance(2, 3);
    index_.release(at->pin, used);
    naive_.unlock(at->name_space, at->units, at->pin.pages, used);
    pins_.erase(at);
  }

  void evict() {
    if (index_.pages_evictable() == 0) return;
    const auto* next = naive_.next_out();
    REQUIRE(next != nullptr);
    const auto stamp =
        naive_
            .page(next->first, next->second, static_cast<uint32_t>(next->second.size()) / units_per_page_ - 1)
            .stamp;
    REQUIRE(index_.next_eviction_rank() == stamp);
    std::vector<PageId> pages;
    if (prng_.chance(1, 2)) {
      pages.push_back(index_.evict_gpu_page());
    } else {
      const auto most = static_cast<uint32_t>(prng_.range(1, 8));
      index_.evict_pages(std::min(most, index_.pages_evictable()), &pages);
    }
    for (const PageId page : pages) {
      REQUIRE(page == naive_.evict());
      gpu_.release(page, naive_.clock);
    }
  }

  void start_offload() {
    if (pages_host_ == 0) return;
    const auto pages_max = static_cast<uint32_t>(prng_.range(1, 6));
    const uint32_t host_free = host_.pages_free();
    const auto* next = naive_.next_out(false);
    Transfer offload{.offload = true, .held = {}, .first = 0, .target = {}};
    std::vector<PageId> source;
    const auto started =
        index_.start_offload(pages_max, &offload.held.pin, &offload.first, &source, &offload.target);
    using Offload = PrefixIndex::Offload;
    REQUIRE((started == Offload::kNothingToOffload) == (next == nullptr));
    if (started == Offload::kHostHoldsNewer) {
      REQUIRE(host_free == 0);
      const PageId page = index_.evict_uncopied_page();
      REQUIRE(page == naive_.evict_uncopied());
      gpu_.release(page, naive_.clock);
    }
    if (started != Offload::kStarted) return;
    REQUIRE(next != nullptr);
    offload.held.name_space = next->first;
    offload.held.units = next->second;
    const uint32_t end = offload.held.pin.pages;
    REQUIRE(end == next->second.size() / units_per_page_);
    REQUIRE(offload.first < end);
    REQUIRE(end - offload.first <= pages_max);
    REQUIRE(source.size() == end - offload.first);
    REQUIRE(offload.target.size() == source.size());
    for (uint32_t i = offload.first; i < end; ++i) {
      const auto& page = naive_.page(next->first, next->second, i);
      REQUIRE(page.gpu == source[i - offload.first]);
      REQUIRE(!page.host);
      REQUIRE(page.locks == 0);
    }
    naive_.lock(offload.held.name_space, offload.held.units, end);
    // Targets were allocated from the last to the first; a target with an owner was dropped for this copy.
    for (auto target = offload.target.rbegin(); target != offload.target.rend(); ++target) {
      const auto* dropped = naive_.find_host(*target);
      if (dropped == nullptr) continue;
      REQUIRE(naive_.may_lose_copy(*dropped));
      naive_.lose_copy(*dropped);
    }
    transfers_.push_back(offload);
  }

  void end_transfer() {
    if (transfers_.empty()) return;
    const auto at = transfers_.begin() + static_cast<ptrdiff_t>(prng_.range(0, transfers_.size() - 1));
    const Transfer transfer = *at;
    transfers_.erase(at);
    const Held& held = transfer.held;
    const bool failed = prng_.chance(1, 4);
    if (transfer.spill) {
      end_spill(transfer, failed);
    } else if (transfer.offload) {
      if (failed) {
        index_.offload_failed(transfer.held.pin, transfer.target);
      } else {
        index_.offloaded(held.pin, transfer.first, transfer.target);
        for (uint32_t i = 0; i < transfer.target.size(); ++i) {
          naive_.page(held.name_space, held.units, transfer.first + i).host = transfer.target[i];
        }
      }
      naive_.unlock(held.name_space, held.units, held.pin.pages, false);
    } else if (failed) {
      index_.load_failed(held.pin, transfer.first);
      for (const PageId page : transfer.target) gpu_.release(page, naive_.clock);
      index_.release(held.pin, false);
      naive_.unlock(held.name_space, held.units, held.pin.pages, false);
    } else {
      index_.loaded(held.pin, transfer.first, transfer.target);
      for (uint32_t i = 0; i < transfer.target.size(); ++i) {
        auto& page = naive_.page(held.name_space, held.units, transfer.first + i);
        page.gpu = transfer.target[i];
        page.disk.reset();
      }
      if (transfer.first + transfer.target.size() == held.pin.pages) return pins_.push_back(held);
      index_.release(held.pin, false);
      naive_.unlock(held.name_space, held.units, held.pin.pages, false);
    }
  }

  void start_spill() {
    if (!has_disk()) return;
    const auto pages_max = static_cast<uint32_t>(prng_.range(1, 6));
    const uint32_t disk_free = disk_.pages_free();
    const auto shielded = [&](const NaivePrefixes::Key& key) { return behind_a_copy(key); };
    const auto* next = naive_.next_spill(shielded);
    const uint64_t next_stamp = next == nullptr ? UINT64_MAX : stamp_of(*next);
    Transfer spill{.spill = true, .held = {}, .target = {}};
    std::vector<PageId> source;
    const bool started = index_.start_spill(pages_max, &spill.held.pin, &spill.first, &source, &spill.target);
    REQUIRE((started || next == nullptr || disk_free == 0));
    if (!started && next != nullptr) REQUIRE(!naive_.any_may_leave_disk(next_stamp, shielded));
    if (!started) return;
    next = naive_.find_host(source.back());
    REQUIRE(next != nullptr);
    REQUIRE(naive_.may_spill(*next));
    const uint64_t stamp = stamp_of(*next);
    REQUIRE(stamp <= next_stamp);
    const uint32_t end = static_cast<uint32_t>(next->second.size()) / units_per_page_;
    spill.held.name_space = next->first;
    spill.held.units = next->second;
    REQUIRE(spill.held.pin.pages == end);
    REQUIRE(spill.first < end);
    REQUIRE(end - spill.first <= pages_max);
    REQUIRE(source.size() == end - spill.first);
    REQUIRE(spill.target.size() == source.size());
    for (uint32_t i = spill.first; i < end; ++i) {
      const auto& page = naive_.page(next->first, next->second, i);
      REQUIRE(page.host == source[i - spill.first]);
      REQUIRE(!page.gpu);
      REQUIRE(page.locks == 0);
    }
    // Pages were dropped from the disk only to make room for this spill.
    for (size_t left = spill.target.size(); left > 0; --left) {
      for (const PageId target : spill.target) {
        const auto* dropped = naive_.find_disk(target);
        if (dropped != nullptr && naive_.may_leave_disk(*dropped, stamp)) naive_.leave_disk(*dropped);
      }
    }
    for (const PageId target : spill.target) REQUIRE(naive_.find_disk(target) == nullptr);
    naive_.lock(spill.held.name_space, spill.held.units, end);
    transfers_.push_back(spill);
  }

  // Pages that others protect, or that are on the GPU again, stay on the host.
  void end_spill(const Transfer& spill, bool failed) {
    const Held& held = spill.held;
    if (failed) {
      index_.spill_failed(held.pin, spill.target);
    } else {
      index_.spilled(held.pin, spill.first, spill.target);
      for (uint32_t i = 0; i < spill.target.size(); ++i) {
        auto& page = naive_.page(held.name_space, held.units, spill.first + i);
        if (page.gpu || page.locks > 1) continue;
        page.host.reset();
        page.disk = spill.target[i];
      }
    }
    naive_.unlock(held.name_space, held.units, held.pin.pages, false);
  }

  void mark_dropped() {
    if (pins_.empty()) return;
    const Held& held = pins_[prng_.range(0, pins_.size() - 1)];
    if (held.pin.pages == 0) return;
    const auto page = static_cast<uint32_t>(prng_.range(0, held.pin.pages - 1));
    auto& plain = naive_.page(held.name_space, held.units, page);
    const auto kv_entries = static_cast<uint32_t>(prng_.range(0, kPageTokens - plain.dropped_tokens));
    index_.mark_dropped(held.pin, page, kv_entries);
    plain.dropped_tokens += kv_entries;
  }

  void expect_equal() {
    index_.check_invariants();
    gpu_.check_invariants();
    host_.check_invariants();
    REQUIRE(index_.pages_gpu() == naive_.count_gpu());
    REQUIRE(index_.pages_host() == naive_.count_host());
    REQUIRE(index_.pages_disk() == naive_.count_disk());
    disk_.check_invariants();
    REQUIRE(index_.pages_evictable() == naive_.count_evictable(false));
    REQUIRE(index_.pages_evictable_copied() == naive_.count_evictable(true));
    uint32_t to_gpu = 0, to_host = 0, to_disk = 0;
    for (const Transfer& transfer : transfers_) {
      (transfer.spill     ? to_disk
       : transfer.offload ? to_host
                          : to_gpu) += static_cast<uint32_t>(transfer.target.size());
    }
    REQUIRE(gpu_.pages_owned() == naive_.count_gpu() + to_gpu);
    REQUIRE(host_.pages_owned() == naive_.count_host() + to_host);
    REQUIRE(disk_.pages_owned() == naive_.count_disk() + to_disk);
    for (const Held& held : pins_) {
      std::vector<PageId> pages, expected;
      uint64_t live = 0;
      index_.gpu_pages(held.pin, &pages);
      for (uint32_t i = 0; i < held.pin.pages; ++i) {
        const auto& page = naive_.page(held.name_space, held.units, i);
        expected.push_back(*page.gpu);
        live += kPageTokens - page.dropped_tokens;
      }
      REQUIRE(pages == expected);
      std::vector<uint16_t> dropped;
      index_.dropped_entries(held.pin, &dropped);
      uint64_t counted = uint64_t{held.pin.pages} * kPageTokens;
      for (const uint16_t entries : dropped) counted -= entries;
      REQUIRE(counted == live);
    }
  }

  bool has_disk() const { return pages_host_ > 0 && pages_disk_ > 0; }

  Prng prng_;
  const uint32_t units_per_page_;
  const PageOrder order_;
  const uint32_t pages_gpu_, pages_host_, pages_disk_;
  PagePool gpu_, host_, disk_;
  PrefixIndex index_;
  NaivePrefixes naive_;
  std::vector<Units> identities_;
  std::vector<Held> pins_;
  std::vector<Transfer> transfers_;
  uint64_t transfer_next_ = 0;
};

}  // namespace

TEST_CASE("prefix index: agrees with a map of whole prefixes") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    set_check_context("model_test -tc='prefix index*' seed=" + std::to_string(seed));
    Pair pair(seed, seed % 2 == 0 ? 1 : 4);
    for (int op = 0; op < 200; ++op) {
      CAPTURE(op);
      pair.step();
    }
    pair.drain();
  }
  set_check_context("");
}
