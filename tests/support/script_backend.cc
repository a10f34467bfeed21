#include "tests/support/script_backend.h"

#include <algorithm>
#include <tuple>

#include "engine/base/check.h"
#include "engine/base/prng.h"
#include "engine/methods/registry.h"
#include "engine/methods/retention.h"
#include "tests/support/kv_entry_checker.h"
#include "tests/support/resident_checker.h"

namespace kvtwin::testing {
namespace {

enum Purpose : uint64_t { kStepTime = 1, kStepZero, kTransferTime, kTransferFails, kEos, kPiece };

int64_t below(uint64_t bits, int64_t limit) {
  return static_cast<int64_t>(bits % static_cast<uint64_t>(limit + 1));
}

// Every token counts against the step's budget. Only a pass that no step has room for may exceed it, alone.
void check_tokens(const CoreConfig& config, const LaunchStep& command) {
  uint32_t tokens = 0, stored = 0;
  size_t passes = 0;
  for (size_t i = 0; i < command.entries.size(); ++i) {
    const PlanEntry& entry = command.entries[i];
    KVT_CHECK(entry.tokens > 0);
    KVT_CHECK(command.repeat == 1 || entry.kind == EntryKind::kDecode);
    tokens += entry.tokens, stored += entry.stored();
    if (entry.kind != EntryKind::kProbe) continue;
    KVT_CHECK(passes < command.passes.size() && command.passes[passes++].entry == i);
    KVT_CHECK(!entry.first && !entry.samples);
  }
  KVT_CHECK(passes == command.passes.size());
  KVT_CHECK(tokens == command.tokens);
  KVT_CHECK(tokens <= config.step_tokens_max || (stored == 0 && command.entries.size() == 1));
  KVT_CHECK(command.tokens_padded >= stored);
}

}  // namespace

// Steps [first, first + ends.size()); the first `answered` of them have been answered.
struct ScriptBackend::Launch {
  uint64_t first = 0;
  uint32_t answered = 0;
  bool separately = false;  // it was interrupted: one answer per step
  std::vector<Instant> ends;
  std::vector<PlanEntry> entries;
  std::vector<PageAllocation> allocations;
  struct Reused {
    PrefixHit prefix_hit;
    std::vector<PageId> pages;
    std::vector<uint32_t> kv_entries, shared;

    PrefixHit as_prefix_hit() const {
      return {prefix_hit.request, pages, prefix_hit.prefix_checkpoint, kv_entries, shared};
    }
  };
  std::vector<Reused> prefix_hits;
  std::vector<PrefixCheckpoint> prefix_checkpoints;
  struct Cut {
    Compression compression;
    std::vector<Compression::Forced> forced;
    std::vector<uint32_t> keep;
  };
  std::vector<Cut> cuts;
  std::vector<FormatRun> formats;
  std::vector<Requantisation> requantisations;

