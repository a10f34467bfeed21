#include "engine/recorder/recorder_log.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>

#include <array>
#include <map>
#include <unordered_set>

#include "engine/base/retired_names.h"
#include "engine/methods/traits.h"
#include "engine/recorder/recorder.h"
#include "engine/recorder/recorder_formats.h"
#include "engine/recorder/recorder_records.h"
#include "engine/recorder/recorder_retention.h"

namespace kvtwin {
namespace {

// The present name of a layout or placement. Logs contain the name of the time when they were written.
std::string recorded_policy(int axis, const std::string& name) {
  static const std::vector<std::string> layouts = {"ring", "page_mask", "slot_mask"},
                                        placements = {"resident"};
  const std::string_view now = axis == 2   ? name_now(name, layouts)
                               : axis == 4 ? name_now(name, placements)
                                           : std::string_view{};
  return now.empty() ? name : std::string(now);
}

ScorerSpec read_scorer(const v1::EngineConfig::ScorerNumbers& in) {
  ScorerSpec out;
  if (in.compression_trigger() > 0)
    out.compression_trigger = static_cast<CompressionTrigger>(in.compression_trigger() - 1);
  out.query_tokens = in.query_tokens();
  out.probe_tokens = in.probe_tokens();
  out.window_closed = in.window_closed();
  out.repeat_tokens = in.repeat_tokens();
  out.repeat_tail = in.repeat_tail();
  out.repeat_instruction = in.repeat_instruction();
  return out;
}

void write_scorer(const ScorerSpec& in, v1::EngineConfig::ScorerNumbers* out) {
  out->set_compression_trigger(in.compression_trigger ? static_cast<uint32_t>(*in.compression_trigger) + 1
                                                      : 0);
  out->set_query_tokens(in.query_tokens);
  out->set_probe_tokens(in.probe_tokens);
  out->set_window_closed(in.window_closed);
  out->set_repeat_tokens(in.repeat_tokens);
  out->set_repeat_tail(in.repeat_tail);
  out->set_repeat_instruction(in.repeat_instruction);
}

constexpr uint32_t kLogSchema = 1;

// Reads records one by one; reports the first invalid one.
class LogReader {
 public:
  LogReader(const std::string& name, Log* log) : name_(name), log_(log) {}

  Result<void> take(const v1::LogRecord& record) {
    ++records_;
    if (records_ == 1) {
      if (record.kind_case() != v1::LogRecord::kHeader)
        return problem("the first record is no header", "is this a log?");
      return header(record.header());
    }
    if (ended_) return problem("there are records after the end");
    switch (record.kind_case()) {
      case v1::LogRecord::kClient:
        return client(record.client());
      case v1::LogRecord::kCoalesced:
        return coalesced(record.coalesced());
      case v1::LogRecord::kTransfer:
        return transfer(record.transfer());
      case v1::LogRecord::kCheckpoint:
        return checkpoint(record.checkpoint());
      case v1::LogRecord::kEnd:
        log_->digest = record.end().digest();
        log_->ended_at = {record.end().ended_at_ns()};
        ended_ = true;
        return {};
      case v1::LogRecord::kHeader:
        return problem("there is a second header");
      case v1::LogRecord::KIND_NOT_SET:
        break;
    }
    return problem("a record is empty or of a kind that this version does not know");
  }

  Result<void> done() {
    if (!ended_)
      return problem("the log ends early", "the run was killed, or the file was cut; run it again");
    // Ids are consecutive, and not every request becomes ready. The bound limits the size of tables by id.
    const size_t ids_max = 16 * ready_.size() + 65536;
    for (const Log::ClientStep& step : log_->client) {
      if (const auto* request = std::get_if<RequestReady>(&step.event)) {
        if (raw(request->request) >= ids_max || raw(request->session) >= ids_max) {
          return problem(fmt::format("request {} of session {}, but only {} requests are ready",
                                     raw(request->request), raw(request->session), ready_.size()));
        }
      }
    }
    for (Log::ClientStep& step : log_->client) {
      if (auto* request = std::get_if<RequestReady>(&step.event)) {
        request->identity = step.runs;
        request->triggers = step.triggers;
        request->roles = step.roles;
      }
    }
    return {};
  }

 private:
  tl::unexpected<Error> problem(std::string what, std::string hint = {}) {
    return make_error(fmt::format("{}: record {}", name_, records_), std::move(what), std::move(hint));
  }

