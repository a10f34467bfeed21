// Metrics watches a run across the backend interface and records, per request, named time points and exact
// counts. It is the one definition of every figure that kvtwin reports, whatever the backend.
//
// Time points of a request, all instants of the run's clock:
//   ready        everything that the request waits for has happened: when RequestReady was delivered, less
//                the time of the server's front end (EngineFacts::front_end), which counts as host time.
//   queued       the engine's loop accepted the request: `ready` if no step was in flight there, else the end
//                of the running step (a serving loop reads its inbox between steps).
//   admitted     the command that launched its first step was issued. Steps in flight may end first.
//   first_token  its first output token existed (TokensEmitted).
//   finished     its last token existed (FinishRequest).
//
// Formulas, from these points only:
//   TTFT = first_token - ready             E2E = finished - ready
//   TPOT = (finished - first_token) / (output tokens - 1), requests with at least 2 output tokens
//   ITL  = distance between neighbouring tokens of one request: the gap between the ends of consecutive
//          steps, once per request that decodes in the later step. Across a preemption it is the whole gap.
//          If a full token budget leaves a request out of a step, only the gap to the step before counts.
//   prefix reuse at first admission = tokens found in the cache / prompt tokens. Reuse at readmission after a
//          preemption is counted separately: a request that finds its own pages again has gained nothing.
//
// A request that one engine prefills and another decodes is one request. Its TTFT is measured on the first
// engine, and its first TPOT gap contains the handover. It is queued until the fetch of its KV starts; the
// fetch is transfer time.
//
// Attribution: the time from ready to finished is divided at admissions, step ends and preemptions, and each
// part is assigned to one TimeCategory. The parts of a request sum to its E2E exactly, in ns.
//
// Fragmentation (docs/design/methods/tangram.md#fragmentation), over the requests of each step, weighted by
// the step's time:
//   tail       1 - KV entries / slots
//   reclaimed  1 - slots / KV entries without dropping; 0 for layouts that drop none
//   group      KV entries that members of head groups hold beyond what each head alone needs / KV entries,
//              from calibrated retained counts of heads (EngineFacts::group_slack)
//
// Reads (docs/design/methods/intentkv.md#reads), over the decode entries of all steps, in tokens:
//   raw         all tokens computed before
//   effective   tokens that still have a KV entry (mean over heads)
//   peaks       the largest value of one decode
//   live reuse  of the tokens found in the cache at first admission, those that still have a KV entry
//
// Cost: about 140 bytes per request, 40 per session; a few ns per single step plus one addition per plan
// entry. Metrics decides nothing.

#ifndef KVTWIN_ENGINE_METRICS_METRICS_H_
#define KVTWIN_ENGINE_METRICS_METRICS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "engine/base/front_end.h"
#include "engine/metrics/metrics_series.h"
#include "engine/runtime/driver.h"

namespace kvtwin {

enum class TimeCategory : uint8_t {
  kQueue,      // not admitted, and not waiting for a transfer
  kTransfer,   // not admitted while its pages were loaded or received; or its step waited for a transfer
  kPrefill,    // its prompt is computed for the first time
  kRecompute,  // recomputes what a preemption discarded
  kDecode,     // from its first token to its last
  kHost,       // in its step the device waited for the host
};
constexpr int kTimeCategories = 6;

enum class RequestEnd : uint8_t { kOpen, kFinished, kCancelled, kRejected };

struct RequestRecord {
  SessionId session{};
  EngineId engine{};
  RequestEnd end = RequestEnd::kOpen;
  bool known = false;  // RequestReady was seen
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;  // requested; after the end, produced
  uint32_t reused_tokens = 0;  // of the prompt, at the first admission
  uint32_t reused_live = 0;    // those of them that still have a KV entry
  uint32_t preemptions = 0;
  uint64_t reused_again_tokens = 0;  // summed over readmissions
  uint64_t recomputed_tokens = 0;    // computed more than once, summed over readmissions
  Instant ready = kNever;
  Instant queued = kNever;
  Instant admitted = kNever;
  Instant first_token = kNever;
  Instant finished = kNever;
  std::array<Duration, kTimeCategories> time{};