  uint64_t end() const { return first + ends.size(); }
};

struct ScriptBackend::Engine {
  EngineId id{};
  CoreConfig config;
  std::unique_ptr<PageChecker> checker;
  std::unique_ptr<KvEntryChecker> kv_entries;  // replaces `checker` where formats are chosen by tag
  std::unique_ptr<ResidentChecker> resident;
  std::deque<Launch> launches;
  uint64_t launched = 0;
  uint64_t done = 0;
  Instant free_at{};                      // end of the last answered step
  std::map<RequestId, uint32_t> sampled;  // tokens of the steps that ran
  std::vector<Instant> answered_ends;     // the last StepDone points into it
  std::vector<RequestId> answered_eos;
  std::vector<RetainedEntries> retained;  // answered_retained points into it
  std::vector<CompressionOutcome> answered_retained;
};

ScriptBackend::ScriptBackend(const ScriptBackendOptions& options, const std::vector<CoreConfig>& engines,
                             const TokenSource* tokens)
    : options_(options) {
  for (const CoreConfig& config : engines) {
    auto engine = std::make_unique<Engine>();
    engine->id = config.engine;
    engine->config = config;
    if (tokens != nullptr) {
      const PolicyAxes axes = make_axes(config.policies);
      if (axes.placement.uses_resident) engine->resident = std::make_unique<ResidentChecker>(config);
      const Retention retention(config, axes);
      if (axes.precision.by_tag) {
        engine->kv_entries = std::make_unique<KvEntryChecker>(config, tokens);
      } else {
        engine->checker = std::make_unique<PageChecker>(options.seed, retention.slot_retention(),
                                                        retention.shape(), tokens);
      }
    }
    engines_.push_back(std::move(engine));
  }
}
ScriptBackend::~ScriptBackend() = default;

void ScriptBackend::submit(const Command& command) {
  if (const auto* step = std::get_if<LaunchStep>(&command)) launch(*step);
  if (const auto* transfer = std::get_if<StartTransfer>(&command)) {
    Engine& engine = *engines_[raw(transfer->engine)];
    const uint64_t id = raw(transfer->transfer);
    const auto took =
        below(draw({options_.seed, kTransferTime, raw(engine.id), id}), options_.transfer_ns_max);
    const bool fails =
        draw({options_.seed, kTransferFails, raw(engine.id), id}) % 100 < options_.transfer_fails_per_100;
    transfers_.push_back({now_ + Duration{took}, engine.id, transfer->transfer, fails});
    if (engine.checker && transfer->kind == TransferKind::kReceive) {
      engine.checker->receive_started(transfer->transfer, *engines_[raw(transfer->from)]->checker,
                                      transfer->source, transfer->target);
    } else if (engine.kv_entries) {
      for (size_t i = 0; i < transfer->source.size(); ++i)
        engine.kv_entries->copied(transfer->source[i], transfer->target[i]);
    } else if (engine.checker) {
      engine.checker->transfer_started(*transfer);
      if (engine.resident) engine.resident->transfer_started(*transfer);
    }
  }
  if (const auto* timer = std::get_if<SetTimer>(&command)) {
    alarms_.push_back({std::max(timer->at, now_), alarm_next_++, {timer->engine, timer->timer}});
  }
}

void ScriptBackend::launch(const LaunchStep& command) {
  Engine& engine = *engines_[raw(command.engine)];
  KVT_CHECK(raw(command.step) == engine.launched);
  KVT_CHECK(command.repeat >= 1);
  KVT_CHECK(command.repeat <= engine.config.repeat_max);
  KVT_CHECK(!command.entries.empty());
  KVT_CHECK(command.entries.size() <= engine.config.requests_max);
  KVT_CHECK(engine.launches.size() < engine.config.steps_in_flight_max);
  check_tokens(engine.config, command);
  Launch launch;
  launch.first = engine.launched;
  launch.entries.assign(command.entries.begin(), command.entries.end());
  launch.allocations.assign(command.allocations.begin(), command.allocations.end());
  for (const PrefixHit& prefix_hit : command.prefix_hits) {
    launch.prefix_hits.push_back({prefix_hit,
                                  {prefix_hit.pages.begin(), prefix_hit.pages.end()},
                                  {prefix_hit.kv_entries.begin(), prefix_hit.kv_entries.end()},
                                  {prefix_hit.shared.begin(), prefix_hit.shared.end()}});
  }
  launch.prefix_checkpoints.assign(command.prefix_checkpoints.begin(), command.prefix_checkpoints.end());
  KVT_CHECK(command.compressions.empty() || command.repeat == 1);
  for (const Compression& c : command.compressions) {
    KVT_CHECK(c.entry < command.entries.size());
    launch.cuts.push_back({c, {c.forced.begin(), c.forced.end()}, {c.keep.begin(), c.keep.end()}});
  }
  launch.formats.assign(command.formats.begin(), command.formats.end());
  launch.requantisations.assign(command.requantisations.begin(), command.requantisations.end());
  Instant at = engine.launches.empty() ? std::max(now_, engine.free_at) : engine.launches.back().ends.back();
  for (uint64_t step = launch.first; step < launch.first + command.repeat; ++step) {
    const bool zero =
        draw({options_.seed, kStepZero, raw(engine.id), step}) % 100 < options_.step_zero_per_100;
    if (!zero)
      at = at + Duration{below(draw({options_.seed, kStepTime, raw(engine.id), step}), options_.step_ns_max)};
    launch.ends.push_back(at);
  }
  engine.launched += command.repeat;
  engine.launches.push_back(std::move(launch));
  if (engine.resident) engine.resident->launched(command);
}

bool ScriptBackend::samples_eos(const Engine& engine, RequestId request, uint32_t token) const {
  return draw({options_.seed, kEos, raw(engine.id), raw(request), token}) % 1000 < options_.eos_per_1000;
}

uint32_t ScriptBackend::next_piece(const Engine& engine) const {
  if (engine.launches.empty()) return 0;
  const Launch& launch = engine.launches.front();
  auto left = static_cast<uint32_t>(launch.ends.size()) - launch.answered;
  if (launch.separately) return 1;
  // The last step is answered separately, so that the next step can be planned while it runs.
  if (engine.config.steps_in_flight_max == 2 && left > 1) --left;
  if (options_.pieces && left > 1) {
    left = 1 + static_cast<uint32_t>(
                   draw({options_.seed, kPiece, raw(engine.id), launch.first + launch.answered}) % left);
  }
  for (const PlanEntry& entry : launch.entries) {
    if (!entry.samples || options_.eos_per_1000 == 0) continue;
    const auto had = engine.sampled.find(entry.request);
    const uint32_t before = had == engine.sampled.end() ? 0 : had->second;
    for (uint32_t step = 1; step < left; ++step) {
      if (samples_eos(engine, entry.request, before + step)) left = step;
    }
  }
  return left;
}

bool ScriptBackend::next(Instant* now, Event* event) {
  Engine* engine = nullptr;
  uint32_t steps = 0;
  Instant step_at = kNever;
  for (const auto& candidate : engines_) {
    const uint32_t piece = next_piece(*candidate);
    if (piece == 0) continue;
    const Launch& launch = candidate->launches.front();
    const Instant at = std::max(now_, launch.ends[launch.answered + piece - 1]);
    if (at >= step_at) continue;
    engine = candidate.get();
    steps = piece;
    step_at = at;
  }
  const auto transfer =
      std::min_element(transfers_.begin(), transfers_.end(), [](const auto& a, const auto& b) {
        return std::tie(a.at, a.engine, a.id) < std::tie(b.at, b.engine, b.id);
      });
  const auto alarm = std::min_element(alarms_.begin(), alarms_.end(), [](const auto& a, const auto& b) {
    return std::tie(a.at, a.order) < std::tie(b.at, b.order);
  });
  const Instant transfer_at = transfer == transfers_.end() ? kNever : transfer->at;
  const Instant alarm_at = alarm == alarms_.end() ? kNever : alarm->at;
  const Instant first = std::min({step_at, transfer_at, alarm_at});
  if (first == kNever) return false;
  KVT_CHECK(first >= now_);
  *now = now_ = first;
  if (step_at == first) {
    answer(engine, steps, event);
  } else if (transfer_at == first) {
    Engine& owner = *engines_[raw(transfer->engine)];
    if (owner.checker) owner.checker->transfer_ended(transfer->id, !transfer->fails);
    if (transfer->fails) {
      *event = TransferFailed{transfer->engine, transfer->id};
    } else {
      *event = TransferDone{transfer->engine, transfer->id};
    }
    transfers_.erase(transfer);
  } else {
    *event = alarm->timer;
    alarms_.erase(alarm);
  }
  return true;
}

bool ScriptBackend::interrupt(EngineId id, Event* event) {
  Engine& engine = *engines_[raw(id)];
  const uint32_t piece = next_piece(engine);
  if (piece == 0) return false;
  const Launch& launch = engine.launches.front();
  uint32_t steps = piece;
  while (steps > 0 && launch.ends[launch.answered + steps - 1] > now_) --steps;
  if (steps > 0) {
    answer(&engine, steps, event);
    return true;
  }
  cut(&engine, engine.done + engine.config.steps_in_flight_max);
  for (Launch& interrupted : engine.launches) interrupted.separately = true;
  return false;
}

void ScriptBackend::answer(Engine* engine, uint32_t steps, Event* event) {
  Launch& launch = engine->launches.front();
  engine->answered_ends.clear();
  engine->answered_eos.clear();
  engine->retained.clear();
  engine->answered_retained.clear();
  for (uint32_t i = 0; i < steps; ++i) {
    KVT_CHECK(engine->answered_eos.empty());  // coalesced steps stop at end-of-sequence
    run_step(engine, launch, launch.answered + i);
    engine->answered_ends.push_back(launch.ends[launch.answered + i]);
  }
  StepOutcome outcome;
  outcome.host = Duration{static_cast<int64_t>(steps)};
  for (const RetainedEntries& retained : engine->retained) {
    engine->answered_retained.push_back({retained.request, retained.counts, retained.live});
  }
  *event = StepDone{engine->id, StepId{engine->done}, engine->answered_ends,
                    outcome,    engine->answered_eos, engine->answered_retained};
  launch.answered += steps;
  engine->done += steps;
  engine->free_at = engine->answered_ends.back();
  if (!engine->answered_eos.empty()) cut(engine, engine->done + engine->config.steps_in_flight_max - 1);
  if (launch.answered < launch.ends.size()) return;
  engine->launches.pop_front();
  if (engine->resident) engine->resident->ended();
}

// The checks of run_step() for mixed precision pools.
void ScriptBackend::check_entries(KvEntryChecker* kv_entries, const Launch& launch,
                                  const std::vector<PlanEntry>& entries, uint32_t offset) {
  if (offset == 0) kv_entries->ages(launch.requantisations);
  for (uint32_t i = 0; i < entries.size(); ++i) {
    if (offset == 0 && entries[i].first) {
      std::vector<PageId> reused;
      for (const Launch::Reused& one : launch.prefix_hits) {
        if (one.prefix_hit.request == entries[i].request) reused = one.pages;
      }
      kv_entries->begins(entries[i], reused);
    }
    std::vector<FormatRun> bits;
    std::vector<PageId> allocations;
    for (const FormatRun& run : launch.formats) {
      if (run.entry == i) bits.push_back(run);
    }
    for (const PageAllocation& allocate : launch.allocations) {
      if (allocate.offset == offset && allocate.entry == i) allocations.push_back(allocate.page);
    }
    kv_entries->writes(entries[i], bits, allocations);
  }
  for (const PlanEntry& entry : entries) kv_entries->reads(entry);
}

// Updates pages and requests after a step has run.
void ScriptBackend::run_step(Engine* engine, const Launch& launch, uint32_t offset) {
  PageChecker* const checker = engine->checker.get();
  if (checker != nullptr && offset == 0) {
    for (const PlanEntry& entry : launch.entries) {
      if (entry.first && !entry.swapped_in) checker->begins(entry.request);
    }
    for (const Launch::Reused& one : launch.prefix_hits) {
      const PrefixHit prefix_hit = one.as_prefix_hit();
      const auto entry = std::find_if(launch.entries.begin(), launch.entries.end(),
                                      [&](const PlanEntry& it) { return it.request == prefix_hit.request; });
      if (entry->swapped_in) {
        checker->swapped_in(prefix_hit, entry->context);
      } else {
        engine->resident ? checker->reused_resident(prefix_hit, entry->context)
                         : checker->reused(prefix_hit, entry->context);
      }
    }
  }
  std::vector<PlanEntry> entries = launch.entries;
  for (PlanEntry& entry : entries) {
    entry.context += offset;
    entry.dropped += entry.grows ? 0 : offset;
    if (offset > 0) entry.first = false;
  }
  if (engine->kv_entries) check_entries(engine->kv_entries.get(), launch, entries, offset);
  if (checker != nullptr) {
    for (const PageAllocation& allocate : launch.allocations) {
      // The backend chooses the content of resident pages; a request's own pages are those on the host.
      if (engine->resident && raw(allocate.page) < engine->config.pages_gpu) continue;
      if (allocate.offset == offset) {
        checker->allocated(launch.entries[allocate.entry].request, allocate.group, allocate.page);
      }
    }
    std::vector<bool> staged(entries.size(), false);
    for (const Launch::Cut& cut : launch.cuts) staged[cut.compression.entry] = cut.compression.staged;
    const auto compress = [&](bool before) {
      for (const Launch::Cut& cut : launch.cuts) {
        if (cut.compression.before != before) continue;
        Compression c = cut.compression;
        c.forced = cut.forced;
        c.keep = cut.keep;
        engine->retained.push_back(checker->compressed(entries[c.entry], c));
      }
    };
    compress(true);
    // Within a step all KV is written before any is read, and all is read before any is dropped.
    for (size_t i = 0; i < entries.size(); ++i) checker->wrote(entries[i], staged[i]);
    for (size_t i = 0; i < entries.size(); ++i) checker->reads(entries[i], staged[i]);
    compress(false);
    for (const PrefixCheckpoint& s : launch.prefix_checkpoints) {
      const bool known = std::any_of(launch.cuts.begin(), launch.cuts.end(), [&](const Launch::Cut& cut) {
        return cut.compression.entry == s.entry && !cut.keep.empty();
      });
      checker->prefix_checkpoint(entries[s.entry].request, s.prefix_checkpoint, known);
    }
  }
  for (const PlanEntry& entry : entries) {
    if (!entry.samples) continue;
    if (samples_eos(*engine, entry.request, ++engine->sampled[entry.request]))
      engine->answered_eos.push_back(entry.request);
  }
}

// Cancels the steps from `end` on, except those outside the last launch and that launch's first.
void ScriptBackend::cut(Engine* engine, uint64_t end) {
  if (engine->launches.empty()) return;
  Launch& last = engine->launches.back();
  const uint64_t keep = std::max(end, last.first + (last.answered > 0 ? last.answered : 1));
  if (keep >= last.end()) return;
  last.ends.resize(keep - last.first);
  if (engine->resident) engine->resident->cut(static_cast<uint32_t>(last.ends.size()));
  engine->launched = keep;
}

}  // namespace kvtwin::testing
