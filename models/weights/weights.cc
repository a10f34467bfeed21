#include "models/weights/weights.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <string_view>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/prng.h"

namespace kvtwin {
namespace {

// How a tensor is drawn: mean + gain * noise of deviation 1.
struct Noise {
  float mean = 0;
  float gain = 1;
};

constexpr Noise kNormNoise{1, 0.1f};
constexpr Noise kBiasNoise{0, 0.1f};

Noise matrix(uint64_t in, float gain = 1) { return {0, gain / std::sqrt(static_cast<float>(in))}; }

// Calls visit(name, shape, noise, view) for every tensor of `m`: the only list of names and shapes.
template <typename Weights, typename Visit>
void each_layer_tensor(const LlmSpec& m, uint32_t index, Weights* w, Visit visit) {
  using Shape = std::vector<uint64_t>;
  const uint64_t q = uint64_t{m.query_heads} * m.head_dim, kv = uint64_t{m.kv_heads} * m.head_dim;
  const uint64_t hidden = m.hidden, wide = m.intermediate;
  const float residual = 1 / std::sqrt(2 * static_cast<float>(m.layers));
  const auto tell = [&](const char* name, const Shape& shape, Noise noise, auto* view) {
    visit(fmt::format("model.layers.{}.{}", index, name), shape, noise, view);
  };
  const auto tell_if = [&](bool has, const char* name, uint64_t size, Noise noise, auto* view) {
    if (has) tell(name, Shape{size}, noise, view);
  };
  tell("input_layernorm.weight", {hidden}, kNormNoise, &w->attention_norm);
  tell("self_attn.q_proj.weight", {q, hidden}, matrix(hidden, m.qk_norm ? 1.0f : 2.0f), &w->q);
  tell_if(m.qkv_bias, "self_attn.q_proj.bias", q, kBiasNoise, &w->q_bias);
  tell("self_attn.k_proj.weight", {kv, hidden}, matrix(hidden), &w->k);
  tell_if(m.qkv_bias, "self_attn.k_proj.bias", kv, kBiasNoise, &w->k_bias);
  tell("self_attn.v_proj.weight", {kv, hidden}, matrix(hidden), &w->v);
  tell_if(m.qkv_bias, "self_attn.v_proj.bias", kv, kBiasNoise, &w->v_bias);
  tell_if(m.qk_norm, "self_attn.q_norm.weight", m.head_dim, {2, 0.1f}, &w->q_norm);
  tell_if(m.qk_norm, "self_attn.k_norm.weight", m.head_dim, kNormNoise, &w->k_norm);
  tell("self_attn.o_proj.weight", {hidden, q}, matrix(q, residual), &w->o);
  tell_if(m.output_bias, "self_attn.o_proj.bias", hidden, kBiasNoise, &w->o_bias);
  tell("post_attention_layernorm.weight", {hidden}, kNormNoise, &w->mlp_norm);
  tell("mlp.gate_proj.weight", {wide, hidden}, matrix(hidden), &w->gate);
  tell_if(m.mlp_bias, "mlp.gate_proj.bias", wide, kBiasNoise, &w->gate_bias);
  tell("mlp.up_proj.weight", {wide, hidden}, matrix(hidden), &w->up);
  tell_if(m.mlp_bias, "mlp.up_proj.bias", wide, kBiasNoise, &w->up_bias);
  tell("mlp.down_proj.weight", {hidden, wide}, matrix(wide, residual), &w->down);
  tell_if(m.mlp_bias, "mlp.down_proj.bias", hidden, kBiasNoise, &w->down_bias);
}

template <typename View, typename Layers, typename Visit>
void each_tensor(const LlmSpec& m, View* embedding, View* final_norm, View* lm_head, Layers* layers,
                 Visit visit) {
  visit(std::string("model.embed_tokens.weight"), {m.vocab, m.hidden}, Noise{}, embedding);
  for (uint32_t i = 0; i < m.layers; ++i) each_layer_tensor(m, i, &(*layers)[i], visit);
  visit(std::string("model.norm.weight"), {m.hidden}, kNormNoise, final_norm);
  if (!m.tied_embeddings) {
    visit(std::string("lm_head.weight"), {m.vocab, m.hidden}, matrix(m.hidden), lm_head);
  }
}

uint16_t to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to nearest, ties to even
}

// Deviation 1, near normal: the sum of four uniform 16-bit numbers. Integers until the last two operations,
// so that every machine draws the same values.
float noise_at(uint64_t key, uint64_t index) {
  const uint64_t bits = mix64(key + index * 0x9e3779b97f4a7c15u);
  const int64_t sum =
      static_cast<int64_t>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48)) -
      131'070;
  return static_cast<float>(sum) * 2.642882e-5f;  // 1 / sqrt(4 (2^32 - 1) / 12)
}

