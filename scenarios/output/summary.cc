#include "scenarios/output/summary.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/plural.h"
#include "scenarios/output/limiting.h"
#include "scenarios/output/run_setting.h"
#include "scenarios/output/sessions_in_flight.h"

namespace kvtwin {
namespace {

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

// The measured rates that simulation.retrieval's miss_rate and correction_rate request.
double absent_percent(const v1::Retrieval& all) {
  return percent(static_cast<double>(all.pages_now() + all.pages_next()),
                 static_cast<double>(all.pages_chosen()));
}
double corrected_percent(const v1::Retrieval& all) {
  return percent(static_cast<double>(all.heads_corrected()), static_cast<double>(all.heads_chose()));
}

double attributed_s(const v1::TimeBreakdown& time) {
  return time.queue_s() + time.transfer_s() + time.prefill_s() + time.recompute_s() + time.decode_s() +
         time.host_s();
}

// "42.9 ms", "1.76 s", "6.2 min".
std::string time_text(double ns) {
  if (ns < 1e9) return fmt::format("{:.3g} ms", ns / 1e6);
  return ns < 300e9 ? fmt::format("{:.3g} s", ns / 1e9) : fmt::format("{:.3g} min", ns / 60e9);
}

class Table {
 public:
  explicit Table(const v1::RunResult& result) : r_(result) {}

