// StepGraph is the operations of one step, and the time at which each of them ends
// (docs/design/step-graph-and-prices.md#step-graph).
//
// Operations run on named streams. Those of one stream run in the order in which they were added; `after`
// adds event edges between streams. The simulator schedules the graph; `explain` and `validate` price with
// it. Its operations price those of the step's list (step_list.h), which the CUDA engine walks: parts() names
// them.
//
// A graph is a template: it is built and sealed once per (model, policy set, parallelism), then evaluated for
// every step with new durations. A StepCarry passes from step to step. It holds the time until which each
// stream is busy, and the ports: the instants at which operations that a later step waits for end. So a
// background recall of step i delays the attention of its layer in step i + 1, not step i.
//
// An operation whose outcome is 0 is absent: no operation waits for its event, a port that it feeds keeps its
// value, and its stream continues as if it had never been issued.
//
// Times are Ticks (1/1024 ns). Evaluation is the longest path in a stored topological order, after chains
// without an incoming or outgoing edge were contracted. It allocates nothing.

#ifndef KVTWIN_ENGINE_STEPS_STEP_GRAPH_H_
#define KVTWIN_ENGINE_STEPS_STEP_GRAPH_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/steps/step_list.h"

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
  kProbe,    // whole passes of probe tokens
  kCapture,  // stores what a scorer needs while tokens are computed
};
constexpr int kOpKinds = 23;
std::string_view name_of(OpKind kind);
// Transfers occupy PCIe, not the device: recall (host to GPU) and offload (GPU to host).
constexpr bool is_transfer(OpKind kind) { return kind == OpKind::kRecall || kind == OpKind::kOffload; }

enum class OpId : uint32_t {};
constexpr OpId kNoOp{UINT32_MAX};
constexpr uint32_t index(OpId id) { return static_cast<uint32_t>(id); }
enum class StreamId : uint16_t {};
enum class PortId : uint16_t {};

constexpr int kAlways = -1;

struct Op {
  OpKind kind{};
  StreamId stream{};
  uint16_t layer = kNoLayer;
  bool required = true;   // the step ends when its last required operation ends
  int outcome = kAlways;  // >= 0: the operation does outcomes[outcome] units of work; absent if that is 0
  bool delivers = false;  // completes a transfer (a conversion): waiting for it counts as transfer time
};

// Duration and bytes of one operation. With an outcome of n > 0: fixed + n * unit; with 0: nothing.
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

// State that passes from one step to the next. Graphs of consecutive steps must declare the same streams and
// ports in the same order.
struct StepCarry {
  std::vector<Ticks> at;  // streams, then ports; filled by the first evaluation
};

struct StepTiming {
  Ticks end = 0;           // of the last required operation
  Ticks exposed = 0;       // time in which the first stream waited for transfers alone
  Ticks hidden = 0;        // the remaining time of this step's transfers
  uint64_t bytes_in = 0;   // recalls
  uint64_t bytes_out = 0;  // offloads
};

class StepGraph {
 public:
  // Building. The first stream computes: exposed time is measured on it.
  StreamId add_stream(std::string name);
  PortId add_port(std::string name, uint16_t layer);
  OpId add(const Op& op);
  void after(OpId op, OpId cause);   // event edge within the step
  void after(OpId op, PortId port);  // event edge from an earlier step
  // `op` waits for the operations issued on the stream of `cause` up to and including it, even if `cause` is
  // absent.
  void behind(OpId op, OpId cause);
  // `op` prices `part` of the step's list (step_list.h).
  void add_part(OpId op, const ListedOperation& part) { ops_[index(op)].parts.push_back(part); }
  void feed(PortId port, OpId op);  // the port carries the end of `op`; a later feed replaces an earlier one
  // Sorts and contracts the graph, which cannot be extended afterwards. REQUIRES: no cycle.
  void seal();

  // Evaluating. REQUIRES: sealed. set_cost() sets the price of one operation.
  void set_cost(OpId op, const OpCost& cost);
  // Sets duration and bytes of operations with an outcome; evaluate() does this first.
  // REQUIRES: outcomes has a number for each outcome that is used.
  void apply_outcomes(std::span<const uint32_t> outcomes);
  // Evaluates a step that may start at `start`; updates *carry.
  StepTiming evaluate(Ticks start, std::span<const uint32_t> outcomes, StepCarry* carry);
  // Start and end of each operation in the last evaluation, by OpId.
  void times(std::vector<OpTime>* times) const;
  // The operations that determined the end of the last evaluation, in order.
  std::vector<OpId> critical_path() const;

