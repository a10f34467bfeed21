#include "engine/metrics/metrics_summary.h"

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

void add_requests(const Metrics& metrics, Summary* sum) {
  std::vector<double> ttft, ttft_from_queued, tpot, e2e;
  Instant first = kNever, last{};
  for (const RequestRecord& request : metrics.requests()) {
    if (!request.known) continue;
    ++sum->requests;
    first = std::min(first, request.ready);
    sum->preemptions += request.preemptions;
    sum->requests_preempted += request.preemptions > 0;
    sum->reused_again_tokens += request.reused_again_tokens;
    sum->recomputed_tokens += request.recomputed_tokens;
    if (request.admitted != kNever) {
      sum->admitted_prompt_tokens += request.prompt_tokens;
      sum->reused_tokens += request.reused_tokens;
      sum->reused_live += request.reused_live;
    }
    if (request.end == RequestEnd::kOpen) ++sum->open;
    if (request.end == RequestEnd::kCancelled) ++sum->cancelled;
    if (request.end == RequestEnd::kRejected) ++sum->rejected;
    if (request.end != RequestEnd::kOpen && request.end != RequestEnd::kRejected)
      last = std::max(last, request.finished);
    if (request.end != RequestEnd::kFinished) continue;
    ++sum->finished;
    sum->prompt_tokens += request.prompt_tokens;
    sum->output_tokens += request.output_tokens;
    Integral attributed = 0;
    for (size_t fraction = 0; fraction < request.time.size(); ++fraction) {
      sum->time_ns[fraction] += static_cast<uint64_t>(request.time[fraction].ns);
      attributed += static_cast<uint64_t>(request.time[fraction].ns);
    }
    const auto latency = static_cast<uint64_t>((request.finished - request.ready).ns);
    KVT_CHECK(attributed == latency);
    sum->latency_ns += latency;
    e2e.push_back(static_cast<double>(latency));
    if (request.first_token == kNever) continue;
    ttft.push_back(span_ns(request.ready, request.first_token));
    ttft_from_queued.push_back(span_ns(request.queued, request.first_token));
    if (request.output_tokens < 2) continue;
    tpot.push_back(span_ns(request.first_token, request.finished) / (request.output_tokens - 1));
  }
  sum->ttft = distribution(&ttft);
  sum->ttft_from_queued = distribution(&ttft_from_queued);
  sum->tpot = distribution(&tpot);
  sum->e2e = distribution(&e2e);
  sum->itl = of_histogram(metrics.itl());
  if (first == kNever || last <= first) return;
  sum->elapsed = last - first;
  const double seconds = static_cast<double>(sum->elapsed.ns) / 1e9;
  sum->requests_per_s = static_cast<double>(sum->finished) / seconds;
  sum->output_tokens_per_s = static_cast<double>(sum->output_tokens) / seconds;
  sum->prompt_tokens_per_s = static_cast<double>(sum->prompt_tokens) / seconds;
}

void add_sessions(const Metrics& metrics, Summary* sum) {
  std::vector<double> makespan, served;
  for (const SessionRecord& session : metrics.sessions()) {
    if (session.requests == 0) continue;
    ++sum->sessions;
    if (session.requests_open > 0) {
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
  double slack_ns = 0;  // KV entries that no head needs, times ns
  Integral held_ns = 0, int2_ns = 0, entries_ns = 0, slots_ns = 0, full_ns = 0, busy_ns = 0;
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
    sum->request_steps += engine.request_steps;
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
    entries_ns += engine.entries_ns;
    slots_ns += engine.slots_ns;
    full_ns += engine.full_ns;
    if (engine.full_ns > engine.entries_ns)
      slack_ns += metrics.facts()[i].group_slack * static_cast<double>(engine.full_ns - engine.entries_ns);
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
  if (entries_ns > 0) sum->group_fragmentation = std::min(1.0, slack_ns / static_cast<double>(entries_ns));
  if (slots_ns > 0) sum->tail_fragmentation = 1 - ratio(entries_ns, slots_ns);
  if (full_ns > 0) sum->reclaimed = 1 - ratio(slots_ns, full_ns);
}

}  // namespace

Distribution distribution(std::vector<double>* values) {
  if (values->empty()) return {};
  std::sort(values->begin(), values->end());
  const auto rank = [&](size_t percent) {
    return (*values)[std::max<size_t>(1, div_ceil<size_t>(values->size() * percent, 100)) - 1];
  };
  // Summed in sorted order, so that the mean does not depend on the order of the requests.
  double sum = 0;
  for (const double value : *values) sum += value;
  const auto count = values->size();
  return {count, sum / static_cast<double>(count), rank(50), rank(90), rank(95), rank(99), values->back()};
}

Summary summarise(const Metrics& metrics) {
  Summary sum;
  add_requests(metrics, &sum);
  add_sessions(metrics, &sum);
  add_engines(metrics, &sum);
  return sum;
}

}  // namespace kvtwin
