#include "tests/property/swarm/swarm_probes.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin::testing {

ProbeObserver::ProbeObserver(const std::vector<CoreConfig>& engines, Probes* probes)
    : configs_(engines), probes_(probes), engines_(engines.size()) {}

void ProbeObserver::hit(const std::string& name) { ++(*probes_)[name]; }

bool ProbeObserver::recalling(const Engine& engine) const {
  return std::any_of(engine.transfers.begin(), engine.transfers.end(),
                     [](const auto& transfer) { return transfer.second == TransferKind::kLoad; });
}

// --- events

void ProbeObserver::saw_event(Instant, EngineId engine, const Event& event) {
  constexpr uint64_t kTooMany = 3'000'000;
  KVT_CHECK(++events_ < kTooMany);  // the run does not end
  engine_now_ = engine;
  std::visit([&](const auto& e) { saw(e, &engines_[raw(engine)]); }, event);
}

void ProbeObserver::saw(const RequestReady& event, Engine* engine) {
  Request& here = requests_[event.request];
  here = {.session = event.session};
  if (event.emitted > 0) {
    here.arrived = true;
    here.source_pages = event.source.size();
    KVT_CHECK(!configs_[raw(engine_now_)].prefill_only);
  }
  if (event.output_tokens == 0) hit("a request of no output");
  for (const auto& [id, kind] : engine->transfers) {
    if (kind == TransferKind::kSwapOut) hit("a request arrived during a swap-out");
  }
  if (engine->launched > std::max(engine->done + 2, engine->last_first + 1))
    hit("coalesced steps were ended by an arrival");
  for (const auto& [id, request] : requests_) {
    if (request.preempted > 0 && !request.answered) {
      hit("a request arrived after a preempted one");
      break;
    }
  }
}

void ProbeObserver::saw(const RequestCancelled& event, Engine* engine) {
  const Request& request = requests_.at(event.request);
  if (request.swapped_out) hit("a swapped-out request was cancelled");
  if (request.on_its_way) hit("cancelled while its prompt was transferred");
  if (request.answered) {
    hit("cancelled after it was answered");
  } else if (request.launched) {
    hit("cancelled while it ran");
    if (engine->launched - engine->done >= 2) hit("cancelled with two steps in flight");
    if (engine->unanswered.contains(event.request))
      hit("a request was cancelled before its counts were reported");
  } else {
    hit("cancelled before its first step");
    if (recalling(*engine)) hit("cancelled during a load, before its first step");
  }
}

void ProbeObserver::saw(const StepDone& event, Engine* engine) {
  engine->done += event.ends.size();
  const uint32_t page = configs_[raw(event.engine)].page_tokens;
  for (const CompressionOutcome& retained : event.retained) {
    for (uint32_t first = 0; !retained.live.empty() && first + page <= retained.live.size() * 64 - 64;
         first += page) {
      bool any = false;
      for (uint32_t p = first; p < first + page; ++p)
        any = any || ((retained.live[p / 64] >> (p % 64)) & 1) != 0;
      if (!any) hit("a page full of dropped KV entries was freed");
    }
    engine->unanswered.erase(retained.request);
  }
  if (!event.eos.empty() && engine->launched > engine->done + 1) hit("end-of-sequence ended coalesced steps");
}

void ProbeObserver::saw(const TransferDone& event, Engine* engine) {
  static constexpr const char* kNames[] = {"a load arrived",     "an offload arrived", "a prompt arrived",
                                           "a swap-out arrived", "a swap-in arrived",  "a spill arrived"};
  hit(kNames[static_cast<size_t>(engine->transfers.at(event.transfer))]);
  engine->forget(event.transfer);
}

void ProbeObserver::saw(const TransferFailed& event, Engine* engine) {
  static constexpr const char* kNames[] = {"a load failed",           "an offload failed",
                                           "a prompt did not arrive", "a swap-out failed",
                                           "a swap-in failed",        "a spill failed"};
  hit(kNames[static_cast<size_t>(engine->transfers.at(event.transfer))]);
  if (engine->from_disk.contains(event.transfer)) hit("a load from the disk failed");
  engine->forget(event.transfer);
}

// --- commands

