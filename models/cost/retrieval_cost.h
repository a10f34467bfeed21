// RetrievalCost prices the operations of in-step retrieval on one GPU of an engine, in one layer
// (docs/design/methods/freekv.md#timelines).
//
// Kernels are rooflines with a fixed time each, from the device catalog, as in roofline_cost.h. Transfers
// take
//   h(x, u) = copies * t_copy + x / rate * (1 + u0 / u)
// for x bytes in rows of u bytes: t_copy is the node's copy overhead, u0 its copy_row_bytes. Figures carry
// their basis in the node file. A kernel that recalls pages reads the host at 0.92 of PCIe's rate in either
// layout: 51.3 (HND) and 49.8 GB/s (NHD) of 55.4 on an H200 (recall_bench,
// reports/evidence/validation/2026-11-21-h200-recall.txt). Assumptions: vector arithmetic at 1/16 of the bf16
// rate (A100: 19.5 of 312 TFLOP/s), three kernels for softmax, pooling and top-k, and 3.6 us from one stream
// to another by an event (measured on an H200).
//
// Not modelled: kernels of the select stream that slow down the compute stream; HBM bandwidth used by copies
// (5 to 6 % while PCIe is busy); kernels launched one by one by a framework, at some microseconds each.

#ifndef KVTWIN_MODELS_COST_RETRIEVAL_COST_H_
#define KVTWIN_MODELS_COST_RETRIEVAL_COST_H_

#include <cstdint>
#include <optional>

#include "models/catalog/device.h"
#include "models/catalog/llm.h"
#include "models/cost/cost_model.h"

namespace kvtwin {

// How a method stores and copies pages, in plain numbers.
struct RetrievalGeometry {
  uint32_t page_tokens = 32;
  // Size of a contiguous block on the host; 0: K and V of one head's page (HND).
  uint32_t piece_bytes = 0;
  bool copy_each_piece = false;  // false: a page of one head is one (strided) copy
  bool by_kernel = false;        // no copies: a kernel reads the host's memory and writes the page's slots
  bool values_only = false;      // keys never travel (ShadowKV)
  uint32_t staging_buffers = 2;
  uint32_t summary_vectors = 2;  // per page and KV head
  // InfiniGen: fraction of each key that is scored, token by token; 0: scores are by page.
  double scored_columns = 0;
  uint32_t rank = 0;            // ShadowKV
  bool keeps_prefixes = false;  // pages outlive their requests on the host, with their summaries
};

// fixed + count * unit, and count * unit_bytes; of this GPU.
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

  // `tokens`: tokens of context that are scored, summed over requests; the whole kernel.
  Ticks score(uint64_t tokens) const;
  Ticks top_k(uint64_t tokens) const;
  // With the host's decision: four bytes to the host and a synchronisation.
  Ticks cosine(uint32_t requests) const;
  Ticks sync() const;
  Ticks reproject(uint32_t requests) const;
  Ticks reconstruct(uint64_t tokens, uint32_t requests) const;
  // After set_measured(), the cost model's steps contain the kernels of this method (operation_cost.h), and
  // recalls have the measured prices, before a layer's attention | for the next step.
  struct Measured {
    double page_now_us = 0, page_next_us = 0;
    double concurrent_page_us = 0;  // slowdown of a step by a page that it does not wait for
    double page_launched_us = 0;    // the additional slowdown where kernels are launched one by one
  };
  void set_measured(const Measured& recalls) { measured_ = recalls; }

  // Prices per page of one KV head. convert(): the conversion that remains when the recall has ended, for
  // `tasks` (request, head) pairs that share the staging buffers.
  RetrievalPrice recall(bool now = true) const;
  // Slowdown of this step by pages that are recalled for the next one.
  Ticks concurrent(uint32_t pages, bool launched) const;
  RetrievalPrice convert(uint32_t tasks) const;
  // Prices per page of all heads on this GPU.
  RetrievalPrice summarise() const;
  RetrievalPrice offload() const;
  double kv_heads() const { return kv_heads_; }  // on this GPU

 private:
  double kernel_ns(double bytes, double flop) const;

  RetrievalGeometry geometry_;
  std::optional<Measured> measured_;
  double kv_heads_, query_heads_, head_dim_, hidden_;  // on this GPU
  double stored_bytes_;                                // of a number of K or V in a page
  double bytes_per_ns_, flop_per_ns_, vector_flop_per_ns_, small_fixed_ns_, gemm_fixed_ns_;
  double in_bytes_per_ns_, copy_in_ns_, copy_out_ns_, row_bytes_, sync_ns_;
};

// The data of a page besides its K and V that moves with a prefix, as a fraction of the page: summaries.
// Partial keys and factors are computed again.
double summary_fraction(const LlmSpec& llm, const RetrievalGeometry& geometry, uint32_t layers_dense);

// What a full page leaves on the GPU while its K and V are on the host, as a fraction of the page: summaries,
// factors or partial keys, and the first `layers_dense` layers whole.
double resident_fraction(const LlmSpec& llm, const RetrievalGeometry& geometry, uint32_t layers_dense);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_RETRIEVAL_COST_H_
