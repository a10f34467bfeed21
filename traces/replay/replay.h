// ReplayClient sends the requests of a trace when dependencies and times release them
// (docs/design/trace-formats.md#replay).
//
// Times are integer nanoseconds. C(d) is when node d completed here, E(d, k) when its k-th output token
// existed here; the `x scale` factors are ratios.
//
// *Closed loop.* A node without dependencies is released at session start + start_offset. Any other at
//
//     release(n) = think(n) + max over deps d of [ end(d) + d.delay x delay_scale ]
//     end(d)     = d.at_output_token ? E(d, k) : C(d)
//     think(n)   = min(LlmRequest.think_ns x think_scale, think_cap)
//
// and never before the end of its last dependency (delays may be negative, from rounded recordings). A token
// that never exists counts as emitted when the request ends. Tools and opaque agents complete at release +
// duration x tool_scale; a background tool delays only nodes that list it. *think_cap* does not apply to tool
// time. A trace without tool nodes does not distinguish the two (WEKA); there the cap limits the whole gap
// between the last dependency and the release.
//
// *Open loop.* Every request is released at recorded_at x arrival_scale. A request that is released before a
// DATA predecessor (tools in between take no time) has completed is a causality violation. With arrivals
// other than recorded: session start + (recorded_at - arrival) x arrival_scale. *Guarded open* also waits for
// all dependencies, and adds neither delays, tool nor think times, because recorded_at contains them.
//
// *Front end.* A released request reaches the engine FrontEnd::of(its prompt) later, releases as they are.
//
// *A request ends* for the session by finishing, by abort_after_tokens (RequestCancelled is sent when that
// many tokens exist; its dependents continue), or by rejection (RejectPolicy). *A session ends* when its last
// node, background tools included, has completed or was cancelled: SessionHint kSessionEnds.
//
// Order. Due events are sent by (instant, session, node); a session that starts precedes the others of its
// instant. Successors without delay are sent in the same answer. RequestIds are assigned in the order of
// sending; SessionId is replica x sessions + index in the file.
//
// Identity (docs/design/trace-formats.md#identity, replay_identity.h). UnitRun::space = kind << 60 | replica
// << 32 | session or request: source ids keep their scope, clones differ except in what is global, and
// positions without identity are in a space of the request.

#ifndef KVTWIN_TRACES_REPLAY_REPLAY_H_
#define KVTWIN_TRACES_REPLAY_REPLAY_H_

#include <array>
#include <string_view>
#include <vector>

#include "engine/runtime/client.h"
#include "traces/replay/prompt_tags.h"
#include "traces/replay/replay_arrivals.h"
#include "traces/replay/replay_options.h"
#include "traces/replay/replay_table.h"

namespace kvtwin {

// Amounts by Provenance. Sourced: recorded + derived. Made: estimated + synthesised.
struct ProvenanceCounts {
  std::array<uint64_t, kProvenances> by{};
  void add(Provenance provenance, uint64_t amount) { by[static_cast<size_t>(provenance)] += amount; }
  uint64_t sourced() const { return by[1] + by[2]; }
  uint64_t made() const { return by[3] + by[4]; }
  uint64_t total() const { return sourced() + made() + by[0] + by[5]; }
};

struct ReplayReport {
  uint64_t sessions_total = 0;  // all replicas
  uint64_t sessions_started = 0;
  uint64_t sessions_ended = 0;
  uint64_t sessions_failed = 0;  // of the started: a request was finally rejected
  uint64_t requests_total = 0;
  uint64_t requests_sent = 0;      // RequestReady, retries included
  uint64_t requests_finished = 0;  // forced length or end of sequence
  uint64_t requests_aborted = 0;   // by abort_after_tokens
  uint64_t requests_rejected = 0;  // RejectRequest answers
  uint64_t requests_retried = 0;
  uint64_t requests_cancelled = 0;    // never sent, because a request that they depend on was rejected
  uint64_t causality_violations = 0;  // open loop
  ProvenanceCounts prompt_tokens;     // of requests sent
  ProvenanceCounts output_tokens;
  ProvenanceCounts wait_ns;  // think, delay and tool time as applied (closed loop)
};

// Facts about a request for the results.
struct ReplayRequestInfo {
  SessionId session{};
  uint32_t session_index = 0;  // in the file
  uint32_t replica = 0;
  uint32_t node = 0;  // in the session
  uint32_t agent = 0;
  uint32_t model = 0;
  uint32_t turn = 0;
  uint32_t attempt = 0;  // 0: the first attempt
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;
  Instant ready{};  // release: TTFT counts from here
  Instant recorded_at{};
  Duration recorded_service{};
  Duration recorded_ttft{};
  std::string_view session_id;
};

// A run of a tool or an opaque agent, as it was here.
struct ReplayTool {
  uint32_t instance = 0;  // replica x sessions + index in the file
  uint32_t node = 0;      // in the session
  Instant released{}, finished{};
};

class ReplayClient final : public Client {
 public:
  // REQUIRES: what ReplayBuilder::build() checks. options.mode is not kAuto.
  ReplayClient(ReplayTable table, const ReplayOptions& options);