void ProbeObserver::saw_command(Instant, const Command& command) {
  std::visit([&](const auto& c) { notify(c); }, command);
}

void ProbeObserver::notify(const LaunchStep& c) {
  Engine& engine = engines_[raw(c.engine)];
  if (raw(c.step) > engine.done) hit("two steps in flight");
  engine.last_first = raw(c.step);
  engine.launched = raw(c.step) + c.repeat;
  if (c.repeat >= 100) hit("a hundred coalesced steps");
  if (c.tokens_padded > c.tokens) hit("a padded step");
  if (!c.allocations.empty() && c.allocations.back().offset > 0) hit("coalesced steps got pages in advance");
  if (configs_[raw(c.engine)].pages_gpu == 1) hit("a pool of one page served a request");
  for (const PlanEntry& entry : c.entries) {
    Request& request = requests_.at(entry.request);
    request.launched = true;
    request.passes_left = entry.passes_left;
    if (entry.kind == EntryKind::kChunk && !entry.samples) hit("a prompt in chunks");
    if (entry.first && request.swapped_out && entry.context > 0) saw_return(c, entry, engine);
    if (entry.first && request.preempted > 0 && !entry.swapped_in)
      hit("a preempted request was computed again");
    if (entry.first) request.swapped_out = false;
    if (entry.first) request.swapped_in = entry.swapped_in;
    if (entry.first && entry.context > 0 && request.preempted > 0)
      hit("a preempted request found its prefix again");
  }
  saw_compressions(c, &engine);
  if (!c.passes.empty()) saw_passes(c, engine);
  saw_formats(c);
  saw_prefix_checkpoints(c, &engine);
  saw_loaded(c, &engine);
  if (configs_[raw(c.engine)].policies.placement == "resident") saw_host_copies(c, &engine);
  const bool tagged = configs_[raw(c.engine)].policies.precision == "triaxial";
  std::set<PageId> now;
  for (const PageAllocation& allocation : c.allocations) {
    now.insert(allocation.page);
    engine.writer[allocation.page] = requests_.at(c.entries[allocation.entry].request).session;
  }
  for (const PrefixHit& prefix_hit : c.prefix_hits) {
    for (const PageId page : prefix_hit.pages) {
      if (page == kNoPage && !tagged) hit("a prefix with dropped pages was reused");
      const auto writer = engine.writer.find(page);
      const bool other =
          writer != engine.writer.end() && writer->second != requests_.at(prefix_hit.request).session;
      if (other) hit("a prefix from another session");
      if (now.contains(page)) hit("a prefix from a request of the same step");
    }
  }
}

void ProbeObserver::saw_passes(const LaunchStep& c, const Engine& engine) {
  const auto has = [&](EntryKind kind) {
    return std::any_of(c.entries.begin(), c.entries.end(), [kind](const auto& e) { return e.kind == kind; });
  };
  const uint32_t most = configs_[raw(c.engine)].step_tokens_max;
  if (has(EntryKind::kDecode)) hit("a pass with decodes");
  if (has(EntryKind::kChunk)) hit("a pass with chunks");
  if (c.tokens == most && c.entries.size() == 1) hit("a pass of all of a step's tokens");
  if (c.tokens > most) hit("a pass above the step's budget");
  if (c.entries[0].kind == EntryKind::kProbe && has(EntryKind::kDecode))
    hit("a decode after the pass that its step begins with");
  if (raw(c.step) > engine.done) hit("a pass with two steps in flight");
}

void ProbeObserver::saw_compressions(const LaunchStep& c, Engine* engine) {
  for (size_t i = 1; i < c.allocations.size(); ++i) {
    const PageAllocation &a = c.allocations[i - 1], &b = c.allocations[i];
    if (b.offset > 0 && a.offset == b.offset && a.entry == b.entry) {
      hit("pages of several groups in one coalesced step");
    }
  }
  engine->unanswered.clear();
  for (const Compression& compression : c.compressions) {
    const PlanEntry& entry = c.entries[compression.entry];
    hit(compression.keep.empty() ? "a compression with counts from the backend"
                                 : "a compression with known counts");
    if (compression.staged) hit("a staged chunk");
    if (compression.before) hit("a compression at the start of a turn");
    if (raw(c.step) > engine->done) hit("a compression while two steps are in flight");
    if (requests_.at(entry.request).preempted > 0) hit("a preempted request was compressed again");
    if (requests_.at(entry.request).swapped_in) hit("a swapped-in request was compressed again");
    if (entry.kind == EntryKind::kDecode) hit("a compression between decode steps");
    if (compression.keep.empty()) engine->unanswered.insert(entry.request);
  }
}

