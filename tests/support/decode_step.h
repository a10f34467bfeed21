// Step graphs of a plain paged engine, optionally with a recall per layer: within the step (double-buffered),
// or for the next step (through ports). They are small and regular, for tests of graphs and of their
// evaluation.

#ifndef KVTWIN_TESTS_SUPPORT_DECODE_STEP_H_
#define KVTWIN_TESTS_SUPPORT_DECODE_STEP_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/steps/step_graph.h"

namespace kvtwin::testing {

enum class RecallTiming : uint8_t {
  kNone,
  kSameStep,  // recall of layer l: after qkv of layer l - 1, before attention of layer l
  kNextStep,  // after attention of layer l, in the background; before attention of layer l one step later
};

struct DecodeStepSpec {
  uint32_t layers = 1;
  bool tensor_parallel = false;    // an all-reduce after attention's output and one after the FFN
  bool launch_per_kernel = false;  // the host launches each kernel; else one CUDA graph
  RecallTiming recall = RecallTiming::kNone;
  uint32_t staging_buffers = 2;    // kSameStep: the recall of layer l reuses the buffer of layer l - buffers
  bool recall_by_outcome = false;  // the recall of layer l does outcomes[l] units
};

// Durations and sizes of the operations of one layer. All layers are alike unless an operation is changed.
struct DecodeStepCosts {
  OpCost qkv, rope_append, attention, out, ffn, all_reduce, recall, launch;
  OpCost sample, host;  // once per step
};

struct DecodeStep {
  StepGraph graph;
  std::vector<OpId> host, qkv, rope_append, attention, out, ffn, all_reduce, recall, launch, sample;

  void set_costs(const DecodeStepCosts& costs);
};

class DecodeBuilder {
 public:
  explicit DecodeBuilder(const DecodeStepSpec& spec) : spec_(spec) {
    KVT_CHECK(spec.layers >= 1 && spec.layers < kNoLayer && spec.staging_buffers >= 1);
    compute_ = graph().add_stream("compute");
    host_ = graph().add_stream("host");
    if (spec.recall != RecallTiming::kNone) h2d_ = graph().add_stream("h2d");
  }

  DecodeStep build() {
    step_.host.push_back(graph().add({OpKind::kHostWork, host_, kNoLayer}));
    for (uint32_t l = 0; l < spec_.layers; ++l) layer(static_cast<uint16_t>(l));
    step_.sample.push_back(kernel(OpKind::kSample, kNoLayer));
    graph().after(step_.qkv[0], step_.host[0]);
    graph().seal();
    return std::move(step_);
  }

 private:
  StepGraph& graph() { return step_.graph; }

  OpId kernel(OpKind kind, uint16_t layer) {
    const OpId op = graph().add({kind, compute_, layer});
    if (!spec_.launch_per_kernel) return op;
    step_.launch.push_back(graph().add({OpKind::kHostWork, host_, layer}));
    graph().after(op, step_.launch.back());
    return op;
  }

  OpId recall(uint16_t layer, bool required) {
    const int outcome = spec_.recall_by_outcome ? layer : kAlways;
    step_.recall.push_back(graph().add({OpKind::kRecall, h2d_, layer, required, outcome}));
    return step_.recall.back();
  }

  void layer(uint16_t l) {
    if (spec_.recall == RecallTiming::kSameStep) {
      const OpId op = recall(l, true);
      if (l > 0) graph().after(op, step_.qkv[l - 1u]);
      if (l >= spec_.staging_buffers) graph().after(op, step_.attention[l - spec_.staging_buffers]);
    }
    step_.qkv.push_back(kernel(OpKind::kGemm, l));
    step_.rope_append.push_back(graph().add({OpKind::kRopeAppend, compute_, l}));
    step_.attention.push_back(kernel(OpKind::kAttention, l));
    if (spec_.recall == RecallTiming::kSameStep) graph().after(step_.attention[l], step_.recall[l]);
    if (spec_.recall == RecallTiming::kNextStep) {
      const PortId done = graph().add_port("recall_done", l);
      graph().after(step_.attention[l], done);
      const OpId op = recall(l, false);
      graph().after(op, step_.attention[l]);
      graph().feed(done, op);
    }
    step_.out.push_back(kernel(OpKind::kGemm, l));
    if (spec_.tensor_parallel) step_.all_reduce.push_back(kernel(OpKind::kAllReduce, l));
    step_.ffn.push_back(kernel(OpKind::kGemm, l));
    if (spec_.tensor_parallel) step_.all_reduce.push_back(kernel(OpKind::kAllReduce, l));
  }

  const DecodeStepSpec spec_;
  DecodeStep step_;
  StreamId compute_{}, host_{}, h2d_{};
};

inline void DecodeStep::set_costs(const DecodeStepCosts& costs) {
  const auto set = [&](const std::vector<OpId>& ops, const OpCost& cost) {
    for (const OpId op : ops) graph.set_cost(op, cost);
  };
  set(host, costs.host);
  set(qkv, costs.qkv);
  set(rope_append, costs.rope_append);
  set(attention, costs.attention);
  set(out, costs.out);
  set(ffn, costs.ffn);
  set(all_reduce, costs.all_reduce);
  set(recall, costs.recall);
  set(launch, costs.launch);
  set(sample, costs.sample);
}

// Streams: compute, host, and with a recall also h2d. REQUIRES: layers >= 1, staging_buffers >= 1.
inline DecodeStep make_decode_step(const DecodeStepSpec& spec) { return DecodeBuilder(spec).build(); }

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_DECODE_STEP_H_
