#include "engine/steps/step_graph.h"

#include <algorithm>
#include <array>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/topological_sort.hpp>
#include <limits>
#include <utility>

#include "engine/base/check.h"

namespace kvtwin {
namespace {

constexpr std::array<std::string_view, kOpKinds> kNames = {
    "gemm",        "rope+append", "attention", "score",      "select",     "compact", "pack",
    "summarise",   "page-score",  "top-k",     "cosine",     "recall",     "convert", "dequantise-gather",
    "reconstruct", "re-project",  "offload",   "requantise", "all-reduce", "sample",  "host",
    "probe",       "capture"};

constexpr Ticks kLongAgo = std::numeric_limits<Ticks>::min() / 2;

}  // namespace

std::string_view name_of(OpKind kind) { return kNames[static_cast<size_t>(kind)]; }

StreamId StepGraph::add_stream(std::string name) {
  KVT_CHECK(!sealed_ && ops_.empty());
  streams_.push_back(std::move(name));
  last_on_stream_.push_back(kNoOp);
  return StreamId{static_cast<uint16_t>(streams_.size() - 1)};
}

PortId StepGraph::add_port(std::string name, uint16_t layer) {
  KVT_CHECK(!sealed_);
  port_names_.push_back(std::move(name));
  port_layers_.push_back(layer);
  return PortId{static_cast<uint16_t>(port_names_.size() - 1)};
}

OpId StepGraph::add(const Op& op) {
  KVT_CHECK(!sealed_ && static_cast<size_t>(op.stream) < streams_.size());
  const OpId id{op_count()};
  OpState state;
  state.op = op;
  OpId& last = last_on_stream_[static_cast<size_t>(op.stream)];
  if (last != kNoOp) {
    state.causes.push_back(last);
    state.behind.push_back(last);
  }
  last = id;
  ops_.push_back(std::move(state));
  return id;
}

void StepGraph::after(OpId op, OpId cause) {
  KVT_CHECK(!sealed_ && index(op) < ops_.size() && index(cause) < ops_.size());
  std::vector<OpId>& causes = ops_[index(op)].causes;
  if (std::find(causes.begin(), causes.end(), cause) == causes.end()) causes.push_back(cause);
}

void StepGraph::behind(OpId op, OpId cause) {
  after(op, cause);
  ops_[index(op)].behind.push_back(cause);
}

void StepGraph::after(OpId op, PortId port) {
  KVT_CHECK(!sealed_ && static_cast<size_t>(port) < port_names_.size());
  ops_[index(op)].ports.push_back(port);
}

void StepGraph::feed(PortId port, OpId op) {
  KVT_CHECK(!sealed_ && static_cast<size_t>(port) < port_names_.size());
  const auto carry =
      static_cast<uint32_t>(streams_.size()) + static_cast<uint32_t>(port);  // streams are complete
  std::erase_if(port_feeds_, [&](const Feed& feed) { return feed.carry == carry; });
  port_feeds_.push_back({carry, op, 0});
  ops_[index(op)].feeds = true;
}

std::vector<uint32_t> StepGraph::topological_order() const {
  using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS>;
  Graph graph(ops_.size());
  for (uint32_t i = 0; i < ops_.size(); ++i) {
    for (const OpId cause : ops_[i].causes) boost::add_edge(index(cause), i, graph);
  }
  std::vector<uint32_t> order;
  try {
    boost::topological_sort(graph, std::back_inserter(order));  // effects first
  } catch (const boost::not_a_dag&) {
    KVT_CHECK(!"the operations of a step wait for each other in a circle");
  }
  std::reverse(order.begin(), order.end());
  return order;
}

// An operation joins the chain of its only cause if that cause has no other effect and no event can separate
// the two: then only the sum of their durations matters.
void StepGraph::contract(const std::vector<uint32_t>& order) {
  std::vector<uint32_t> effects(ops_.size(), 0);
  for (const OpState& state : ops_) {
    for (const OpId cause : state.causes) ++effects[index(cause)];
  }
  for (const uint32_t i : order) {
    OpState& state = ops_[i];
    bool joins = state.causes.size() == 1 && state.ports.empty() && state.op.outcome == kAlways;
    if (joins) {
      const OpState& cause = ops_[index(state.causes[0])];
      joins = effects[index(state.causes[0])] == 1 && !cause.feeds && cause.op.outcome == kAlways &&
              cause.op.stream == state.op.stream && cause.op.required == state.op.required &&
              !moves(state.causes[0]) && !moves(OpId{i});
      if (joins) state.node = cause.node;
    }
    if (!joins) {
      state.node = static_cast<uint32_t>(chains_.size());
      chains_.emplace_back();
    }
    chains_[state.node].push_back(OpId{i});
  }
}

void StepGraph::link_causes() {
  std::vector<bool> has_required_effect(chains_.size(), false);
  std::vector<bool> port_is_transfer(port_names_.size(), false);
  for (const Feed& feed : port_feeds_) {
    port_is_transfer[feed.carry - streams_.size()] = moves(feed.op);
  }
  std::vector<bool> stream_began(streams_.size(), false);
  for (const std::vector<OpId>& chain : chains_) {
    const OpState& first = ops_[index(chain.front())];
    std::vector<uint32_t> others, transfers;
    for (const OpId cause : first.causes) {
      const bool in_order = std::find(first.behind.begin(), first.behind.end(), cause) != first.behind.end();
      (moves(cause) ? transfers : others).push_back(in_order ? value_of(cause) : event_of(cause));
      if (first.op.required) has_required_effect[ops_[index(cause)].node] = true;
    }
    for (const PortId port : first.ports) {
      const auto number = static_cast<uint32_t>(port);
      (port_is_transfer[number] ? transfers : others)
          .push_back(static_cast<uint32_t>(streams_.size()) + number);
    }
    // The stream may still be busy with an earlier step.
    const auto stream = static_cast<uint32_t>(first.op.stream);
    if (!stream_began[stream]) others.push_back(stream);
    stream_began[stream] = true;
    Node node;
    node.stream = stream;
    for (const OpId cause : first.causes) {
      if (op(cause).stream == first.op.stream) node.stream = std::max(node.stream, value_of(cause));
    }
    node.event = first.event;
    node.measured = stream == 0 && !is_transfer(first.op.kind);
    node.first_cause = static_cast<uint32_t>(causes_.size());
    causes_.insert(causes_.end(), others.begin(), others.end());
    node.transfers = static_cast<uint32_t>(causes_.size());
    causes_.insert(causes_.end(), transfers.begin(), transfers.end());
    node.last_cause = static_cast<uint32_t>(causes_.size());
    nodes_.push_back(node);
  }
  for (uint32_t i = 0; i < chains_.size(); ++i) {
    if (ops_[index(chains_[i].front())].op.required && !has_required_effect[i]) required_ends_.push_back(i);
  }
}

void StepGraph::seal() {
  KVT_CHECK(!sealed_ && !streams_.empty());
  contract(topological_order());
  for (uint32_t i = 0; i < ops_.size(); ++i) {
    if (ops_[i].op.outcome == kAlways) continue;
    conditional_.push_back(OpId{i});
    ops_[i].event = carried() + static_cast<uint32_t>(chains_.size() + event_nodes_.size());
    event_nodes_.push_back(ops_[i].node);
  }
  link_causes();
  for (uint32_t i = 0; i < streams_.size(); ++i) {
    if (last_on_stream_[i] != kNoOp) feeds_.push_back({i, last_on_stream_[i], 0});
  }
  feeds_.insert(feeds_.end(), port_feeds_.begin(), port_feeds_.end());
  for (Feed& feed : feeds_) {
    feed.value = feed.carry < streams_.size() ? value_of(feed.op) : event_of(feed.op);
  }
  values_.assign(carried() + nodes_.size() + event_nodes_.size(), kLongAgo);
  sealed_ = true;
}

void StepGraph::set_work(OpState* state, Ticks duration, uint64_t bytes) {
  nodes_[state->node].duration += duration - state->duration;
  if (is_transfer(state->op.kind)) {
    transferring_ += duration - state->duration;
    (state->op.kind == OpKind::kRecall ? bytes_in_ : bytes_out_) += bytes - state->bytes;
  }
  state->duration = duration;
  state->bytes = bytes;
}

void StepGraph::set_cost(OpId op, const OpCost& cost) {
  KVT_CHECK(sealed_ && cost.fixed >= 0 && cost.unit >= 0);
  OpState& state = ops_[index(op)];
  state.cost = cost;
  if (state.op.outcome == kAlways) set_work(&state, cost.fixed, cost.bytes);
}

void StepGraph::apply_outcomes(std::span<const uint32_t> outcomes) {
  for (const OpId op : conditional_) {
    OpState& state = ops_[index(op)];
    const auto number = static_cast<size_t>(state.op.outcome);
    KVT_CHECK(number < outcomes.size());
    const uint32_t count = outcomes[number];
    nodes_[state.node].absent = count == 0;
    if (count == 0) {
      set_work(&state, 0, 0);
    } else {
      set_work(&state, state.cost.fixed + Ticks{count} * state.cost.unit,
               state.cost.bytes + count * state.cost.unit_bytes);
    }
  }
}

StepTiming StepGraph::evaluate(Ticks start, std::span<const uint32_t> outcomes, StepCarry* carry) {
  KVT_CHECK(sealed_);
  apply_outcomes(outcomes);
  carry->at.resize(carried(), kLongAgo);
  std::copy(carry->at.begin(), carry->at.end(), values_.begin());
  started_ = start;
  StepTiming timing;
  const Ticks* const values = values_.data();
  Ticks* end = values_.data() + carried();
  const uint32_t* cause = causes_.data();
  for (const Node& node : nodes_) {
    if (node.absent) {
      cause = causes_.data() + node.last_cause;
      *end++ = values[node.stream];
      values_[node.event] = kLongAgo;
      continue;
    }
    Ticks others = start;
    for (const uint32_t* last = causes_.data() + node.transfers; cause != last; ++cause) {
      others = std::max(others, values[*cause]);
    }
    Ticks begins = others;
    for (const uint32_t* last = causes_.data() + node.last_cause; cause != last; ++cause) {
      begins = std::max(begins, values[*cause]);
    }
    if (node.measured) timing.exposed += begins - others;
    *end = begins + node.duration;
    if (node.event != kNothing) values_[node.event] = *end;
    ++end;
  }
  timing.end = start;
  for (const uint32_t i : required_ends_) timing.end = std::max(timing.end, values[carried() + i]);
  timing.hidden = std::max<Ticks>(0, transferring_ - timing.exposed);
  timing.bytes_in = bytes_in_;
  timing.bytes_out = bytes_out_;
  for (const Feed& feed : feeds_) {
    if (values_[feed.value] != kLongAgo) carry->at[feed.carry] = values_[feed.value];
  }
  return timing;
}

StepGraph::Piece StepGraph::piece(uint32_t number) const {
  const Node& node = nodes_[number];
  const OpState& first = ops_[index(chains_[number].front())];
  const std::span<const uint32_t> causes(causes_);
  return {.kind = first.op.kind,
          .stream = first.op.stream,
          .required = first.op.required,
          .measured = node.measured,
          .moves = moves(chains_[number].front()),
          .duration = node.duration,
          .bytes = first.bytes,
          .absent = node.absent,
          .others = causes.subspan(node.first_cause, node.transfers - node.first_cause),
          .transfers = causes.subspan(node.transfers, node.last_cause - node.transfers)};
}

uint32_t StepGraph::feeder(uint32_t carry) const {
  for (const Feed& feed : feeds_) {
    if (feed.carry == carry) return feed.value;
  }
  return kNothing;
}

uint32_t StepGraph::resolve(uint32_t value) const {
  for (;;) {
    if (value < carried()) return value;
    const uint32_t number = value - carried();
    if (number >= nodes_.size()) {  // the event of a conditional operation
      const uint32_t node = event_nodes_[number - nodes_.size()];
      return nodes_[node].absent ? kNothing : carried() + node;
    }
    if (!nodes_[number].absent) return value;
    value = nodes_[number].stream;
  }
}

OpId StepGraph::fed_by(PortId port) const {
  const auto carry = static_cast<uint32_t>(streams_.size()) + static_cast<uint32_t>(port);
  for (const Feed& feed : port_feeds_) {
    if (feed.carry == carry) return feed.op;
  }
  return kNoOp;
}

void StepGraph::times(std::vector<OpTime>* times) const {
  times->resize(ops_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    Ticks at = values_[carried() + i] - nodes_[i].duration;
    for (const OpId op : chains_[i]) {
      const Ticks end = at + ops_[index(op)].duration;
      (*times)[index(op)] = {at, end};
      at = end;
    }
  }
}

std::vector<OpId> StepGraph::critical_path() const {
  std::vector<OpId> path;
  const auto end_of = [&](uint32_t node) { return values_[carried() + node]; };
  if (required_ends_.empty()) return path;
  uint32_t node = *std::max_element(required_ends_.begin(), required_ends_.end(),
                                    [&](uint32_t a, uint32_t b) { return end_of(a) < end_of(b); });
  for (;;) {
    path.insert(path.end(), chains_[node].rbegin(), chains_[node].rend());
    const Ticks began = end_of(node) - nodes_[node].duration;
    uint32_t decided_by = UINT32_MAX;
    for (uint32_t c = nodes_[node].first_cause; c < nodes_[node].last_cause; ++c) {
      const uint32_t value = resolve(causes_[c]);
      if (value == kNothing || value < carried()) continue;
      if (values_[value] == began) decided_by = value - carried();
    }
    if (decided_by == UINT32_MAX || began == started_) break;  // the step's start, or an earlier step
    node = decided_by;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace kvtwin
