#include "scenarios/server_runs/measured.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/metrics/metrics_summary.h"
#include "scenarios/output/csv_cell.h"
#include "traces/importers/import_logs.h"

namespace kvtwin {
namespace {

int64_t ns(double seconds) { return std::llround(seconds * 1e9); }

std::string session_of(const MeasuredRequest& request, size_t index) {
  return request.session.empty() ? fmt::format("{}", index) : request.session;
}

// kvtwin run's name of a request of a trace; else its index.
std::string id_of(const MeasuredRequest& request, size_t index) {
  return request.node ? fmt::format("{}/{}", request.session, *request.node) : fmt::format("{}", index);
}

// Prefix reuse, if the server reported it for each finished request.
void fill_reuse(const std::vector<MeasuredRequest>& requests, v1::RunResult* out) {
  uint64_t prompt = 0, reused = 0;
  for (const MeasuredRequest& request : requests) {
    if (!request.finished) continue;
    if (!request.reused) return;
    prompt += request.prompt, reused += *request.reused;
  }
  out->mutable_reuse()->set_admitted_prompt_tokens(prompt);
  out->mutable_reuse()->set_first_admission_tokens(reused);
}

// Computes latencies and rates of finished requests.
void fill_from_requests(MeasuredRun* run) {
  v1::RunResult& out = run->result;
  std::vector<double> ttft, tpot, e2e;
  std::set<std::string> sessions;
  double first = INFINITY, last = 0;
  for (size_t i = 0; i < run->requests.size(); ++i) {
    const MeasuredRequest& request = run->requests[i];
    sessions.insert(session_of(request, i));
    v1::RequestCounts& counts = *out.mutable_requests();
    counts.set_requests(counts.requests() + 1);
    if (!request.finished) {
      counts.set_cancelled(counts.cancelled() + 1);
      continue;
    }
    counts.set_finished(counts.finished() + 1);
    first = std::min(first, request.begin_s), last = std::max(last, request.end_s);
    ttft.push_back((request.first_s - request.begin_s) * 1e9);
    e2e.push_back((request.end_s - request.begin_s) * 1e9);
    if (request.output > 1)
      tpot.push_back((request.end_s - request.first_s) * 1e9 / static_cast<double>(request.output - 1));
    v1::Rates& rates = *out.mutable_rates();
    rates.set_prompt_tokens(rates.prompt_tokens() + request.prompt);
    rates.set_output_tokens(rates.output_tokens() + request.output);
  }
  out.mutable_requests()->set_sessions(sessions.size());
  fill_reuse(run->requests, &out);
  v1::Latencies& latencies = *out.mutable_latencies();
  fill(distribution(&ttft), latencies.mutable_ttft());
  fill(distribution(&tpot), latencies.mutable_tpot());
  fill(distribution(&e2e), latencies.mutable_e2e());
  fill(distribution(&run->itls_ns), latencies.mutable_itl());
  if (out.rates().elapsed_ns() == 0 && last > first) out.mutable_rates()->set_elapsed_ns(ns(last - first));
}

void fill_rates(v1::RunResult* out) {
  v1::Rates& rates = *out->mutable_rates();
  if (rates.elapsed_ns() <= 0) return;
  const double seconds = static_cast<double>(rates.elapsed_ns()) / 1e9;
  rates.set_requests_per_s(static_cast<double>(out->requests().finished()) / seconds);
  rates.set_output_tokens_per_s(static_cast<double>(rates.output_tokens()) / seconds);
  rates.set_prompt_tokens_per_s(static_cast<double>(rates.prompt_tokens()) / seconds);
}

}  // namespace

Result<MeasuredFormat> detect_measured(std::string_view text, const std::string& where) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  const std::string_view head = begin == std::string_view::npos ? "" : text.substr(begin, 4096);
  if (head.starts_with("# HELP") || head.starts_with("# TYPE") || head.starts_with("vllm:"))
    return MeasuredFormat::kPrometheus;
  if (head.find("\"input_toks\"") != std::string_view::npos) return MeasuredFormat::kRequests;
  const bool bench = head.find("\"input_lens\"") != std::string_view::npos;
  if (const std::string log = bench ? "" : log_format_of(head);
      !log.empty() && log != "aiperf" && log != "bench") {
    return make_error(
        where, fmt::format("is of format {}, which is read as a trace", log),
        fmt::format("kvtwin trace import {} --out=FILE; a run is imported from a result of vllm "
                    "bench serve, SGLang's bench_serving or AIPerf",
                    where));
  }
  if (head.starts_with("{")) {
    const std::string_view line = head.substr(0, head.find('\n'));
    if (line.find("\"metadata\"") != std::string_view::npos &&
        line.find("\"request_start_ns\"") != std::string_view::npos)
      return MeasuredFormat::kAiperf;
    return MeasuredFormat::kBench;
  }
  return make_error(
      where, "is not a result that can be imported",
      "JSON of vLLM's or SGLang's serving benchmark, AIPerf's profile_export.jsonl, or the text of "
      "vLLM's /metrics");
}

