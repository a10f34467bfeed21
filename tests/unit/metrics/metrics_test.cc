#include "engine/metrics/metrics.h"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "engine/metrics/metrics_summary.h"

namespace kvtwin {
namespace {

constexpr EngineId kE0{0};

// Feeds hand-made events and commands in the order in which the driver does.
struct Feed {
  Metrics metrics{{{.page_tokens = 16, .page_bytes = 1000, .pages_gpu = 100}}};

  void ready(int64_t at, uint32_t request, uint32_t prompt, uint32_t output, uint32_t session = 0) {
    RequestReady event;
    event.request = RequestId{request};
    event.session = SessionId{session};
    event.prompt_tokens = prompt;
    event.output_tokens = output;
    metrics.saw_event(Instant{at}, kE0, event);
  }
  void launch(int64_t at, uint64_t step, std::vector<PlanEntry> entries, uint32_t repeat = 1,
              std::vector<PageAllocation> allocations = {}, std::vector<PrefixHit> prefix_hits = {}) {
    LaunchStep command;
    command.step = StepId{step};
    command.repeat = repeat;
    command.entries = entries;
    command.allocations = allocations;
    command.prefix_hits = prefix_hits;
    metrics.saw_command(Instant{at}, command);
  }
  void done(uint64_t step, std::vector<int64_t> ends, StepOutcome outcome = {}) {
    std::vector<Instant> at;
    for (const int64_t end : ends) at.push_back({end});
    StepDone event;
    event.step = StepId{step};
    event.ends = at;
    event.outcome = outcome;
    metrics.saw_event(at.back(), kE0, event);
  }
  void saw(int64_t at, const Command& command) { metrics.saw_command(Instant{at}, command); }
  void token(int64_t at, uint32_t request) { saw(at, TokensEmitted{kE0, RequestId{request}, 1}); }
  void finish(int64_t at, uint32_t request, uint32_t tokens) {
    saw(at, FinishRequest{kE0, RequestId{request}, tokens, false});
  }
  void preempt(int64_t at, uint32_t request) {
    saw(at, DropRequestState{kE0, RequestId{request}, DropRequestState::Reason::kPreempted});
  }
  void gauges(int64_t at, uint32_t running, uint32_t held = 0) {
    CoreGauges now;
    now.requests_running = running;
    now.step_in_flight = running > 0;
    now.pages_gpu_held = held;
    metrics.saw_gauges(Instant{at}, kE0, now);
  }
  const RequestRecord& request(uint32_t id) const { return metrics.requests()[id]; }
  int64_t fraction(uint32_t id, TimeCategory of) const { return request(id).time[size_t(of)].ns; }
  int64_t attributed(uint32_t id) const {
    return std::accumulate(request(id).time.begin(), request(id).time.end(), int64_t{0},
                           [](int64_t sum, Duration part) { return sum + part.ns; });
  }
};

PlanEntry chunk(uint32_t request, uint32_t context, uint32_t tokens, bool first, bool samples) {
  return {RequestId{request}, EntryKind::kChunk, first, samples, tokens, context};
}
PlanEntry decode(uint32_t request, uint32_t context) {
  return {RequestId{request}, EntryKind::kDecode, false, true, 1, context};
}

uint64_t total(const Series& series) {
  return static_cast<uint64_t>(
      std::accumulate(series.integrals().begin(), series.integrals().end(), Integral{0}));
}

// A request of 40 prompt tokens, 16 of them cached, and 3 output tokens; it is alone on the engine.
void one_request(Feed& feed) {
  feed.ready(100, 0, 40, 3);
  feed.launch(100, 0, {chunk(0, 16, 24, true, true)});
  feed.gauges(100, 1, 3);
  feed.done(0, {150}, {.host = Duration{10}});
  feed.token(150, 0);
  feed.launch(150, 1, {decode(0, 40)}, 2);
  feed.gauges(150, 1, 3);
  feed.done(1, {170, 195}, {.host = Duration{6}});
  feed.finish(195, 0, 3);
  feed.gauges(195, 0, 0);
}

}  // namespace

TEST_CASE("metrics: a single request has its five time points, and its parts sum to its latency") {
  Feed feed;
  one_request(feed);
  const RequestRecord& request = feed.request(0);
  CHECK(request.ready.ns == 100);
  CHECK(request.queued.ns == 100);
  CHECK(request.admitted.ns == 100);
  CHECK(request.first_token.ns == 150);
  CHECK(request.finished.ns == 195);
  CHECK(request.reused_tokens == 16);
  CHECK(feed.fraction(0, TimeCategory::kQueue) == 0);
  CHECK(feed.fraction(0, TimeCategory::kPrefill) == 40);
  CHECK(feed.fraction(0, TimeCategory::kDecode) == 39);
  CHECK(feed.fraction(0, TimeCategory::kHost) == 16);
  CHECK(feed.attributed(0) == 95);
}

TEST_CASE("metrics: the time of a front end is before a request's arrival, and counts as host time") {
  Metrics metrics({{.page_tokens = 16, .front_end = {.request_ns = 5, .token_ps = 500}}});
  RequestReady event;
  event.prompt_tokens = 10;
  metrics.saw_event(Instant{100}, kE0, event);  // sent at 100 - 5 - 10 / 2
  const RequestRecord& request = metrics.requests()[0];
  CHECK(request.ready == Instant{90});
  CHECK(request.queued == Instant{100});
  CHECK(request.time[static_cast<size_t>(TimeCategory::kHost)] == Duration{10});
}

TEST_CASE("metrics: the summary of one request equals its own figures") {
  Feed feed;
  one_request(feed);
  const Summary sum = summarise(feed.metrics);
  CHECK(sum.finished == 1);
  CHECK(sum.ttft.p99 == 50);
  CHECK(sum.tpot.mean == 22.5);
  CHECK(sum.e2e.max == 95);
  CHECK(sum.itl.count == 2);
  CHECK(sum.itl.mean == 22.5);
  CHECK(sum.itl.max == 25);
  CHECK(sum.output_tokens_per_s == doctest::Approx(3 / 95e-9));
  CHECK(sum.reused_tokens == 16);
  CHECK(sum.admitted_prompt_tokens == 40);
  CHECK(sum.latency_ns == 95);
  CHECK(sum.steps == 3);
  CHECK(sum.request_steps == 3);
  CHECK(sum.busy == 1);
  // 40 of 48 slots for 50 ns, 41 of 48 for 20 ns, 42 of 48 for 25 ns.
  CHECK(sum.tail_fragmentation == doctest::Approx(1 - (40. * 50 + 41. * 20 + 42. * 25) / (48. * 95)));
}

TEST_CASE("metrics: a request that arrives while a step runs is queued when that step ends") {
  Feed feed;
  feed.ready(0, 0, 10, 5);
  feed.launch(0, 0, {chunk(0, 0, 10, true, true)});
  feed.gauges(0, 1);
  feed.ready(4, 1, 10, 1);
  feed.gauges(4, 1);
  feed.done(0, {30});
  feed.token(30, 0);
  feed.launch(30, 1, {decode(0, 10), chunk(1, 0, 10, true, true)});
  feed.gauges(30, 2);
  feed.done(1, {70});
  feed.token(70, 1);
  feed.finish(70, 1, 1);
  CHECK(feed.request(1).ready.ns == 4);
  CHECK(feed.request(1).queued.ns == 30);
  CHECK(feed.request(1).admitted.ns == 30);
  CHECK(feed.fraction(1, TimeCategory::kQueue) == 26);
  CHECK(feed.fraction(1, TimeCategory::kPrefill) == 40);
  CHECK(feed.attributed(1) == 66);
}

TEST_CASE(
    "metrics: the tokens that a preempted request computes again are recompute, and its gap is one "
    "inter-token latency") {
  Feed feed;
  feed.ready(0, 0, 20, 4);
  feed.launch(0, 0, {chunk(0, 0, 20, true, true)});
  feed.gauges(0, 1);
  feed.done(0, {10});
  feed.token(10, 0);
  feed.launch(10, 1, {decode(0, 20)});
  feed.done(1, {15});
  feed.preempt(15, 0);
  feed.gauges(15, 0);
  feed.launch(40, 2, {chunk(0, 16, 3, true, false)});  // 22 tokens are known, 16 of them are still cached
  feed.gauges(40, 1);
  feed.done(2, {44});
  feed.launch(44, 3, {chunk(0, 19, 3, false, true)});
  feed.done(3, {52});
  feed.launch(52, 4, {decode(0, 22)});
  feed.done(4, {57});
  feed.finish(57, 0, 4);
  const RequestRecord& request = feed.request(0);
  CHECK(request.preemptions == 1);
  CHECK(request.reused_tokens == 0);
  CHECK(request.reused_again_tokens == 16);
  CHECK(request.recomputed_tokens == 6);
  CHECK(feed.fraction(0, TimeCategory::kPrefill) == 10);
  CHECK(feed.fraction(0, TimeCategory::kDecode) == 5 + 5);
  CHECK(feed.fraction(0, TimeCategory::kQueue) == 25);
  CHECK(feed.fraction(0, TimeCategory::kRecompute) == 12);
  CHECK(feed.attributed(0) == 57);
  CHECK(feed.metrics.itl().count() == 3);
  CHECK(feed.metrics.itl().max().ns == 52 - 15);
}

TEST_CASE("metrics: a prompt that is preempted half-way repeats only the computed part") {
  Feed feed;
  feed.ready(0, 0, 30, 1);
  feed.launch(0, 0, {chunk(0, 0, 10, true, false)});
  feed.gauges(0, 1);
  feed.done(0, {10});
  feed.preempt(10, 0);
  feed.gauges(10, 0);
  feed.launch(10, 1, {chunk(0, 0, 10, true, false)});
  feed.gauges(10, 1);
  feed.done(1, {20});
  feed.launch(20, 2, {chunk(0, 10, 20, false, true)});
  feed.done(2, {50});
  feed.token(50, 0);
  feed.finish(50, 0, 1);
  CHECK(feed.fraction(0, TimeCategory::kPrefill) == 10 + 30);
  CHECK(feed.fraction(0, TimeCategory::kRecompute) == 10);
  CHECK(feed.request(0).recomputed_tokens == 10);
}

TEST_CASE("metrics: a request that waits for a load waits for a transfer, not in the queue") {
  Feed feed;
  feed.ready(0, 0, 32, 1);
  const std::vector<PageId> host = {PageId{1000}, PageId{1001}}, gpu = {PageId{5}, PageId{6}};
  feed.metrics.saw_command(
      Instant{3}, StartTransfer{kE0, TransferId{0}, TransferKind::kLoad, Tier::kHost, Tier::kGpu, host, gpu});
  feed.metrics.saw_event(Instant{23}, kE0, TransferDone{kE0, TransferId{0}});
  feed.launch(30, 0, {chunk(0, 32, 1, true, true)}, 1, {}, {{RequestId{0}, gpu}});
  feed.gauges(30, 1);
  feed.done(0, {41}, {.exposed = Duration{4}, .hidden = Duration{2}});
  feed.token(41, 0);
  feed.finish(41, 0, 1);
  CHECK(feed.fraction(0, TimeCategory::kTransfer) == 20 + 4);
  CHECK(feed.fraction(0, TimeCategory::kQueue) == 10);
  CHECK(feed.fraction(0, TimeCategory::kPrefill) == 7);
  CHECK(feed.attributed(0) == 41);
  const EngineTotals& totals = feed.metrics.totals(kE0);
  CHECK(totals.bytes_in == 2000);
  CHECK(totals.bytes_out == 0);
  CHECK(totals.exposed.ns == 20 + 4);
  CHECK(totals.hidden.ns == 2);
  // The series have the same totals: 20 ns of copying alone at 100 bytes per ns, then a step.
  CHECK(total(feed.metrics.time_exposed()) == 20 + 4);
  CHECK(total(feed.metrics.time_hidden()) == 2);
  CHECK(total(feed.metrics.time_steps()) == 11);
  CHECK(total(feed.metrics.rate_in()) == 2000);
  CHECK(total(feed.metrics.rate_out()) == 0);
}

TEST_CASE("metrics: a step outlives its only request if that was preempted after the launch") {
  Feed feed;
  feed.ready(0, 0, 48, 1);
  feed.launch(0, 0, {chunk(0, 0, 32, false, true)});
  feed.preempt(0, 0);
  CoreGauges gauges;
  gauges.step_in_flight = true;  // although no request runs
  feed.metrics.saw_gauges(Instant{0}, kE0, gauges);
  feed.done(0, {100});
  CHECK(feed.metrics.totals(kE0).steps == 1);
  CHECK(feed.metrics.totals(kE0).busy.ns == 100);
}

TEST_CASE("metrics: copying during a step is hidden, and every series adds up to its total") {
  Feed feed;
  const auto ms = [](int64_t n) { return n * 1'000'000; };
  feed.ready(0, 0, 40, 3);
  feed.launch(ms(1), 0, {chunk(0, 16, 24, true, true)});
  CoreGauges gauges;
  gauges.requests_running = 1;
  gauges.step_in_flight = true;
  gauges.pages_gpu_cached = 4;
  gauges.pages_host_total = 10;
  gauges.pages_host_free = 7;
  feed.metrics.saw_gauges(Instant{ms(1)}, kE0, gauges);
  const std::vector<PageId> gpu = {PageId{5}, PageId{6}}, host = {PageId{1000}, PageId{1001}};
  feed.metrics.saw_command(Instant{ms(2)}, StartTransfer{kE0, TransferId{0}, TransferKind::kOffload,
                                                         Tier::kGpu, Tier::kHost, gpu, host});
  feed.done(0, {ms(3)});
  gauges.requests_running = 0;
  gauges.step_in_flight = false;
  feed.metrics.saw_gauges(Instant{ms(3)}, kE0, gauges);
  feed.metrics.saw_event(Instant{ms(4)}, kE0, TransferDone{kE0, TransferId{0}});
  feed.metrics.saw_gauges(Instant{ms(4)}, kE0, gauges);
  const Metrics& m = feed.metrics;
  const auto in_ms = [&](const Series& series, size_t bucket) {
    REQUIRE(series.width().ns == ms(1));
    const std::vector<Integral>& sums = series.integrals();
    return bucket < sums.size() ? static_cast<double>(sums[bucket]) / 1e6 : 0.0;
  };
  CHECK(in_ms(m.time_hidden(), 2) == 1);  // [2, 3): concurrent with the step
  CHECK(in_ms(m.time_exposed(), 2) == 0);
  CHECK(in_ms(m.time_exposed(), 3) == 1);  // [3, 4): alone
  CHECK(in_ms(m.time_steps(), 1) == 1);
  CHECK(in_ms(m.time_steps(), 3) == 0);
  CHECK(total(m.rate_out()) == 2000);
  CHECK(bool(m.rate_out().integrals()[2] == 1000));  // two pages of 1,000 bytes over two ms
  CHECK(bool(m.rate_out().integrals()[3] == 1000));
  CHECK(in_ms(m.pages_cached(), 1) == 4);
  CHECK(in_ms(m.pages_host(), 3) == 3);
  CHECK(total(m.time_hidden()) == static_cast<uint64_t>(m.totals(kE0).hidden.ns));
  CHECK(total(m.time_exposed()) == static_cast<uint64_t>(m.totals(kE0).exposed.ns));
  CHECK(total(m.time_steps()) == static_cast<uint64_t>(m.totals(kE0).busy.ns));
}

TEST_CASE("metrics: bytes from and to the disk, and hits by tier") {
  Feed feed;
  const std::vector<PageId> gpu = {PageId{5}, PageId{6}}, host = {PageId{1000}, PageId{1001}},
                            disk = {PageId{2000}, PageId{2001}};
  const auto copy = [&](uint64_t number, TransferKind kind, Tier from, Tier to,
                        const std::vector<PageId>& source, const std::vector<PageId>& target, bool fails) {
    const TransferId id{number};
    const Instant at{static_cast<int64_t>(10 * number)};
    feed.metrics.saw_command(at, StartTransfer{kE0, id, kind, from, to, source, target});
    if (fails) return feed.metrics.saw_event(at, kE0, TransferFailed{kE0, id});
    feed.metrics.saw_event(at, kE0, TransferDone{kE0, id});
  };
  copy(0, TransferKind::kOffload, Tier::kGpu, Tier::kHost, gpu, host, false);
  copy(1, TransferKind::kSpill, Tier::kHost, Tier::kDisk, host, disk, false);
  copy(2, TransferKind::kLoad, Tier::kDisk, Tier::kGpu, disk, gpu, false);
  copy(3, TransferKind::kLoad, Tier::kHost, Tier::kGpu, {host[0]}, {gpu[0]}, false);
  copy(4, TransferKind::kLoad, Tier::kDisk, Tier::kGpu, disk, gpu, true);
  copy(5, TransferKind::kSpill, Tier::kHost, Tier::kDisk, host, disk, true);
  const EngineTotals& totals = feed.metrics.totals(kE0);
  CHECK(totals.bytes_in == 3000);  // from the disk and from the host
  CHECK(totals.bytes_out == 2000);
  CHECK(totals.bytes_from_disk == 2000);
  CHECK(totals.bytes_to_disk == 2000);
  CHECK(totals.hits_disk == 32);
  CHECK(totals.hits_host == 16);
  CoreGauges gauges;
  gauges.pages_disk_total = 8;
  for (const uint32_t free : {8u, 3u, 6u}) {
    gauges.pages_disk_free = free;
    feed.metrics.saw_gauges(Instant{60}, kE0, gauges);
  }
  CHECK(totals.pages_disk_peak == 5);
}

TEST_CASE("metrics: pages allocated for later steps of a coalesced launch count when their step begins") {
  Feed coalesced, single;
  for (Feed* feed : {&coalesced, &single}) {
    feed->ready(0, 0, 16, 4);
    feed->launch(0, 0, {chunk(0, 0, 15, true, false)});
    feed->gauges(0, 1, 1);
    feed->done(0, {10});
  }
  coalesced.launch(10, 1, {decode(0, 15)}, 3, {{1, 0, PageId{7}}});
  coalesced.gauges(10, 1, 1);
  coalesced.done(1, {20, 30, 40});
  coalesced.gauges(40, 1, 2);
  single.launch(10, 1, {decode(0, 15)});
  single.gauges(10, 1, 1);
  single.done(1, {20});
  single.launch(20, 2, {decode(0, 16)}, 1, {{0, 0, PageId{7}}});
  single.gauges(20, 1, 2);
  single.done(2, {30});
  single.launch(30, 3, {decode(0, 17)});
  single.gauges(30, 1, 2);
  single.done(3, {40});
  single.gauges(40, 1, 2);
  for (const Feed* feed : {&coalesced, &single}) {
    const EngineTotals& totals = feed->metrics.totals(kE0);
    CHECK(totals.pages_held_peak == 2);
    CHECK(totals.pages_held_ns == 1 * 20 + 2 * 20);
    CHECK(totals.entries_ns == 15 * 10 + 16 * 10 + 17 * 10 + 18 * 10);
    CHECK(totals.slots_ns == 16 * 20 + 32 * 20);
    CHECK(feed->metrics.itl().count() == 3);
  }
}

TEST_CASE("metrics: steps of an interrupted launch that never ran are not counted") {
  Feed feed;
  feed.ready(0, 0, 16, 100);
  feed.launch(0, 0, {chunk(0, 0, 16, true, true)});
  feed.gauges(0, 1, 1);
  feed.done(0, {10});
  feed.token(10, 0);
  feed.launch(10, 1, {decode(0, 16)}, 50, {{16, 0, PageId{3}}, {32, 0, PageId{4}}});
  feed.gauges(10, 1, 2);
  feed.done(1, {20});  // interrupt() reported the ended steps
  feed.gauges(20, 1, 2);
  feed.ready(25, 1, 16, 1);
  feed.gauges(25, 1, 2);
  feed.done(2, {30});  // the step that was running
  feed.launch(30, 3, {decode(0, 18), chunk(1, 0, 16, true, true)});
  feed.gauges(30, 2, 3);
  feed.done(3, {45});
  feed.token(45, 1);
  feed.finish(45, 1, 1);
  feed.gauges(45, 1, 2);
  CHECK(feed.metrics.totals(kE0).steps == 4);
  CHECK(feed.metrics.totals(kE0).pages_held_peak == 3);
  CHECK(feed.request(1).queued.ns == 30);
  CHECK(summarise(feed.metrics).open == 1);
}

TEST_CASE("metrics: rejected requests are listed, but in no distribution") {
  Feed feed;
  feed.ready(5, 0, 999, 1);
  feed.metrics.saw_command(
      Instant{5}, RejectRequest{kE0, RequestId{0}, RejectRequest::Reason::kLongerThanWindow, 1000, 512});
  const Summary sum = summarise(feed.metrics);
  CHECK(sum.requests == 1);
  CHECK(sum.rejected == 1);
  CHECK(sum.e2e.count == 0);
  REQUIRE(feed.metrics.rejections().size() == 1);
  CHECK(feed.metrics.rejections()[0].needed == 1000);
}

TEST_CASE("metrics: sessions know their makespan and the part of it in which requests ran") {
  Feed feed;
  for (const auto& [id, at] : std::vector<std::pair<uint32_t, int64_t>>{{0, 0}, {1, 100}}) {
    feed.ready(at, id, 16, 1, 7);
    feed.launch(at, id, {chunk(id, 0, 16, true, true)});
    feed.gauges(at, 1);
    feed.done(id, {at + 10});
    feed.token(at + 10, id);
    feed.finish(at + 10, id, 1);
    feed.gauges(at + 10, 0);
  }
  const Summary sum = summarise(feed.metrics);
  CHECK(sum.sessions == 1);
  CHECK(sum.makespan.max == 110);
  CHECK(sum.served.max == 20);
}

}  // namespace kvtwin
