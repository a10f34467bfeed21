// Step-graph templates of a plain paged engine, optionally with a recall per layer: within the step
// (double-buffered), or for the next step (through ports).

#ifndef KVTWIN_TESTS_SUPPORT_DECODE_STEP_H_
#define KVTWIN_TESTS_SUPPORT_DECODE_STEP_H_

#include <cstdint>
#include <vector>

#include "engine/steps/step_graph.h"

namespace kvtwin {

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

// Streams: compute, host, and with a recall also h2d. REQUIRES: layers >= 1, staging_buffers >= 1.
DecodeStep make_decode_step(const DecodeStepSpec& spec);

}  // namespace kvtwin

#endif  // KVTWIN_TESTS_SUPPORT_DECODE_STEP_H_
