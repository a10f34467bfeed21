#include "tests/support/script_backend.h"

#include <algorithm>
#include <tuple>

#include "engine/base/check.h"
#include "engine/base/prng.h"
#include "engine/policy/registry.h"
#include "engine/policy/retention.h"
#include "tests/support/arena_checker.h"
#include "tests/support/cell_checker.h"

namespace kvtwin::testing {
namespace {

enum Purpose : uint64_t { kStepTime = 1, kStepZero, kTransferTime, kTransferFails, kEos, kPiece };

int64_t below(uint64_t bits, int64_t limit) {
  return static_cast<int64_t>(bits % static_cast<uint64_t>(limit + 1));
}

}  // namespace

// Steps [first, first + ends.size()); `told` of them were answered.
struct ScriptBackend::Launch {
  uint64_t first = 0;
  uint32_t told = 0;
  bool separately = false;  // it was interrupted: one answer for each step
  std::vector<Instant> ends;
  std::vector<PlanEntry> entries;
  std::vector<PageGrant> grants;
  struct Adopted {
    Adoption adoption;
    std::vector<PageId> pages;
    std::vector<uint32_t> cells, shared;

    Adoption told() const { return {adoption.call, pages, adoption.snapshot, cells, shared}; }
  };
  std::vector<Adopted> adoptions;
  std::vector<Snapshot> snapshots;
  struct Cut {
    Compression compression;
    std::vector<Compression::Forced> forced;
    std::vector<uint32_t> keep;
  };
  std::vector<Cut> cuts;
  std::vector<CellRun> formats;
  std::vector<CellAgeing> ageings;