void ProbeObserver::saw_prefix_checkpoints(const LaunchStep& c, Engine* engine) {
  for (const PrefixHit& prefix_hit : c.prefix_hits) {
    if (prefix_hit.kv_entries.empty()) continue;
    const auto entry = std::find_if(c.entries.begin(), c.entries.end(),
                                    [&](const PlanEntry& e) { return e.request == prefix_hit.request; });
    const Request& request = requests_.at(prefix_hit.request);
    if (entry->swapped_in) continue;
    if (entry->first) {
      hit("a request started with a prefix checkpoint");
      if (engine->prefix_checkpoints.at(prefix_hit.prefix_checkpoint) != request.session)
        hit("a request started with another session's prefix checkpoint");
      if (request.preempted > 0) hit("a preempted request started with a prefix checkpoint");
    } else {
      hit("a request continued after its own prefix checkpoint");
      if (entry->kind == EntryKind::kDecode) hit("a request decoded after its own prefix checkpoint");
    }
    if (std::any_of(prefix_hit.shared.begin(), prefix_hit.shared.end(), [](uint32_t n) { return n > 0; }))
      hit("a prefix checkpoint shared a page with the one before");
  }
  for (const PrefixCheckpoint& prefix_checkpoint : c.prefix_checkpoints) {
    const PlanEntry& entry = c.entries[prefix_checkpoint.entry];
    hit("a prefix checkpoint was taken");
    if (raw(c.step) > engine->done) hit("a prefix checkpoint was taken with two steps in flight");
    for (const Compression& compression : c.compressions) {
      if (compression.entry == prefix_checkpoint.entry && compression.keep.empty())
        hit("a prefix checkpoint with counts from the backend");
    }
    if (engine->prefix_checkpoints.contains(prefix_checkpoint.prefix_checkpoint))
      hit("a prefix checkpoint's number was reused");
    engine->prefix_checkpoints[prefix_checkpoint.prefix_checkpoint] = requests_.at(entry.request).session;
  }
}

void ProbeObserver::saw_loaded(const LaunchStep& c, Engine* engine) {
  for (const PrefixHit& prefix_hit : c.prefix_hits) {
    const auto loaded = [&](PageId page) { return engine->loaded.contains(page); };
    if (std::any_of(prefix_hit.pages.begin(), prefix_hit.pages.end(), loaded))
      hit("a prefix in pages from the host was reused");
  }
  for (const PageAllocation& allocation : c.allocations) engine->loaded.erase(allocation.page);
}

void ProbeObserver::saw_formats(const LaunchStep& c) {
  const CoreConfig& config = configs_[raw(c.engine)];
  if (config.policies.precision != "triaxial") return;
  const auto is_int2 = [&](PageId page) { return raw(page) < config.pages_int2; };
  std::map<uint32_t, uint32_t> entries_2, pages_2;
  for (const PageAllocation& allocation : c.allocations)
    pages_2[allocation.entry] += is_int2(allocation.page) ? 1 : 0;
  for (const FormatRun& run : c.formats) {
    if (run.count == 0) hit("a prompt's end flushed waiting entries");
    if (!run.four) entries_2[run.entry] += run.count;
  }
  for (const auto& [entry, kv_entries] : entries_2) {
    if (pages_2[entry] > 0) hit("a group filled an int2 page");
    if (kv_entries / config.page_tokens > pages_2[entry]) hit("2-bit KV entries went to int4");
  }
  if (!c.requantisations.empty()) hit("a prefix was requantised");
  for (const PrefixHit& prefix_hit : c.prefix_hits) {
    const auto low_bit = std::count_if(prefix_hit.pages.begin(), prefix_hit.pages.end(), is_int2);
    const auto ends = std::count(prefix_hit.pages.begin(), prefix_hit.pages.end(), kNoPage);
    if (low_bit > 0 && low_bit + ends < static_cast<ptrdiff_t>(prefix_hit.pages.size()))
      hit("a prefix in pages of two formats was reused");
  }
}