  Instant wake_at() const override;
  void wake(Instant now, ClientEvents* events) override;
  void tokens_emitted(Instant now, RequestId request, uint32_t tokens, ClientEvents* events) override;
  void request_finished(Instant now, RequestId request, uint32_t tokens, bool cancelled,
                        ClientEvents* events) override;
  void request_rejected(Instant now, RequestId request, ClientEvents* events) override;

  // Requests carry what `source` finds in place of the table's roles and spans. It must outlive the run.
  void read_tags_from(PromptTagSource* source) { tag_source_ = source; }

  uint32_t unit_tokens() const { return table_.unit_tokens; }
  ReplayMode mode() const { return options_.mode; }
  // The cap limits every gap and not only think time.
  bool cap_reaches_every_gap() const { return !table_.has_tools; }
  const ReplayReport& report() const { return report_; }
  const ReplayTable& table() const { return table_; }
  // Requests sent so far have the ids [0, requests()).
  uint32_t requests() const { return static_cast<uint32_t>(requests_.size()); }
  ReplayRequestInfo request_info(RequestId request) const;
  // In order of release; empty in the open loops, where tools take no time.
  const std::vector<ReplayTool>& tools() const { return tools_; }

 private:
  enum class Phase : uint8_t { kWaiting, kDue, kRunning, kOver };
  struct NodeState {
    int64_t gate = 0;      // max of satisfied + delay
    int64_t last = 0;      // max of satisfied
    uint32_t waiting = 0;  // unsatisfied dependencies
    uint32_t emitted = 0;
    uint32_t attempts = 0;
    Phase phase{};
    bool aborted = false;
  };
  struct Live {
    std::vector<NodeState> nodes;
    uint32_t open = 0;  // nodes that are not over
    bool failed = false;
    bool known = false;  // a request was sent
    // For hints: when the last request ended (-1: another was sent since), and the sum of the pauses before
    // requests.
    int64_t last_end = -1, gaps = 0;
    uint32_t gap_count = 0;
  };
  enum class DueKind : uint8_t { kRelease, kComplete, kArrive };  // kArrive: of a request, at the engine
  struct Due {
    int64_t at;
    uint32_t instance;
    uint32_t node;
    DueKind kind;
    friend auto operator<=>(const Due&, const Due&) = default;
  };
  struct SentRequest {
    int64_t ready;
    uint32_t instance;
    uint32_t node;
    uint32_t attempt;
  };

  const TableSession& session_of(uint32_t instance) const;
  const TableNode& node_of(uint32_t instance, uint32_t node) const;
  Live& live(uint32_t instance) { return live_[slot_of_[instance]]; }

  void push(Due due);
  void drain(Instant now, ClientEvents* events);
  void start(uint32_t instance, int64_t at, ClientEvents* events);
  int64_t recorded_release(const TableSession& session, const TableNode& node, int64_t start) const;
  void release(const Due& due, ClientEvents* events);
  void send(const Due& due, int64_t released, ClientEvents* events);
  Duration front_end(const TableNode& node) const { return options_.front_end.of(node.prompt_tokens); }
  void satisfy(uint32_t instance, const TableEdge& edge, int64_t at);
  int64_t release_at(const TableNode& node, const NodeState& state);
  void complete(uint32_t instance, uint32_t node, int64_t at, ClientEvents* events);
  void close(uint32_t instance, int64_t at, ClientEvents* events);
  void fail(uint32_t instance, uint32_t node, int64_t at, ClientEvents* events);
  void note_end(uint32_t instance, int64_t at);
  void say_what_follows(const SentRequest& sent, ClientEvents* events);
  uint32_t tool_after(const SentRequest& sent) const;
  void begin_answer(Instant now, ClientEvents* events);
  void end_answer(ClientEvents* events);
  uint64_t space(RunScope scope, uint32_t instance) const;

  ReplayTable table_;
  ReplayOptions options_;
  ArrivalSchedule arrivals_;
  ReplayReport report_;
  std::vector<Due> due_;  // a heap, the earliest first
  std::vector<Live> live_;
  std::vector<uint32_t> free_slots_;
  std::vector<uint32_t> slot_of_;      // by instance
  std::vector<SentRequest> requests_;  // by RequestId
  std::vector<ReplayTool> tools_;
  std::vector<uint32_t> doomed_;
  PromptTagSource* tag_source_ = nullptr;
  std::vector<PromptTags> tags_;  // of the current answer
  std::vector<UnitRun> runs_;     // of the current answer
  std::vector<uint32_t> run_counts_;
  size_t answer_begin_ = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_REPLAY_REPLAY_H_
