// A real server's run, read from the output of benchmark tools and servers, in the form of a run's folder:
// run.binpb and requests.csv for reports, requests.jsonl for `kvtwin compare`.
//
//   bench       one JSON object per run: vLLM's `vllm bench serve --save-result --save-detailed` (and its
//               benchmark_serving.py), SGLang's bench_serving --output-file --output-details (one a line).
//               Arrays by request: input_lens, output_lens, ttfts (s), itls (s, a list each), errors; vLLM's
//               also start_times (s)
//   aiperf      AIPerf's profile_export.jsonl: per request metadata.request_start_ns and request_end_ns, and
//               metrics (time_to_first_token, input_sequence_length, output_sequence_length: value and unit)
//   requests    a server's request log as `kvtwin compare` reads it (scenarios/output/compare.h): input_toks,
//               output_toks, queued_ts, first_token_ts, last_token_ts
//   prometheus  the text of vLLM's /metrics: histograms and counters since the server's start, without single
//               requests. Percentiles are interpolated within their bucket, as histogram_quantile() does
//
// Figures that such a file lacks (pages, transfers, decisions) are absent. Failed requests count as
// cancelled. Sources: vllm/benchmarks/serve.py, sglang/bench_serving.py, AIPerf's "Working with profile
// export files", design/metrics.md of vLLM's documentation.

#ifndef KVTWIN_SCENARIOS_SERVER_RUNS_MEASURED_H_
#define KVTWIN_SCENARIOS_SERVER_RUNS_MEASURED_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "scenarios/app/results.h"

namespace kvtwin {

struct MeasuredRequest {
  std::string session;           // "": a session of its own
  std::optional<uint32_t> node;  // place in its session of the trace; absent: not known
  uint64_t prompt = 0, output = 0;
  std::optional<uint64_t>
      reused;  // prompt tokens that the server found in its prefix cache; absent: not known
  double begin_s = 0, first_s = 0, end_s = 0;
  uint16_t engine = 0;
  bool finished = true;
};

struct MeasuredRun {
  std::string name;
  std::vector<MeasuredRequest> requests;
  v1::RunResult result;  // the reader sets what requests do not imply, measured_files() the rest
  std::vector<double> itls_ns;
};

enum class MeasuredFormat : uint8_t { kBench, kAiperf, kRequests, kPrometheus };
// Detects the format by the beginning of the text. Error: none of them.
Result<MeasuredFormat> detect_measured(std::string_view text, const std::string& where);

// `run` is the index of one of the file's runs; the last if negative.
Result<MeasuredRun> read_bench(std::string_view text, const std::string& where, int64_t run);
Result<MeasuredRun> read_aiperf(std::string_view text, const std::string& where);
Result<MeasuredRun> read_request_log(std::string_view text, const std::string& where);
// `before` is an earlier scrape of the same server, whose counts are subtracted; "": none. `seconds` is the
// time between them, or since the server's start; 0: unknown, and rates are absent.
Result<MeasuredRun> read_prometheus(std::string_view text, std::string_view before, double seconds,
                                    const std::string& where);

// Error: a time or count that is impossible in a run.
Result<void> check_requests(const MeasuredRun& run, const std::string& where);

// Completes the result from the requests and returns run.binpb, requests.csv and requests.jsonl, which lists
// finished requests. A request whose session and node are known is named SESSION/NODE, as kvtwin run names
// it.
std::vector<RunFile> measured_files(MeasuredRun run);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_SERVER_RUNS_MEASURED_H_