  Result<void> header(const v1::LogHeader& header) {
    if (header.schema_version() != kLogSchema) {
      return problem(fmt::format("schema version is {}", header.schema_version()),
                     fmt::format("this version reads {}", kLogSchema));
    }
    const auto count = static_cast<uint32_t>(header.engines_size());
    if (count == 0 || count > kRecordedEnginesMax)
      return problem(fmt::format("{} engines", count), "1 to 4,096");
    if (header.routing() > static_cast<uint32_t>(kRoutingLast)) {
      return problem(fmt::format("routing is {}", header.routing()));
    }
    log_->scenario = header.scenario();
    log_->seed = header.seed();
    log_->options.routing = static_cast<RoutingKind>(header.routing());
    if (header.prefill_engines() >= count) {
      return problem(fmt::format("{} of {} engines compute prompts", header.prefill_engines(), count),
                     "one at least must decode");
    }
    log_->options.prefill_engines = header.prefill_engines();
    for (const v1::EngineConfig& engine : header.engines()) {
      if (Result<void> ok = config(engine); !ok) return ok;
      const PolicySet& set = log_->options.engines.back().policies;
      const bool passes = runs_passes(set.scorer) && !budget_traits(set.budget).keeps_all;
      if (passes && !header.plans_passes()) {
        return problem(fmt::format("plans_passes is false, but scorer {} runs passes of probe tokens, which "
                                   "are planned as entries of steps",
                                   set.scorer),
                       "record the run again with this version");
      }
    }
    log_->engines.resize(count);
    return {};
  }

  Result<void> config(const v1::EngineConfig& in) {
    CoreConfig out;
    out.engine = EngineId{static_cast<uint16_t>(log_->options.engines.size())};
    out.prefill_only = log_->options.engines.size() < log_->options.prefill_engines;
    if (in.batch_order() > static_cast<uint32_t>(BatchOrder::kMixed) ||
        in.admission() > static_cast<uint32_t>(AdmissionKind::kFullReservation) ||
        in.page_order() > static_cast<uint32_t>(PageOrder::kOldestFirst) ||
        in.preemption() > static_cast<uint32_t>(PreemptionKind::kSwap) || in.policies_size() != 8) {
      return problem("an engine's configuration has a choice that this version does not know");
    }
    out.page_tokens = in.page_tokens();
    out.unit_tokens = in.unit_tokens();
    out.pages_gpu = in.pages_gpu();
    out.pages_host = in.pages_host();
    out.pages_disk = in.pages_disk();
    out.spill_pages_target = in.spill_pages_target();
    out.requests_max = in.requests_max();
    out.step_tokens_max = in.step_tokens_max();
    out.chunk_tokens_max = in.chunk_tokens_max();
    out.context_tokens_max = in.context_tokens_max();
    out.steps_in_flight_max = in.steps_in_flight_max();
    out.batch_order = static_cast<BatchOrder>(in.batch_order());
    out.admission = static_cast<AdmissionKind>(in.admission());
    out.watermark_pages = in.watermark_pages();
    out.page_order = static_cast<PageOrder>(in.page_order());
    out.preemption = static_cast<PreemptionKind>(in.preemption());
    out.prefix_cache = in.prefix_cache();
    out.prefix_eviction = in.prefix_eviction();
    out.evict_batch_pages = in.evict_batch_pages();
    out.eviction_doubling_tokens = in.eviction_doubling_tokens();
    out.eviction_refill = Duration{in.eviction_refill_ns()};
    out.offload_batch_pages = in.offload_batch_pages();
    out.offload_pages_target = in.offload_pages_target();
    out.capture_sizes.assign(in.capture_sizes().begin(), in.capture_sizes().end());
    if (in.has_retrieval() && !retrieval(in.retrieval(), &out.policies.retrieval_spec)) {
      return problem("an engine's retrieval has a choice that this version does not know");
    }
    PolicySet& axes = out.policies;
    const std::array<std::string*, 8> names = {&axes.scorer,    &axes.budget,    &axes.layout,
                                               &axes.precision, &axes.placement, &axes.retrieval,
                                               &axes.partition, &axes.identity};
    for (int i = 0; i < 8; ++i) *names[static_cast<size_t>(i)] = recorded_policy(i, in.policies(i));
    if (in.has_scorer()) {
      const v1::EngineConfig::ScorerNumbers& scorer = in.scorer();
      if (scorer.compression_trigger() > static_cast<uint32_t>(CompressionTrigger::kDecodeStep) + 1) {
        return problem(fmt::format("a scorer's compression trigger is {}", scorer.compression_trigger()));
      }
      axes.scorer_spec = read_scorer(scorer);
    }
    if (in.has_budget()) axes.budget_spec = recorded_budget(in.budget());
    if (in.has_layout()) axes.layout_spec = recorded_layout(in.layout());
    out.pages_int2 = in.pages_int2();
    if (in.has_formats() && !read_precision(in.formats(), &axes.precision_spec)) {
      return problem("an engine's formats have a choice that this version does not know");
    }
    if (precision_traits(axes.precision).by_tag && out.pages_int2 > out.pages_gpu) {
      return problem(fmt::format("{} of {} pages are int2", out.pages_int2, out.pages_gpu));
    }
    log_->options.engines.push_back(std::move(out));
    return {};
  }

