#include "tests/swarm/swarm_probes.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin::testing {

ProbeObserver::ProbeObserver(const std::vector<CoreConfig>& engines, Probes* probes)
    : configs_(engines), probes_(probes), engines_(engines.size()) {}

void ProbeObserver::hit(const std::string& name) { ++(*probes_)[name]; }

bool ProbeObserver::recalling(const Engine& engine) const {
  return std::any_of(engine.transfers.begin(), engine.transfers.end(),
                     [](const auto& transfer) { return transfer.second == TransferKind::kRecall; });
}

// --- events

void ProbeObserver::saw_event(Instant, EngineId engine, const Event& event) {
  constexpr uint64_t kTooMany = 3'000'000;
  KVT_CHECK(++events_ < kTooMany);  // it goes on for ever
  engine_now_ = engine;
  std::visit([&](const auto& e) { saw(e, &engines_[raw(engine)]); }, event);
}

void ProbeObserver::saw(const CallReady& event, Engine* engine) {
  Call& here = calls_[event.call];
  here = {.session = event.session};
  if (event.emitted > 0) {
    here.arrived = true;
    here.source_pages = event.source.size();
    KVT_CHECK(!configs_[raw(engine_now_)].prefill_only);
  }
  if (event.output_tokens == 0) hit("a call of no output");
  for (const auto& [id, kind] : engine->transfers) {
    if (kind == TransferKind::kPreempt) hit("a call arrived while another was on its way to the host");
  }
  if (engine->launched > std::max(engine->done + 2, engine->last_first + 1))
    hit("a stretch was cut by an arrival");
  for (const auto& [id, call] : calls_) {
    if (call.preempted > 0 && !call.answered) {
      hit("a call arrived behind a preempted one");
      break;
    }
  }
}

void ProbeObserver::saw(const CallCancelled& event, Engine* engine) {
  const Call& call = calls_.at(event.call);
  if (call.away) hit("a call that was sent away was cancelled");
  if (call.on_its_way) hit("cancelled while its prompt was on its way");
  if (call.answered) {
    hit("cancelled after its answer");
  } else if (call.launched) {
    hit("cancelled while it ran");
    if (engine->launched - engine->done >= 2) hit("cancelled with two steps in flight");
    if (engine->unanswered.contains(event.call)) hit("a call was cancelled before its counts came");
  } else {
    hit("cancelled before its first step");
    if (recalling(*engine)) hit("cancelled while a recall was under way, before its first step");
  }
}

void ProbeObserver::saw(const StepDone& event, Engine* engine) {
  engine->done += event.ends.size();
  const uint32_t page = configs_[raw(event.engine)].page_tokens;
  for (const CellsKept& kept : event.kept) {
    for (uint32_t first = 0; !kept.live.empty() && first + page <= kept.live.size() * 64 - 64;
         first += page) {
      bool any = false;
      for (uint32_t p = first; p < first + page; ++p) any = any || ((kept.live[p / 64] >> (p % 64)) & 1) != 0;
      if (!any) hit("a page full of dropped cells was freed");
    }
    engine->unanswered.erase(kept.call);
  }
  if (!event.eos.empty() && engine->launched > engine->done + 1) hit("end-of-sequence ended a stretch");
}

void ProbeObserver::saw(const TransferDone& event, Engine* engine) {
  static constexpr const char* kNames[] = {"a recall arrived",        "a demotion arrived",
                                           "a prompt arrived",        "a demoted call left",
                                           "a demoted call returned", "a spill arrived"};
  hit(kNames[static_cast<size_t>(engine->transfers.at(event.transfer))]);
  engine->forget(event.transfer);
}

void ProbeObserver::saw(const TransferFailed& event, Engine* engine) {
  static constexpr const char* kNames[] = {"a recall failed",         "a demotion failed",
                                           "a prompt did not arrive", "a call's demotion failed",
                                           "a call's return failed",  "a spill failed"};
  hit(kNames[static_cast<size_t>(engine->transfers.at(event.transfer))]);
  if (engine->from_disk.contains(event.transfer)) hit("a recall from the disk failed");
  engine->forget(event.transfer);
}

// --- commands

void ProbeObserver::saw_command(Instant, const Command& command) {
  std::visit([&](const auto& c) { told(c); }, command);
}