void ProbeObserver::saw_host_copies(const LaunchStep& c, Engine* engine) {
  const uint32_t pages_gpu = configs_[raw(c.engine)].pages_gpu;
  const auto on_gpu = [&](const PageAllocation& allocation) { return raw(allocation.page) < pages_gpu; };
  if (c.repeat > 1 && !c.allocations.empty() &&
      std::none_of(c.allocations.begin(), c.allocations.end(), on_gpu))
    hit("full resident pages took only a host page");
  for (const PlanEntry& entry : c.entries) {
    if (entry.first) requests_.at(entry.request).has_prefix = entry.context > 0;
  }
  for (const PageAllocation& allocation : c.allocations) {
    if (engine->host_copies.erase(allocation.page) > 0) hit("a host page was reallocated");
  }
  for (const Compression& compression : c.compressions) {
    hit("a prompt was compressed before its resident pages");
    uint32_t left = compression.keep.front();
    for (const Compression::Forced& forced : compression.forced) left += forced.end - forced.begin;
    const uint32_t page = configs_[raw(c.engine)].page_tokens;
    if (div_ceil(left, page) < div_ceil(compression.end, page))
      hit("a prompt was compressed to fewer host pages");
  }
  for (const PrefixHit& prefix_hit : c.prefix_hits) {
    hit("a prefix of host pages was reused");
    const PageId host_copy = prefix_hit.pages.front();
    engine->host_copies.insert(prefix_hit.pages.begin(),
                               prefix_hit.pages.begin() + prefix_hit.pages.size() / 2);
    if (engine->writer.at(host_copy) != requests_.at(prefix_hit.request).session)
      hit("a prefix of host pages from another session");
  }
}

// Only a swapped-out request resumes with a partly filled page, or by decoding its next token.
void ProbeObserver::saw_return(const LaunchStep& c, const PlanEntry& entry, const Engine& engine) {
  const bool part = entry.context % configs_[raw(c.engine)].page_tokens != 0;
  if (part) hit("a partly filled page was swapped in");
  if (part && entry.kind == EntryKind::kDecode) hit("a swapped-in request continued to decode");
  if (entry.swapped_in && entry.dropped > 0) hit("a compressed request was swapped in");
  if (entry.swapped_in && entry.kind == EntryKind::kChunk) hit("a request was swapped out within its prompt");
  for (const PrefixHit& prefix_hit : c.prefix_hits) {
    if (prefix_hit.request != entry.request) continue;
    if (std::find(prefix_hit.pages.begin(), prefix_hit.pages.end(), kNoPage) != prefix_hit.pages.end())
      hit("a swapped-in request lists dropped pages");
    if (!part || prefix_hit.pages.empty()) continue;
    if (!engine.returned.contains(prefix_hit.pages.front()))
      hit("a swapped-in request found pages in the index");
  }
}

// All pages of a transfer belong to the tiers that it names.
void ProbeObserver::check_tiers(const StartTransfer& c, const CoreConfig& config) {
  const auto tier_of = [&](PageId page) {
    if (raw(page) < config.pages_gpu) return Tier::kGpu;
    return raw(page) < config.pages_gpu + config.pages_host ? Tier::kHost : Tier::kDisk;
  };
  for (const PageId page : c.source) KVT_CHECK(tier_of(page) == c.source_tier);
  for (const PageId page : c.target) KVT_CHECK(tier_of(page) == c.target_tier);
}