  static bool retrieval(const v1::RetrievalConfig& in, RetrievalSpec* out) {
    if (in.pooling() > static_cast<uint32_t>(GroupPooling::kMaxQ) ||
        in.summary() > static_cast<uint32_t>(PageSummary::kMean) ||
        in.scale() > static_cast<uint32_t>(ScoreScale::kInverseSqrt)) {
      return false;
    }
    *out = {in.budget_tokens(),
            in.sink_tokens(),
            in.window_tokens(),
            in.extra_tokens(),
            in.layers_dense(),
            in.tau_q32(),
            in.speculation(),
            static_cast<GroupPooling>(in.pooling()),
            static_cast<PageSummary>(in.summary()),
            static_cast<ScoreScale>(in.scale()),
            in.rank(),
            in.columns_q32(),
            in.resident_fraction_q32()};
    return true;
  }

  Result<void> client(const v1::ClientEvent& in) {
    if (in.after_ns() < 0 || in.after_ns() > INT64_MAX - client_at_.ns)
      return problem("a client event goes back in time");
    if (in.answers() < answers_) return problem("client events are out of order");
    client_at_.ns += in.after_ns();
    answers_ = in.answers();
    Log::ClientStep step;
    step.at = client_at_;
    step.answers = in.answers();
    step.from_wake = in.from_wake();
    switch (in.kind_case()) {
      case v1::ClientEvent::kReady:
        if (Result<void> ok = ready(in.ready(), &step); !ok) return ok;
        break;
      case v1::ClientEvent::kCancelledRequest:
        if (ready_.count(in.cancelled_request()) == 0) {
          return problem(fmt::format("request {} is cancelled before it is ready", in.cancelled_request()));
        }
        step.event = RequestCancelled{RequestId{in.cancelled_request()}};
        break;
      case v1::ClientEvent::kHint:
        if (in.hint().kind() > static_cast<uint32_t>(SessionHint::Kind::kNextRequestExpected)) {
          return problem(fmt::format("hint of kind {}", in.hint().kind()));
        }
        step.event =
            SessionHint{SessionId{in.hint().session()}, static_cast<SessionHint::Kind>(in.hint().kind()),
                        Duration{in.hint().expected_gap_ns()}, in.hint().tool()};
        break;
      case v1::ClientEvent::KIND_NOT_SET:
        return problem("a client event is empty");
    }
    log_->client.push_back(std::move(step));
    return {};
  }

  Result<void> ready(const v1::ClientEvent::Ready& in, Log::ClientStep* step) {
    if (!ready_.insert(in.request()).second)
      return problem(fmt::format("request {} is ready twice", in.request()));
    if (in.space_size() != in.first_size() || in.space_size() != in.count_size()) {
      return problem(fmt::format("request {} has runs of unequal length", in.request()));
    }
    uint64_t units = 0;
    for (int i = 0; i < in.space_size(); ++i) {
      units += in.count(i);
      if (in.count(i) == 0 || in.first(i) > UINT64_MAX - in.count(i)) {
        return problem(fmt::format("run {} of request {} is empty or overflows", i, in.request()));
      }
      step->runs.push_back({in.space(i), in.first(i), in.count(i)});
    }
    const uint64_t tokens = uint64_t{in.prompt_tokens()} + in.output_tokens();
    const uint32_t unit = log_->options.engines.front().unit_tokens;
    if (tokens > UINT32_MAX || units * unit > tokens) {
      return problem(fmt::format("request {} names {} units of {} tokens, but has {} tokens", in.request(),
                                 units, unit, tokens));
    }
    uint32_t last = 0;
    for (const uint32_t trigger : in.trigger()) {
      if (trigger <= last) return problem(fmt::format("triggers of request {} do not ascend", in.request()));
      step->triggers.push_back(last = trigger);
    }
    if (!read_roles(in, &step->roles))
      return problem(fmt::format("request {} has roles of unequal length", in.request()));
    RequestReady request;
    request.turn = in.turn();
    request.request = RequestId{in.request()};
    request.session = SessionId{in.session()};
    const uint32_t sent_before = sent_[request.session]++;
    request.index = in.has_index() ? in.index() : sent_before;
    request.prompt_tokens = in.prompt_tokens();
    request.output_tokens = in.output_tokens();
    if (!read_spans(in, &request.spans))
      return problem(fmt::format("request {} has spans that are not parts of its {} prompt tokens",
                                 in.request(), in.prompt_tokens()));
    step->event = request;
    return {};
  }