void ProbeObserver::told(const LaunchStep& c) {
  Engine& engine = engines_[raw(c.engine)];
  if (raw(c.step) > engine.done) hit("two steps in flight");
  engine.last_first = raw(c.step);
  engine.launched = raw(c.step) + c.repeat;
  if (c.repeat >= 100) hit("a stretch of a hundred steps");
  if (c.tokens_padded > c.tokens) hit("a padded step");
  if (!c.grants.empty() && c.grants.back().offset > 0) hit("a stretch got pages ahead");
  if (configs_[raw(c.engine)].pages_gpu == 1) hit("a pool of one page served a call");
  for (const PlanEntry& entry : c.entries) {
    Call& call = calls_.at(entry.call);
    call.launched = true;
    if (entry.kind == EntryKind::kChunk && !entry.samples) hit("a prompt in chunks");
    if (entry.first && call.away && entry.context > 0) saw_return(c, entry, engine);
    if (entry.first) call.away = false;
    if (entry.first && entry.context > 0 && call.preempted > 0)
      hit("a preempted call found its prefix again");
  }
  saw_compressions(c, &engine);
  saw_formats(c);
  saw_snapshots(c, &engine);
  if (configs_[raw(c.engine)].policies.placement == "arena") saw_homes(c, &engine);
  const bool tagged = configs_[raw(c.engine)].policies.precision == "triaxial";
  std::set<PageId> now;
  for (const PageGrant& grant : c.grants) {
    now.insert(grant.page);
    engine.writer[grant.page] = calls_.at(c.entries[grant.entry].call).session;
  }
  for (const Adoption& adoption : c.adoptions) {
    for (const PageId page : adoption.pages) {
      if (page == kNoPage && !tagged) hit("a prefix with holes was adopted");
      const auto writer = engine.writer.find(page);
      const bool other = writer != engine.writer.end() && writer->second != calls_.at(adoption.call).session;
      if (other) hit("a prefix from another session");
      if (now.contains(page)) hit("a prefix from a call of the same step");
    }
  }
}

void ProbeObserver::saw_compressions(const LaunchStep& c, Engine* engine) {
  for (size_t i = 1; i < c.grants.size(); ++i) {
    const PageGrant &a = c.grants[i - 1], &b = c.grants[i];
    if (b.offset > 0 && a.offset == b.offset && a.entry == b.entry) {
      hit("pages of several groups in one step of a stretch");
    }
  }
  engine->unanswered.clear();
  for (const Compression& compression : c.compressions) {
    const PlanEntry& entry = c.entries[compression.entry];
    hit(compression.keep.empty() ? "a compression that the world counts" : "a compression with known counts");
    if (compression.staged) hit("a staged chunk");
    if (compression.before) hit("a compression at the start of a turn");
    if (raw(c.step) > engine->done) hit("a compression while two steps are in flight");
    if (calls_.at(entry.call).preempted > 0) hit("a preempted call was compressed again");
    if (entry.kind == EntryKind::kDecode) hit("a compression between decode steps");
    if (compression.keep.empty()) engine->unanswered.insert(entry.call);
  }
}

void ProbeObserver::saw_snapshots(const LaunchStep& c, Engine* engine) {
  for (const Adoption& adoption : c.adoptions) {
    if (adoption.cells.empty()) continue;
    const auto entry = std::find_if(c.entries.begin(), c.entries.end(),
                                    [&](const PlanEntry& e) { return e.call == adoption.call; });
    const Call& call = calls_.at(adoption.call);
    if (entry->first) {
      hit("a call began with a snapshot");
      if (engine->snapshots.at(adoption.snapshot) != call.session)
        hit("a call began with another session's snapshot");
      if (call.preempted > 0) hit("a preempted call began with a snapshot");
    } else {
      hit("a call went on behind its own snapshot");
      if (entry->kind == EntryKind::kDecode) hit("a call decoded behind its own snapshot");
    }
    if (std::any_of(adoption.shared.begin(), adoption.shared.end(), [](uint32_t n) { return n > 0; }))
      hit("a snapshot shared a page with the one before");
  }
  for (const Snapshot& snapshot : c.snapshots) {
    const PlanEntry& entry = c.entries[snapshot.entry];
    hit("a snapshot was taken");
    if (raw(c.step) > engine->done) hit("a snapshot was taken with two steps in flight");
    for (const Compression& compression : c.compressions) {
      if (compression.entry == snapshot.entry && compression.keep.empty())
        hit("a snapshot of counts that the world said");
    }
    if (engine->snapshots.contains(snapshot.snapshot)) hit("a snapshot's number was given again");
    engine->snapshots[snapshot.snapshot] = calls_.at(entry.call).session;
  }
}

