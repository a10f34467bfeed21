// TransferManager: copies of cached prefixes to the tier below. While few GPU pages can be evicted for free,
// the next victims are offloaded to the host. While few host pages are free, the next victims that are on the
// host alone are spilled to the disk. While the host is full, offloads wait for a spill in progress; if none
// is possible, the host drops its oldest copies, as it does without a disk.

#include "engine/kv/store/transfer_manager.h"

namespace kvtwin {
namespace {

constexpr uint32_t kOffloadsMax = 2;
constexpr uint32_t kSpillsMax = 2;

}  // namespace

// A copy protects its path, and frees or takes pages of the other tier: the tiers take turns.
bool TransferManager::start_copies_down(std::span<const uint64_t> reserved, bool offloads,
                                        std::vector<Command>* out) {
  bool lost = false, changed = true;
  while (changed) {
    if (offloads) lost = start_offloads(reserved, out) || lost;
    changed = false;
    if (tiers_.disk != nullptr) lost = start_spills(reserved, &changed, out) || lost;
  }
  return lost;
}

bool TransferManager::below_offload_target(uint32_t newly_taken) const {
  return uint64_t{tiers_.room->pages_spare()} + offloads_.pages <
         uint64_t{limits_.offload_pages_target} + newly_taken;
}

bool TransferManager::start_offloads(std::span<const uint64_t> reserved, std::vector<Command>* out) {
  PrefixIndex& index = *tiers_.index;
  bool lost = false;
  while (!offloads_.barred && offloads_.live < kOffloadsMax && below_offload_target(0)) {
    // A spill in progress makes room: no copy is dropped for a page that is about to become free.
    if (spills_.live > 0 && tiers_.host->pages_free() == 0) return lost;
    Transfer& transfer = open(TransferKind::kOffload, Tier::kGpu, Tier::kHost);
    using Offload = PrefixIndex::Offload;
    Offload answer = index.start_offload(limits_.batch_pages, &transfer.pin, &transfer.first,
                                         &transfer.source, &transfer.target);
    transfer.numbers = transfer.target;
    if (answer == Offload::kStarted && tiers_.watch != nullptr)
      tiers_.watch->resolve(&transfer.source, &transfer.target);
    if (answer == Offload::kStarted && !tiers_.room->covers(reserved)) {
      // Pages cannot be evicted while they are copied: reserved pages must remain available.
      // (Copies were dropped for it, so retrying at once might never end.)
      index.offload_failed(transfer.pin, transfer.numbers);
      offloads_.barred = true;
      answer = Offload::kNothingToOffload;
    }
    if (answer != Offload::kStarted) {
      undo(&transfer);
      if (answer == Offload::kNothingToOffload) return lost;
      lost = true;
      std::vector<PageId> oldest;  // on either tier: not worth a copy
      tiers_.cache->evict_uncopied(&oldest);
      for (const PageId page : oldest) tiers_.free_gpu(page);
      continue;
    }
    lost = true;  // pages being copied are unavailable meanwhile
    ++offloads_.live;
    offloads_.pages += static_cast<uint32_t>(transfer.source.size());
    submit(&transfer, out);
  }
  return lost;
}

bool TransferManager::start_spills(std::span<const uint64_t> reserved, bool* changed,
                                   std::vector<Command>* out) {
  PrefixIndex& index = *tiers_.index;
  bool lost = false;
  while (!spills_.barred && spills_.live < kSpillsMax &&
         uint64_t{tiers_.host->pages_free()} + spills_.pages < limits_.spill_pages_target) {
    Transfer& transfer = open(TransferKind::kSpill, Tier::kHost, Tier::kDisk);
    bool started = index.start_spill(limits_.batch_pages, &transfer.pin, &transfer.first, &transfer.source,
                                     &transfer.target);
    lost = lost || started;  // older pages may have been dropped to make room
    if (started && !tiers_.room->covers(reserved)) {
      // The GPU pages above them cannot be evicted meanwhile: see start_offloads().
      index.spill_failed(transfer.pin, transfer.target);
      spills_.barred = true;
      started = false;
    }
    if (!started) {
      undo(&transfer);
      return lost;
    }
    *changed = true;
    ++spills_.live;
    spills_.pages += static_cast<uint32_t>(transfer.source.size());
    submit(&transfer, out);
  }
  return lost;
}

void TransferManager::settle_offload(const Transfer& transfer, bool arrived) {
  --offloads_.live;
  offloads_.pages -= static_cast<uint32_t>(transfer.source.size());
  if (arrived) {
    if (tiers_.watch != nullptr) tiers_.watch->arrived(transfer.numbers, transfer.target);
    tiers_.index->offloaded(transfer.pin, transfer.first, transfer.numbers);
  } else {
    tiers_.index->offload_failed(transfer.pin, transfer.numbers);
    offloads_.barred = true;
  }
}

void TransferManager::settle_spill(const Transfer& transfer, bool arrived) {
  --spills_.live;
  spills_.pages -= static_cast<uint32_t>(transfer.source.size());
  if (arrived) {
    tiers_.index->spilled(transfer.pin, transfer.first, transfer.target);
  } else {
    tiers_.index->spill_failed(transfer.pin, transfer.target);
    spills_.barred = true;
  }
}

}  // namespace kvtwin
