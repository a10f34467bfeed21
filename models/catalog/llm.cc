#include "models/catalog/llm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvtwin {
namespace {

// Parameters of one layer, by their treatment under tensor parallelism.
struct LayerParameters {
  uint64_t attention_q = 0;                                    // query and output projections
  uint64_t attention_kv = 0;                                   // key and value projections
  uint64_t mlp = 0;                                            // an ordinary MLP
  uint64_t shared = 0;                                         // shared experts
  uint64_t expert = 0;                                         // one routed expert
  uint64_t attention_other = 0, mlp_other = 0, moe_other = 0;  // norms, biases, router, sinks
};

LayerParameters layer_parameters(const LlmSpec& m) {
  const uint64_t hidden = m.hidden, q_width = uint64_t{m.query_heads} * m.head_dim;
  const uint64_t kv_width = uint64_t{m.kv_heads} * m.head_dim;
  LayerParameters p;
  p.attention_q = 2 * hidden * q_width;
  p.attention_kv = 2 * hidden * kv_width;
  p.attention_other = 2 * hidden;  // the norms before attention and before the MLP
  if (m.qkv_bias) p.attention_other += q_width + 2 * kv_width;
  if (m.output_bias) p.attention_other += hidden;
  if (m.qk_norm) p.attention_other += 2 * uint64_t{m.head_dim};
  if (m.attention_sinks) p.attention_other += m.query_heads;
  p.mlp = 3 * hidden * m.intermediate;
  if (m.mlp_bias) p.mlp_other = 2 * uint64_t{m.intermediate} + hidden;
  const MoeSpec& moe = m.moe;
  p.expert = 3 * hidden * moe.intermediate;
  p.shared = 3 * hidden * moe.shared * moe.shared_intermediate;
  p.moe_other = hidden * moe.experts;
  if (moe.router_bias) p.moe_other += moe.experts;
  // Biases of experts are few and count with the replicated ones: gate and up have one per column, down one
  // per row.
  if (moe.expert_bias) p.moe_other += moe.experts * (2 * uint64_t{moe.intermediate} + hidden);
  return p;
}

uint64_t count_parameters(const LlmSpec& m, uint64_t experts_counted) {
  const LayerParameters p = layer_parameters(m);
  const uint64_t embeddings = uint64_t{m.vocab} * m.hidden * (m.tied_embeddings ? 1 : 2);
  uint64_t bias_unused = 0;
  if (m.moe.expert_bias) {
    bias_unused = (m.moe.experts - experts_counted) * (2 * uint64_t{m.moe.intermediate} + m.hidden);
  }
  const uint64_t attention = p.attention_q + p.attention_kv + p.attention_other;
  const uint64_t routed = experts_counted * p.expert + p.shared + p.moe_other - bias_unused;
  return embeddings + m.hidden + m.layers * attention + m.dense_layers() * (p.mlp + p.mlp_other) +
         m.moe_layers() * (m.moe.experts ? routed : 0);
}

Result<void> in_range(const std::string& where, const char* field, uint64_t value, uint64_t low,
                      uint64_t high) {
  if (value >= low && value <= high) return {};
  return make_error(where, fmt::format("{} is {}", field, value),
                    fmt::format("{} to {} is right", low, high));
}

Result<void> check_moe(const LlmSpec& m, const std::string& where) {
  const MoeSpec& moe = m.moe;
  if (moe.experts == 0) return {};
  if (auto r = in_range(where, "moe.experts", moe.experts, 2, 4096); !r) return r;
  if (auto r = in_range(where, "moe.active", moe.active, 1, moe.experts); !r) return r;
  if (auto r = in_range(where, "moe.intermediate", moe.intermediate, 1, 1 << 20); !r) return r;
  if (auto r = in_range(where, "moe.shared", moe.shared, 0, 64); !r) return r;
  if (auto r = in_range(where, "moe.shared_intermediate", moe.shared_intermediate, 0, 1 << 20); !r) return r;
  for (const uint32_t layer : moe.dense_layers) {
    if (auto r = in_range(where, "moe.dense_layers", layer, 0, m.layers - 1); !r) return r;
  }
  if (!std::is_sorted(moe.dense_layers.begin(), moe.dense_layers.end(), std::less_equal<>())) {
    return make_error(where, "moe.dense_layers is not ascending", "list each layer once, in order");
  }
  return {};
}

}  // namespace

const char* name_of(NumberFormat format) {
  switch (format) {
    case NumberFormat::kBf16:
      return "bf16";
    case NumberFormat::kFp8:
      return "fp8";
    case NumberFormat::kInt8:
      return "int8";
    case NumberFormat::kInt4:
      return "int4";
    case NumberFormat::kMxfp4:
      return "mxfp4";
    case NumberFormat::kInt2:
      return "int2";
  }
  return "?";
}

double TensorFormat::bits() const {
  double value_bits = 16;
  if (dtype == NumberFormat::kFp8 || dtype == NumberFormat::kInt8) value_bits = 8;
  if (dtype == NumberFormat::kInt4 || dtype == NumberFormat::kMxfp4) value_bits = 4;
  if (dtype == NumberFormat::kInt2) value_bits = 2;
  return group == 0 ? value_bits : value_bits + static_cast<double>(scale_bits + zero_bits) / group;
}