void ProbeObserver::saw_formats(const LaunchStep& c) {
  const CoreConfig& config = configs_[raw(c.engine)];
  if (config.policies.precision != "triaxial") return;
  const auto is_int2 = [&](PageId page) { return raw(page) < config.pages_int2; };
  std::map<uint32_t, uint32_t> cells_2, pages_2;
  for (const PageGrant& grant : c.grants) pages_2[grant.entry] += is_int2(grant.page) ? 1 : 0;
  for (const CellRun& run : c.formats) {
    if (run.count == 0) hit("a prompt's end flushed what waited");
    if (!run.four) cells_2[run.entry] += run.count;
  }
  for (const auto& [entry, cells] : cells_2) {
    if (pages_2[entry] > 0) hit("a group filled an int2 page");
    if (cells / config.page_tokens > pages_2[entry]) hit("2-bit cells spilled to int4");
  }
  if (!c.ageings.empty()) hit("a prefix was requantised");
  for (const Adoption& adoption : c.adoptions) {
    const auto narrow = std::count_if(adoption.pages.begin(), adoption.pages.end(), is_int2);
    const auto ends = std::count(adoption.pages.begin(), adoption.pages.end(), kNoPage);
    if (narrow > 0 && narrow + ends < static_cast<ptrdiff_t>(adoption.pages.size()))
      hit("a prefix in pages of two formats was adopted");
  }
}

void ProbeObserver::saw_homes(const LaunchStep& c, Engine* engine) {
  const uint32_t pages_gpu = configs_[raw(c.engine)].pages_gpu;
  const auto on_gpu = [&](const PageGrant& grant) { return raw(grant.page) < pages_gpu; };
  if (c.repeat > 1 && !c.grants.empty() && std::none_of(c.grants.begin(), c.grants.end(), on_gpu))
    hit("a full arena took only a host page");
  for (const PlanEntry& entry : c.entries) {
    if (entry.first) calls_.at(entry.call).has_prefix = entry.context > 0;
  }
  for (const PageGrant& grant : c.grants) {
    if (engine->homes.erase(grant.page) > 0) hit("a home was given again");
  }
  for (const Compression& compression : c.compressions) {
    hit("a prompt was cut before its arena");
    uint32_t left = compression.keep.front();
    for (const Compression::Forced& forced : compression.forced) left += forced.end - forced.begin;
    const uint32_t page = configs_[raw(c.engine)].page_tokens;
    if (div_ceil(left, page) < div_ceil(compression.end, page)) hit("a prompt was cut to fewer homes");
  }
  for (const Adoption& adoption : c.adoptions) {
    hit("a prefix of homes was adopted");
    const PageId home = adoption.pages.front();
    engine->homes.insert(adoption.pages.begin(), adoption.pages.begin() + adoption.pages.size() / 2);
    if (engine->writer.at(home) != calls_.at(adoption.call).session)
      hit("a prefix of homes from another session");
  }
}

// Only a call that was demoted begins with tokens that fill no whole page, or with its next output.
void ProbeObserver::saw_return(const LaunchStep& c, const PlanEntry& entry, const Engine& engine) {
  const bool part = entry.context % configs_[raw(c.engine)].page_tokens != 0;
  if (part) hit("a partly filled page came back");
  if (part && entry.kind == EntryKind::kDecode) hit("a demoted call came back to decode");
  for (const Adoption& adoption : c.adoptions) {
    if (!part || adoption.call != entry.call || adoption.pages.empty()) continue;
    if (!engine.returned.contains(adoption.pages.front())) hit("a demoted call found pages in the index");
  }
}

// All pages of a transfer are where it says.
void ProbeObserver::check_tiers(const StartTransfer& c, const CoreConfig& config) {
  const auto tier_of = [&](PageId page) {
    if (raw(page) < config.pages_gpu) return Tier::kGpu;
    return raw(page) < config.pages_gpu + config.pages_host ? Tier::kHost : Tier::kDisk;
  };
  for (const PageId page : c.source) KVT_CHECK(tier_of(page) == c.source_tier);
  for (const PageId page : c.target) KVT_CHECK(tier_of(page) == c.target_tier);
}