  uint64_t end() const { return first + ends.size(); }
};

struct ScriptBackend::Engine {
  EngineId id{};
  CoreConfig config;
  std::unique_ptr<PageChecker> checker;
  std::unique_ptr<CellChecker> cells;  // instead, where formats go by tag
  std::unique_ptr<ArenaChecker> arena;
  std::deque<Launch> launches;
  uint64_t launched = 0;
  uint64_t done = 0;
  Instant free_at{};                   // when the last step answered has ended
  std::map<CallId, uint32_t> sampled;  // tokens, by the steps that ran
  std::vector<Instant> told_ends;      // what the last StepDone points to
  std::vector<CallId> told_eos;
  std::vector<KeptCells> kept;  // what told_kept points to
  std::vector<CellsKept> told_kept;
};

ScriptBackend::ScriptBackend(const ScriptWorldOptions& options, const std::vector<CoreConfig>& engines,
                             const TokenSource* tokens)
    : options_(options) {
  for (const CoreConfig& config : engines) {
    auto engine = std::make_unique<Engine>();
    engine->id = config.engine;
    engine->config = config;
    if (tokens != nullptr) {
      const PolicyAxes axes = make_axes(config.policies);
      if (axes.placement->uses_arena()) engine->arena = std::make_unique<ArenaChecker>(config);
      const Retention retention(config, axes);
      if (axes.precision->by_tag()) {
        engine->cells = std::make_unique<CellChecker>(config, tokens);
      } else {
        engine->checker =
            std::make_unique<PageChecker>(options.seed, retention.keeping(), retention.shape(), tokens);
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
    } else if (engine.checker) {
      engine.checker->transfer_started(*transfer);
      if (engine.arena) engine.arena->transfer_started(*transfer);
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
  KVT_CHECK(command.entries.size() <= engine.config.calls_max);
  KVT_CHECK(engine.launches.size() < engine.config.steps_in_flight_max);
  uint32_t tokens = 0;
  for (const PlanEntry& entry : command.entries) {
    KVT_CHECK(entry.tokens > 0);
    KVT_CHECK(command.repeat == 1 || entry.kind == EntryKind::kDecode);
    tokens += entry.tokens;
  }
  KVT_CHECK(tokens == command.tokens);
  KVT_CHECK(tokens <= engine.config.step_tokens_max);
  KVT_CHECK(command.tokens_padded >= tokens);
  Launch launch;
  launch.first = engine.launched;
  launch.entries.assign(command.entries.begin(), command.entries.end());
  launch.grants.assign(command.grants.begin(), command.grants.end());
  for (const Adoption& adoption : command.adoptions) {
    launch.adoptions.push_back({adoption,
                                {adoption.pages.begin(), adoption.pages.end()},
                                {adoption.cells.begin(), adoption.cells.end()},
                                {adoption.shared.begin(), adoption.shared.end()}});
  }
  launch.snapshots.assign(command.snapshots.begin(), command.snapshots.end());
  KVT_CHECK(command.compressions.empty() || command.repeat == 1);
  for (const Compression& c : command.compressions) {
    KVT_CHECK(c.entry < command.entries.size());
    launch.cuts.push_back({c, {c.forced.begin(), c.forced.end()}, {c.keep.begin(), c.keep.end()}});
  }
  launch.formats.assign(command.formats.begin(), command.formats.end());
  launch.ageings.assign(command.ageings.begin(), command.ageings.end());
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
  if (engine.arena) engine.arena->launched(command);
}

bool ScriptBackend::samples_eos(const Engine& engine, CallId call, uint32_t token) const {
  return draw({options_.seed, kEos, raw(engine.id), raw(call), token}) % 1000 < options_.eos_per_1000;
}

uint32_t ScriptBackend::next_piece(const Engine& engine) const {
  if (engine.launches.empty()) return 0;
  const Launch& launch = engine.launches.front();
  auto left = static_cast<uint32_t>(launch.ends.size()) - launch.told;
  if (launch.separately) return 1;
  // The last one apart, so that the step behind it can be planned while it runs.
  if (engine.config.steps_in_flight_max == 2 && left > 1) --left;
  if (options_.pieces && left > 1) {
    left = 1 + static_cast<uint32_t>(
                   draw({options_.seed, kPiece, raw(engine.id), launch.first + launch.told}) % left);
  }
  for (const PlanEntry& entry : launch.entries) {
    if (!entry.samples || options_.eos_per_1000 == 0) continue;
    const auto had = engine.sampled.find(entry.call);
    const uint32_t before = had == engine.sampled.end() ? 0 : had->second;
    for (uint32_t step = 1; step < left; ++step) {
      if (samples_eos(engine, entry.call, before + step)) left = step;
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
    const Instant at = std::max(now_, launch.ends[launch.told + piece - 1]);
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
  while (steps > 0 && launch.ends[launch.told + steps - 1] > now_) --steps;
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
  engine->told_ends.clear();
  engine->told_eos.clear();
  engine->kept.clear();
  engine->told_kept.clear();
  for (uint32_t i = 0; i < steps; ++i) {
    KVT_CHECK(engine->told_eos.empty());  // a stretch stops there
    run_step(engine, launch, launch.told + i);
    engine->told_ends.push_back(launch.ends[launch.told + i]);
  }
  StepOutcome outcome;
  outcome.host = Duration{static_cast<int64_t>(steps)};
  for (const KeptCells& kept : engine->kept) {
    engine->told_kept.push_back({kept.call, kept.counts, kept.live});
  }
  *event = StepDone{engine->id, StepId{engine->done}, engine->told_ends,
                    outcome,    engine->told_eos,     engine->told_kept};
  launch.told += steps;
  engine->done += steps;
  engine->free_at = engine->told_ends.back();
  if (!engine->told_eos.empty()) cut(engine, engine->done + engine->config.steps_in_flight_max - 1);
  if (launch.told < launch.ends.size()) return;
  engine->launches.pop_front();
  if (engine->arena) engine->arena->ended();
}

// As run_step(), where pages have two formats.
void ScriptBackend::check_cells(CellChecker* cells, const Launch& launch,
                                const std::vector<PlanEntry>& entries, uint32_t offset) {
  if (offset == 0) cells->ages(launch.ageings);
  for (uint32_t i = 0; i < entries.size(); ++i) {
    if (offset == 0 && entries[i].first) {
      std::vector<PageId> adopted;
      for (const Launch::Adopted& one : launch.adoptions) {
        if (one.adoption.call == entries[i].call) adopted = one.pages;
      }
      cells->begins(entries[i], adopted);
    }
    std::vector<CellRun> bits;
    std::vector<PageId> grants;
    for (const CellRun& run : launch.formats) {
      if (run.entry == i) bits.push_back(run);
    }
    for (const PageGrant& grant : launch.grants) {
      if (grant.offset == offset && grant.entry == i) grants.push_back(grant.page);
    }
    cells->writes(entries[i], bits, grants);
  }
  for (const PlanEntry& entry : entries) cells->reads(entry);
}

// What happens to pages and calls when a step has really run.
void ScriptBackend::run_step(Engine* engine, const Launch& launch, uint32_t offset) {
  PageChecker* const checker = engine->checker.get();
  if (checker != nullptr && offset == 0) {
    for (const PlanEntry& entry : launch.entries) {
      if (entry.first) checker->begins(entry.call);
    }
    for (const Launch::Adopted& one : launch.adoptions) {
      const Adoption told = one.told();
      const auto entry = std::find_if(launch.entries.begin(), launch.entries.end(),
                                      [&](const PlanEntry& it) { return it.call == told.call; });
      engine->arena ? checker->adopted_to_arena(told, entry->context)
                    : checker->adopted(told, entry->context);
    }
  }
  std::vector<PlanEntry> entries = launch.entries;
  for (PlanEntry& entry : entries) {
    entry.context += offset;
    entry.gone += entry.grows ? 0 : offset;
    if (offset > 0) entry.first = false;
  }
  if (engine->cells) check_cells(engine->cells.get(), launch, entries, offset);
  if (checker != nullptr) {
    for (const PageGrant& grant : launch.grants) {
      // An arena's content is the world's choice; the call's own pages are then those on the host.
      if (engine->arena && raw(grant.page) < engine->config.pages_gpu) continue;
      if (grant.offset == offset) {
        checker->granted(launch.entries[grant.entry].call, grant.group, grant.page);
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
        engine->kept.push_back(checker->compressed(entries[c.entry], c));
      }
    };
    compress(true);
    // Within a step all KV is written before any is read, and all is read before any is dropped.
    for (size_t i = 0; i < entries.size(); ++i) checker->wrote(entries[i], staged[i]);
    for (size_t i = 0; i < entries.size(); ++i) checker->reads(entries[i], staged[i]);
    compress(false);
    for (const Snapshot& s : launch.snapshots) {
      const bool known = std::any_of(launch.cuts.begin(), launch.cuts.end(), [&](const Launch::Cut& cut) {
        return cut.compression.entry == s.entry && !cut.keep.empty();
      });
      checker->snapshot(entries[s.entry].call, s.snapshot, known);
    }
  }
  for (const PlanEntry& entry : entries) {
    if (!entry.samples) continue;
    if (samples_eos(*engine, entry.call, ++engine->sampled[entry.call]))
      engine->told_eos.push_back(entry.call);
  }
}

// Steps from `end` on never run, as far as they belong to the last launch and are not its first.
void ScriptBackend::cut(Engine* engine, uint64_t end) {
  if (engine->launches.empty()) return;
  Launch& last = engine->launches.back();
  const uint64_t keep = std::max(end, last.first + (last.told > 0 ? last.told : 1));
  if (keep >= last.end()) return;
  last.ends.resize(keep - last.first);
  if (engine->arena) engine->arena->cut(static_cast<uint32_t>(last.ends.size()));
  engine->launched = keep;
}

}  // namespace kvtwin::testing
