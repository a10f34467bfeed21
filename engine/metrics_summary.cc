#include "engine/metrics_summary.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin {
namespace {

double as_double(Integral value) { return static_cast<double>(value); }
double ratio(Integral part, Integral whole) { return whole == 0 ? 0 : as_double(part) / as_double(whole); }
double span_ns(Instant from, Instant to) { return static_cast<double>((to - from).ns); }

Distribution of_histogram(const LogHistogram& values) {
  if (values.count() == 0) return {};
  return {values.count(),
          values.mean_ns(),
          values.quantile_ns(50),
          values.quantile_ns(90),
          values.quantile_ns(95),
          values.quantile_ns(99),
          static_cast<double>(values.max().ns)};
}

void add_calls(const Metrics& metrics, Summary* sum) {
  std::vector<double> ttft, ttft_from_queued, tpot, e2e;
  Instant first = kNever, last{};
  for (const CallRecord& call : metrics.calls()) {
    if (!call.known) continue;
    ++sum->calls;
    first = std::min(first, call.ready);
    sum->preemptions += call.preemptions;
    sum->calls_preempted += call.preemptions > 0;
    sum->reused_again_tokens += call.reused_again_tokens;
    sum->recomputed_tokens += call.recomputed_tokens;
    if (call.admitted != kNever) {
      sum->admitted_prompt_tokens += call.prompt_tokens;
      sum->reused_tokens += call.reused_tokens;
      sum->reused_live += call.reused_live;
    }
    if (call.end == CallEnd::kOpen) ++sum->open;
    if (call.end == CallEnd::kCancelled) ++sum->cancelled;
    if (call.end == CallEnd::kRejected) ++sum->rejected;
    if (call.end != CallEnd::kOpen && call.end != CallEnd::kRejected) last = std::max(last, call.finished);
    if (call.end != CallEnd::kFinished) continue;
    ++sum->finished;
    sum->prompt_tokens += call.prompt_tokens;
    sum->output_tokens += call.output_tokens;
    Integral attributed = 0;
    for (size_t share = 0; share < call.time.size(); ++share) {
      sum->time_ns[share] += static_cast<uint64_t>(call.time[share].ns);
      attributed += static_cast<uint64_t>(call.time[share].ns);
    }
    const auto latency = static_cast<uint64_t>((call.finished - call.ready).ns);
    KVT_CHECK(attributed == latency);
    sum->latency_ns += latency;
    e2e.push_back(static_cast<double>(latency));
    if (call.first_token == kNever) continue;
    ttft.push_back(span_ns(call.ready, call.first_token));
    ttft_from_queued.push_back(span_ns(call.queued, call.first_token));
    if (call.output_tokens < 2) continue;
    tpot.push_back(span_ns(call.first_token, call.finished) / (call.output_tokens - 1));
  }
  sum->ttft = distribution(&ttft);
  sum->ttft_from_queued = distribution(&ttft_from_queued);
  sum->tpot = distribution(&tpot);
  sum->e2e = distribution(&e2e);
  sum->itl = of_histogram(metrics.itl());
  if (first == kNever || last <= first) return;
  sum->elapsed = last - first;
  const double seconds = static_cast<double>(sum->elapsed.ns) / 1e9;
  sum->calls_per_s = static_cast<double>(sum->finished) / seconds;
  sum->output_tokens_per_s = static_cast<double>(sum->output_tokens) / seconds;
  sum->prompt_tokens_per_s = static_cast<double>(sum->prompt_tokens) / seconds;
}

void add_sessions(const Metrics& metrics, Summary* sum) {
  std::vector<double> makespan, served;
  for (const SessionRecord& session : metrics.sessions()) {
    if (session.calls == 0) continue;
    ++sum->sessions;
    if (session.calls_open > 0) {
      ++sum->sessions_open;
      continue;
    }
    makespan.push_back(span_ns(session.first_ready, session.last_finished));
    served.push_back(static_cast<double>(session.served.ns));
  }
  sum->makespan = distribution(&makespan);
  sum->served = distribution(&served);
}

void add_engines(const Metrics& metrics, Summary* sum) {
  double slack_ns = 0;  // cells that no head needs, times ns
  Integral held_ns = 0, int2_ns = 0, cells_ns = 0, slots_ns = 0, full_ns = 0, busy_ns = 0;
  Instant first = kNever, last{};
  for (size_t i = 0; i < metrics.engines(); ++i) {
    const EngineTotals& engine = metrics.totals(EngineId{static_cast<uint16_t>(i)});
    first = std::min(first, engine.first_event);
    last = std::max(last, engine.last_event);
    sum->pages_gpu += metrics.facts()[i].pages_gpu;
    sum->pages_int2 += metrics.facts()[i].pages_int2;
    sum->tokens_requantised += engine.tokens_requantised;
    sum->pages_held_peak += engine.pages_held_peak;
    sum->pages_resident_peak += engine.pages_resident_peak;
    sum->steps += engine.steps;
    sum->call_steps += engine.call_steps;
    sum->transfers += engine.transfers;
    sum->transfers_failed += engine.transfers_failed;
    sum->bytes_in += engine.bytes_in;
    sum->bytes_out += engine.bytes_out;
    sum->bytes_received += engine.bytes_received;
    sum->bytes_from_disk += engine.bytes_from_disk;
    sum->bytes_to_disk += engine.bytes_to_disk;
    sum->pages_disk_peak += engine.pages_disk_peak;
    sum->hits_host += engine.hits_host;
    sum->hits_disk += engine.hits_disk;
    sum->transfer_exposed = sum->transfer_exposed + engine.exposed;
    sum->transfer_hidden = sum->transfer_hidden + engine.hidden;
    held_ns += engine.pages_held_ns;
    int2_ns += engine.pages_int2_held_ns;
    cells_ns += engine.cells_ns;
    slots_ns += engine.slots_ns;
    full_ns += engine.full_ns;
    if (engine.full_ns > engine.cells_ns)
      slack_ns += metrics.facts()[i].group_slack * static_cast<double>(engine.full_ns - engine.cells_ns);
    sum->reads_raw += engine.reads_raw;
    sum->reads_effective += engine.reads_effective;
    sum->peak_raw = std::max<uint64_t>(sum->peak_raw, engine.peak_raw);
    sum->peak_effective = std::max<uint64_t>(sum->peak_effective, engine.peak_effective);
    busy_ns += static_cast<uint64_t>(engine.busy.ns);
  }
  if (first == kNever || last <= first) return;
  const auto span = static_cast<uint64_t>((last - first).ns);
  sum->pages_held_mean = ratio(held_ns, span);
  sum->pages_int2_held_mean = ratio(int2_ns, span);
  sum->busy = ratio(busy_ns, Integral{span} * metrics.engines());
  if (cells_ns > 0) sum->group_fragmentation = std::min(1.0, slack_ns / static_cast<double>(cells_ns));
  if (slots_ns > 0) sum->tail_fragmentation = 1 - ratio(cells_ns, slots_ns);
  if (full_ns > 0) sum->reclaimed = 1 - ratio(slots_ns, full_ns);
}

}  // namespace

Distribution distribution(std::vector<double>* values) {
  if (values->empty()) return {};
  std::sort(values->begin(), values->end());
  const auto rank = [&](size_t percent) {
    return (*values)[std::max<size_t>(1, div_ceil<size_t>(values->size() * percent, 100)) - 1];
  };
  // Summed in sorted order, so that the mean does not depend on the order of the calls.
  double sum = 0;
  for (const double value : *values) sum += value;
  const auto count = values->size();
  return {count, sum / static_cast<double>(count), rank(50), rank(90), rank(95), rank(99), values->back()};
}

Summary summarise(const Metrics& metrics) {
  Summary sum;
  add_calls(metrics, &sum);
  add_sessions(metrics, &sum);
  add_engines(metrics, &sum);
  return sum;
}

}  // namespace kvtwin
