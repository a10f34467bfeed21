# The bugs that tests/property/negative plants in a copy of the policy. plant(BUG FILE OLD NEW): the copy of FILE has
# NEW where FILE has OLD, which must occur exactly once. planted("BUG") is true if $KVTWIN_PLANT names the bug.

plant(leak_on_preempt engine/kv/managers/paged_kv_manager.cc
[[  for (auto page = r.pages.rbegin(); page != r.pages.rend(); ++page) {]]
[[  if (planted("leak_on_preempt") && preempted && !r.pages.empty()) r.pages.pop_back();
  for (auto page = r.pages.rbegin(); page != r.pages.rend(); ++page) {]])

plant(stale_pin engine/kv/managers/paged_kv_manager.cc
[[  parts_.index.release(r.prefix.pin, true);]]
[[  if (!planted("stale_pin") || !preempted) parts_.index.release(r.prefix.pin, true);]])

plant(unsafe_copy engine/kv/managers/request_transfers.cc
[[!context_.steps.closed(), context_.out);]]
[[!context_.steps.closed() || planted("unsafe_copy"), context_.out);]])

plant(early_drop engine/kv/managers/dropped_slots.cc
[[if (dropped == page) drop_page]]
[[if (dropped == page || (planted("early_drop") && dropped + 1 >= page)) drop_page]])

plant(turn_ranked engine/kv/managers/compressions.cc
[[const uint32_t end = retention_.at_turn_start() ?]]
[[const uint32_t end = retention_.at_turn_start() && !planted("turn_ranked") ?]])

plant(early_fetch engine/kv/managers/resident_kv_manager.cc
[[prefix.pages > 0 && context_.steps.closed();]]
[[prefix.pages > 0 && context_.steps.closed() && !planted("early_fetch");]])

plant(early_swap_out engine/scheduler/batch_planner.cc
[[if (r.launches == 0) transfers_.submit_swap_out]]
[[if (r.launches == 0 || planted("early_swap_out")) transfers_.submit_swap_out]])

plant(awaited_swap_out engine/kv/managers/grouped_kv_transfers.cc
[[if (r.compression.answers > 0 || r.unlaunched) return false;]]
[[if ((r.compression.answers > 0 && !planted("awaited_swap_out")) ||
      (r.unlaunched && !planted("uncopied_swap_out")))
    return false;]])

plant(early_swap_in engine/kv/managers/grouped_kv_manager.cc
[[if (r.tables.pages() < pages) context_.]]
[[if (r.tables.pages() < pages && !planted("early_swap_in")) context_.]])

plant(stale_order engine/kv/group_tables.cc
[[  ordered_ = false;
}

void GroupTables::trim]]
[[  if (!planted("stale_order")) ordered_ = false;
}

void GroupTables::trim]])

plant(open_tail engine/kv/store/prefix_checkpoint_cache.cc
[[  KVT_CHECK(!record.live);
  record = {};]]
[[  if (planted("open_tail")) window = 0;
  KVT_CHECK(!record.live);
  record = {};]])

plant(hot_spill engine/kv/store/prefix_index_disk.cc
[[const bool unlocked = nodes_[id].locks == 1;]]
[[const bool unlocked = nodes_[id].locks == 1 || planted("hot_spill");]])

plant(kept_promise engine/kv/managers/mixed_precision_kv_manager.cc
[[  reserved_4_.drop(&r.reserved_4);
  r.swapped_in = false;]]
[[  if (!planted("kept_promise")) reserved_4_.drop(&r.reserved_4);
  r.swapped_in = false;]])

plant(stale_copy engine/kv/store/mixed_precision_copies.cc
[[host.version == p.version;]]
[[(host.version == p.version || planted("stale_copy"));]])
