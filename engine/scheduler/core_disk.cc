// Core: the disk tier, below the host. While fewer than spill_pages_target host pages are free, the next
// victims that are on the host alone are copied to the disk. While the host is full, offloads wait for a
// spill in progress; if none is possible, the host drops its oldest copies, as it does without a disk.

#include "engine/scheduler/core_state.h"

namespace kvtwin {

// Starts copies from each tier to the one below until no further one can start: a copy protects its path, and
// frees or takes pages of the other tier.
void Core::State::start_copies_down() {
  do {
    start_offload();
  } while (disk && start_spilling());
}

bool Core::State::start_spilling() {
  constexpr uint32_t kSpillsMax = 2;
  bool changed = false;
  while (!spilling_barred && spilling < kSpillsMax &&
         uint64_t{host->pages_free()} + spilling_pages < config.spill_pages_target) {
    TransferState& transfer = new_transfer(TransferKind::kSpill);
    bool started = index.start_spill(config.offload_batch_pages, &transfer.pin, &transfer.first,
                                     &transfer.source, &transfer.target);
    evicted_now = evicted_now || started;  // older pages may have been dropped to make room
    if (started && reserved_total > uint64_t{gpu.pages_free()} + index.pages_evictable()) {
      // The GPU pages above them cannot be evicted meanwhile: see start_offload().
      index.spill_failed(transfer.pin, transfer.target);
      spilling_barred = true;
      started = false;
    }
    if (!started) {
      undo_transfer(&transfer);
      return changed;
    }
    changed = true;
    ++spilling;
    spilling_pages += static_cast<uint32_t>(transfer.source.size());
    submit_transfer(transfer, Tier::kHost, Tier::kDisk);
  }
  return changed;
}

void Core::State::finish_spill(const TransferState& transfer, bool arrived) {
  --spilling;
  spilling_pages -= static_cast<uint32_t>(transfer.source.size());
  if (arrived) {
    index.spilled(transfer.pin, transfer.first, transfer.target);
  } else {
    index.spill_failed(transfer.pin, transfer.target);
    spilling_barred = true;
  }
}

}  // namespace kvtwin
