#include "scenarios/validate/divergence.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvtwin {
namespace {

using Launch = LaunchHistory::Launch;

// At most this many requests of a batch are listed; the rest are counted.
constexpr size_t kListed = 12;

// The launch that ran `step`: the last one that begins at or before it. Null: there is none.
const Launch* launch_of(const std::vector<Launch>& all, uint64_t step) {
  const auto after = std::upper_bound(all.begin(), all.end(), step,
                                      [](uint64_t number, const Launch& one) { return number < one.step; });
  return after == all.begin() ? nullptr : &*(after - 1);
}

// A launch's entry at its single step `offset`.
PlanEntry at_offset(PlanEntry entry, uint64_t offset) {
  if (entry.kind == EntryKind::kDecode) entry.context += static_cast<uint32_t>(offset);
  if (offset > 0) entry.first = false;
  return entry;
}

bool same(const PlanEntry& a, const PlanEntry& b) {
  return a.request == b.request && a.kind == b.kind && a.tokens == b.tokens && a.context == b.context &&
         a.samples == b.samples;
}

bool same_step(const Launch& a, const Launch& b, uint64_t step) {
  if (a.entries.size() != b.entries.size()) return false;
  // A launch with compressions is a single step, so the counts belong to `step`.
  if (a.compressions != b.compressions) return false;
  for (size_t i = 0; i < a.entries.size(); ++i) {
    if (!same(at_offset(a.entries[i], step - a.step), at_offset(b.entries[i], step - b.step))) return false;
  }
  return true;
}

uint64_t steps_of(const std::vector<Launch>& all) {
  return all.empty() ? 0 : all.back().step + all.back().repeat;
}

// The first step that differs; kNone: there is none.
constexpr uint64_t kNone = UINT64_MAX;
uint64_t first_difference(const std::vector<Launch>& a, const std::vector<Launch>& b) {
  const uint64_t common = std::min(steps_of(a), steps_of(b));
  for (uint64_t step = 0; step < common;) {
    const Launch *const x = launch_of(a, step), *const y = launch_of(b, step);
    if (x == nullptr || y == nullptr || !same_step(*x, *y, step)) return step;
    // Both launches continue by the same rule until another launch follows one of them.
    const auto next = [&](const std::vector<Launch>& all, const Launch* now) {
      return now == &all.back() ? now->step + now->repeat : (now + 1)->step;
    };
    step = std::min({common, next(a, x), next(b, y)});
  }
  return steps_of(a) == steps_of(b) ? kNone : common;
}

std::string batch_text(const Launch& launch, uint64_t step) {
  uint32_t counts[3] = {}, tokens = 0;  // entries by kind
  std::string requests;
  for (size_t i = 0; i < launch.entries.size(); ++i) {
    const PlanEntry entry = at_offset(launch.entries[i], step - launch.step);
    const bool decode = entry.kind == EntryKind::kDecode;
    ++counts[static_cast<size_t>(entry.kind)];
    tokens += entry.tokens;
    if (i < kListed)
      requests += fmt::format(
          "{}{}{}", i > 0 ? ", " : "", raw(entry.request),
          decode ? fmt::format("@{}", entry.context) : fmt::format(":{}@{}", entry.tokens, entry.context));
  }
  if (launch.entries.size() > kListed)
    requests += fmt::format(", and {} more", launch.entries.size() - kListed);
  const uint32_t passes = counts[static_cast<size_t>(EntryKind::kProbe)];
  return fmt::format(
      "{} decodes, {} chunks, {}{} tokens, {} compressions (requests {})",
      counts[static_cast<size_t>(EntryKind::kDecode)], counts[static_cast<size_t>(EntryKind::kChunk)],
      passes > 0 ? fmt::format("{} passes, ", passes) : "", tokens, launch.compressions, requests);
}

std::string side_text(const std::string& name, const std::vector<Launch>& all, uint64_t step) {
  const Launch* const launch = step < steps_of(all) ? launch_of(all, step) : nullptr;
  if (launch == nullptr)
    return fmt::format("      {}: has no such step, its last is {}\n", name, steps_of(all));
  const CoreGauges& g = launch->gauges;
  std::string out = fmt::format("      {}: planned at {:.6f} s: {}\n", name,
                                static_cast<double>(launch->at.ns) / 1e9, batch_text(*launch, step));
  out += fmt::format(
      "      {:>{}}  then {} requests ran, {} waited, {} had ended, {} had been preempted; pages {} held, {} "
      "cached, {} "
      "free; host pages {} free; {} transfers requested\n",
      "", name.size(), g.requests_running, g.requests_waiting, launch->done, launch->preempted,
      g.pages_gpu_held, g.pages_gpu_cached, g.pages_gpu_free, g.pages_host_free, launch->transfers);
  return out;
}

}  // namespace

void LaunchHistory::saw_command(Instant now, const Command& command) {
  if (const auto* launch = std::get_if<LaunchStep>(&command)) {
    Engine& engine = engines_.at(raw(launch->engine));
    // Steps that were cut short are launched again with the same numbers.
    while (!engine.launches.empty() && engine.launches.back().step >= raw(launch->step)) {
      engine.launches.pop_back();
    }
    engine.without_state = std::min(engine.without_state, engine.launches.size());
    engine.launches.push_back({raw(launch->step),
                               launch->repeat,
                               now,
                               {launch->entries.begin(), launch->entries.end()},
                               launch->compressions.size(),
                               {},
                               engine.done,
                               engine.transfers,
                               engine.preempted});
  } else if (const auto* transfer = std::get_if<StartTransfer>(&command)) {
    ++engines_.at(raw(transfer->engine)).transfers;
  } else if (const auto* drop = std::get_if<DropRequestState>(&command)) {
    Engine& engine = engines_.at(raw(drop->engine));
    ++(drop->reason == DropRequestState::Reason::kFinished ? engine.done : engine.preempted);
  }
}

void LaunchHistory::saw_state(Instant, EngineId id, const Core& core) {
  Engine& engine = engines_.at(raw(id));
  for (; engine.without_state < engine.launches.size(); ++engine.without_state)
    engine.launches[engine.without_state].gauges = core.gauges();
}

std::string first_divergence(const LaunchHistory& a, const std::string& one, const LaunchHistory& b,
                             const std::string& other) {
  size_t engine = 0;
  uint64_t step = kNone;
  Instant at = kNever;
  for (size_t e = 0; e < std::min(a.engines(), b.engines()); ++e) {
    const uint64_t found = first_difference(a.of(e), b.of(e));
    if (found == kNone) continue;
    const Launch* const launch = launch_of(a.of(e), found);
    const Instant when = launch == nullptr ? Instant{} : launch->at;
    if (step == kNone || when < at) engine = e, step = found, at = when;
  }
  if (step == kNone) return {};
  return fmt::format("engine {}, step {} of {}:\n{}{}", engine, step, steps_of(a.of(engine)),
                     side_text(one, a.of(engine), step), side_text(other, b.of(engine), step));
}

}  // namespace kvtwin
