// LlmSpec: the geometry of a decoder-only transformer, and the arithmetic on it.
//
// Everything that time and memory models need to know about a model, and nothing of its weights'
// values. Plain numbers: files are read by catalog.h (textproto) and hf_config.h (config.json).

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

  double bits() const;  // per value, its fraction of scale and zero point included
  double bytes(double values) const { return values * bits() / 8; }
};

struct MoeSpec {
  uint32_t experts = 0;  // 0: no layer routes
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
  std::string scaling;  // "" when none
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
  uint32_t window = 0;                   // of the sliding layers
  std::vector<uint32_t> sliding_layers;  // ascending
  RopeSpec rope;
  double norm_eps = 1e-5;  // of RMS norms
  uint32_t context_window = 0;
  TensorFormat weights, expert_weights, kv;
  TensorFormat
      kv_low_bit;  // of the KV entries that a policy keeps narrower than `kv` (triaxial: int2 beside int4)

  uint32_t moe_layers() const;
  uint32_t dense_layers() const { return layers - moe_layers(); }
  uint64_t parameters() const;         // all, as model cards count them
  uint64_t active_parameters() const;  // those that one token uses
  // KV of one token in all layers on one GPU of `tp`. Sliding layers count as full ones: how much of
  // their KV is kept is the policy's choice.
  uint64_t kv_bytes_per_token(uint32_t tp = 1) const;
  // KV heads that one GPU stores: with more GPUs than heads, each head is stored on several.
  uint32_t kv_heads_per_gpu(uint32_t tp) const { return kv_heads < tp ? 1 : kv_heads / tp; }
};

// Bytes of weights on one GPU of `tp`. Norms, router and biases of row-parallel layers are replicated.
struct WeightBytes {
  double attention = 0, mlp = 0, experts = 0, embedding = 0, lm_head = 0, replicated = 0;
  double total() const { return attention + mlp + experts + embedding + lm_head + replicated; }
};
WeightBytes weight_bytes(const LlmSpec& llm, uint32_t tp);

// Whether the numbers describe a model that can exist. Names the field and what would be right.
Result<void> check_llm(const LlmSpec& llm, const std::string& where);
// Whether its heads, MLPs and vocabulary can be cut into `tp` equal shares.
Result<void> check_tp(const LlmSpec& llm, uint32_t tp, const std::string& where);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_CATALOG_LLM_H_
