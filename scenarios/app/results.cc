#include "scenarios/app/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "engine/metrics/metrics_summary.h"
#include "models/files/textproto.h"
#include "scenarios/app/compose_parts.h"
#include "scenarios/app/head_fractions.h"
#include "scenarios/output/csv_cell.h"

namespace kvtwin {
namespace {

void fill_counts(const Summary& sum, v1::RequestCounts* out) {
  out->set_requests(sum.requests);
  out->set_finished(sum.finished);
  out->set_cancelled(sum.cancelled);
  out->set_rejected(sum.rejected);
  out->set_open(sum.open);
  out->set_sessions(sum.sessions);
  out->set_sessions_open(sum.sessions_open);
  out->set_preemptions(sum.preemptions);
  out->set_requests_preempted(sum.requests_preempted);
  out->set_steps(sum.steps);
  out->set_request_steps(sum.request_steps);
}

void fill_time(const Summary& sum, v1::TimeBreakdown* out) {
  const auto seconds = [&](TimeCategory fraction) {
    return static_cast<double>(sum.time_ns[static_cast<size_t>(fraction)]) / 1e9;
  };
  out->set_queue_s(seconds(TimeCategory::kQueue));
  out->set_transfer_s(seconds(TimeCategory::kTransfer));
  out->set_prefill_s(seconds(TimeCategory::kPrefill));
  out->set_recompute_s(seconds(TimeCategory::kRecompute));
  out->set_decode_s(seconds(TimeCategory::kDecode));
  out->set_host_s(seconds(TimeCategory::kHost));
  out->set_latency_s(static_cast<double>(sum.latency_ns) / 1e9);
}

void fill_pages(const Summary& sum, const Composed& composed, v1::Pages* out) {
  out->set_gpu(sum.pages_gpu);
  out->set_held_peak(sum.pages_held_peak);
  out->set_resident_peak(sum.pages_resident_peak);
  out->set_held_mean(sum.pages_held_mean);
  out->set_gpu_int2(sum.pages_int2);
  out->set_held_mean_int2(sum.pages_int2_held_mean);
  out->set_requantised_tokens(sum.tokens_requantised);
  out->set_tail_fragmentation(sum.tail_fragmentation);
  out->set_group_fragmentation(sum.group_fragmentation);
  out->set_reclaimed(sum.reclaimed);
  out->set_page_tokens(composed.options.engines.front().page_tokens);
  out->set_page_bytes(composed.facts.front().page_bytes);
  // A page holds one of the head groups of its tokens.
  out->set_gpu_tokens(sum.pages_gpu * out->page_tokens() /
                      page_groups(composed.options.engines.front().policies));
  for (const CoreConfig& config : composed.options.engines) {
    out->set_host(out->host() + config.pages_host);
    out->set_disk(out->disk() + config.pages_disk);
  }
  out->set_disk_peak(sum.pages_disk_peak);
}

void fill_series(const char* name, const char* unit, const Series& in, v1::RunResult* out) {
  v1::TimeSeries& series = *out->add_series();
  series.set_name(name);
  series.set_unit(unit);
  series.set_width_ns(in.width().ns);
  for (const Integral sum : in.integrals()) {
    series.add_mean(static_cast<double>(sum) / static_cast<double>(in.width().ns));
  }
}

// Tiers, and copies that run during compute. Series without values are left out; bytes per ns are GB/s.
void fill_moved(const Metrics& metrics, v1::RunResult* out) {
  const std::tuple<const char*, const char*, const Series&> all[] = {
      {"pages_cached", "pages", metrics.pages_cached()},
      {"pages_host", "pages", metrics.pages_host()},
      {"pages_disk", "pages", metrics.pages_disk()},
      {"pages_int2", "pages", metrics.pages_int2()},
      {"time_steps", "engines", metrics.time_steps()},
      {"time_hidden", "engines", metrics.time_hidden()},
      {"time_exposed", "engines", metrics.time_exposed()},
      {"rate_in", "GB/s", metrics.rate_in()},
      {"rate_out", "GB/s", metrics.rate_out()}};
  for (const auto& [name, unit, series] : all) {
    const std::vector<Integral>& sums = series.integrals();
    if (std::any_of(sums.begin(), sums.end(), [](Integral one) { return one > 0; }))
      fill_series(name, unit, series, out);
  }
}

// Fractions of the tokens that were sent, by the origin of their counts.
void fill_input(const ReplayReport& report, v1::Fractions* out) {
  constexpr std::pair<Provenance, const char*> kNames[] = {{Provenance::kRecorded, "recorded"},
                                                           {Provenance::kDerived, "derived"},
                                                           {Provenance::kEstimated, "estimated"},
                                                           {Provenance::kSynthesised, "synthesised"},
                                                           {Provenance::kUnknown, "unknown"}};
  const double total = static_cast<double>(report.prompt_tokens.total() + report.output_tokens.total());
  for (const auto& [provenance, name] : kNames) {
    const auto index = static_cast<size_t>(provenance);
    uint64_t tokens = report.prompt_tokens.by[index] + report.output_tokens.by[index];
    if (provenance == Provenance::kUnknown) tokens += report.prompt_tokens.by[0] + report.output_tokens.by[0];
    out->add_name(name);
    out->add_fraction(total > 0 ? static_cast<double>(tokens) / total : 0);
  }
}

void fill_cost(const SimulatedEnd& simulated, v1::Fractions* out) {
  for (const Evidence evidence :
       {Evidence::kMeasured, Evidence::kInterpolated, Evidence::kRoofline, Evidence::kExtrapolated}) {
    out->add_name(name_of(evidence));
    out->add_fraction(simulated.evidence[static_cast<size_t>(evidence)]);
  }
}

void fill_transfers(const Summary& sum, v1::Transfers* out) {
  out->set_count(sum.transfers);
  out->set_failed(sum.transfers_failed);
  out->set_bytes_in(sum.bytes_in);
  out->set_bytes_out(sum.bytes_out);
  out->set_exposed_ns(sum.transfer_exposed.ns);
  out->set_hidden_ns(sum.transfer_hidden.ns);
  out->set_bytes_received(sum.bytes_received);
  out->set_hits_host(sum.hits_host);
  out->set_hits_disk(sum.hits_disk);
  out->set_bytes_from_disk(sum.bytes_from_disk);
  out->set_bytes_to_disk(sum.bytes_to_disk);
}

void fill_compression(const SimulatedEnd::CompressionTimes& in, v1::CompressionTimes* out) {
  const auto seconds = [&](CompressionPart part) { return in.seconds[static_cast<size_t>(part)]; };
  out->set_count(in.count);
  out->set_capture_s(seconds(CompressionPart::kCapture));
  out->set_probe_s(seconds(CompressionPart::kProbe));
  out->set_score_s(seconds(CompressionPart::kScore));
  out->set_select_s(seconds(CompressionPart::kSelect));
  out->set_move_s(seconds(CompressionPart::kMove));
  out->set_bookkeeping_s(seconds(CompressionPart::kBookkeeping));
  out->set_prompt_steps_s(in.prompt_steps_s);
  out->set_in_prompt_steps_s(in.in_prompt_steps_s);
}

void fill_retrieval(const SimulatedEnd::Retrieval& in, v1::Retrieval* out) {
  out->set_outcomes(in.outcomes);
  out->set_pages_now(in.pages_now);
  out->set_pages_next(in.pages_next);
  out->set_heads_corrected(in.heads_corrected);
  out->set_heads_chose(in.heads_chose);
  out->set_pages_chosen(in.pages_chosen);
  out->set_bytes_in(in.bytes_in);
  out->set_bytes_out(in.bytes_out);
  out->set_exposed_ns(in.exposed.ns);
  out->set_hidden_ns(in.hidden.ns);
  out->set_steps_expanded(in.steps_expanded);
}

const char* name_of(RejectRequest::Reason reason) {
  switch (reason) {
    case RejectRequest::Reason::kLongerThanWindow:
      return "longer_than_window";
    case RejectRequest::Reason::kLargerThanPool:
      return "larger_than_pool";
    case RejectRequest::Reason::kPromptEmpty:
      return "prompt_empty";
  }
  return "";
}

const char* name_of(RequestEnd end) {
  switch (end) {
    case RequestEnd::kOpen:
      return "open";
    case RequestEnd::kFinished:
      return "finished";
    case RequestEnd::kCancelled:
      return "cancelled";
    case RequestEnd::kRejected:
      return "rejected";
  }
  return "";
}

void fill_reuse(const Summary& sum, v1::Reuse* out) {
  out->set_admitted_prompt_tokens(sum.admitted_prompt_tokens);
  out->set_first_admission_tokens(sum.reused_tokens);
  out->set_live_tokens(sum.reused_live);
  out->set_reads_raw(sum.reads_raw);
  out->set_peak_raw(sum.peak_raw);
  out->set_peak_effective(sum.peak_effective);
  out->set_reads_effective(sum.reads_effective);
  out->set_readmission_tokens(sum.reused_again_tokens);
  out->set_recomputed_tokens(sum.recomputed_tokens);
}

void fill_price(const Summary& sum, const Composed& composed, v1::RunResult* out) {
  v1::Price price;
  double usd = 0;
  for (const EngineKind& kind : composed.kinds) {
    const GpuPrice one = price_of(kind);
    if (!one.known) return;
    const uint32_t gpus = kind.engines * kind.gpus_each;
    price.set_gpus(price.gpus() + gpus);
    price.set_assumed(price.assumed() || one.assumed);
    usd += one.usd_per_hour * gpus;
  }
  price.set_usd_per_hour(usd);
  const double spent = usd * static_cast<double>(sum.elapsed.ns) / 3.6e12;
  const auto output = static_cast<double>(sum.output_tokens), prompt = static_cast<double>(sum.prompt_tokens);
  if (output > 0) price.set_usd_per_million_output_tokens(1e6 * spent / output);
  if (output + prompt > 0) price.set_usd_per_million_tokens(1e6 * spent / (output + prompt));
  *out->mutable_price() = price;
}

std::string instant(Instant at) { return at == kNever ? "" : fmt::format("{}", at.ns); }

void fill_notes(const Scenario& scenario, const Composed& composed, v1::RunResult* out) {
  for (const std::string& note : composed.notes) out->add_notes(note);
  if (const uint64_t unsent = composed.client->report().requests_cancelled; unsent > 0)
    out->add_notes(fmt::format(
        "{} more {} of the trace never sent, because a request before them in their session was "
        "rejected (replay.on_reject: {}); requests.csv lists the rejected ones",
        unsent, unsent == 1 ? "request was" : "requests were", scenario.values.replay().on_reject()));
}

}  // namespace

GpuPrice price_of(const EngineKind& kind) {
  const bool whole = kind.node.price_usd_per_hour.present();
  const Figure& figure = whole ? kind.node.price_usd_per_hour : kind.device.price_usd_per_hour;
  return {figure.value / (whole ? kind.node.gpus : 1), figure.present(), figure.basis == Basis::kAssumed};
}

void fill(const Distribution& in, v1::Distribution* out) {
  out->set_count(in.count);
  out->set_mean_ns(in.mean);
  out->set_p50_ns(in.p50);
  out->set_p90_ns(in.p90);
  out->set_p95_ns(in.p95);
  out->set_p99_ns(in.p99);
  out->set_max_ns(in.max);
}

v1::RunResult make_result(const Scenario& scenario, const Composed& composed, const Metrics& metrics,
                          const SimulatedEnd& simulated, uint64_t inputs) {
  const Summary sum = summarise(metrics);
  v1::RunResult out;
  out.set_schema_version(kResultSchema);
  out.set_kvtwin_version(KVTWIN_VERSION);
  out.set_scenario(scenario.values.name());
  out.set_scenario_text(resolved_textproto(scenario));
  out.set_seed(scenario.values.seed());
  out.set_backend(scenario.values.backend());
  if (scenario.values.backend() != "sim") {
    out.mutable_values()->set_clock(scenario.values.clock());
    out.mutable_values()->set_decode(scenario.values.cpu().decode());
    out.mutable_values()->set_tokens(simulated.tokens_computed);
    out.mutable_values()->set_samples(simulated.samples_digest);
    if (composed.tagger && scenario.values.clock() == "wall" && !composed.step_time)
      out.mutable_values()->set_tagging_ns_per_token(composed.tagger->cost().ns_per_token());
  }
  out.set_decisions(simulated.end.digest);
  out.set_inputs(inputs);
  fill_counts(sum, out.mutable_requests());
  v1::Latencies& latencies = *out.mutable_latencies();
  fill(sum.ttft, latencies.mutable_ttft());
  fill(sum.ttft_from_queued, latencies.mutable_ttft_from_queued());
  fill(sum.tpot, latencies.mutable_tpot());
  fill(sum.itl, latencies.mutable_itl());
  fill(sum.e2e, latencies.mutable_e2e());
  fill(sum.makespan, latencies.mutable_session_makespan());
  fill(sum.served, latencies.mutable_session_served());
  v1::Rates& rates = *out.mutable_rates();
  rates.set_elapsed_ns(sum.elapsed.ns);
  rates.set_requests_per_s(sum.requests_per_s);
  rates.set_output_tokens_per_s(sum.output_tokens_per_s);
  rates.set_prompt_tokens_per_s(sum.prompt_tokens_per_s);
  rates.set_prompt_tokens(sum.prompt_tokens);
  rates.set_output_tokens(sum.output_tokens);
  rates.set_busy(sum.busy);
  fill_reuse(sum, out.mutable_reuse());
  out.mutable_reuse()->set_retained_outcomes(simulated.retained_outcomes);
  fill_pages(sum, composed, out.mutable_pages());
  fill_transfers(sum, out.mutable_transfers());
  fill_price(sum, composed, &out);
  fill_time(sum, out.mutable_time());
  fill_input(composed.client->report(), out.mutable_input());
  fill_cost(simulated, out.mutable_cost());
  if (!simulated.retrieval.outcomes.empty()) fill_retrieval(simulated.retrieval, out.mutable_retrieval());
  if (simulated.compression.priced) fill_compression(simulated.compression, out.mutable_compression());
  if (simulated.attention_slowdown > 0) {
    out.mutable_attention()->set_partition(scenario.values.policies().partition());
    out.mutable_attention()->set_slowdown(simulated.attention_slowdown);
  }
  for (const Rejection& one : metrics.rejections()) {
    v1::RejectedRequest& rejected = *out.add_rejected();
    rejected.set_request(raw(one.request));
    rejected.set_reason(name_of(one.reason));
    rejected.set_needed(one.needed);
    rejected.set_limit(one.limit);
  }
  fill_series("requests_running", "requests", metrics.running(), &out);
  fill_series("requests_waiting", "requests", metrics.waiting(), &out);
  fill_series("pages_held", "pages", metrics.pages_held(), &out);
  fill_moved(metrics, &out);
  for (const MemoryTerm& term : composed.memory.terms) {
    out.add_memory()->set_name(term.name);
    out.mutable_memory(out.memory_size() - 1)->set_bytes(term.bytes);
  }
  fill_notes(scenario, composed, &out);
  return out;
}

std::string requests_csv(const Composed& composed, const Metrics& metrics) {
  std::string out =
      "request,session,replica,node,engine,end,prompt_tokens,output_tokens,reused_tokens,preemptions,reused_"
      "again_"
      "tokens,"
      "recomputed_tokens,ready_ns,queued_ns,admitted_ns,first_token_ns,finished_ns,queue_ns,transfer_ns,"
      "prefill_ns,recompute_ns,decode_ns,host_ns,agent\n";
  for (size_t id = 0; id < metrics.requests().size(); ++id) {
    const RequestRecord& request = metrics.requests()[id];
    if (!request.known) continue;
    const ReplayRequestInfo info = composed.client->request_info(RequestId{static_cast<uint32_t>(id)});
    fmt::format_to(std::back_inserter(out), "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}", id,
                   csv_cell(info.session_id), info.replica, info.node, raw(request.engine),
                   name_of(request.end), request.prompt_tokens, request.output_tokens, request.reused_tokens,
                   request.preemptions, request.reused_again_tokens, request.recomputed_tokens,
                   request.ready.ns, instant(request.queued), instant(request.admitted),
                   instant(request.first_token), instant(request.finished));
    for (const Duration fraction : request.time) fmt::format_to(std::back_inserter(out), ",{}", fraction.ns);
    fmt::format_to(std::back_inserter(out), ",{}\n", info.agent);
  }
  return out;
}

std::string tools_csv(const Composed& composed) {
  const std::vector<ReplayTool>& tools = composed.client->tools();
  if (tools.empty()) return {};
  const ReplayTable& table = composed.client->table();
  std::string out = "session,replica,node,agent,kind,released_ns,finished_ns\n";
  for (const ReplayTool& tool : tools) {
    const size_t sessions = table.sessions.size();
    const TableSession& session = table.sessions[tool.instance % sessions];
    const TableNode& node = table.nodes[session.node_first + tool.node];
    fmt::format_to(std::back_inserter(out), "{},{},{},{},{},{},{}\n", csv_cell(session.id),
                   tool.instance / sessions, tool.node, node.agent,
                   node.kind == NodeKind::kTool ? "tool" : "agent", tool.released.ns, tool.finished.ns);
  }
  return out;
}

std::string requests_jsonl(const Composed& composed, const Metrics& metrics) {
  // Trace order, (session, replica, node, attempt), independent of the order of sending.
  std::vector<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>> order;
  for (uint32_t id = 0; id < metrics.requests().size(); ++id) {
    if (!metrics.requests()[id].known || metrics.requests()[id].end != RequestEnd::kFinished) continue;
    const ReplayRequestInfo info = composed.client->request_info(RequestId{id});
    order.emplace_back(info.session_index, info.replica, info.node, info.attempt, id);
  }
  std::sort(order.begin(), order.end());
  const auto seconds = [](Instant at) { return static_cast<double>(at.ns) / 1e9; };
  std::string out;
  for (const auto& row : order) {
    const uint32_t id = std::get<4>(row);
    const RequestRecord& request = metrics.requests()[id];
    const ReplayRequestInfo info = composed.client->request_info(RequestId{id});
    nlohmann::ordered_json line;
    line["request_id"] = fmt::format("{}/{}", info.session_id, info.node);
    line["input_toks"] = request.prompt_tokens;
    line["output_toks"] = request.output_tokens;
    line["arrival_time"] = seconds(request.ready);
    line["queued_ts"] = seconds(request.queued);
    line["scheduled_ts"] = seconds(request.admitted);
    line["first_token_ts"] = seconds(request.first_token);
    line["last_token_ts"] = seconds(request.finished);
    // Session names come from the trace: bytes that are not UTF-8 are replaced instead of throwing.
    out += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  return out;
}

std::vector<RunFile> result_files(const v1::RunResult& result, const Composed& composed,
                                  const Metrics& metrics, std::vector<RunFile> observed) {
  std::vector<RunFile> files;
  files.push_back({"scenario.resolved.textproto", result.scenario_text()});
  files.push_back({"requests.csv", requests_csv(composed, metrics)});
  if (std::string tools = tools_csv(composed); !tools.empty())
    files.push_back({"tools.csv", std::move(tools)});
  if (std::string heads = heads_json(composed.options.engines.front().policies); !heads.empty())
    files.push_back({"heads.json", std::move(heads)});
  files.push_back({"requests.jsonl", requests_jsonl(composed, metrics)});
  std::move(observed.begin(), observed.end(), std::back_inserter(files));
  files.push_back({"run.binpb", result.SerializeAsString()});
  return files;
}

}  // namespace kvtwin