void ProbeObserver::notify(const StartTransfer& c) {
  Engine& engine = engines_[raw(c.engine)];
  if (c.kind == TransferKind::kLoad && recalling(engine)) hit("two loads at once");
  if (c.kind == TransferKind::kLoad && engine.launched > engine.done)
    hit("a load while a step was in flight");
  if (c.kind == TransferKind::kLoad) engine.loaded.insert(c.target.begin(), c.target.end());
  if (c.kind == TransferKind::kSwapOut) {
    hit("a request was swapped out");
    if (engine.launched > engine.done) hit("a swap-out while a step was in flight");
  }
  if (c.kind == TransferKind::kSwapIn) {
    hit("pages of a request were swapped in");
    engine.returned.insert(c.target.begin(), c.target.end());
    for (const PageId page : c.target) engine.loaded.erase(page);
  }
  if (c.kind != TransferKind::kReceive) check_tiers(c, configs_[raw(c.engine)]);
  engine.transfers[c.transfer] = c.kind;
  if (c.kind == TransferKind::kSpill) {
    engine.spilling[c.transfer] = {c.source.begin(), c.source.end()};
    if (configs_[raw(c.engine)].pages_disk == 1) hit("a disk of one page was used");
  }
  if (c.kind == TransferKind::kLoad && c.source_tier == Tier::kDisk) {
    hit("a load from the disk");
    engine.from_disk.insert(c.transfer);
  } else if (c.kind == TransferKind::kLoad) {
    for (const auto& [id, pages] : engine.spilling) {
      if (pages.contains(c.source.back())) hit("a load read pages that were being spilled");
    }
  }
  if (c.kind != TransferKind::kReceive) return;
  Request& request = requests_.at(c.request);
  KVT_CHECK(request.arrived && !request.launched);
  if (c.source.empty()) hit("all of a prompt was there already");
  if (c.source.size() < request.source_pages && !c.source.empty()) hit("part of a prompt was there already");
  request.on_its_way = true;
}

void ProbeObserver::notify(const HandOver& c) {
  hit("a request was handed over");
  KVT_CHECK(configs_[raw(c.engine)].prefill_only);
}

// The source is read once, and not before it was handed over.
void ProbeObserver::notify(const SourceRead& c) {
  Request& request = requests_.at(c.request);
  KVT_CHECK(request.arrived && !request.read);
  request.read = true;
  request.on_its_way = false;
}

void ProbeObserver::notify(const FinishRequest& c) { requests_.at(c.request).answered = true; }

void ProbeObserver::notify(const RejectRequest& c) {
  requests_.at(c.request).answered = true;
  switch (c.reason) {
    case RejectRequest::Reason::kLongerThanWindow:
      hit("rejected: longer than the window");
      break;
    case RejectRequest::Reason::kLargerThanPool:
      hit("rejected: larger than the pool");
      break;
    case RejectRequest::Reason::kPromptEmpty:
      hit("rejected: empty prompt");
      break;
  }
}

void ProbeObserver::notify(const DropRequestState& c) {
  const bool passes_left = requests_.at(c.request).passes_left > 0;
  if (c.reason != DropRequestState::Reason::kPreempted) {
    if (passes_left) hit("a request ended with passes left");
    return;
  }
  if (passes_left) hit("a preempted request with passes left");
  hit("a request was preempted");
  requests_.at(c.request).swapped_out = true;
  if (requests_.at(c.request).arrived) hit("an arrived request was preempted");
  if (configs_[raw(c.engine)].policies.placement == "resident")
    hit("a request with resident pages was preempted");
  if (requests_.at(c.request).has_prefix) hit("a request with a prefix of host pages was preempted");
  if (++requests_.at(c.request).preempted == 2) hit("a request was preempted twice");
  if (!engines_[raw(c.engine)].transfers.empty()) hit("a preemption during a transfer");
}

void ProbeObserver::saw_state(Instant, EngineId, const Core& core) {
  const CoreGauges gauges = core.gauges();
  KVT_CHECK(gauges.pages_gpu_free + gauges.pages_gpu_cached + gauges.pages_gpu_held ==
            gauges.pages_gpu_total);
  KVT_CHECK(gauges.entries_held <= gauges.slots_held);
  if (core.idle()) {  // no request can need a page
    KVT_CHECK(gauges.pages_gpu_held == 0);
    KVT_CHECK(gauges.slots_held == 0);
  }
  if (gauges.pages_gpu_free == 0 && gauges.pages_gpu_cached == 0) hit("no page free and none to evict");
  if (gauges.pages_host_total > 0 && gauges.pages_host_free == 0) hit("the host tier is full");
  if (gauges.pages_disk_total > 0 && gauges.pages_disk_free == 0) hit("the disk tier is full");
}

}  // namespace kvtwin::testing