Result<void> check_requests(const MeasuredRun& run, const std::string& where) {
  constexpr double kSecondsMax = 1e9;
  for (size_t i = 0; i < run.requests.size(); ++i) {
    const MeasuredRequest& request = run.requests[i];
    const bool ordered =
        request.begin_s >= 0 && request.first_s >= request.begin_s && request.end_s >= request.first_s;
    if (!ordered || request.end_s > kSecondsMax)
      return make_error(where,
                        fmt::format("request {} begins at {} s, has its first token at {} s and ends at {} s",
                                    i, request.begin_s, request.first_s, request.end_s),
                        "times in order, of at most 1e9 s");
    if (request.prompt > UINT32_MAX || request.output > UINT32_MAX)
      return make_error(where,
                        fmt::format("request {} has {} + {} tokens", i, request.prompt, request.output));
  }
  return {};
}

std::vector<RunFile> measured_files(MeasuredRun run) {
  v1::RunResult& out = run.result;
  out.set_schema_version(kResultSchema);
  out.set_kvtwin_version(KVTWIN_VERSION);
  out.set_scenario(run.name);
  out.set_backend("measured");
  const bool single = !run.requests.empty();
  if (single) fill_from_requests(&run);
  fill_rates(&out);
  std::string csv =
      "request,session,replica,node,engine,end,prompt_tokens,output_tokens,reused_tokens,ready_ns,admitted_"
      "ns,"
      "first_token_ns,finished_ns\n";
  std::string lines;
  for (size_t i = 0; i < run.requests.size(); ++i) {
    const MeasuredRequest& request = run.requests[i];
    csv += fmt::format("{},{},0,{},{},{},{},{},{},{},{},{},{}\n", i, csv_cell(session_of(request, i)),
                       request.node ? *request.node : i, request.engine,
                       request.finished ? "finished" : "cancelled", request.prompt, request.output,
                       request.reused ? fmt::format("{}", *request.reused) : "", ns(request.begin_s),
                       ns(request.begin_s), ns(request.first_s), ns(request.end_s));
    if (!request.finished) continue;
    nlohmann::ordered_json line;
    line["request_id"] = id_of(request, i);
    line["input_toks"] = request.prompt;
    line["output_toks"] = request.output;
    line["arrival_time"] = line["queued_ts"] = line["scheduled_ts"] = request.begin_s;
    line["first_token_ts"] = request.first_s;
    line["last_token_ts"] = request.end_s;
    // Session names come from a trace or a log: bytes that are not UTF-8 are replaced instead of throwing.
    lines += line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }
  return {{"run.binpb", out.SerializeAsString()}, {"requests.csv", csv}, {"requests.jsonl", lines}};
}

}  // namespace kvtwin