void ProbeObserver::told(const StartTransfer& c) {
  Engine& engine = engines_[raw(c.engine)];
  if (c.kind == TransferKind::kRecall && recalling(engine)) hit("two recalls at once");
  if (c.kind == TransferKind::kRecall && engine.launched > engine.done)
    hit("a recall while a step was in flight");
  if (c.kind == TransferKind::kPreempt) {
    hit("a call was demoted");
    if (engine.launched > engine.done) hit("a demotion while a step was in flight");
  }
  if (c.kind == TransferKind::kResume) {
    hit("pages of a demoted call came back");
    engine.returned.insert(c.target.begin(), c.target.end());
  }
  if (c.kind != TransferKind::kReceive) check_tiers(c, configs_[raw(c.engine)]);
  engine.transfers[c.transfer] = c.kind;
  if (c.kind == TransferKind::kSpill) {
    engine.spilling[c.transfer] = {c.source.begin(), c.source.end()};
    if (configs_[raw(c.engine)].pages_disk == 1) hit("a disk of one page was used");
  }
  if (c.kind == TransferKind::kRecall && c.source_tier == Tier::kDisk) {
    hit("a recall from the disk");
    engine.from_disk.insert(c.transfer);
  } else if (c.kind == TransferKind::kRecall) {
    for (const auto& [id, pages] : engine.spilling) {
      if (pages.contains(c.source.back())) hit("a recall reads what is being spilled");
    }
  }
  if (c.kind != TransferKind::kReceive) return;
  Call& call = calls_.at(c.call);
  KVT_CHECK(call.arrived && !call.launched);
  if (c.source.empty()) hit("all of a prompt was there already");
  if (c.source.size() < call.source_pages && !c.source.empty()) hit("part of a prompt was there already");
  call.on_its_way = true;
}

void ProbeObserver::told(const HandOver& c) {
  hit("a call was handed over");
  KVT_CHECK(configs_[raw(c.engine)].prefill_only);
}

// Read once, and not before it was handed over.
void ProbeObserver::told(const SourceRead& c) {
  Call& call = calls_.at(c.call);
  KVT_CHECK(call.arrived && !call.read);
  call.read = true;
  call.on_its_way = false;
}

void ProbeObserver::told(const FinishCall& c) { calls_.at(c.call).answered = true; }

void ProbeObserver::told(const RejectCall& c) {
  calls_.at(c.call).answered = true;
  switch (c.reason) {
    case RejectCall::Reason::kLongerThanWindow:
      hit("rejected: longer than the window");
      break;
    case RejectCall::Reason::kLargerThanPool:
      hit("rejected: larger than the pool");
      break;
    case RejectCall::Reason::kPromptEmpty:
      hit("rejected: empty prompt");
      break;
  }
}

void ProbeObserver::told(const DropCallState& c) {
  if (c.reason != DropCallState::Reason::kPreempted) return;
  hit("a call was preempted");
  calls_.at(c.call).away = true;
  if (calls_.at(c.call).arrived) hit("an arrived call was preempted");
  if (configs_[raw(c.engine)].policies.placement == "arena") hit("a call with an arena was preempted");
  if (calls_.at(c.call).has_prefix) hit("a call with a prefix of homes was preempted");
  if (++calls_.at(c.call).preempted == 2) hit("a call was preempted twice");
  if (!engines_[raw(c.engine)].transfers.empty()) hit("a preemption while a transfer was under way");
}

void ProbeObserver::saw_state(Instant, EngineId, const Core& core) {
  const CoreGauges gauges = core.gauges();
  KVT_CHECK(gauges.pages_gpu_free + gauges.pages_gpu_cached + gauges.pages_gpu_held ==
            gauges.pages_gpu_total);
  KVT_CHECK(gauges.cells_held <= gauges.slots_held);
  if (core.idle()) {  // nobody is left who could need a page
    KVT_CHECK(gauges.pages_gpu_held == 0);
    KVT_CHECK(gauges.slots_held == 0);
  }
  if (gauges.pages_gpu_free == 0 && gauges.pages_gpu_cached == 0) hit("no page free and none to evict");
  if (gauges.pages_host_total > 0 && gauges.pages_host_free == 0) hit("the host tier is full");
  if (gauges.pages_disk_total > 0 && gauges.pages_disk_free == 0) hit("the disk tier is full");
}

}  // namespace kvtwin::testing
