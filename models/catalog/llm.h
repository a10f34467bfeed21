// LlmSpec: the geometry of a decoder-only transformer, and arithmetic on it.
//
// It holds what time and memory models need to know about a model, and no values of weights. catalog.h reads
// it from textproto, hf_config.h from config.json. traces/proto/model.proto documents the fields.

#ifndef KVTWIN_MODELS_CATALOG_LLM_H_
#define KVTWIN_MODELS_CATALOG_LLM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin {

enum class NumberFormat : uint8_t { kBf16, kFp8, kInt8, kInt4, kMxfp4, kInt2 };
const char* name_of(NumberFormat format);

struct TensorFormat {
  NumberFormat dtype = NumberFormat::kBf16;
  uint32_t group = 0;       // values that share a scale; 0: too few scales to count
  uint32_t scale_bits = 0;  // per group
  uint32_t zero_bits = 0;   // per group

  double bits() const;  // per value, with its fraction of scale and zero point
  double bytes(double values) const { return values * bits() / 8; }
};

struct MoeSpec {
  uint32_t experts = 0;  // 0: no layer is a mixture of experts
  uint32_t active = 0;
  uint32_t intermediate = 0;
  uint32_t shared = 0;
  uint32_t shared_intermediate = 0;
  std::vector<uint32_t> dense_layers;
  bool expert_bias = false;
  bool router_bias = false;
};

struct RopeSpec {
  double theta = 10000;
  std::string scaling;  // "": none
  double factor = 1;
  uint32_t original_context_window = 0;
  double low_freq_factor = 0;
  double high_freq_factor = 0;
  // YaRN only.
  double beta_fast = 32;
  double beta_slow = 1;
  double attention_factor = 0;  // 0: 0.1 ln(factor) + 1
  bool truncate = true;         // the ramp begins and ends at whole dimensions
};

struct LlmSpec {
  std::string name, source, family;
  uint32_t layers = 0, query_heads = 0, kv_heads = 0, head_dim = 0;
  uint32_t hidden = 0, intermediate = 0, vocab = 0;
  bool tied_embeddings = false, qkv_bias = false, output_bias = false, mlp_bias = false;
  bool qk_norm = false, attention_sinks = false;
  MoeSpec moe;
  uint32_t window = 0;                   // of the sliding layers, in tokens
  std::vector<uint32_t> sliding_layers;  // ascending
  RopeSpec rope;
  double norm_eps = 1e-5;  // of the RMS norms
  std::string
      not_computed;  // what our engines do not compute of it, so that it is only simulated; "": nothing
  uint32_t context_window = 0;
  TensorFormat weights, expert_weights, kv;
  // KV entries that a policy stores in fewer bits than `kv` (triaxial: int2 besides int4).
  TensorFormat kv_low_bit;

  uint32_t moe_layers() const;
  uint32_t dense_layers() const { return layers - moe_layers(); }
  uint64_t parameters() const;         // all, as model cards count them
  uint64_t active_parameters() const;  // parameters that one token uses
  // KV of one token in all layers on one GPU of `tp`. Sliding layers count as full ones, because the policy
  // decides how much of their KV is retained.
  uint64_t kv_bytes_per_token(uint32_t tp = 1) const;
  // KV heads that one GPU stores. With more GPUs than heads, several GPUs store the same head.
  uint32_t kv_heads_per_gpu(uint32_t tp) const { return kv_heads < tp ? 1 : kv_heads / tp; }
};

// Bytes of weights on one GPU of `tp`. Norms, routers and biases of row-parallel layers are replicated.
struct WeightBytes {
  double attention = 0, mlp = 0, experts = 0, embedding = 0, lm_head = 0, replicated = 0;
  double total() const { return attention + mlp + experts + embedding + lm_head + replicated; }
};
WeightBytes weight_bytes(const LlmSpec& llm, uint32_t tp);

// Checks that the numbers describe a possible model. An error names the field and what would be right.
Result<void> check_llm(const LlmSpec& llm, const std::string& where);
// Checks that heads, MLPs and vocabulary can be divided equally among `tp` GPUs.
Result<void> check_tp(const LlmSpec& llm, uint32_t tp, const std::string& where);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_CATALOG_LLM_H_
