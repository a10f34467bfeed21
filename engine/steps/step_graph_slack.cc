#include "engine/steps/step_graph_slack.h"

#include <algorithm>
#include <utility>

namespace kvtwin {
namespace {

bool contains(std::span<const OpId> all, OpId one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

class StreamWaits {
 public:
  StreamWaits(const StepGraph& graph, Ticks start, const StepTiming& timing, std::span<const Ticks> carried)
      : graph_(graph), start_(start), end_(timing.end), carried_(carried), waits_(graph.op_count()) {
    graph.times(&times_);
    effects_.resize(graph.op_count());
    for (uint32_t i = 0; i < graph.op_count(); ++i) {
      if (graph.absent(OpId{i})) continue;
      for (const OpId cause : present_causes(OpId{i})) effects_[index(cause)].push_back(OpId{i});
    }
  }

  std::vector<OpWait> take() {
    find_latest({});
    const std::vector<Ticks> first = latest_;  // latest ends in the next step, which is assumed equal
    find_latest(first);
    for (uint32_t i = 0; i < waits_.size(); ++i) {
      if (graph_.absent(OpId{i})) continue;
      if (latest_[i] != kNobodyWaits) waits_[i].slack = latest_[i] - times_[i].end;
      find_stall(OpId{i});
    }
    for (const OpId op : graph_.critical_path()) waits_[index(op)].critical = !graph_.absent(op);
    return std::move(waits_);
  }

 private:
  // The last operation on `op`'s stream, at or before `op`, that is not absent.
  OpId present_before(OpId op) const {
    while (op != kNoOp && graph_.absent(op)) {
      OpId before = kNoOp;
      for (const OpId cause : graph_.causes(op)) {
        const bool same = graph_.op(cause).stream == graph_.op(op).stream;
        if (same && (before == kNoOp || index(cause) > index(before))) before = cause;
      }
      op = before;
    }
    return op;
  }

  // Causes of `op` that are not absent. An absent event delays nothing; stream order holds even if its
  // operation is absent.
  std::vector<OpId> present_causes(OpId op) const {
    std::vector<OpId> out;
    for (const OpId cause : graph_.causes(op)) {
      OpId held_by = cause;
      if (graph_.absent(cause))
        held_by = contains(graph_.in_order(op), cause) ? present_before(cause) : kNoOp;
      if (held_by != kNoOp && !contains(out, held_by)) out.push_back(held_by);
    }
    return out;
  }

  // Latest ends, in descending order of start: an effect starts no earlier than its cause ends. Operations
  // without duration tie; the one that was added later comes first.
  void find_latest(const std::vector<Ticks>& next) {
    latest_.assign(graph_.op_count(), kNobodyWaits);
    std::vector<uint32_t> order;
    for (uint32_t i = 0; i < graph_.op_count(); ++i) {
      if (!graph_.absent(OpId{i})) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return std::pair(times_[a].start, times_[a].end) != std::pair(times_[b].start, times_[b].end)
                 ? std::pair(times_[a].start, times_[a].end) > std::pair(times_[b].start, times_[b].end)
                 : a > b;
    });
    for (const uint32_t i : order) {
      if (graph_.op(OpId{i}).required) latest_[i] = end_;
      for (const OpId effect : effects_[i]) bound(i, latest_start(latest_, effect));
      if (!next.empty()) bound_by_next(OpId{i}, next);
    }
  }

  Ticks latest_start(const std::vector<Ticks>& latest, OpId op) const {
    const Ticks end = latest[index(op)];
    return end == kNobodyWaits ? kNobodyWaits : end - graph_.duration(op);
  }
  void bound(uint32_t op, Ticks latest_end) { latest_[op] = std::min(latest_[op], latest_end); }

  // Bounds from the next step: the same step, shifted by its duration.
  void bound_by_next(OpId op, const std::vector<Ticks>& next) {
    const Ticks later = end_ - start_;
    const auto bound_at = [&](OpId waiting) {
      const Ticks at = latest_start(next, waiting);
      if (at != kNobodyWaits) bound(index(op), at + later);
    };
    for (uint32_t i = 0; i < graph_.op_count(); ++i) {
      const OpId waiting{i};
      if (graph_.absent(waiting)) continue;
      for (const PortId port : graph_.ports(waiting)) {
        if (graph_.fed_by(port) == op) bound_at(waiting);
      }
    }
    // The first operation of a stream waits for all earlier work on that stream.
    for (uint32_t i = 0; i < graph_.op_count(); ++i) {
      if (graph_.op(OpId{i}).stream != graph_.op(op).stream || graph_.absent(OpId{i})) continue;
      if (OpId{i} != op) bound_at(OpId{i});
      break;
    }
  }

  void find_stall(OpId op) {
    const Ticks begins = times_[index(op)].start;
    Ticks before = start_;
    OpId last = kNoOp;
    Ticks last_end = start_;
    for (const OpId cause : present_causes(op)) {
      const Ticks end = times_[index(cause)].end;
      if (graph_.op(cause).stream == graph_.op(op).stream) {
        before = std::max(before, end);
      } else if (end > last_end) {
        last_end = end, last = cause;
      }
    }
    OpWait& wait = waits_[index(op)];
    const size_t streams = graph_.streams().size();
    for (const PortId port : graph_.ports(op)) {
      const size_t carry = streams + static_cast<size_t>(port);
      if (carry < carried_.size() && carried_[carry] > last_end) {
        last_end = carried_[carry], last = kNoOp, wait.stalled_port = port;
      }
    }
    wait.stalled = std::max<Ticks>(0, begins - before);
    if (wait.stalled == 0 || last_end != begins) {
      wait.stalled_port = PortId{UINT16_MAX};
    } else {
      wait.stalled_for = last;
    }
  }

  const StepGraph& graph_;
  const Ticks start_, end_;
  const std::span<const Ticks> carried_;
  std::vector<OpWait> waits_;
  std::vector<OpTime> times_;
  std::vector<std::vector<OpId>> effects_;
  std::vector<Ticks> latest_;
};

}  // namespace

std::vector<OpWait> waits_of(const StepGraph& graph, Ticks start, const StepTiming& timing,
                             std::span<const Ticks> carried) {
  return StreamWaits(graph, start, timing, carried).take();
}

}  // namespace kvtwin