  Duration& fraction(TimeCategory which) { return time[static_cast<size_t>(which)]; }
};

struct SessionRecord {
  Instant first_ready = kNever;
  Instant last_finished = kNever;
  Duration served{};  // time during which at least one of its requests was ready and not ended
  uint32_t requests = 0;
  uint32_t requests_open = 0;
  Instant served_since{};
};

struct Rejection {
  RequestId request{};
  RejectRequest::Reason reason{};
  uint64_t needed = 0;
  uint64_t limit = 0;
};

// Facts that Metrics cannot observe across the backend interface.
struct EngineFacts {
  uint32_t page_tokens = 16;
  uint64_t page_bytes = 0;  // of all layers and heads, on all devices of the engine
  uint32_t pages_gpu = 0;
  uint32_t steps_in_flight_max = 1;
  // Head groups whose members need different numbers of KV entries: additional KV entries per ranked token
  // dropped from a mean group, if each head could drop what it alone does not need. A ratio; 0: equal heads.
  double group_slack = 0;
  uint32_t pages_int2 = 0;  // int2 pages among pages_gpu (mixed precision)
  FrontEnd front_end{};     // between the sending of a request and RequestReady
};

// Per engine; all times in ns of the run's clock.
struct EngineTotals {
  uint64_t steps = 0;  // single steps
  uint64_t request_steps = 0;
  Duration busy{};               // a step was running
  Duration host{};               // StepOutcome.host
  Duration exposed{}, hidden{};  // transfer time in which no step ran or compute waited; the rest
  uint64_t transfers = 0, transfers_failed = 0;
  uint64_t bytes_in = 0, bytes_out = 0;  // to and from the GPU
  // Disk tier: part of bytes_in; bytes from the host; pages that hold or await a copy.
  uint64_t bytes_from_disk = 0, bytes_to_disk = 0;
  uint32_t pages_disk_peak = 0;
  uint64_t hits_host = 0, hits_disk = 0;        // tokens of prefixes that were loaded, by tier
  uint64_t bytes_received = 0;                  // KV of prompts that other engines computed
  uint32_t pages_held_peak = 0;                 // pages in use by requests or transfers
  uint32_t pages_resident_peak = 0;             // pages in use or cached
  Integral pages_held_ns{};                     // pages times ns
  Integral pages_int2_held_ns{};                // the int2 pages of them
  uint64_t tokens_requantised = 0;              // int4 to int2, in all heads and layers
  Integral entries_ns{}, slots_ns{};            // tokens times ns, over the requests of each step
  Integral full_ns{};                           // entries_ns without dropping; 0 for layouts that drop none
  uint64_t reads_raw = 0, reads_effective = 0;  // tokens, of decode entries
  uint32_t peak_raw = 0, peak_effective = 0;    // the largest of one decode entry
  Instant first_event = kNever, last_event{};
};

class Metrics : public Observer {
 public:
  explicit Metrics(std::vector<EngineFacts> engines);
  ~Metrics() override;

  void saw_event(Instant now, EngineId engine, const Event& event) override;
  void saw_command(Instant now, const Command& command) override;
  void saw_state(Instant now, EngineId engine, const Core& core) override;
  // saw_state() without a Core: for tests, and for backends that have only the counts.
  void saw_gauges(Instant now, EngineId engine, const CoreGauges& gauges);

  const std::vector<RequestRecord>& requests() const { return requests_; }  // by RequestId
  const std::vector<SessionRecord>& sessions() const { return sessions_; }  // by SessionId
  const std::vector<Rejection>& rejections() const { return rejections_; }  // in order of time
  const std::vector<EngineFacts>& facts() const { return facts_; }
  const EngineTotals& totals(EngineId engine) const;
  size_t engines() const { return facts_.size(); }
  const LogHistogram& itl() const { return itl_; }
  const Series& running() const { return running_; }
  const Series& waiting() const { return waiting_; }
  const Series& pages_held() const { return pages_series_; }
  // Over all engines. Times (busy, hidden, exposed) are those of EngineTotals. The integrals of the rates are
  // in bytes.
  const Series& pages_cached() const { return cached_; }
  const Series& pages_host() const { return host_pages_; }
  const Series& pages_disk() const { return disk_pages_; }
  const Series& pages_int2() const { return int2_pages_; }  // of pages_held() (mixed precision)
  const Series& time_steps() const { return steps_; }
  const Series& time_hidden() const { return hidden_; }
  const Series& time_exposed() const { return exposed_; }
  const Series& rate_in() const { return in_; }
  const Series& rate_out() const { return out_; }

 private:
  struct Live;
  struct Launch;
  struct Engine;
  struct Transfer;

  void ready(Instant now, EngineId engine, const RequestReady& event);
  void launched(Instant now, const LaunchStep& step);
  void admit(Instant now, const LaunchStep& step, const PlanEntry& entry);
  static void drop_launches(Engine& engine, uint64_t step);
  void step_done(const StepDone& done);
  void chunk_done(Engine& engine, StepId step, Instant end, const PlanEntry& entry);
  void arrived(Instant now, EngineId engine, const RequestReady& event);
  void handed_over(Instant now, const HandOver& over);
  void transfer_done(Instant now, EngineId engine, TransferId transfer, bool failed);
  void preempted(Instant now, const DropRequestState& drop);
  void ended(Instant now, RequestId request, RequestEnd how, uint32_t tokens);
  void received(Instant now, Engine& here, const Transfer& transfer, bool failed);
  // Attributes the time since the request's last mark to `fraction`, less the waits within its steps.
  void mark(RequestRecord& request, Live& live, const Engine& engine, Instant now, TimeCategory fraction);
  static void rebase(Live& live, const Engine& engine, Instant now);
  Duration recall_wait(const Engine& engine, const LaunchStep& step, RequestId request, Instant from) const;
  void first_decoded(Instant end, RequestId request);
  static void add_decode(const PlanEntry& entry, Launch* launch);
  static void add_reads(uint32_t offset, Launch* launch, EngineTotals* totals);
  void begin_allocations(Engine& engine, uint64_t steps_ended, Instant at);
  void pages_until(Engine& engine, Instant now);
  static void note_peaks(Engine& engine);
  void tick(Engine& engine, Instant now);
  TimeCategory running_fraction(const Live& live) const;

  std::vector<EngineFacts> facts_;
  std::vector<Engine> engines_;
  std::vector<RequestRecord> requests_;
  std::vector<Live> live_;         // slots of open requests
  std::vector<uint32_t> live_of_;  // by RequestId
  std::vector<uint32_t> live_free_;
  std::vector<SessionRecord> sessions_;
  std::vector<Rejection> rejections_;
  LogHistogram itl_;
  Series running_, waiting_, pages_series_;
  Series cached_, host_pages_, disk_pages_, int2_pages_, steps_, hidden_, exposed_, in_, out_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METRICS_METRICS_H_
