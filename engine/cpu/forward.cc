#include "engine/cpu/forward.h"

#include <algorithm>

#include "engine/base/check.h"
#include "kernels/dense/rms_norm.h"
#include "kernels/dense/silu_mul.h"

namespace kvtwin::cpu {
namespace {

// Converts part by part, so that a large matrix needs no second copy.
void pack(const TensorView& weight, kernels::PackedMatrix* to) {
  constexpr uint32_t kRows = 64;
  const auto out = static_cast<uint32_t>(weight.shape[0]), in = static_cast<uint32_t>(weight.shape[1]);
  kernels::pack_begin(out, in, to);
  std::vector<float> rows(uint64_t{std::min(kRows, out)} * in);
  for (uint32_t first = 0; first < out; first += kRows) {
    const uint32_t some = std::min(kRows, out - first);
    read_floats(weight, uint64_t{first} * in, uint64_t{some} * in, rows.data());
    kernels::pack_rows(rows.data(), first, some, to);
  }
}

std::vector<float> vector_of(const TensorView& tensor) {
  return tensor.present() ? read_floats(tensor) : std::vector<float>{};
}

void add(const std::vector<float>& from, std::vector<float>* to) {
  for (size_t i = 0; i < to->size(); ++i) (*to)[i] += from[i];
}

}  // namespace

Forward::Forward(const ModelWeights* weights, uint64_t keep_bytes_max)
    : weights_(weights), rope_(rope_frequencies(weights->llm())) {
  keep_ = llm().parameters() * sizeof(float) <= keep_bytes_max;
  layers_.resize(llm().layers);
  for (uint32_t i = 0; i < llm().layers; ++i) {
    const LayerWeights& from = weights->layer(i);
    Layer& layer = layers_[i];
    layer.attention_norm = vector_of(from.attention_norm);
    layer.mlp_norm = vector_of(from.mlp_norm);
    layer.q_norm = vector_of(from.q_norm);
    layer.k_norm = vector_of(from.k_norm);
    layer.q = linear(from.q, from.q_bias);
    layer.k = linear(from.k, from.k_bias);
    layer.v = linear(from.v, from.v_bias);
    layer.o = linear(from.o, from.o_bias);
    layer.gate = linear(from.gate, from.gate_bias);
    layer.up = linear(from.up, from.up_bias);
    layer.down = linear(from.down, from.down_bias);
  }
  final_norm_ = vector_of(weights->final_norm());
  lm_head_ = linear(weights->lm_head(), {});
}

Forward::Linear Forward::linear(const TensorView& weight, const TensorView& bias) const {
  Linear out;
  out.weight = &weight;
  out.bias = vector_of(bias);
  if (keep_) pack(weight, &out.retained);
  return out;
}

void Forward::apply(const Linear& linear, const float* x, uint32_t rows, std::vector<float>* y) {
  if (!keep_) pack(*linear.weight, &widened_);
  const kernels::PackedMatrix& matrix = keep_ ? linear.retained : widened_;
  y->resize(uint64_t{rows} * matrix.out);
  kernels::gemm_ref(matrix, linear.bias.empty() ? nullptr : linear.bias.data(), x, rows, y->data());
}

void Forward::norm(const std::vector<float>& weight, const float* x, uint64_t rows, uint32_t width,
                   float* out) const {
  kernels::rms_norm_ref(x, weight.data(), static_cast<float>(llm().norm_eps), rows, width, out);
}

void Forward::run(std::span<const uint32_t> tokens, std::span<const uint32_t> sampling,
                  LayerAttention* attention, std::vector<float>* logits) {
  const auto rows = static_cast<uint32_t>(tokens.size());
  const uint32_t hidden = llm().hidden;
  pass(embed(tokens), attention);
  for (size_t i = 0; i < sampling.size(); ++i) {
    KVT_CHECK(sampling[i] < rows);
    norm(final_norm_, x_.data() + uint64_t{sampling[i]} * hidden, 1, hidden, normed_.data() + i * hidden);
  }
  apply(lm_head_, normed_.data(), static_cast<uint32_t>(sampling.size()), logits);
}

std::vector<float> Forward::embed(std::span<const uint32_t> tokens) const {
  const uint32_t hidden = llm().hidden;
  std::vector<float> rows(tokens.size() * hidden);
  for (size_t r = 0; r < tokens.size(); ++r) {
    KVT_CHECK(tokens[r] < llm().vocab);
    read_floats(weights_->embedding(), uint64_t{tokens[r]} * hidden, hidden, rows.data() + r * hidden);
  }
  return rows;
}

void Forward::pass(std::vector<float> given, LayerAttention* attention) {
  x_ = std::move(given);
  normed_.resize(x_.size());
  const auto rows = static_cast<uint32_t>(x_.size() / llm().hidden);
  for (uint32_t i = 0; i < llm().layers; ++i) {
    attention_block(i, rows, attention);
    mlp_block(i, rows);
  }
}

void Forward::attention_block(uint32_t index, uint32_t rows, LayerAttention* attention) {
  const Layer& layer = layers_[index];
  norm(layer.attention_norm, x_.data(), rows, llm().hidden, normed_.data());
  attention->hidden(index, normed_.data());
  apply(layer.q, normed_.data(), rows, &q_);
  apply(layer.k, normed_.data(), rows, &k_);
  apply(layer.v, normed_.data(), rows, &v_);
  if (llm().qk_norm) {
    norm(layer.q_norm, q_.data(), uint64_t{rows} * llm().query_heads, llm().head_dim, q_.data());
    norm(layer.k_norm, k_.data(), uint64_t{rows} * llm().kv_heads, llm().head_dim, k_.data());
  }
  attended_.resize(q_.size());
  attention->attend(index, q_.data(), k_.data(), v_.data(), attended_.data());
  apply(layer.o, attended_.data(), rows, &added_);
  add(added_, &x_);
}

void Forward::mlp_block(uint32_t index, uint32_t rows) {
  const Layer& layer = layers_[index];
  norm(layer.mlp_norm, x_.data(), rows, llm().hidden, normed_.data());
  apply(layer.gate, normed_.data(), rows, &gate_);
  apply(layer.up, normed_.data(), rows, &up_);
  kernels::silu_mul_ref(gate_.data(), up_.data(), gate_.size(), gate_.data());
  apply(layer.down, gate_.data(), rows, &added_);
  add(added_, &x_);
}

}  // namespace kvtwin::cpu
