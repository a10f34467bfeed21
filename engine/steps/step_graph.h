// StepGraph: what one step does, operation by operation, and when each part ends
// (docs/design/step-graph-and-prices.md#step-graph).
//
// Operations run on named streams. Those of one stream run in the order in which they were added;
// `after` adds event edges between streams. The simulator schedules it, and explain and validate price with
// it. The CUDA engine issues its own operations and does not read this graph.
//
// A graph is a template: built and sealed once per (model, policy set, parallelism), then evaluated for
// every step with fresh durations. From step to step a StepCarry is handed on: how long each stream is
// still busy, and the ports: instants at which something that a later step waits for was, or will be,
// done. So a background recall of step i delays the attention of its layer in step i + 1, not step i.
//
// An operation whose outcome is 0 does not happen: nobody waits for it, what it would feed keeps its value,
// and its stream goes on as if it had never been issued.
//
// Times are Ticks (1/1024 ns). Evaluation is the longest path in a stored topological order, after chains
// that no edge enters or leaves were contracted; it allocates nothing.

#ifndef KVTWIN_ENGINE_STEPS_STEP_GRAPH_H_
#define KVTWIN_ENGINE_STEPS_STEP_GRAPH_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvtwin {

using Ticks = int64_t;  // 1/1024 ns, as in models/cost/cost_model.h, which engine/ does not include

enum class OpKind : uint8_t {
  kGemm,
  kRopeAppend,
  kAttention,
  kScore,
  kSelect,
  kCompact,
  kPack,
  kSummarise,
  kPageScore,
  kTopK,
  kCosineCheck,
  kRecall,
  kConvert,
  kDequantiseGather,
  kReconstruct,
  kReproject,
  kOffload,
  kRequantise,
  kAllReduce,
  kSample,
  kHostWork,
  kProbe,    // whole passes of rows that only ask
  kCapture,  // taken down for a scorer while rows are computed
};
constexpr int kOpKinds = 23;
std::string_view name_of(OpKind kind);
// Transfers occupy PCIe, not the device: recall (host to gpu) and offload (gpu to host).
constexpr bool is_transfer(OpKind kind) { return kind == OpKind::kRecall || kind == OpKind::kOffload; }

enum class OpId : uint32_t {};
constexpr OpId kNoOp{UINT32_MAX};
constexpr uint32_t index(OpId id) { return static_cast<uint32_t>(id); }
enum class StreamId : uint16_t {};
enum class PortId : uint16_t {};

constexpr uint16_t kNoLayer = UINT16_MAX;
constexpr int kAlways = -1;

struct Op {
  OpKind kind{};
  StreamId stream{};
  uint16_t layer = kNoLayer;
  bool required = true;   // the step ends when the last required operation has
  int outcome = kAlways;  // >= 0: happens `outcomes[outcome]` times its unit, not at all if that is 0
  bool delivers = false;  // the end of a transfer (a conversion): who waits for it waits for the transfer
};

// How long one operation takes, and what it moves. With an outcome of n > 0: fixed + n * unit; of 0: nothing.
struct OpCost {
  Ticks fixed = 0;
  Ticks unit = 0;
  uint64_t bytes = 0;  // moved, fixed part
  uint64_t unit_bytes = 0;
};

struct OpTime {
  Ticks start = 0;
  Ticks end = 0;
};

// What goes from one step to the next. Graphs that follow each other must declare the same streams and
// ports in the same order.
struct StepCarry {
  std::vector<Ticks> at;  // streams, then ports; filled by the first evaluation
};

struct StepTiming {
  Ticks end = 0;           // of the last required operation
  Ticks exposed = 0;       // the first stream stood still and only transfers held it
  Ticks hidden = 0;        // rest of the time that transfers of this step took
  uint64_t bytes_in = 0;   // recalls
  uint64_t bytes_out = 0;  // offloads
};

class StepGraph {
 public:
  // Building. The first stream is the one that computes: exposed time is measured on it.
  StreamId add_stream(std::string name);
  PortId add_port(std::string name, uint16_t layer);
  OpId add(const Op& op);
  void after(OpId op, OpId cause);   // within the step
  void after(OpId op, PortId port);  // of an earlier step
  // Within the step, for whatever was issued on the stream of `cause` up to it, whether or not it happens.
  void behind(OpId op, OpId cause);
  void feed(PortId port, OpId op);  // the port says when `op` ended; later feeds replace earlier
  // Orders and contracts. Nothing can be added afterwards. REQUIRES: no cycle.
  void seal();

  // Evaluating. REQUIRES: sealed.
  void set_cost(OpId op, const OpCost& cost);
  // A step that may start at `start`. REQUIRES: outcomes has a number for each outcome that is used.
  // Does what evaluate() does first: operations with an outcome get their duration and bytes.
  void apply_outcomes(std::span<const uint32_t> outcomes);
  StepTiming evaluate(Ticks start, std::span<const uint32_t> outcomes, StepCarry* carry);
  // Of the evaluation before, by OpId: the timeline.
  void times(std::vector<OpTime>* times) const;
  // Of the evaluation before: the operations that decided its end, in order.
  std::vector<OpId> critical_path() const;

