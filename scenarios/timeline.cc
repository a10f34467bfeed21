#include "scenarios/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

namespace kvtwin {
namespace {

// Microseconds, with the nanoseconds behind the point: the unit of the format.
std::string us(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

constexpr std::pair<int, const char*> kRows[] = {
    {1, "steps"}, {2, "host to gpu"}, {3, "gpu to host"}, {4, "calls"}, {5, "operations"}};
constexpr int kSteps = 1, kIn = 2, kOut = 3, kCalls = 4, kOperations = 5;

}  // namespace

Result<TimelineWindow> parse_window(const std::string& text) {
  const size_t dots = text.find("..");
  const auto seconds = [](const std::string& part, Instant* at) {
    double value = 0;
    const auto [stop, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || stop != part.data() + part.size() || !(value >= 0) || value > 1e9)
      return false;
    at->ns = static_cast<int64_t>(std::llround(value * 1e9));
    return true;
  };
  TimelineWindow out;
  if (dots == std::string::npos || !seconds(text.substr(0, dots), &out.from) ||
      !seconds(text.substr(dots + 2), &out.to) || out.from >= out.to) {
    return mistake("--timeline", fmt::format("\"{}\" is no interval", text),
                   "write seconds, as in --timeline=10..12.5");
  }
  return out;
}

Timeline::Timeline(TimelineWindow window, size_t engines, OperationsOfStep operations)
    : window_(window), operations_(std::move(operations)), engines_(engines) {
  for (size_t i = 0; i < engines; ++i) {
    rows_.push_back(
        fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":"engine {}"}}}})", i, i));
    for (const auto& [row, name] : kRows) {
      if (row == kOperations && !operations_) continue;
      rows_.push_back(fmt::format(
          R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})", i, row, name));
    }
  }
}

void Timeline::span(const char* name, int row, size_t engine, Instant from, Instant to,
                    const std::string& args) {
  rows_.push_back(fmt::format(R"({{"ph":"X","name":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}}}})",
                              name, engine, row, us(from.ns), us((to - from).ns), args));
}

void Timeline::mark(const char* phase, const char* name, size_t engine, Instant at, CallId call) {
  if (!inside(at, at)) return;
  rows_.push_back(fmt::format(R"({{"ph":"{}","cat":"call","name":"{}","id":{},"pid":{},"tid":{},"ts":{}}})",
                              phase, name, raw(call), engine, kCalls, us(at.ns)));
}

void Timeline::saw_event(Instant now, EngineId engine, const Event& event) {
  Engine& here = engines_[raw(engine)];
  if (const auto* ready = std::get_if<CallReady>(&event)) mark("b", "call", raw(engine), now, ready->call);
  const auto ended = [&](TransferId id, const char* result) {
    const auto found = std::find_if(here.transfers.begin(), here.transfers.end(),
                                    [&](const Transfer& one) { return one.id == id; });
    if (found == here.transfers.end()) return;
    if (inside(found->at, now)) {
      span(found->in ? "recall" : "demote", found->in ? kIn : kOut, raw(engine), found->at, now,
           fmt::format(R"("pages":{},"result":"{}")", found->pages, result));
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
        span(one.name, kOperations, raw(engine), start + one.from, start + one.to,
             fmt::format(R"("layer":{})", one.layer));
      }
    }
    if (shown) {
      const Launch& launch = here.launches.front();
      span(launch.chunks > 0 ? "prefill" : "decode", kSteps, raw(engine), std::max(launch.at, here.last_end),
           end,
           fmt::format(R"("step":{},"decodes":{},"chunks":{},"tokens":{})", step, launch.decodes,
                       launch.chunks, launch.tokens));
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
    for (const PlanEntry& entry : step->entries)
      ++(entry.kind == EntryKind::kDecode ? launch.decodes : launch.chunks);
    here.launches.push_back(launch);
  }
  if (const auto* start = std::get_if<StartTransfer>(&command)) {
    engines_[raw(start->engine)].transfers.push_back(
        {start->transfer, now, start->target_tier == Tier::kGpu, start->source.size()});
  }
  if (const auto* tokens = std::get_if<TokensEmitted>(&command)) {
    if (tokens->tokens == 1) mark("n", "first token", raw(tokens->engine), now, tokens->call);
  }
  if (const auto* drop = std::get_if<DropCallState>(&command)) {
    if (drop->reason == DropCallState::Reason::kPreempted)
      mark("n", "preempted", raw(drop->engine), now, drop->call);
  }
  if (const auto* over = std::get_if<HandOver>(&command))
    mark("e", "call", raw(over->engine), now, over->call);
  if (const auto* finish = std::get_if<FinishCall>(&command))
    mark("e", "call", raw(finish->engine), now, finish->call);
}

void Timeline::saw_state(Instant now, EngineId engine, const Core& core) {
  if (!inside(now, now)) return;
  const CoreGauges gauges = core.gauges();
  rows_.push_back(
      fmt::format(R"({{"ph":"C","name":"calls","pid":{},"ts":{},"args":{{"running":{},"waiting":{}}}}})",
                  raw(engine), us(now.ns), gauges.calls_running, gauges.calls_waiting));
  rows_.push_back(
      fmt::format(R"({{"ph":"C","name":"gpu pages","pid":{},"ts":{},"args":{{"held":{},"cached":{}}}}})",
                  raw(engine), us(now.ns), gauges.pages_gpu_held, gauges.pages_gpu_cached));
}

std::string Timeline::finish() const {
  return fmt::format("{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{}\n]}}\n", fmt::join(rows_, ",\n"));
}

}  // namespace kvtwin