uint64_t key_of(uint64_t seed, std::string_view name) {
  uint64_t key = draw({seed, name.size()});
  for (const char c : name) key = draw({key, static_cast<uint8_t>(c)});
  return key;
}

std::string shape_text(const std::vector<uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, "]["));
}

}  // namespace

void draw_bf16(const TensorDraw& drawing, uint64_t first, uint64_t count, uint16_t* out) {
  for (uint64_t i = 0; i < count; ++i)
    out[i] = to_bf16(drawing.mean + drawing.gain * noise_at(drawing.key, first + i));
}

ModelWeights ModelWeights::random(const LlmSpec& llm, uint64_t seed) { return draw_tensors(llm, seed, true); }

ModelWeights ModelWeights::random_outline(const LlmSpec& llm, uint64_t seed) {
  return draw_tensors(llm, seed, false);
}

ModelWeights ModelWeights::draw_tensors(const LlmSpec& llm, uint64_t seed, bool matrices) {
  KVT_CHECK(check_dense(llm, "").has_value());
  ModelWeights out(llm);
  const auto fill = [&](const std::string& name, const std::vector<uint64_t>& shape, Noise noise,
                        TensorView* view) {
    view->type = TensorType::kBf16;
    view->shape = shape;
    const TensorDraw drawing{key_of(seed, name), noise.mean, noise.gain};
    if (shape.size() > 1 && !matrices) {
      // Elements of a deque survive moves of the deque.
      view->drawing = &out.drawings_.emplace_back(drawing);
      return;
    }
    std::vector<uint16_t>& values = out.drawn_.emplace_back(view->elements());
    draw_bf16(drawing, 0, values.size(), values.data());
    view->data = std::as_bytes(std::span(values));  // a vector's storage survives moves of the vector
  };
  each_tensor(llm, &out.embedding_, &out.final_norm_, &out.lm_head_, &out.layers_, fill);
  return out;
}

Result<ModelWeights> ModelWeights::load(const LlmSpec& llm, const std::string& path) {
  if (Result<void> ok = check_dense(llm, path); !ok) return tl::unexpected<Error>(ok.error());
  Result<Checkpoint> opened = Checkpoint::open(path);
  if (!opened) return tl::unexpected<Error>(opened.error());
  ModelWeights out(llm);
  out.checkpoint_ = std::make_unique<Checkpoint>(std::move(*opened));
  Result<void> problem;
  const auto take = [&](const std::string& name, const std::vector<uint64_t>& shape, Noise,
                        TensorView* view) {
    if (!problem) return;
    const TensorView* found = out.checkpoint_->find(name);
    const std::string where = path + ": " + name;
    if (found == nullptr) {
      problem = make_error(where, "is missing", "is this the checkpoint of that config?");
    } else if (found->shape != shape) {
      problem = make_error(where, fmt::format("is {}", shape_text(found->shape)),
                           fmt::format("the config says {}", shape_text(shape)));
    } else if (found->type > TensorType::kBf16) {
      problem = make_error(where, fmt::format("is of {}", name_of(found->type)), "F32, F16 or BF16 is right");
    } else {
      *view = *found;
    }
  };
  each_tensor(llm, &out.embedding_, &out.final_norm_, &out.lm_head_, &out.layers_, take);
  if (!problem) return tl::unexpected<Error>(problem.error());
  return out;
}

std::vector<NamedTensor> ModelWeights::named() const {
  std::vector<NamedTensor> out;
  const auto add = [&](const std::string& name, const std::vector<uint64_t>&, Noise, const TensorView* view) {
    out.push_back({name, *view});
  };
  each_tensor(llm_, &embedding_, &final_norm_, &lm_head_, &layers_, add);
  return out;
}

}  // namespace kvtwin
