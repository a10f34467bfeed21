// RooflineCost prices steps from geometry and datasheet, where nothing was measured.
//
// Each operation takes max(arithmetic / rate, bytes / bandwidth) + a fixed time (Williams, Waterman,
// Patterson 2009). Rates are the datasheet's times the fraction that good kernels reach (DeviceSpec).
// Everything is of one GPU of `tp`. Matrix products near the ridge take longer than either bound, so their
// bounds are combined by a norm instead of max().
//
//   dense       weights are read once per step; activations per token
//   experts     T tokens that choose k of E evenly and independently touch E (1 - (1 - k/E)^T) of them
//   attention   decodes read their KV at the bandwidth; a prefill chunk is bound by arithmetic or bytes.
//               Sliding layers see min(window, context); for decodes of unequal context the bound
//               min(sum of contexts, decodes * window) is used, which is never too fast
//               FlashAttention 2 does not pack the query heads of decodes in steps with chunks; devices that
//               run it compute mixed_decode_rows for each query head
//   all-reduce  two per layer (all_reduce.h)
//
//   clock       after 20 to 40 ms of prompts without a pause, arithmetic runs at sustained_fraction of its
//               rate; work that the memory bounds does not slow down
//
// Not modelled: kernels that overlap, unequal routing of experts.

#ifndef KVTWIN_MODELS_COST_ROOFLINE_COST_H_
#define KVTWIN_MODELS_COST_ROOFLINE_COST_H_

#include <array>
#include <vector>

#include "models/catalog/device.h"
#include "models/catalog/llm.h"
#include "models/cost/all_reduce.h"
#include "models/cost/partwise_cost.h"

namespace kvtwin {

class RooflineCost final : public PartwiseCost {
 public:
  // REQUIRES: check_llm(llm) and check_tp(llm, tp) hold.
  RooflineCost(const LlmSpec& llm, const DeviceSpec& device, uint32_t tp, const HostTime& host);

  // Output head and sampler of `rows` tokens, for tables that lack them.
  std::vector<StepPart> head(uint32_t rows) const { return head_ops(rows); }
  Ticks load_window() const override;
  // Norms of queries and keys, for tables that lack them. REQUIRES: the model has them.
  StepPart qk_norm(uint32_t tokens) const;

 private:
  // A matrix product: per token `flop` operations and `io_bytes` of activations, and its weights.
  struct Gemm {
    double flop = 0, io_bytes = 0, weight_bytes = 0, flop_per_ns = 1;
  };
  Gemm gemm(double inputs, double outputs, const TensorFormat& weights) const;
  // `tokens` tokens through the product, whose weights are read `reads` times (experts: once per expert
  // used).
  double gemm_ns(const Gemm& gemm, double tokens, double reads = 1) const;
  double small_ns(double bytes) const { return bytes / read_bytes_per_ns_ + small_fixed_ns_; }
  double pace(const StepShape& shape) const override;
  double arithmetic_fraction(double tokens) const;
  double experts_touched(double tokens) const;
  double decodes_ns(const StepShape& shape, double entries) const;
  double attention_ns(const StepShape& shape, uint64_t window) const;
  void add_mlp(double tokens, std::vector<StepPart>* ops) const;
  void add_experts(double tokens, std::vector<StepPart>* ops) const;

  std::vector<StepPart> dense_ops(uint32_t tokens) const override;
  std::vector<StepPart> head_ops(uint32_t rows) const override;
  size_t attention_ops(const StepShape& shape, AttentionOps* out) override;

  LlmSpec llm_;
  uint32_t tp_;
  AllReduceRate all_reduce_;
  double bf16_flop_per_ns_, fp8_flop_per_ns_, read_bytes_per_ns_, gemm_bytes_per_ns_;
  double prefill_flop_per_ns_, decode_bytes_per_ns_;
  double gemm_fixed_ns_, attention_fixed_ns_, small_fixed_ns_, sampler_fixed_ns_;
  double flop_ns_per_token_ = 0;  // of all matrix products
  double slowdown_ = 0;           // relative, of arithmetic under a lasting load
  double mixed_decode_rows_ = 0, fill_tokens_ = 0;
  Gemm qkv_, output_, gate_up_, down_, shared_gate_up_, shared_down_, expert_gate_up_, expert_down_, lm_head_;
  double qkv_width_ = 0, mlp_width_ = 0, expert_width_ = 0, shared_width_ = 0, vocab_ = 0;
  double low_bit_entries_ = 1, kv_entry_bytes_ = 0;  // K and V of one token in one layer
  double low_bit_entry_bytes_ = 0;                   // the same in the low-bit format
  double pair_flop_ = 0;                             // of one query token and one key token in one layer
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_ROOFLINE_COST_H_
