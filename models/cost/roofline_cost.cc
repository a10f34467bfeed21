#include "models/cost/roofline_cost.h"

#include <algorithm>
#include <cmath>

#include "models/cost/kv_price.h"
#include "models/cost/recent_load.h"
#include "models/cost/roofline_figures.h"

namespace kvtwin {
namespace {

// Loads and products of a matrix kernel overlap, but not perfectly: at 128 tokens, where a layer of
// Llama-3.1-8B on an H200 needs 96 us for bytes and 70 us for arithmetic, cuBLAS takes 11 % more than the
// larger. This norm gives the four measured products together within 1 % there, and max() far from it.
constexpr double kRidgeNorm = 2.5;
double join(double a, double b) {
  const double large = std::max(a, b), small = std::min(a, b);
  return large <= 0 ? 0 : large * std::pow(1 + std::pow(small / large, kRidgeNorm), 1 / kRidgeNorm);
}

// On H100s and H200s the time of a step with prompts depends on the last 40 ms, and only if more than half of
// them computed prompts (models/measured: "chunk load window", "chunk after load").
constexpr Ticks kLoadWindow = 40 * 1'000'000 * kTicksPerNs;
constexpr double kLoadWithoutEffect = 0.5;

// The mean effect of the load, 0 to 1, on a step that computes prompts for `windows` load windows, after a
// window of which the fraction `load` computed prompts. The step itself is load.
double mean_effect(double load, double windows) {
  const double rising = 1 - load;  // of the load per window
  const double begin = rising > 0 ? std::max(0.0, kLoadWithoutEffect - load) / rising : 0;
  const double first = std::max(0.0, load - kLoadWithoutEffect) / (1 - kLoadWithoutEffect);
  if (windows <= begin) return first;
  const double slope = begin < 1 ? (1 - first) / (1 - begin) : 0;
  const double ramp = std::min(windows, 1.0) - begin;
  const double area = first * ramp + slope * ramp * ramp / 2 + std::max(0.0, windows - 1);
  return std::min(1.0, area / windows);
}

// Sum over the chunk's tokens of the keys that each sees: min(window, position + 1).
double visible_pairs(double tokens, double context, double window) {
  const double first = context + 1, last = context + tokens;
  if (last <= window) return tokens * (first + last) / 2;
  if (first >= window) return tokens * window;
  const double growing = window - context;  // tokens that still see everything
  return growing * (first + window) / 2 + (tokens - growing) * window;
}

StepPart op(const char* name, PartKind kind, PartPlace place, uint32_t times, double ns) {
  return {name, kind, place, times, ticks_from_ns(ns), Evidence::kRoofline};
}

}  // namespace

RooflineCost::RooflineCost(const LlmSpec& llm, const DeviceSpec& device, uint32_t tp, const HostTime& host)
    : PartwiseCost(host), llm_(llm), tp_(tp), all_reduce_(all_reduce_rate(device, tp)) {
  constexpr double per_ns = 1e-9;
  const double gemm_fraction = device.gemm_fraction.value, bandwidth = device.hbm_bytes_per_s.value * per_ns;
  bf16_flop_per_ns_ = device.bf16_flop_per_s.value * per_ns * gemm_fraction;
  fp8_flop_per_ns_ = device.fp8_flop_per_s.present() ? device.fp8_flop_per_s.value * per_ns * gemm_fraction
                                                     : bf16_flop_per_ns_;
  read_bytes_per_ns_ = bandwidth * device.read_fraction.value;
  const Figure& gemm_read = device.gemm_read_fraction;
  gemm_bytes_per_ns_ = gemm_read.present() ? bandwidth * gemm_read.value : read_bytes_per_ns_;
  prefill_flop_per_ns_ = device.bf16_flop_per_s.value * per_ns * device.prefill_fraction.value;
  decode_bytes_per_ns_ = bandwidth * device.decode_fraction.value * read_rate_factor(llm.kv.dtype);
  gemm_fixed_ns_ = device.gemm_fixed_ns.value, attention_fixed_ns_ = device.attention_fixed_ns.value;
  mixed_decode_rows_ = device.mixed_decode_rows.value, fill_tokens_ = device.attention_fill_tokens.value;
  small_fixed_ns_ = device.small_fixed_ns.value, sampler_fixed_ns_ = device.sampler_fixed_ns.value;

  const double hidden = llm.hidden, q_width = static_cast<double>(llm.query_heads) * llm.head_dim / tp;
  const double kv_width = static_cast<double>(llm.kv_heads_per_gpu(tp)) * llm.head_dim;
  qkv_width_ = q_width + 2 * kv_width;
  mlp_width_ = static_cast<double>(llm.intermediate) / tp;
  expert_width_ = static_cast<double>(llm.moe.intermediate) / tp;
  shared_width_ = static_cast<double>(llm.moe.shared) * llm.moe.shared_intermediate / tp;
  vocab_ = static_cast<double>(llm.vocab) / tp;
  qkv_ = gemm(hidden, qkv_width_, llm.weights);
  output_ = gemm(q_width, hidden, llm.weights);
  gate_up_ = gemm(hidden, 2 * mlp_width_, llm.weights);
  down_ = gemm(mlp_width_, hidden, llm.weights);
  shared_gate_up_ = gemm(hidden, 2 * shared_width_, llm.weights);
  shared_down_ = gemm(shared_width_, hidden, llm.weights);
  expert_gate_up_ = gemm(hidden, 2 * expert_width_, llm.expert_weights);
  expert_down_ = gemm(expert_width_, hidden, llm.expert_weights);
  lm_head_ = gemm(hidden, vocab_, TensorFormat{});
  kv_entry_bytes_ = llm.kv.bytes(2 * kv_width);
  low_bit_entry_bytes_ = llm.kv_low_bit.bytes(2 * kv_width);
  // The time to read one KV entry in the low-bit format, in units of an entry in the other format.
  low_bit_entries_ = low_bit_entry_bytes_ / kv_entry_bytes_ * read_rate_factor(llm.kv.dtype) /
                     read_rate_factor(llm.kv_low_bit.dtype);
  pair_flop_ = 4 * q_width;  // a multiply and an add for QK, the same for PV
  if (device.sustained_fraction.present()) slowdown_ = 1 / device.sustained_fraction.value - 1;
  const auto ns = [](const Gemm& gemm) { return gemm.flop / gemm.flop_per_ns; };
  flop_ns_per_token_ = llm.layers * (ns(qkv_) + ns(output_)) +
                       llm.dense_layers() * (ns(gate_up_) + ns(down_)) +
                       llm.moe_layers() * llm.moe.active * (ns(expert_gate_up_) + ns(expert_down_));
}

Ticks RooflineCost::load_window() const { return slowdown_ > 0 ? kLoadWindow : 0; }

// Of the time of the matrix products, what grows if arithmetic slows down: the derivative of join().
double RooflineCost::arithmetic_fraction(double tokens) const {
  double arithmetic = 0, bytes = 0;
  const auto add = [&](const Gemm& gemm, double rows, double reads, uint32_t layers) {
    arithmetic += layers * rows * gemm.flop / gemm.flop_per_ns;
    bytes += layers * (reads * gemm.weight_bytes + rows * gemm.io_bytes) / gemm_bytes_per_ns_;
  };
  for (const Gemm* gemm : {&qkv_, &output_}) add(*gemm, tokens, 1, llm_.layers);
  for (const Gemm* gemm : {&gate_up_, &down_}) add(*gemm, tokens, 1, llm_.dense_layers());
  for (const Gemm* gemm : {&expert_gate_up_, &expert_down_})
    add(*gemm, tokens * llm_.moe.active, experts_touched(tokens), llm_.moe_layers());
  if (arithmetic <= 0) return 0;
  return 1 / (1 + std::pow(bytes / arithmetic, kRidgeNorm));
}

double RooflineCost::pace(const StepShape& shape) const {
  if (slowdown_ <= 0 || shape.chunks.empty() || shape.tokens < RecentLoad::kHeavyTokens) return 1;
  const double arithmetic_ns = shape.tokens * flop_ns_per_token_;
  const double windows = arithmetic_ns * kTicksPerNs / static_cast<double>(kLoadWindow);
  return 1 + slowdown_ * mean_effect(shape.chunk_load / 1000.0, windows) * arithmetic_fraction(shape.tokens);
}

double RooflineCost::experts_touched(double tokens) const {
  if (llm_.moe_layers() == 0) return 0;
  return llm_.moe.experts *
         (1 - std::pow(1 - static_cast<double>(llm_.moe.active) / llm_.moe.experts, tokens));
}

RooflineCost::Gemm RooflineCost::gemm(double inputs, double outputs, const TensorFormat& weights) const {
  // Only fp8 weights are multiplied in their format; int4, int8 and mxfp4 weights are converted to bf16 on
  // the fly.
  const double rate = weights.dtype == NumberFormat::kFp8 ? fp8_flop_per_ns_ : bf16_flop_per_ns_;
  return {2 * inputs * outputs, kBf16Bytes * (inputs + outputs), weights.bytes(inputs * outputs), rate};
}

double RooflineCost::gemm_ns(const Gemm& g, double tokens, double reads) const {
  const double bytes = reads * g.weight_bytes + tokens * g.io_bytes;
  return join(tokens * g.flop / g.flop_per_ns, bytes / gemm_bytes_per_ns_) + gemm_fixed_ns_;
}

void RooflineCost::add_mlp(double tokens, std::vector<StepPart>* ops) const {
  const uint32_t layers = llm_.dense_layers();
  if (layers == 0) return;
  const PartPlace layer = PartPlace::kLayer;
  ops->push_back(op("gate_up", PartKind::kGemm, layer, layers, gemm_ns(gate_up_, tokens)));
  ops->push_back(
      op("activation", PartKind::kActivation, layer, layers, small_ns(kBf16Bytes * tokens * 3 * mlp_width_)));
  ops->push_back(op("down", PartKind::kGemm, layer, layers, gemm_ns(down_, tokens)));
}

void RooflineCost::add_experts(double tokens, std::vector<StepPart>* ops) const {
  const uint32_t layers = llm_.moe_layers();
  if (layers == 0) return;
  const MoeSpec& moe = llm_.moe;
  const PartPlace layer = PartPlace::kLayer;
  const double rows = tokens * moe.active;
  const double touched = experts_touched(tokens);
  const double router_bytes =
      kBf16Bytes * llm_.hidden * moe.experts + kBf16Bytes * tokens * (llm_.hidden + moe.experts);
  // Logits, top-k and the sort of tokens by expert; then the weighted sum of the experts' outputs.
  ops->push_back(
      op("router", PartKind::kRouter, layer, layers, small_ns(router_bytes) + 2 * small_fixed_ns_));
  ops->push_back(
      op("experts_gate_up", PartKind::kGemm, layer, layers, gemm_ns(expert_gate_up_, rows, touched)));
  ops->push_back(op("experts_activation", PartKind::kActivation, layer, layers,
                    small_ns(kBf16Bytes * rows * 3 * expert_width_)));
  ops->push_back(op("experts_down", PartKind::kGemm, layer, layers, gemm_ns(expert_down_, rows, touched)));
  ops->push_back(op("experts_sum", PartKind::kRouter, layer, layers,
                    small_ns(kBf16Bytes * (rows + tokens) * llm_.hidden)));
  if (moe.shared == 0) return;
  ops->push_back(op("shared_gate_up", PartKind::kGemm, layer, layers, gemm_ns(shared_gate_up_, tokens)));
  ops->push_back(op("shared_activation", PartKind::kActivation, layer, layers,
                    small_ns(kBf16Bytes * tokens * 3 * shared_width_)));
  ops->push_back(op("shared_down", PartKind::kGemm, layer, layers, gemm_ns(shared_down_, tokens)));
}

std::vector<StepPart> RooflineCost::dense_ops(uint32_t count) const {
  const double tokens = count, hidden = llm_.hidden;
  const uint32_t layers = llm_.layers;
  const PartPlace layer = PartPlace::kLayer;
  // A norm fused with the residual sum reads two rows and writes two.
  const double norm = small_ns(kBf16Bytes * 4 * tokens * hidden);
  const double all_reduce = all_reduce_.ns(kBf16Bytes * tokens * hidden, tp_);
  std::vector<StepPart> ops;
  ops.push_back(op("embedding", PartKind::kEmbedding, PartPlace::kBefore, 1,
                   small_ns(kBf16Bytes * 2 * tokens * hidden)));
  ops.push_back(op("attention_norm", PartKind::kNorm, layer, layers, norm));
  ops.push_back(op("qkv", PartKind::kGemm, layer, layers, gemm_ns(qkv_, tokens)));
  if (llm_.qk_norm) ops.push_back(qk_norm(count));
  ops.push_back(
      op("rope_append", PartKind::kRope, layer, layers, small_ns(kBf16Bytes * 2 * tokens * qkv_width_)));
  ops.push_back(op("output", PartKind::kGemm, layer, layers, gemm_ns(output_, tokens)));
  if (tp_ > 1) ops.push_back(op("attention_all_reduce", PartKind::kAllReduce, layer, layers, all_reduce));
  ops.push_back(op("mlp_norm", PartKind::kNorm, layer, layers, norm));
  add_mlp(tokens, &ops);
  add_experts(tokens, &ops);
  if (tp_ > 1) ops.push_back(op("mlp_all_reduce", PartKind::kAllReduce, layer, layers, all_reduce));
  ops.push_back(op("final_norm", PartKind::kNorm, PartPlace::kAfter, 1, norm));
  return ops;
}

// Two kernels, which read and write queries and keys.
StepPart RooflineCost::qk_norm(uint32_t tokens) const {
  const double width = qkv_width_ - static_cast<double>(llm_.kv_heads_per_gpu(tp_)) * llm_.head_dim;
  return op("qk_norm", PartKind::kNorm, PartPlace::kLayer, llm_.layers,
            small_ns(kBf16Bytes * 2 * tokens * width) + small_fixed_ns_);
}

std::vector<StepPart> RooflineCost::head_ops(uint32_t count) const {
  if (count == 0) return {};
  const double rows = count;
  std::vector<StepPart> ops = {
      op("lm_head", PartKind::kLmHead, PartPlace::kAfter, 1, gemm_ns(lm_head_, rows))};
  // Each GPU holds a part of the logits; gathering them is half of an all-reduce.
  if (tp_ > 1) {
    const double ns = all_reduce_.ns(kBf16Bytes * rows * llm_.vocab / 2, tp_);
    ops.push_back(op("logits_gather", PartKind::kAllReduce, PartPlace::kAfter, 1, ns));
  }
  // Softmax and arg-max over fp32 logits: one read to convert, one write, two reads.
  const double bytes = rows * llm_.vocab * (kBf16Bytes + 3 * kFp32Bytes);
  ops.push_back(
      op("sampler", PartKind::kSample, PartPlace::kAfter, 1, bytes / read_bytes_per_ns_ + sampler_fixed_ns_));
  return ops;
}

// Decodes that read `entries` KV entries together. A tile of a step with chunks is computed whole: what is
// rounded up is half a tile of keys on average.
double RooflineCost::decodes_ns(const StepShape& shape, double entries) const {
  const double filled = entries + fill_tokens_ * shape.decodes;
  const double read_ns = filled * kv_entry_bytes_ / decode_bytes_per_ns_;
  if (shape.chunks.empty()) return read_ns;
  const double computed = mixed_decode_rows_ * (filled + fill_tokens_ / 2 * shape.decodes);
  return std::max(read_ns, computed * pair_flop_ / prefill_flop_per_ns_);
}

double RooflineCost::attention_ns(const StepShape& shape, uint64_t window) const {
  // Decodes read the KV entry of the new token too.
  double decode_entries = static_cast<double>(std::min(
      shape.decode_context_sum + shape.decodes, window == UINT64_MAX ? window : shape.decodes * window));
  // Windows hold the newest KV entries, which are not low-bit.
  if (window == UINT64_MAX)
    decode_entries -= static_cast<double>(shape.decode_low_bit_sum) * (1 - low_bit_entries_);
  double ns = attention_fixed_ns_ + decodes_ns(shape, decode_entries);
  const auto limit = static_cast<double>(window);
  for (const ChunkShape& chunk : shape.chunks) {
    const double tokens = chunk.tokens, context = chunk.context;
    const double low_bit = window == UINT64_MAX ? chunk.low_bit : 0;
    const double kv_entries = std::min(context, limit) - low_bit * (1 - low_bit_entries_) + tokens;
    ns += std::max(visible_pairs(tokens, context, limit) * pair_flop_ / prefill_flop_per_ns_,
                   kv_entries * kv_entry_bytes_ / decode_bytes_per_ns_);
  }
  return ns;
}

size_t RooflineCost::attention_ops(const StepShape& shape, AttentionOps* out) {
  const auto sliding = static_cast<uint32_t>(llm_.sliding_layers.size());
  size_t count = 0;
  if (sliding < llm_.layers) {
    (*out)[count++] = op("attention", PartKind::kAttention, PartPlace::kLayer, llm_.layers - sliding,
                         attention_ns(shape, UINT64_MAX));
  }
  if (sliding > 0) {
    (*out)[count++] = op("attention_window", PartKind::kAttention, PartPlace::kLayer, sliding,
                         attention_ns(shape, llm_.window));
  }
  if (shape.requantised > 0) {  // one read, one write
    const double bytes = static_cast<double>(shape.requantised) * (kv_entry_bytes_ + low_bit_entry_bytes_);
    (*out)[count++] = op("requantise", PartKind::kRope, PartPlace::kLayer, llm_.layers, small_ns(bytes));
  }
  return count;
}

}  // namespace kvtwin