  std::string text(const SummaryContext& context) {
    headline(context);
    latencies();
    body(context);
    footer(context);
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void print(fmt::format_string<Args...> pattern, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), pattern, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void row(const char* name, fmt::format_string<Args...> pattern, Args&&... args) {
    print("  {:<26}", name);
    print(pattern, std::forward<Args>(args)...);
    out_ += '\n';
  }

  void headline(const SummaryContext& context) {
    print("{}: {:.4g} requests/s, TTFT p99 {}   ({} {:.1f} s", r_.scenario(), r_.rates().requests_per_s(),
          time_text(r_.latencies().ttft().p99_ns()), r_.backend() != "sim" ? "computed" : "simulated",
          static_cast<double>(r_.rates().elapsed_ns()) / 1e9);
    if (context.wall_s) print(" in {:.2f} s", *context.wall_s);
    out_ += ")\n";
    setting();
    out_ += '\n';
  }

  // Results of real servers have no scenario.
  void setting() {
    const std::optional<RunSetting> all = run_setting(r_);
    if (!all) return;
    const RunSetting::Engines& first = all->engines.front();
    print("  {} on {} {} of {} {} ({})", all->model, first.count, plural(first.count, "engine"), first.gpus,
          plural(first.gpus, "GPU"), first.node);
    for (size_t i = 1; i < all->engines.size(); ++i) {
      const RunSetting::Engines& kind = all->engines[i];
      print(" and {} of {} ({})", kind.count, kind.gpus, kind.node);
    }
    if (!all->routing.empty()) print(", routing {}", all->routing);
    print("; trace {}; room for {} tokens of KV\n", all->trace, grouped(r_.pages().gpu_tokens()));
    if (r_.backend() == "sim") print("  limited by {}\n", limiting(r_).sentence);
  }

  void latency(const char* name, const v1::Distribution& one, double unit, const char* unit_name) {
    row(name, "{:>11.2f} {:>11.2f} {:>11.2f} {:>11.2f} {:>11.2f}   {}", one.mean_ns() / unit,
        one.p50_ns() / unit, one.p90_ns() / unit, one.p95_ns() / unit, one.p99_ns() / unit, unit_name);
  }

  void latencies() {
    row("", "{:>11} {:>11} {:>11} {:>11} {:>11}   unit", "mean", "p50", "p90", "p95", "p99");
    latency("ttft", r_.latencies().ttft(), 1e6, "ms");
    latency("ttft in a server's log", r_.latencies().ttft_from_queued(), 1e6, "ms");
    latency("tpot", r_.latencies().tpot(), 1e6, "ms");
    latency("itl", r_.latencies().itl(), 1e6, "ms");
    latency("e2e", r_.latencies().e2e(), 1e6, "ms");
    if (r_.requests().sessions() < r_.requests().requests()) {
      latency("session, start to end", r_.latencies().session_makespan(), 1e9, "s");
      latency("  of it in requests", r_.latencies().session_served(), 1e9, "s");
    }
    out_ += '\n';
  }

  void body(const SummaryContext& context) {
    const v1::RequestCounts& all = r_.requests();
    row("requests", "{} of {} {}: {} finished, {} cancelled, {} rejected, {} open", grouped(all.requests()),
        grouped(all.sessions()), plural(all.sessions(), "session"), grouped(all.finished()),
        grouped(all.cancelled()), grouped(all.rejected()), grouped(all.open()));
    if (context.tagging_ns) row("role tagger", "{:.1f} ns of the host per prompt token", *context.tagging_ns);
    row("throughput",
        "{:.1f} output tokens/s, {:.1f} prompt tokens/s, {:.4g} requests/s; GPU busy {:.1f} % of the time",
        r_.rates().output_tokens_per_s(), r_.rates().prompt_tokens_per_s(), r_.rates().requests_per_s(),
        100 * r_.rates().busy());
    const v1::Reuse& reuse = r_.reuse();
    row("prefix reuse", "{:.1f} % of {} prompt tokens at first admission",
        percent(static_cast<double>(reuse.first_admission_tokens()),
                static_cast<double>(reuse.admitted_prompt_tokens())),
        grouped(reuse.admitted_prompt_tokens()));
    if (reuse.has_bound_tokens()) {
      row("  at most", "{:.1f} %: Belady's order, the same requests at the same times",
          percent(static_cast<double>(reuse.bound_tokens()),
                  static_cast<double>(reuse.admitted_prompt_tokens())));
    }
    if (reuse.live_tokens() != reuse.first_admission_tokens()) {
      row("  of it retained", "{:.1f} %",
          percent(static_cast<double>(reuse.live_tokens()),
                  static_cast<double>(reuse.first_admission_tokens())));
    }
    if (const uint64_t again = reuse.readmission_tokens() + reuse.recomputed_tokens(); again > 0) {
      row("  after preemption", "{:.1f} % of {} tokens found again; {} recomputed",
          percent(static_cast<double>(reuse.readmission_tokens()), static_cast<double>(again)),
          grouped(again), grouped(reuse.recomputed_tokens()));
    }
    if (reuse.reads_raw() != reuse.reads_effective()) {
      row("decode reads", "{:.3f} M of {:.3f} M context tokens; retention: {}",
          static_cast<double>(reuse.reads_effective()) / 1e6, static_cast<double>(reuse.reads_raw()) / 1e6,
          reuse.retained_outcomes().empty() ? "newest tokens of the ring" : reuse.retained_outcomes());
      row("  longest decode", "{} of {} tokens", grouped(reuse.peak_effective()), grouped(reuse.peak_raw()));
    }
    if (all.preemptions() == 0) {
      row("preemptions", "none");
    } else {
      row("preemptions", "{}, of {} {}", grouped(all.preemptions()), grouped(all.requests_preempted()),
          plural(all.requests_preempted(), "request"));
    }
    memory();
    moved();
    price();
    if (r_.has_attention()) {
      row("attention", "{} partition: {:.3f} of the time of even splits", r_.attention().partition(),
          r_.attention().slowdown());
    }
    if (r_.has_retrieval()) retrieval();
    attribution();
    if (r_.has_compression()) compression();
    fractions("token counts of the trace", r_.input());
    fractions("step times from", r_.cost());
    if (r_.has_values()) {
      row("values", "{} tokens computed in {}, {} decoding, {} clock; samples={:016x}",
          grouped(r_.values().tokens()), r_.backend() == "cuda" ? "bf16 on a GPU" : "fp32",
          r_.values().decode(), r_.values().clock(), r_.values().samples());
    }
    for (const std::string& note : r_.notes()) row("note", "{}", note);
    if (const std::string note = in_flight_note(r_); !note.empty()) row("note", "{}", note);
    out_ += '\n';
  }

  void memory() {
    const v1::Pages& pages = r_.pages();
    row("KV pages, peak", "{} of {} used by requests ({:.1f} %), mean {:.1f} %; {} with cached prefixes",
        grouped(pages.held_peak()), grouped(pages.gpu()),
        percent(static_cast<double>(pages.held_peak()), static_cast<double>(pages.gpu())),
        percent(pages.held_mean(), static_cast<double>(pages.gpu())), grouped(pages.resident_peak()));
    if (pages.gpu_int2() > 0) {
      const auto pages_4 = static_cast<double>(pages.gpu() - pages.gpu_int2());
      row("  by format", "{} int2, {:.1f} % held on average; {} int4, {:.1f} %", grouped(pages.gpu_int2()),
          percent(pages.held_mean_int2(), static_cast<double>(pages.gpu_int2())),
          grouped(pages.gpu() - pages.gpu_int2()),
          percent(pages.held_mean() - pages.held_mean_int2(), pages_4));
      if (pages.requantised_tokens() > 0)
        row("    requantised", "{} tokens of cached prefixes", grouped(pages.requantised_tokens()));
    }
    row("space lost in pages", "{:.2f} % in last pages, {:.2f} % in head groups; dropping saves {:.2f} %",
        100 * pages.tail_fragmentation(), 100 * pages.group_fragmentation(), 100 * pages.reclaimed());
  }

  void moved() {
    const v1::Transfers& all = r_.transfers();
    row("transfers", "{}: {:.3f} GB in, {:.3f} GB out; {:.3f} s exposed, {:.3f} s hidden{}",
        grouped(all.count()), static_cast<double>(all.bytes_in()) / 1e9,
        static_cast<double>(all.bytes_out()) / 1e9, static_cast<double>(all.exposed_ns()) / 1e9,
        static_cast<double>(all.hidden_ns()) / 1e9,
        all.failed() > 0 ? fmt::format("; {} failed", all.failed()) : "");
    if (r_.pages().disk() > 0) {
      row("  disk",
          "{} prefix tokens loaded from the disk, {} from the host; {:.3f} GB read, {:.3f} GB "
          "written; at most {} of {} pages full",
          grouped(all.hits_disk()), grouped(all.hits_host()),
          static_cast<double>(all.bytes_from_disk()) / 1e9, static_cast<double>(all.bytes_to_disk()) / 1e9,
          grouped(r_.pages().disk_peak()), grouped(r_.pages().disk()));
    }
    if (all.bytes_received() > 0) {
      row("  between engines", "{:.3f} GB of KV computed by other engines",
          static_cast<double>(all.bytes_received()) / 1e9);
    }
  }

  void price() {
    if (r_.has_price() && r_.rates().output_tokens() > 0) {
      const v1::Price& all = r_.price();
      row("price",
          "{} {} at {:.2f} $/h in total{}: {:.3g} $ per million output tokens, {:.3g} $ per million "
          "tokens",
          all.gpus(), plural(all.gpus(), "GPU"), all.usd_per_hour(), all.assumed() ? " (assumed)" : "",
          all.usd_per_million_output_tokens(), all.usd_per_million_tokens());
    }
  }

  void retrieval() {
    const v1::Retrieval& all = r_.retrieval();
    row("retrieval", "outcomes {}: {} head-pages recalled before attention, {} after it; {} heads corrected",
        all.outcomes(), grouped(all.pages_now()), grouped(all.pages_next()), grouped(all.heads_corrected()));
    row("", "{:.2f} % of the head-pages chosen were absent; {:.2f} % of {} choosing heads corrected",
        absent_percent(all), corrected_percent(all), grouped(all.heads_chose()));
    const auto giga = [](auto value) { return static_cast<double>(value) / 1e9; };
    if (r_.has_values() && r_.values().clock() == "wall") return;  // not priced
    row("", "{:.3f} GB recalled, {:.3f} GB offloaded; {:.3f} s exposed, {:.3f} s hidden; {} steps expanded",
        giga(all.bytes_in()), giga(all.bytes_out()), giga(all.exposed_ns()), giga(all.hidden_ns()),
        grouped(all.steps_expanded()));
  }

  void attribution() {
    const v1::TimeBreakdown& time = r_.time();
    const auto of = [&](double part) { return percent(part, time.latency_s()); };
    row("time of requests",
        "queue {:.2f} %, transfer {:.2f} %, prefill {:.2f} %, recompute {:.2f} %, decode {:.2f} %, host "
        "{:.2f} %",
        of(time.queue_s()), of(time.transfer_s()), of(time.prefill_s()), of(time.recompute_s()),
        of(time.decode_s()), of(time.host_s()));
    // The parts add up to the latencies; doubles of either differ by rounding.
    KVT_CHECK(std::abs(attributed_s(time) - time.latency_s()) <= 1e-6 * (1 + time.latency_s()));
  }

  void compression() {
    const v1::CompressionTimes& all = r_.compression();
    const auto ms = [](double seconds) { return 1e3 * seconds; };
    row("compressions",
        "{}: capture {:.3f} ms, probe {:.3f}, score {:.3f}, select {:.3f}, move {:.3f}, bookkeeping {:.3f}",
        grouped(all.count()), ms(all.capture_s()), ms(all.probe_s()), ms(all.score_s()), ms(all.select_s()),
        ms(all.move_s()), ms(all.bookkeeping_s()));
    row("", "{:.2f} % of the {:.3f} s of steps with prompts",
        percent(all.in_prompt_steps_s(), all.prompt_steps_s()), all.prompt_steps_s());
  }

  void fractions(const char* name, const v1::Fractions& all) {
    std::string text;
    for (int i = 0; i < all.name_size(); ++i) {
      if (all.fraction(i) > 0)
        text += fmt::format("{}{:.1f} % {}", text.empty() ? "" : ", ", 100 * all.fraction(i), all.name(i));
    }
    row(name, "{}", text.empty() ? "none" : text);
  }

  void footer(const SummaryContext& context) {
    print("seed={} decisions={:016x} version={}", r_.seed(), r_.decisions(), r_.kvtwin_version());
    if (!context.details.empty()) print("   details: {}", context.details);
    print("\n");
    if (!context.repeat.empty()) print("repeat: {}\n", context.repeat);
  }

  const v1::RunResult& r_;
  std::string out_;
};

void put(const char* name, const v1::Distribution& one, nlohmann::ordered_json* out) {
  const std::string prefix = name;
  (*out)[prefix + "_mean_ms"] = one.mean_ns() / 1e6;
  (*out)[prefix + "_p50_ms"] = one.p50_ns() / 1e6;
  (*out)[prefix + "_p90_ms"] = one.p90_ns() / 1e6;
  (*out)[prefix + "_p95_ms"] = one.p95_ns() / 1e6;
  (*out)[prefix + "_p99_ms"] = one.p99_ns() / 1e6;
}

void put(const char* prefix, const v1::Fractions& all, nlohmann::ordered_json* out) {
  for (int i = 0; i < all.name_size(); ++i)
    (*out)[fmt::format("{}_{}", prefix, all.name(i))] = all.fraction(i);
}

void put(const v1::CompressionTimes& all, nlohmann::ordered_json* out) {
  (*out)["compressions"] = all.count();
  (*out)["compression_capture_s"] = all.capture_s();
  (*out)["compression_probe_s"] = all.probe_s();
  (*out)["compression_score_s"] = all.score_s();
  (*out)["compression_select_s"] = all.select_s();
  (*out)["compression_move_s"] = all.move_s();
  (*out)["compression_bookkeeping_s"] = all.bookkeeping_s();
  (*out)["prompt_steps_s"] = all.prompt_steps_s();
  (*out)["prompt_steps_compression_s"] = all.in_prompt_steps_s();
}

void put(const v1::Retrieval& all, nlohmann::ordered_json* out) {
  (*out)["outcomes"] = all.outcomes();
  (*out)["retrieval_pages_now"] = all.pages_now();
  (*out)["retrieval_pages_next"] = all.pages_next();
  (*out)["retrieval_heads_corrected"] = all.heads_corrected();
  (*out)["retrieval_heads_chose"] = all.heads_chose();
  (*out)["retrieval_pages_chosen"] = all.pages_chosen();
  (*out)["retrieval_miss_rate"] = absent_percent(all) / 100;
  (*out)["retrieval_correction_rate"] = corrected_percent(all) / 100;
  (*out)["retrieval_bytes_in"] = all.bytes_in();
  (*out)["retrieval_bytes_out"] = all.bytes_out();
  (*out)["retrieval_exposed_s"] = static_cast<double>(all.exposed_ns()) / 1e9;
  (*out)["retrieval_hidden_s"] = static_cast<double>(all.hidden_ns()) / 1e9;
  (*out)["retrieval_steps_expanded"] = all.steps_expanded();
}

void put(const v1::Transfers& all, nlohmann::ordered_json* out) {
  (*out)["transfers"] = all.count();
  (*out)["transfers_failed"] = all.failed();
  (*out)["transfer_bytes_in"] = all.bytes_in();
  (*out)["transfer_bytes_out"] = all.bytes_out();
  (*out)["transfer_exposed_s"] = static_cast<double>(all.exposed_ns()) / 1e9;
  (*out)["transfer_hidden_s"] = static_cast<double>(all.hidden_ns()) / 1e9;
  (*out)["transfer_bytes_received"] = all.bytes_received();
  (*out)["hit_tokens_host"] = all.hits_host();
  (*out)["hit_tokens_disk"] = all.hits_disk();
  (*out)["disk_bytes_read"] = all.bytes_from_disk();
  (*out)["disk_bytes_written"] = all.bytes_to_disk();
}

void put(const v1::Price& all, nlohmann::ordered_json* out) {
  (*out)["gpus"] = all.gpus();
  (*out)["usd_per_hour"] = all.usd_per_hour();
  (*out)["usd_per_million_output_tokens"] = all.usd_per_million_output_tokens();
  (*out)["usd_per_million_tokens"] = all.usd_per_million_tokens();
}

void put(const v1::Reuse& all, nlohmann::ordered_json* out) {
  (*out)["admitted_prompt_tokens"] = all.admitted_prompt_tokens();
  (*out)["reused_tokens_first"] = all.first_admission_tokens();
  (*out)["prefix_reuse"] = percent(static_cast<double>(all.first_admission_tokens()),
                                   static_cast<double>(all.admitted_prompt_tokens())) /
                           100;
  if (all.has_bound_tokens()) (*out)["reused_tokens_bound"] = all.bound_tokens();
  (*out)["reused_tokens_live"] = all.live_tokens();
  (*out)["reads_peak_raw"] = all.peak_raw();
  (*out)["reads_peak_effective"] = all.peak_effective();
  (*out)["reads_raw"] = all.reads_raw();
  (*out)["reads_effective"] = all.reads_effective();
}

void put(const v1::Pages& all, nlohmann::ordered_json* out) {
  (*out)["gpu_pages"] = all.gpu();
  (*out)["gpu_page_tokens"] = all.page_tokens();
  (*out)["gpu_tokens"] = all.gpu_tokens();
  (*out)["gpu_pages_held_fraction"] = percent(all.held_mean(), static_cast<double>(all.gpu())) / 100;
  (*out)["gpu_pages_held_peak"] = all.held_peak();
  (*out)["gpu_pages_resident_peak"] = all.resident_peak();
  (*out)["gpu_pages_held_mean"] = all.held_mean();
  (*out)["gpu_pages_int2"] = all.gpu_int2();
  (*out)["gpu_pages_int2_held_mean"] = all.held_mean_int2();
  (*out)["requantised_tokens"] = all.requantised_tokens();
  (*out)["fragmentation_tail"] = all.tail_fragmentation();
  (*out)["fragmentation_group"] = all.group_fragmentation();
  (*out)["reclaimed"] = all.reclaimed();
}

nlohmann::ordered_json record(const v1::RunResult& r) {
  nlohmann::ordered_json out;
  out["schema"] = r.schema_version();
  out["version"] = r.kvtwin_version();
  out["scenario"] = r.scenario();
  out["backend"] = r.backend();
  out["seed"] = r.seed();
  out["decisions"] = fmt::format("{:016x}", r.decisions());
  out["inputs"] = fmt::format("{:016x}", r.inputs());
  out["requests"] = r.requests().requests();
  out["requests_finished"] = r.requests().finished();
  out["requests_cancelled"] = r.requests().cancelled();
  out["requests_rejected"] = r.requests().rejected();
  out["requests_open"] = r.requests().open();
  out["sessions"] = r.requests().sessions();
  out["sessions_in_flight"] = sessions_in_flight(r);
  out["steps"] = r.requests().steps();
  out["request_steps"] = r.requests().request_steps();
  out["elapsed_s"] = static_cast<double>(r.rates().elapsed_ns()) / 1e9;
  out["requests_per_s"] = r.rates().requests_per_s();
  out["output_tokens_per_s"] = r.rates().output_tokens_per_s();
  out["prompt_tokens_per_s"] = r.rates().prompt_tokens_per_s();
  out["prompt_tokens"] = r.rates().prompt_tokens();
  out["output_tokens"] = r.rates().output_tokens();
  out["busy"] = r.rates().busy();
  put("ttft", r.latencies().ttft(), &out);
  put("ttft_from_queued", r.latencies().ttft_from_queued(), &out);
  put("tpot", r.latencies().tpot(), &out);
  put("itl", r.latencies().itl(), &out);
  put("e2e", r.latencies().e2e(), &out);
  put("session_makespan", r.latencies().session_makespan(), &out);
  put("session_served", r.latencies().session_served(), &out);
  put(r.reuse(), &out);
  out["reused_tokens_again"] = r.reuse().readmission_tokens();
  out["recomputed_tokens"] = r.reuse().recomputed_tokens();
  out["preemptions"] = r.requests().preemptions();
  put(r.pages(), &out);
  put(r.transfers(), &out);
  out["time_queue_s"] = r.time().queue_s();
  out["time_transfer_s"] = r.time().transfer_s();
  out["time_prefill_s"] = r.time().prefill_s();
  out["time_recompute_s"] = r.time().recompute_s();
  out["time_decode_s"] = r.time().decode_s();
  out["time_host_s"] = r.time().host_s();
  out["time_latency_s"] = r.time().latency_s();
  if (r.values().tagging_ns_per_token() > 0) out["tagging_ns_per_token"] = r.values().tagging_ns_per_token();
  if (r.has_price()) put(r.price(), &out);
  if (r.has_retrieval()) put(r.retrieval(), &out);
  if (r.has_attention()) out["attention_slowdown"] = r.attention().slowdown();
  if (r.has_compression()) put(r.compression(), &out);
  if (!r.scenario_text().empty()) out["limited_by"] = limiting(r).what;
  put("input", r.input(), &out);
  put("cost", r.cost(), &out);
  return out;
}

constexpr auto kReplaceBadText = nlohmann::json::error_handler_t::replace;

}  // namespace

std::string grouped(uint64_t value) {
  std::string digits = std::to_string(value);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

std::string format_summary(const v1::RunResult& result, OutputFormat format, const SummaryContext& context) {
  if (format == OutputFormat::kTable) return Table(result).text(context);
  const nlohmann::ordered_json all = record(result);
  if (format == OutputFormat::kJson) return all.dump(2, ' ', false, kReplaceBadText) + "\n";
  if (format == OutputFormat::kJsonl) return all.dump(-1, ' ', false, kReplaceBadText) + "\n";
  std::vector<std::string> names, values;
  for (const auto& [name, value] : all.items()) {
    names.push_back(name);
    values.push_back(value.dump(-1, ' ', false, kReplaceBadText));
  }
  return fmt::format("{}\n{}\n", fmt::join(names, ","), fmt::join(values, ","));
}

}  // namespace kvtwin