  Result<Log::Engine*> engine(uint32_t index) {
    if (index >= log_->engines.size())
      return problem(fmt::format("engine {} of {}", index, log_->engines.size()));
    return &log_->engines[index];
  }

  Result<void> coalesced(const v1::CoalescedSteps& in) {
    const Result<Log::Engine*> found = engine(in.engine());
    if (!found) return tl::unexpected(found.error());
    Log::Engine& here = **found;
    if (in.step() != here.ends.size()) {
      return problem(
          fmt::format("step {} of engine {} follows {}", in.step(), in.engine(), here.ends.size()));
    }
    Log::CoalescedSteps out;
    out.step = in.step();
    out.steps = 1 + static_cast<uint64_t>(in.gap_ns_size());
    out.plan = in.plan();
    Instant at = here.ends.empty() ? Instant{} : here.ends.back();
    const auto add = [&](int64_t gap) {
      if (gap < 0 || gap > INT64_MAX / 2 - at.ns) return false;
      at.ns += gap;
      here.ends.push_back(at);
      return true;
    };
    bool good = add(in.first_end_ns());
    for (const int64_t gap : in.gap_ns()) good = good && add(gap);
    if (!good) return problem(fmt::format("a step of engine {} ends before the one before it", in.engine()));
    if (in.host_ns() < 0 || in.exposed_ns() < 0 || in.hidden_ns() < 0)
      return problem("an outcome is negative");
    out.outcome = {{in.host_ns()}, {in.exposed_ns()}, {in.hidden_ns()}, in.bytes_in(), in.bytes_out()};
    for (const uint32_t request : in.eos()) out.eos.push_back(RequestId{request});
    for (const v1::CoalescedSteps::Retained& retained : in.retained()) {
      out.retained.push_back({RequestId{retained.request()},
                              {retained.count().begin(), retained.count().end()},
                              {retained.live().begin(), retained.live().end()}});
    }
    here.coalesced_runs.push_back(std::move(out));
    return {};
  }

  Result<void> transfer(const v1::TransferEnd& in) {
    const Result<Log::Engine*> found = engine(in.engine());
    if (!found) return tl::unexpected(found.error());
    std::vector<Log::Transfer>& all = (*found)->transfers;
    if (in.at_ns() < 0 || (!all.empty() && all.back().number >= in.transfer())) {
      return problem(fmt::format("transfer {} of engine {} is out of order", in.transfer(), in.engine()));
    }
    all.push_back({in.transfer(), {in.at_ns()}, in.failed()});
    return {};
  }

  Result<void> checkpoint(const v1::Checkpoint& in) {
    const Result<Log::Engine*> found = engine(in.engine());
    if (!found) return tl::unexpected(found.error());
    (*found)->checkpoints.push_back({in.steps(), in.outside(), {in.at_ns()}, in.digest()});
    return {};
  }

