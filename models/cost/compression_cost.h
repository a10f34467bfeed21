// CompressionCost prices what a scorer adds to steps: what it takes down while rows are computed, and each
// compression with its probe rows, scores, selection, moved KV entries and tables. The model's own work is
// priced by another CostModel, which also prices the probe rows.
//
// Of one GPU, per layer unless said; everything is roofline, max(bytes / rate, products / rate, vector
// arithmetic / rate) + a fixed time per kernel, as in retrieval_cost.h. One kernel serves all requests of a
// step.
//
//   capture      queries written down, gates on hidden states, H2O's second look at every key, RaaS' stamps
//   probe        Judge Q's rows, KVzip's repetition (docs/design/methods/judge-q.md#inference,
//   docs/design/methods/uniform.md#kvzip): whole passes behind the prompt, for
//                which no logits are computed
//   score        CompressionWork::score per ranked KV entry: docs/design/methods/uniform.md. Sums of rows'
//   softmaxes are taken from
//                attention, which has them
//   select       radix selection in four passes over fp32 scores, and one that writes indices
//   move         kept KV entries, read and written. gather_entries reaches 0.80 of the rate at which an H200
//   reads
//                (kernels/README.md); elsewhere that is assumed. Likewise the pages of a prefix checkpoint
//                that its next call copies; they are spread over the layers evenly
//   bookkeeping  the host brings each head group's table up to date, and the next step waits for it
//
// An exponential is taken as 16 vector operations (one special-function unit for 16 lanes), vector arithmetic
// as 1/16 of the bf16 rate (retrieval_cost.h).
//
// Not modelled: score kernels launched request by request; rotating keys again (hidden behind the move);
// several steps in flight hiding the bookkeeping; what tensor parallelism exchanges where scores of all heads
// are joined.

#ifndef KVTWIN_MODELS_COST_COMPRESSION_COST_H_
#define KVTWIN_MODELS_COST_COMPRESSION_COST_H_

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

// One kernel's work, of whatever it is counted by.
struct KernelWork {
  double bytes = 0;
  double product_flop = 0;  // on tensor cores
  double vector_flop = 0;
};

// What a scorer and what follows it do, of one GPU: scenarios/app/compression_work.h fills it by scorer.
struct CompressionWork {
  uint32_t capture_kernels = 0;   // 0: nothing is taken down
  bool captures_decodes = false;  // rows of decodes too; else of prompts alone
  KernelWork per_row;             // of each such row
  double row_weight_bytes = 0;    // read once per step that computes rows: a gate's weights
  KernelWork per_pair;            // of each (row, KV entry that it sees) pair
  KernelWork per_kv_entry;        // of each KV entry that a decode reads

  uint32_t probe_tokens = 0;        // behind the prompt
  uint32_t repeat_pass_tokens = 0;  // KVzip: the ranked tokens again in pieces of so many; 0: not at all
  uint32_t repeat_extra = 0;        // rows before each piece

  uint32_t score_kernels = 0;  // 0: positions decide
  KernelWork score;            // of each ranked KV entry
  KernelWork score_pair;      // of each (row of the prompt, ranked KV entry), where all rows ask; causal half
  bool after_layers = false;  // scores and selection wait for the last layer
  bool selects = false;
  bool moves = false;         // kept KV entries of those ranked
  bool moves_all = false;     // all KV entries that the request still holds
  double kv_entry_bytes = 0;  // K and V of one token, in pages
  double page_bytes = 0;      // of a page of one head group, divided by the layers
  double kv_heads = 1;

  // Of a ranked KV entry, where a compression does not say how many stay: a share, or a number.
  double retained_fraction = 1;
  uint32_t retained_entries = UINT32_MAX;
  double bookkeeping_ns = 0;  // per compression, all head groups
};

class CompressionCost final : public CostOnTop {
 public:
  // REQUIRES: check_llm(llm) holds; `model` is not null; rows that only ask make everything wait for the
  // last layer.
  CompressionCost(const LlmSpec& llm, const DeviceSpec& device, const CompressionWork& work,
                  std::unique_ptr<CostModel> model);

  StepCost step(const StepShape& shape) override;
  // Captures, scores, selections and moves follow attention, or the last layer (after_layers).
  std::vector<StepPart> ops(const StepShape& shape) override;
  // The model's, and what is added as it is.
  StepRange range(const StepShape& shape) override;

 private:
  struct Parts {
    std::array<StepPart, 6 + kEvidenceKinds> part{};
    size_t count = 0;
    void add(const StepPart& one) {
      if (one.each > 0) part[count++] = one;
    }
  };
  void add_parts(const StepShape& shape, Parts* out);
  void add_probes(const StepShape& shape, Parts* out);
  StepPart layer_part(const char* name, PartKind kind, bool after, double ns) const;
  double kernel_ns(const KernelWork& work, uint32_t kernels) const;
  double retained(const CompressionShape& one) const;

  const CompressionWork work_;
  uint32_t layers_;
  double kv_heads_;  // on this GPU
  double bytes_per_ns_, move_bytes_per_ns_, flop_per_ns_, vector_flop_per_ns_, small_fixed_ns_;
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_COMPRESSION_COST_H_