uint32_t LlmSpec::moe_layers() const {
  return moe.experts == 0 ? 0 : layers - static_cast<uint32_t>(moe.dense_layers.size());
}

uint64_t LlmSpec::parameters() const { return count_parameters(*this, moe.experts); }
uint64_t LlmSpec::active_parameters() const { return count_parameters(*this, moe.active); }

uint64_t LlmSpec::kv_bytes_per_token(uint32_t tp) const {
  const double values = 2.0 * layers * kv_heads_per_gpu(tp) * head_dim;
  return static_cast<uint64_t>(std::ceil(kv.bytes(values)));
}

WeightBytes weight_bytes(const LlmSpec& m, uint32_t tp) {
  const LayerParameters p = layer_parameters(m);
  const double fraction = 1.0 / tp;
  const double kv_fraction = static_cast<double>(m.kv_heads_per_gpu(tp)) / m.kv_heads;
  const auto d = [](uint64_t n) { return static_cast<double>(n); };
  WeightBytes w;
  w.attention = m.layers * m.weights.bytes(d(p.attention_q) * fraction + d(p.attention_kv) * kv_fraction);
  w.mlp = m.dense_layers() * m.weights.bytes(d(p.mlp) * fraction) +
          m.moe_layers() * m.weights.bytes(d(p.shared) * fraction);
  w.experts = m.moe_layers() * m.expert_weights.bytes(d(p.expert) * m.moe.experts * fraction);
  // Bf16; checkpoints rarely quantise these two.
  const double table = 2.0 * m.vocab * m.hidden * fraction;
  w.embedding = table;
  w.lm_head = m.tied_embeddings ? 0 : table;
  w.replicated = 2.0 * (m.hidden + m.layers * d(p.attention_other) + m.dense_layers() * d(p.mlp_other) +
                        m.moe_layers() * d(p.moe_other));
  return w;
}

Result<void> check_llm(const LlmSpec& m, const std::string& where) {
  const struct {
    const char* name;
    uint64_t value, low, high;
  } fields[] = {
      {"layers", m.layers, 1, 1000},
      {"query_heads", m.query_heads, 1, 4096},
      {"kv_heads", m.kv_heads, 1, m.query_heads},
      {"head_dim", m.head_dim, 1, 4096},
      {"hidden", m.hidden, 1, 1 << 20},
      {"intermediate", m.intermediate, m.dense_layers() > 0 ? 1u : 0u, 1 << 22},
      {"vocab", m.vocab, 1, 1 << 24},
      {"context_window", m.context_window, 1, 1u << 30},
      {"sliding_window.window", m.window, m.sliding_layers.empty() ? 0u : 1u, 1u << 30},
  };
  if (m.moe.dense_layers.size() > m.layers)
    return make_error(where, "moe.dense_layers lists more layers than there are");
  for (const auto& f : fields) {
    if (auto r = in_range(where, f.name, f.value, f.low, f.high); !r) return r;
  }
  if (m.query_heads % m.kv_heads != 0) {
    return make_error(where,
                      fmt::format("{} query heads are no multiple of {} KV heads", m.query_heads, m.kv_heads),
                      "kv_heads must divide query_heads");
  }
  for (const TensorFormat* format : {&m.weights, &m.expert_weights, &m.kv}) {
    if (auto r = in_range(where, "group", format->group, 0, 1 << 20); !r) return r;
    if (auto r = in_range(where, "scale_bits + zero_bits", uint64_t{format->scale_bits} + format->zero_bits,
                          0, 64);
        !r)
      return r;
  }
  for (const uint32_t layer : m.sliding_layers) {
    if (auto r = in_range(where, "sliding_window.layers", layer, 0, m.layers - 1); !r) return r;
  }
  if (!std::is_sorted(m.sliding_layers.begin(), m.sliding_layers.end(), std::less_equal<>())) {
    return make_error(where, "sliding_window.layers is not ascending", "list each layer once, in order");
  }
  return check_moe(m, where);
}

Result<void> check_tp(const LlmSpec& m, uint32_t tp, const std::string& where) {
  const auto no = [&](const char* what, uint64_t value) {
    return make_error(where,
                      fmt::format("tensor parallelism {} cannot cut {}'s {} {}", tp, m.name, value, what),
                      fmt::format("use a divisor of {}", value));
  };
  if (tp == 0 || tp > 1024)
    return make_error(where, fmt::format("tensor parallelism is {}", tp), "1 to 1024 is right");
  if (m.query_heads % tp != 0) return no("query heads", m.query_heads);
  if (m.kv_heads % tp != 0 && tp % m.kv_heads != 0) return no("KV heads", m.kv_heads);
  if (m.dense_layers() > 0 && m.intermediate % tp != 0) return no("MLP columns", m.intermediate);
  if (m.moe_layers() > 0 && m.moe.intermediate % tp != 0)
    return no("columns of an expert", m.moe.intermediate);
  return {};
}

}  // namespace kvtwin