  // After contraction, in topological order: for whoever runs a step piece by piece (sim/expanded_step).
  struct Piece {
    OpKind kind{};  // of its first operation; a transfer is a piece of its own
    StreamId stream{};
    bool required = true;
    bool measured = false;  // its waiting counts as exposed
    bool moves = false;     // a transfer, or the end of one: waiting for it is exposed
    Ticks duration = 0;
    uint64_t bytes = 0;                   // of a transfer
    bool absent = false;                  // does not happen in this step
    std::span<const uint32_t> others;     // what it waits for: values, see resolve()
    std::span<const uint32_t> transfers;  // those that are transfers
  };
  // What a value comes to with the outcomes applied: below carried() a carried instant, else carried() +
  // piece; kNothing when nobody has to wait.
  static constexpr uint32_t kNothing = UINT32_MAX;
  uint32_t resolve(uint32_t value) const;
  Piece piece(uint32_t node) const;
  uint32_t carried() const { return static_cast<uint32_t>(streams_.size() + port_names_.size()); }
  // Which value becomes carried instant `carry`; kNothing when none does.
  uint32_t feeder(uint32_t carry) const;

  const Op& op(OpId id) const { return ops_[static_cast<uint32_t>(id)].op; }
  uint32_t op_count() const { return static_cast<uint32_t>(ops_.size()); }
  uint32_t node_count() const { return static_cast<uint32_t>(nodes_.size()); }  // after contraction
  std::span<const std::string> streams() const { return streams_; }
  const OpCost& cost(OpId id) const { return ops_[static_cast<uint32_t>(id)].cost; }
  Ticks duration(OpId id) const {
    return ops_[static_cast<uint32_t>(id)].duration;
  }  // in the last evaluation
  // What `op` waits for within the step, stream order included.
  std::span<const OpId> causes(OpId op) const { return ops_[static_cast<uint32_t>(op)].causes; }
  // Those of them that count whether or not they happen: stream order, behind().
  std::span<const OpId> in_order(OpId op) const { return ops_[static_cast<uint32_t>(op)].behind; }
  // What `op` waits for of earlier steps, and which operation becomes that for the next one (UINT32_MAX:
  // none).
  std::span<const PortId> ports(OpId op) const { return ops_[static_cast<uint32_t>(op)].ports; }
  OpId fed_by(PortId port) const;
  uint32_t port_count() const { return static_cast<uint32_t>(port_names_.size()); }
  const std::string& port_name(PortId port) const { return port_names_[static_cast<size_t>(port)]; }
  uint16_t port_layer(PortId port) const { return port_layers_[static_cast<size_t>(port)]; }
  // In the last evaluation: `op` did not happen; the bytes it moved.
  bool absent(OpId op) const { return nodes_[ops_[static_cast<uint32_t>(op)].node].absent; }
  uint64_t bytes(OpId op) const { return ops_[static_cast<uint32_t>(op)].bytes; }

 private:
  struct OpState {
    Op op;
    OpCost cost;
    Ticks duration = 0;  // with the outcome applied, like bytes
    uint64_t bytes = 0;
    std::vector<OpId> causes;  // the one before it on its stream comes first, if there is one
    std::vector<OpId> behind;  // of these: stream order, not an event
    std::vector<PortId> ports;
    uint32_t node = 0;
    uint32_t event = kNothing;  // of an operation with an outcome: its event's value
    bool feeds = false;
  };
  // A chain of operations that behaves as one. Its causes are indices into values_: carried ones first,
  // then nodes; [first_cause, transfers) are no transfers, [transfers, last_cause) are.
  struct Node {
    Ticks duration = 0;
    uint32_t first_cause = 0;
    uint32_t transfers = 0;
    uint32_t last_cause = 0;
    uint32_t stream = 0;        // value of what comes before it on its stream
    uint32_t event = kNothing;  // value that events on it have
    bool measured = false;      // on the first stream, and no transfer
    bool absent = false;
  };
  struct Feed {
    uint32_t carry = 0;
    OpId op{};
    uint32_t value = 0;  // of op, once sealed
  };

  std::vector<uint32_t> topological_order() const;
  void contract(const std::vector<uint32_t>& order);
  void link_causes();
  void set_work(OpState* state, Ticks duration, uint64_t bytes);
  bool moves(OpId id) const { return is_transfer(op(id).kind) || op(id).delivers; }
  uint32_t event_of(OpId op) const {
    const uint32_t event = ops_[static_cast<uint32_t>(op)].event;
    return event == kNothing ? value_of(op) : event;
  }
  uint32_t value_of(OpId op) const { return carried() + ops_[static_cast<uint32_t>(op)].node; }

  bool sealed_ = false;
  std::vector<std::string> streams_;
  std::vector<std::string> port_names_;
  std::vector<uint16_t> port_layers_;
  std::vector<OpId> last_on_stream_;  // UINT32_MAX: none yet
  std::vector<OpState> ops_;
  std::vector<Feed> port_feeds_;
  std::vector<Node> nodes_;                // in topological order
  std::vector<std::vector<OpId>> chains_;  // the operations of each node, in order
  std::vector<uint32_t> causes_;
  std::vector<uint32_t> required_ends_;  // nodes without a required successor
  std::vector<OpId> conditional_;        // operations with an outcome
  Ticks transferring_ = 0;               // by all transfers of the step
  uint64_t bytes_in_ = 0, bytes_out_ = 0;
  std::vector<Feed> feeds_;  // what is carried on, streams and ports
  Ticks started_ = 0;
  std::vector<Ticks> values_;          // carried, then the end of each node, then events of conditional ones
  std::vector<uint32_t> event_nodes_;  // of these events
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_STEPS_STEP_GRAPH_H_
