#include "scenarios/output/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "scenarios/load/units.h"

namespace kvtwin {
namespace {

using Kind = TimelineMark::Kind;

}  // namespace

Result<TimelineWindow> parse_window(const std::string& text) {
  const size_t dots = text.find("..");
  const auto seconds = [](const std::string& part, Instant* at) {
    const Result<double> value = seconds_of(part);
    if (!value || *value < 0 || *value > 1e9) return false;
    at->ns = static_cast<int64_t>(std::llround(*value * 1e9));
    return true;
  };
  TimelineWindow out;
  if (dots == std::string::npos || !seconds(text.substr(0, dots), &out.from) ||
      !seconds(text.substr(dots + 2), &out.to) || out.from >= out.to) {
    return make_error(
        "--timeline", fmt::format("\"{}\" is not an interval", text),
        "write seconds, or times with a unit, as in --timeline=10..12.5 or --timeline=500ms..2min");
  }
  return out;
}

const char* name_of(TimelineRow row) {
  switch (row) {
    case TimelineRow::kSteps:
      return "steps";
    case TimelineRow::kIn:
      return "host to gpu";
    case TimelineRow::kOut:
      return "gpu to host";
    case TimelineRow::kRequests:
      return "requests";
    case TimelineRow::kOperations:
      return "operations";
  }
  return "";
}

Timeline::Timeline(TimelineWindow window, size_t engines, OperationsOfStep operations)
    : window_(window), operations_(std::move(operations)), engines_(engines) {}

void Timeline::mark(TimelineMark::Kind kind, const char* name, EngineId engine, Instant at,
                    RequestId request) {
  if (!inside(at, at)) return;
  marks_.push_back({.kind = kind,
                    .row = TimelineRow::kRequests,
                    .engine = raw(engine),
                    .name = name,
                    .from = at,
                    .request = request});
}

void Timeline::saw_event(Instant now, EngineId engine, const Event& event) {
  Engine& here = engines_[raw(engine)];
  if (const auto* ready = std::get_if<RequestReady>(&event))
    mark(Kind::kBegin, "request", engine, now, ready->request);
  const auto ended = [&](TransferId id, const char* result) {
    const auto found = std::find_if(here.transfers.begin(), here.transfers.end(),
                                    [&](const Transfer& one) { return one.id == id; });
    if (found == here.transfers.end()) return;
    if (inside(found->at, now)) {
      marks_.push_back({.kind = Kind::kSpan,
                        .row = found->in ? TimelineRow::kIn : TimelineRow::kOut,
                        .engine = raw(engine),
                        .name = found->in ? "recall" : "offload",
                        .from = found->at,
                        .to = now,
                        .numbers = {{{"pages", found->pages}}},
                        .result = result});
    }
    here.transfers.erase(found);
  };
  if (const auto* done = std::get_if<TransferDone>(&event)) ended(done->transfer, "done");
  if (const auto* failed = std::get_if<TransferFailed>(&event)) ended(failed->transfer, "failed");
  const auto* done = std::get_if<StepDone>(&event);
  if (done == nullptr) return;
  for (size_t i = 0; i < done->ends.size(); ++i) {
    const uint64_t step = raw(done->step) + i;
    while (!here.launches.empty() && here.launches.front().end <= step) here.launches.pop_front();
    const Instant end = done->ends[i];
    const bool shown = !here.launches.empty() && inside(here.last_end, end);
    if (operations_) {
      for (const StepOperation& one : operations_(engine, StepId{step})) {
        if (!shown) break;
        const Instant start = std::max(here.launches.front().at, here.last_end);
        marks_.push_back({.kind = Kind::kSpan,
                          .row = TimelineRow::kOperations,
                          .engine = raw(engine),
                          .name = one.name,
                          .from = start + one.from,
                          .to = start + one.to,
                          .numbers = {{{"layer", one.layer}}}});
      }
    }
    if (shown) {
      const Launch& launch = here.launches.front();
      marks_.push_back({.kind = Kind::kSpan,
                        .row = TimelineRow::kSteps,
                        .engine = raw(engine),
                        .name = launch.chunks + launch.passes > 0 ? "prefill" : "decode",
                        .from = std::max(launch.at, here.last_end),
                        .to = end,
                        .numbers = {{{"step", step},
                                     {"decodes", launch.decodes},
                                     {"chunks", launch.chunks},
                                     {"tokens", launch.tokens},
                                     {launch.passes > 0 ? "passes" : "", launch.passes}}}});
    }
    here.last_end = end;
  }
}

void Timeline::saw_command(Instant now, const Command& command) {
  if (const auto* step = std::get_if<LaunchStep>(&command)) {
    Engine& here = engines_[raw(step->engine)];
    // An interrupted launch ends where the next one begins.
    while (!here.launches.empty() && here.launches.back().step >= raw(step->step)) here.launches.pop_back();
    if (!here.launches.empty())
      here.launches.back().end = std::min(here.launches.back().end, raw(step->step));
    Launch launch{raw(step->step), raw(step->step) + step->repeat, now, 0, 0, step->tokens};
    for (const PlanEntry& entry : step->entries) {
      launch.decodes += entry.kind == EntryKind::kDecode ? 1 : 0;
      launch.chunks += entry.kind == EntryKind::kChunk ? 1 : 0;
      launch.passes += entry.kind == EntryKind::kProbe ? 1 : 0;
    }
    here.launches.push_back(launch);
  }
  if (const auto* start = std::get_if<StartTransfer>(&command)) {
    engines_[raw(start->engine)].transfers.push_back(
        {start->transfer, now, start->target_tier == Tier::kGpu, start->source.size()});
  }
  if (const auto* tokens = std::get_if<TokensEmitted>(&command)) {
    if (tokens->tokens == 1) mark(Kind::kInstantEvent, "first token", tokens->engine, now, tokens->request);
  }
  if (const auto* drop = std::get_if<DropRequestState>(&command)) {
    if (drop->reason == DropRequestState::Reason::kPreempted)
      mark(Kind::kInstantEvent, "preempted", drop->engine, now, drop->request);
  }
  if (const auto* over = std::get_if<HandOver>(&command))
    mark(Kind::kEnd, "request", over->engine, now, over->request);
  if (const auto* finish = std::get_if<FinishRequest>(&command))
    mark(Kind::kEnd, "request", finish->engine, now, finish->request);
}

void Timeline::saw_state(Instant now, EngineId engine, const Core& core) {
  if (!inside(now, now)) return;
  const CoreGauges gauges = core.gauges();
  const auto counts = [&](const char* name, const std::array<TimelineMark::Number, 5>& numbers) {
    marks_.push_back(
        {.kind = Kind::kCounts, .engine = raw(engine), .name = name, .from = now, .numbers = numbers});
  };
  counts("requests", {{{"running", gauges.requests_running}, {"waiting", gauges.requests_waiting}}});
  counts("gpu pages", {{{"held", gauges.pages_gpu_held}, {"cached", gauges.pages_gpu_cached}}});
}

}  // namespace kvtwin
