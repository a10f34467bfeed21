// Step graphs of the retrieval methods, in the shapes of docs/design/methods/freekv.md#timelines. One
// template per method; durations and counts are refreshed for every step.
//
// Streams: compute, select (scores for the next step), h2d, convert, d2h, host. PCIe is one FIFO per
// direction for all layers and requests. A layer's recall is one operation, and its conversion another; what
// the two overlap inside (two staging buffers) is in their durations, because buffers hold one head's pages
// of one request.
//
// Edges that a method's released code lacks and that are required here
// (docs/design/methods/freekv.md#recall):
//   score after the query exists; scatter into the resident pages after the attention that still reads it;
//   attention after the recall of the step before (port recall_done[l]);
//   the next step's layer after this one's offload, before slots are reused (port offload_done[l]);
//   with one staging buffer, a recall after the conversion before it (port staging, across steps).

#ifndef KVTWIN_ENGINE_STEPS_STEP_GRAPH_RETRIEVAL_H_
#define KVTWIN_ENGINE_STEPS_STEP_GRAPH_RETRIEVAL_H_

#include <cstdint>
#include <vector>

#include "engine/methods/retrieval_spec.h"
#include "engine/steps/step_graph.h"

namespace kvtwin {

// Where a step's compressions stand: in each layer, behind its attention; or behind the last layer, where
// scores of all layers are compared, or rows that only ask must run first.
enum class CompressionPlace : uint8_t { kNone, kInLayers, kBehindLayers };

struct RetrievalStepSpec {
  RetrievalMethod method = RetrievalMethod::kAll;
  uint32_t layers = 1;
  uint32_t layers_dense = 0;  // they read everything and recall nothing
  bool speculation = true;    // FreeKV
  bool converts = true;       // host pages are HND: what arrives is scattered into NHD slots
  uint32_t staging_buffers = 2;
  bool keeps_prefixes = false;  // pages outlive their requests on the host: dense layers' too
  bool captures = false;        // each layer takes something down for the scorer
  CompressionPlace compresses = CompressionPlace::kNone;
};

constexpr PortId kNoPort{UINT16_MAX};

// Operations of one layer; kNoOp where the method has none. "now" is for this step's attention.
struct RetrievalLayerOps {
  OpId query = kNoOp, append = kNoOp, attention = kNoOp, rest = kNoOp;
  OpId cosine = kNoOp, score_now = kNoOp, top_k_now = kNoOp, sync = kNoOp, recall_now = kNoOp,
       convert_now = kNoOp;
  OpId score_next = kNoOp, top_k_next = kNoOp, recall_next = kNoOp, convert_next = kNoOp;
  OpId reconstruct = kNoOp;                 // ShadowKV: keys of the chosen pages
  OpId reproject = kNoOp;                   // InfiniGen: in the layer before
  OpId summarise = kNoOp, offload = kNoOp;  // of pages that this step fills
  PortId offload_done = kNoPort;
  OpId capture = kNoOp;
  OpId score = kNoOp, select = kNoOp, compact = kNoOp;  // kInLayers
};

struct RetrievalStep {
  StepGraph graph;
  OpId before = kNoOp, after = kNoOp, sample = kNoOp;  // outside the layers
  OpId probe = kNoOp, bookkeeping = kNoOp;
  OpId score = kNoOp, select = kNoOp, compact = kNoOp;  // kBehindLayers
  std::vector<RetrievalLayerOps> layers;

  // Numbers of outcomes; the span given to evaluate() has outcome_count() of them.
  uint32_t blocking(uint32_t layer) const { return layer; }               // pages x KV heads recalled now
  uint32_t background(uint32_t layer) const { return count() + layer; }   // for the next step
  uint32_t flagged(uint32_t layer) const { return 2 * count() + layer; }  // 1: some head is chosen again
  uint32_t unflagged(uint32_t layer) const {
    return 3 * count() + layer;
  }                                                         // 1: none is, and some request retrieves
  uint32_t filled() const { return 4 * count(); }           // pages that this step completes
  uint32_t compressing() const { return 4 * count() + 1; }  // 1: some request is compressed
  uint32_t outcome_count() const { return 4 * count() + 2; }

 private:
  uint32_t count() const { return static_cast<uint32_t>(layers.size()); }
};

// REQUIRES: 1 <= layers, layers_dense <= layers, 1 <= staging_buffers <= 2; infinigen has layers_dense >= 1.
RetrievalStep make_retrieval_step(const RetrievalStepSpec& spec);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_STEPS_STEP_GRAPH_RETRIEVAL_H_
