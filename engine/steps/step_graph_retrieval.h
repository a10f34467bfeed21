// Step graphs of the retrieval methods, with the timelines of docs/design/methods/freekv.md#timelines: one
// template per method. Durations and counts are set for every step.
//
// Streams: compute, select (scores for the next step), h2d, convert, d2h, host. PCIe is one FIFO per
// direction for all layers and requests. The recall of a layer is one operation, and its conversion another.
// Their durations already contain the overlap within the pair (two staging buffers), because a buffer holds
// the pages of one head of one request.
//
// Edges that are required here, although a method's released code lacks them
// (docs/design/methods/freekv.md#recall):
//   scores after the query exists; scatter into the resident pages after the attention that reads them;
//   attention after the recall of the step before (port recall_done[l]);
//   a layer after its own offload in the step before, so that slots are not reused early (port
//   offload_done[l]);
//   with one staging buffer, a recall after the preceding conversion (port staging, across steps).

#ifndef KVTWIN_ENGINE_STEPS_STEP_GRAPH_RETRIEVAL_H_
#define KVTWIN_ENGINE_STEPS_STEP_GRAPH_RETRIEVAL_H_

#include <cstdint>
#include <vector>

#include "engine/methods/retrieval_spec.h"
#include "engine/steps/step_graph.h"

namespace kvtwin {

// Position of a step's compressions: in each layer after its attention (kInLayers), or after the last layer
// (kBehindLayers), where scores of all layers are compared or probe tokens must run first.
enum class CompressionPlace : uint8_t { kNone, kInLayers, kBehindLayers };

struct RetrievalStepSpec {
  RetrievalKind kind = RetrievalKind::kReadsAll;
  uint32_t layers = 1;
  uint32_t layers_dense = 0;  // layers that read all KV entries and recall none
  bool speculation = true;    // kRecallsPages: pages for the next step are selected in the background
  bool converts = true;       // host pages are HND: recalled pages are scattered into NHD slots
  uint32_t staging_buffers = 2;
  bool keeps_prefixes = false;  // pages outlive their requests on the host, those of dense layers too
  bool captures = false;        // each layer captures data for the scorer
  bool all_reduces = false;     // several GPUs share the model: each layer and the head exchange results
  CompressionPlace compresses = CompressionPlace::kNone;
};

constexpr PortId kNoPort{UINT16_MAX};

// Operations of one layer; kNoOp if the method has none. The suffix _now is for this step's attention, _next
// for the next step's.
struct RetrievalLayerOps {
  OpId query = kNoOp, append = kNoOp, attention = kNoOp, rest = kNoOp, all_reduce = kNoOp;
  OpId cosine = kNoOp, score_now = kNoOp, top_k_now = kNoOp, sync = kNoOp, recall_now = kNoOp,
       convert_now = kNoOp;
  OpId score_next = kNoOp, top_k_next = kNoOp, recall_next = kNoOp, convert_next = kNoOp;
  OpId reconstruct = kNoOp;                 // ShadowKV: keys of the selected pages
  OpId reproject = kNoOp;                   // InfiniGen: runs in the layer before
  OpId summarise = kNoOp, offload = kNoOp;  // for the pages that this step fills
  PortId offload_done = kNoPort;
  OpId capture = kNoOp;
  OpId score = kNoOp, select = kNoOp, compact = kNoOp;  // kInLayers
};

struct RetrievalStep {
  StepGraph graph;
  OpId before = kNoOp, after = kNoOp, all_reduce = kNoOp, sample = kNoOp;  // outside the layers
  OpId probe = kNoOp, bookkeeping = kNoOp;
  OpId score = kNoOp, select = kNoOp, compact = kNoOp;  // kBehindLayers
  std::vector<RetrievalLayerOps> layers;

  // Indices of outcomes. The span that evaluate() receives has outcome_count() elements.
  uint32_t blocking(uint32_t layer) const { return layer; }              // pages x KV heads recalled now
  uint32_t background(uint32_t layer) const { return count() + layer; }  // pages recalled for the next step
  // 1: some head of the layer selects pages for this step's attention.
  uint32_t flagged(uint32_t layer) const { return 2 * count() + layer; }
  // 1: no head does, and some request retrieves.
  uint32_t unflagged(uint32_t layer) const { return 3 * count() + layer; }
  uint32_t filled() const { return 4 * count(); }           // pages that this step completes
  uint32_t compressing() const { return 4 * count() + 1; }  // 1: some request is compressed
  uint32_t passing() const { return 4 * count() + 2; }      // 1: passes of probe tokens run
  uint32_t outcome_count() const { return 4 * count() + 3; }

 private:
  uint32_t count() const { return static_cast<uint32_t>(layers.size()); }
};

// REQUIRES: 1 <= layers, layers_dense <= layers, 1 <= staging_buffers <= 2; infinigen has layers_dense >= 1.
RetrievalStep make_retrieval_step(const RetrievalStepSpec& spec);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_STEPS_STEP_GRAPH_RETRIEVAL_H_
