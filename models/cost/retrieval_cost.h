// What the operations of in-step retrieval take on one GPU of an engine, in one layer
// (docs/design/methods/freekv.md#timelines).
//
// Kernels are rooflines with a fixed time each, from the device catalog, as in roofline_cost.h. Transfers are
//   h(x, u) = requests * t_request + x / rate * (1 + u0 / u)
// for x bytes in rows of u: t_request is the node's copy overhead, u0 its copy_row_bytes. Figures carry their
// basis in the node file. A kernel that recalls pages reads the host at 0.92 of PCIe's rate, whatever the
// layout: 51.3 (HND) and 49.8 GB/s (NHD) of 55.4 on an H200 (recall_bench,
// reports/evidence/validation/2026-11-21-h200-recall.txt). Assumed here: vector arithmetic at 1/16 of the
// bf16 rate (A100: 19.5 of 312 TFLOP/s), three kernels for softmax, pooling and top-k, and 3.6 us from one
// stream to another by an event (measured on an H200).
//
// Not modelled: kernels of the select stream slowing down the compute stream; copies that cost HBM bandwidth
// (5 to 6 % while PCIe is busy); kernels launched one by one by a framework, each some microseconds.

#ifndef KVTWIN_MODELS_COST_RETRIEVAL_COST_H_
#define KVTWIN_MODELS_COST_RETRIEVAL_COST_H_

#include <cstdint>
#include <optional>

#include "models/catalog/device.h"
#include "models/catalog/llm.h"
#include "models/cost/cost_model.h"

namespace kvtwin {

// How a method stores and copies, in plain numbers.
struct RetrievalGeometry {
  uint32_t page_tokens = 32;
  uint32_t piece_bytes = 0;      // contiguous on the host; 0: K and V of one head's page (HND)
  bool copy_each_piece = false;  // else a page of one head is one (strided) copy
  bool by_kernel = false;        // no copies: a kernel reads the host's memory and writes the page's slots
  bool values_only = false;      // keys never travel (ShadowKV)
  uint32_t staging_buffers = 2;
  uint32_t summary_vectors = 2;  // per page and KV head
  double scored_columns = 0;     // InfiniGen: fraction of each key that is scored, token by token; 0: by page
  uint32_t rank = 0;             // ShadowKV
  bool keeps_prefixes = false;   // pages outlive their requests on the host, with their summaries
};

// fixed + count * unit; bytes likewise, of this GPU.
struct RetrievalPrice {
  Ticks fixed = 0;
  Ticks unit = 0;
  uint64_t unit_bytes = 0;
};

class RetrievalCost {
 public:
  // REQUIRES: check_llm(llm) and check_tp(llm, tp) hold; geometry.page_tokens > 0.
  RetrievalCost(const LlmSpec& llm, const DeviceSpec& device, const NodeSpec& node, uint32_t tp,
                const RetrievalGeometry& geometry);

  // `tokens`: of context that is scored, summed over requests; whole kernel.
  Ticks score(uint64_t tokens) const;
  Ticks top_k(uint64_t tokens) const;
  Ticks cosine(uint32_t requests) const;  // with the host's decision: four bytes back and a synchronisation
  Ticks sync() const;
  Ticks reproject(uint32_t requests) const;
  Ticks reconstruct(uint64_t tokens, uint32_t requests) const;
  // From now on kernels of this method are in the cost model's steps (method_cost.h), and a page of one KV
  // head takes so long to recall, whatever it is made of: before its layer's attention | for the next step.
  struct Measured {
    double recall_us = 0;  // a layer's recall before its attention, however few pages it has
    double head_us = 0;    // and for each KV head of a request that recalls there
    double page_now_us = 0, page_next_us = 0;
    double page_mixed_us = 0;         // page_now_us of steps that compute prompts
    double concurrent_recall_us = 0;  // a layer's recall for the next step slows its own down by so much,
    double concurrent_page_us = 0;    // and slows a step down by so much that it does not hold up,
    double page_launched_us = 0;      // by so much more where operations are started one by one
  };
  void set_measured(const Measured& recalls) { measured_ = recalls; }

  // Of pages of one KV head. Conversion: what is left of it when the recall has ended, of `tasks` (request,
  // head) pairs that share the staging buffers.
  // `heads`: of this GPU, over the requests, that recall before attention; where recalls are measured.
  RetrievalPrice recall(bool now = true, bool chunks = false, uint32_t heads = 0) const;
  // Of pages recalled for the next step, to this one.
  Ticks concurrent(uint32_t pages, bool launched) const;
  RetrievalPrice convert(uint32_t tasks) const;
  // Of pages of all this GPU's heads.
  RetrievalPrice summarise() const;
  RetrievalPrice offload() const;
  double kv_heads() const { return kv_heads_; }  // on this GPU

 private:
  double kernel_ns(double bytes, double flop) const;

  RetrievalGeometry geometry_;
  std::optional<Measured> measured_;
  double kv_heads_, query_heads_, head_dim_, hidden_;  // on this GPU
  double bytes_per_ns_, flop_per_ns_, vector_flop_per_ns_, small_fixed_ns_, gemm_fixed_ns_;
  double in_bytes_per_ns_, copy_in_ns_, copy_out_ns_, row_bytes_, sync_ns_;
};

// What belongs to a page besides its K and V and travels with a prefix, as a fraction of the page: summaries.
// Partial keys and factors are computed again.
double summary_fraction(const LlmSpec& llm, const RetrievalGeometry& geometry, uint32_t layers_dense);

// What a full page leaves on the GPU while its K and V are on the host, as a fraction of the page: summaries,
// factors or partial keys, and the first `layers_dense` layers whole.
double resident_fraction(const LlmSpec& llm, const RetrievalGeometry& geometry, uint32_t layers_dense);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_RETRIEVAL_COST_H_