  const std::string& name_;
  Log* const log_;
  uint64_t records_ = 0;
  uint64_t answers_ = 0;
  Instant client_at_{};
  std::map<SessionId, uint32_t> sent_;  // requests, by session
  std::unordered_set<uint32_t> ready_;  // used for membership only: its order has no effect
  bool ended_ = false;
};

void write_retrieval(const RetrievalSpec& in, v1::RetrievalConfig* out) {
  out->set_budget_tokens(in.budget_tokens);
  out->set_sink_tokens(in.sink_tokens);
  out->set_window_tokens(in.window_tokens);
  out->set_extra_tokens(in.extra_tokens);
  out->set_layers_dense(in.layers_dense);
  out->set_tau_q32(in.tau_q32);
  out->set_speculation(in.speculation);
  out->set_pooling(static_cast<uint32_t>(in.pooling));
  out->set_summary(static_cast<uint32_t>(in.summary));
  out->set_scale(static_cast<uint32_t>(in.scale));
  out->set_rank(in.rank);
  out->set_columns_q32(in.columns_q32);
  out->set_resident_fraction_q32(in.resident_fraction_q32);
}

}  // namespace

v1::LogHeader log_header(const RunOptions& options, const RecordedAbout& about) {
  v1::LogHeader out;
  out.set_schema_version(kLogSchema);
  out.set_kvtwin_version(KVTWIN_VERSION);
  out.set_scenario(about.scenario);
  out.set_seed(about.seed);
  out.set_routing(static_cast<uint32_t>(options.routing));
  out.set_prefill_engines(options.prefill_engines);
  out.set_plans_passes(true);
  for (const CoreConfig& in : options.engines) {
    v1::EngineConfig& engine = *out.add_engines();
    engine.set_page_tokens(in.page_tokens);
    engine.set_unit_tokens(in.unit_tokens);
    engine.set_pages_gpu(in.pages_gpu);
    engine.set_pages_host(in.pages_host);
    engine.set_pages_disk(in.pages_disk);
    engine.set_spill_pages_target(in.spill_pages_target);
    engine.set_requests_max(in.requests_max);
    engine.set_step_tokens_max(in.step_tokens_max);
    engine.set_chunk_tokens_max(in.chunk_tokens_max);
    engine.set_context_tokens_max(in.context_tokens_max);
    engine.set_steps_in_flight_max(in.steps_in_flight_max);
    engine.set_batch_order(static_cast<uint32_t>(in.batch_order));
    engine.set_admission(static_cast<uint32_t>(in.admission));
    engine.set_watermark_pages(in.watermark_pages);
    engine.set_page_order(static_cast<uint32_t>(in.page_order));
    engine.set_preemption(static_cast<uint32_t>(in.preemption));
    engine.set_prefix_cache(in.prefix_cache);
    engine.set_prefix_eviction(in.prefix_eviction);
    engine.set_evict_batch_pages(in.evict_batch_pages);
    engine.set_eviction_doubling_tokens(in.eviction_doubling_tokens);
    engine.set_eviction_refill_ns(in.eviction_refill.ns);
    engine.set_offload_batch_pages(in.offload_batch_pages);
    engine.set_offload_pages_target(in.offload_pages_target);
    for (const uint32_t size : in.capture_sizes) engine.add_capture_sizes(size);
    const PolicySet& axes = in.policies;
    if (!retrieval_traits(axes.retrieval).reads_everything())
      write_retrieval(axes.retrieval_spec, engine.mutable_retrieval());
    for (const std::string* name : {&axes.scorer, &axes.budget, &axes.layout, &axes.precision,
                                    &axes.placement, &axes.retrieval, &axes.partition, &axes.identity}) {
      engine.add_policies(*name);
    }
    write_scorer(axes.scorer_spec, engine.mutable_scorer());
    if (!budget_traits(axes.budget).keeps_all) {
      record_budget(axes.budget_spec, engine.mutable_budget());
      record_layout(axes.layout_spec, engine.mutable_layout());
    }
    engine.set_pages_int2(in.pages_int2);
    if (precision_traits(axes.precision).packed())
      write_precision(axes.precision_spec, engine.mutable_formats());
  }
  return out;
}

Result<Log> read_log(const std::string& name, std::string_view bytes) {
  Log log;
  LogReader reader(name, &log);
  google::protobuf::LogSilencer silence;  // Error reports the problem
  RecordReader in(bytes);
  std::string_view part;
  v1::LogRecord record;
  size_t begin = 0;
  while (begin = in.at(), in.next(&part)) {
    if (!record.ParseFromArray(part.data(), static_cast<int>(part.size()))) break;
    if (Result<void> ok = reader.take(record); !ok) return tl::unexpected(ok.error());
  }
  if (begin < bytes.size())
    return make_error(name, fmt::format("no log record at byte {}", begin), "is this a whole log?");
  if (Result<void> ok = reader.done(); !ok) return tl::unexpected(ok.error());
  return log;
}

}  // namespace kvtwin
