// CompressionCost prices what a scorer adds to steps: what it captures while tokens are computed, and for
// each compression its scores, selection, moved KV entries and page tables. Another CostModel prices the
// model's own work, and passes of probe tokens (pass_cost.h).
//
// Prices are of one GPU, per layer unless stated. All are rooflines: max(bytes / rate, products / rate,
// vector arithmetic / rate) + a fixed time per kernel, as in retrieval_cost.h. One kernel serves all requests
// of a step.
//
// * capture: storing queries, gates on hidden states, H2O's second read of every key, RaaS' time stamps.
// * score: CompressionWork::score per ranked KV entry (docs/design/methods/uniform.md). Sums of softmaxes are
//   taken from attention, which computes them.
// * select: radix selection in four passes over fp32 scores, and one that writes indices.
// * move: reading and writing retained KV entries. gather_entries reaches 0.80 of the read rate of an H200
//   (kernels/README.md); on other devices that is an assumption. It includes the pages of a prefix checkpoint
//   that the next request copies; they are spread evenly over the layers.
// * bookkeeping: the host updates each head group's page table, and the next step waits for it.
//
// An exponential counts as 16 vector operations (one special-function unit for 16 lanes), vector arithmetic
// as 1/16 of the bf16 rate (retrieval_cost.h).
//
// Not modelled: score kernels launched per request; rotating keys again (hidden by the move); several steps
// in flight hiding the bookkeeping; the exchange under tensor parallelism where scores of all heads are
// joined.

#ifndef KVTWIN_MODELS_COST_COMPRESSION_COST_H_
#define KVTWIN_MODELS_COST_COMPRESSION_COST_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "models/catalog/device.h"
#include "models/catalog/llm.h"
#include "models/cost/cost_model.h"
#include "models/cost/cost_on_top.h"

namespace kvtwin {

// The work of one kernel per unit of its size.
struct KernelWork {
  double bytes = 0;
  double product_flop = 0;  // on tensor cores
  double vector_flop = 0;
};

// The work of a scorer and of its compressions on one GPU. scenarios/app/compression_work.h fills it by
// scorer.
struct CompressionWork {
  uint32_t capture_kernels = 0;   // 0: nothing is captured
  bool captures_decodes = false;  // also for tokens of decodes; else of prompts alone
  KernelWork per_row;             // per such token
  double row_weight_bytes = 0;    // read once per step that computes tokens: a gate's weights
  KernelWork per_pair;            // per (token, KV entry that it sees) pair
  KernelWork per_kv_entry;        // per KV entry that a decode reads

  uint32_t score_kernels = 0;  // 0: positions decide
  KernelWork score;            // per ranked KV entry
  uint32_t score_turns = 1;    // most turns of the session that are scored, one after the other
  // Per (token of the prompt, ranked KV entry), where all tokens score; causal half.
  KernelWork score_pair;
  bool after_layers = false;  // scores and selection wait for the last layer
  bool selects = false;
  bool moves = false;         // retained entries of those ranked
  bool moves_all = false;     // all entries that the request still holds
  double kv_entry_bytes = 0;  // K and V of one token, in pages
  double page_bytes = 0;      // of a page of one head group, divided by the layers
  double kv_heads = 1;

  // Where a compression does not state how many ranked entries are retained: a fraction, or a number.
  double retained_fraction = 1;
  uint32_t retained_entries = UINT32_MAX;
  double bookkeeping_ns = 0;  // per compression, all head groups
};

class CompressionCost final : public CostOnTop {
 public:
  // REQUIRES: check_llm(llm) holds; `model` is not null.
  CompressionCost(const LlmSpec& llm, const DeviceSpec& device, const CompressionWork& work,
                  std::unique_ptr<CostModel> model);

  StepCost step(const StepShape& shape) override;
  // Captures, scores, selections and moves follow attention, or the last layer (after_layers).
  std::vector<StepPart> ops(const StepShape& shape) override;
  // The model's range, with what is added as it is.
  StepRange range(const StepShape& shape) override;

 private:
  struct Parts {
    std::array<StepPart, 6> part{};
    size_t count = 0;
    void add(const StepPart& one) {
      if (one.each > 0) part[count++] = one;
    }
  };
  void add_parts(const StepShape& shape, Parts* out);
  StepPart layer_part(const char* name, PartKind kind, bool after, double ns) const;
  double kernel_ns(const KernelWork& work, uint32_t kernels) const;
  double retained(const CompressionShape& one) const;
  uint32_t turns(const CompressionShape& one) const { return std::min(one.turn, work_.score_turns); }

  const CompressionWork work_;
  uint32_t layers_;
  double kv_heads_;  // on this GPU
  double bytes_per_ns_, move_bytes_per_ns_, flop_per_ns_, vector_flop_per_ns_, small_fixed_ns_;
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_COMPRESSION_COST_H_
