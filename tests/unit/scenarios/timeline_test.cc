// A timeline of a few steps, read back from both of its forms.

#include "scenarios/output/timeline.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/support/perfetto_trace.h"

using namespace kvtwin;
using kvtwin::testing::PerfettoSlice;
using kvtwin::testing::PerfettoTrace;
using kvtwin::testing::read_perfetto;

namespace {

constexpr int64_t kMicrosecond = 1000;

// Two engines. Request 7 runs one step of prefill and two of decoding while pages move; request 8 is
// truncated by the window.
Timeline small_timeline() {
  Timeline out({Instant{0}, Instant{1000 * kMicrosecond}}, 2, [](EngineId, StepId) {
    return std::vector<StepOperation>{{"qkv", 0, Duration{0}, Duration{5 * kMicrosecond}},
                                      {"recall", 0, Duration{2 * kMicrosecond}, Duration{9 * kMicrosecond}}};
  });
  const EngineId one{1};
  const auto at = [](int64_t us) { return Instant{us * kMicrosecond}; };
  RequestReady ready;
  ready.request = RequestId{7};
  out.saw_event(at(0), one, ready);
  const std::vector<PageId> pages(12);
  StartTransfer recall{};
  recall.engine = one;
  recall.transfer = TransferId{1};
  recall.target_tier = Tier::kGpu;
  recall.source = pages;
  out.saw_command(at(1), recall);
  recall.transfer = TransferId{2};
  out.saw_command(at(2), recall);  // concurrent with the first, so on a second track
  out.saw_event(at(4), one, TransferDone{one, TransferId{1}});
  recall.transfer = TransferId{3};
  out.saw_command(at(4), recall);  // the first track is free again
  out.saw_event(at(6), one, TransferFailed{one, TransferId{2}});
  out.saw_event(at(8), one, TransferDone{one, TransferId{3}});
  PlanEntry chunk{};
  chunk.request = RequestId{7};
  chunk.kind = EntryKind::kChunk;
  LaunchStep step{};
  step.engine = one;
  const std::vector<PlanEntry> chunks{chunk};
  step.entries = chunks;
  step.tokens = 30;
  out.saw_command(at(10), step);
  std::vector<Instant> ends{at(20)};
  StepDone done{};
  done.engine = one;
  done.ends = ends;
  out.saw_event(at(20), one, done);
  out.saw_command(at(20), TokensEmitted{one, RequestId{7}, 1});
  chunk.kind = EntryKind::kDecode;
  const std::vector<PlanEntry> decodes{chunk};
  step.entries = decodes;
  step.step = StepId{1};
  step.repeat = 2;
  out.saw_command(at(20), step);
  ends = {at(25), at(31)};
  done.step = StepId{1};
  done.ends = ends;
  out.saw_event(at(31), one, done);
  out.saw_command(at(31), FinishRequest{one, RequestId{7}, 3, false});
  ready.request = RequestId{8};
  out.saw_event(at(31), one, ready);
  return out;
}

std::vector<const PerfettoSlice*> of_row(const PerfettoTrace& trace, const std::string& row) {
  std::vector<const PerfettoSlice*> out;
  for (const PerfettoSlice& slice : trace.slices) {
    if (slice.track.rfind(row, 0) == 0) out.push_back(&slice);
  }
  return out;
}

}  // namespace

TEST_CASE("timeline: the Perfetto trace has every event, and no field that the format does not know") {
  const PerfettoTrace trace = read_perfetto(small_timeline().perfetto());
  for (const std::string& problem : trace.problem) CHECK_MESSAGE(false, problem);
  CHECK(trace.processes == std::vector<std::string>{"engine 0", "engine 1"});

  const auto steps = of_row(trace, "steps");
  REQUIRE(steps.size() == 3);
  CHECK(steps[0]->name == "prefill");
  CHECK(steps[0]->from == 10 * kMicrosecond);
  CHECK(steps[0]->to == 20 * kMicrosecond);
  CHECK(steps[0]->annotations.at("tokens") == "30");
  CHECK(steps[2]->name == "decode");
  CHECK(steps[2]->from == 25 * kMicrosecond);
  CHECK(steps[2]->to == 31 * kMicrosecond);
  CHECK(steps[2]->annotations.at("step") == "2");

  const auto recalls = of_row(trace, "host to gpu");
  REQUIRE(recalls.size() == 3);
  CHECK(recalls[0]->track == "host to gpu");
  CHECK(recalls[1]->track == "host to gpu 2");
  CHECK(recalls[2]->track == "host to gpu");
  CHECK(recalls[1]->annotations.at("result") == "failed");
  CHECK(recalls[2]->annotations.at("pages") == "12");
  CHECK(of_row(trace, "operations").size() == 6);

  const auto requests = of_row(trace, "requests");
  REQUIRE(requests.size() == 2);
  CHECK(requests[0]->name == "request 7");
  CHECK(requests[0]->to == 31 * kMicrosecond);
  CHECK(requests[0]->instants == std::vector<std::string>{"first token"});
  CHECK(requests[1]->name == "request 8");
  CHECK(requests[1]->to == UINT64_MAX);
}

TEST_CASE("timeline: both forms have the same spans") {
  const Timeline timeline = small_timeline();
  const PerfettoTrace trace = read_perfetto(timeline.perfetto());
  std::vector<std::pair<uint64_t, uint64_t>> json_spans, spans;
  const auto json = nlohmann::json::parse(timeline.json());
  for (const auto& row : json["traceEvents"]) {
    if (row["ph"] != "X") continue;
    const auto from = static_cast<uint64_t>(row["ts"].get<double>() * 1e3 + 0.5);
    json_spans.emplace_back(from, from + static_cast<uint64_t>(row["dur"].get<double>() * 1e3 + 0.5));
  }
  for (const PerfettoSlice& slice : trace.slices) {
    if (slice.track.rfind("requests", 0) != 0) spans.emplace_back(slice.from, slice.to);
  }
  std::sort(spans.begin(), spans.end());
  std::sort(json_spans.begin(), json_spans.end());
  CHECK(json_spans.size() == 12);
  CHECK(spans == json_spans);
}

TEST_CASE("perfetto reader: violations are reported") {
  const std::string good = small_timeline().perfetto();
  CHECK(read_perfetto(good).problem.empty());
  CHECK_FALSE(read_perfetto("no trace").problem.empty());
  // Trace.packet {} without any field; a packet with field 9 (process_stats), which kvtwin never writes.
  CHECK_FALSE(read_perfetto(std::string("\x0a\x00", 2)).problem.empty());
  CHECK_FALSE(read_perfetto(good + std::string("\x0a\x04\x48\x01\x50\x01", 6)).problem.empty());
  // The trace twice: tracks described twice, and decreasing times.
  CHECK(read_perfetto(good + good).problem.size() > 4);
}