  // A node after contraction; pieces are in topological order. For callers that run a step node by node
  // (sim/expanded_step).
  struct Piece {
    OpKind kind{};  // kind of its first operation; a transfer is a piece of its own
    StreamId stream{};
    bool required = true;
    bool measured = false;  // waiting time before it counts as exposed
    bool moves = false;     // a transfer, or the operation that completes one: waiting for it is exposed time
    Ticks duration = 0;
    uint64_t bytes = 0;                   // of a transfer
    bool absent = false;                  // absent in this step
    std::span<const uint32_t> others;     // causes that are no transfers, as values; see resolve()
    std::span<const uint32_t> transfers;  // causes that are transfers
  };
  // The instant that `value` refers to under the current outcomes: a carried instant if below carried(), else
  // the end of piece value - carried(). kNothing: there is nothing to wait for.
  static constexpr uint32_t kNothing = UINT32_MAX;
  uint32_t resolve(uint32_t value) const;
  Piece piece(uint32_t node) const;
  uint32_t carried() const { return static_cast<uint32_t>(streams_.size() + port_names_.size()); }
  // The value that becomes carried instant `carry` of the next step; kNothing: none.
  uint32_t feeder(uint32_t carry) const;

  const Op& op(OpId id) const { return ops_[static_cast<uint32_t>(id)].op; }
  uint32_t op_count() const { return static_cast<uint32_t>(ops_.size()); }
  uint32_t node_count() const { return static_cast<uint32_t>(nodes_.size()); }  // after contraction
  std::span<const std::string> streams() const { return streams_; }
  const OpCost& cost(OpId id) const { return ops_[static_cast<uint32_t>(id)].cost; }
  Ticks duration(OpId id) const { return ops_[static_cast<uint32_t>(id)].duration; }  // last evaluation
  // Operations of the step that `op` waits for, stream order included.
  std::span<const OpId> causes(OpId op) const { return ops_[static_cast<uint32_t>(op)].causes; }
  // Those of them that count even if they are absent: stream order and behind().
  std::span<const OpId> in_order(OpId op) const { return ops_[static_cast<uint32_t>(op)].behind; }
  // The operations of the step's list that `op` prices; none: the CUDA engine starts no such operation.
  std::span<const ListedOperation> parts(OpId op) const { return ops_[index(op)].parts; }
  // Ports that `op` waits for, and the operation that feeds a port for the next step (UINT32_MAX: none).
  std::span<const PortId> ports(OpId op) const { return ops_[static_cast<uint32_t>(op)].ports; }
  OpId fed_by(PortId port) const;
  uint32_t port_count() const { return static_cast<uint32_t>(port_names_.size()); }
  const std::string& port_name(PortId port) const { return port_names_[static_cast<size_t>(port)]; }
  uint16_t port_layer(PortId port) const { return port_layers_[static_cast<size_t>(port)]; }
  // In the last evaluation: whether `op` was absent, and the bytes that it moved.
  bool absent(OpId op) const { return nodes_[ops_[static_cast<uint32_t>(op)].node].absent; }
  uint64_t bytes(OpId op) const { return ops_[static_cast<uint32_t>(op)].bytes; }

 private:
  struct OpState {
    Op op;
    OpCost cost;
    Ticks duration = 0;  // with the outcome applied, like bytes
    uint64_t bytes = 0;
    std::vector<OpId> causes;  // the operation before it on its stream comes first, if there is one
    std::vector<OpId> behind;  // those of `causes` that are stream order, not events
    std::vector<PortId> ports;
    std::vector<ListedOperation> parts;
    uint32_t node = 0;
    uint32_t event = kNothing;  // value of its event, if it has an outcome
    bool feeds = false;
  };
  // A chain of operations that is evaluated as one. Its causes are indices into values_, carried ones first,
  // then nodes: [first_cause, transfers) are not transfers, [transfers, last_cause) are.
  struct Node {
    Ticks duration = 0;
    uint32_t first_cause = 0;
    uint32_t transfers = 0;
    uint32_t last_cause = 0;
    uint32_t stream = 0;        // value of the preceding node on its stream
    uint32_t event = kNothing;  // value of its event
    bool measured = false;      // on the first stream, and not a transfer
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
  Ticks transferring_ = 0;               // total duration of the step's transfers
  uint64_t bytes_in_ = 0, bytes_out_ = 0;
  std::vector<Feed> feeds_;  // carried to the next step: streams and ports
  Ticks started_ = 0;
  std::vector<Ticks> values_;          // carried instants, ends of nodes, events of conditional operations
  std::vector<uint32_t> event_nodes_;  // the node of each of these events
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_STEPS_STEP_GRAPH_H_
