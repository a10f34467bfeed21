// Reads and writes LlmSpec as textproto.

#include "models/catalog/catalog.h"
#include "models/files/textproto.h"
#include "traces/proto/model.pb.h"

namespace kvtwin {
namespace {

TensorFormat format_from(const v1::TensorFormat& in) {
  TensorFormat out;
  switch (in.dtype()) {
    case v1::FP8:
      out.dtype = NumberFormat::kFp8;
      break;
    case v1::INT8:
      out.dtype = NumberFormat::kInt8;
      break;
    case v1::INT4:
      out.dtype = NumberFormat::kInt4;
      break;
    case v1::MXFP4:
      out.dtype = NumberFormat::kMxfp4;
      break;
    case v1::INT2:
      out.dtype = NumberFormat::kInt2;
      break;
    default:
      break;
  }
  out.group = in.group();
  out.scale_bits = in.scale_bits();
  out.zero_bits = in.zero_bits();
  return out;
}

void format_to(const TensorFormat& in, v1::TensorFormat* out) {
  constexpr v1::NumberFormat kinds[] = {v1::BF16, v1::FP8, v1::INT8, v1::INT4, v1::MXFP4, v1::INT2};
  out->set_dtype(kinds[static_cast<size_t>(in.dtype)]);
  if (in.group != 0) {
    out->set_group(in.group);
    out->set_scale_bits(in.scale_bits);
    out->set_zero_bits(in.zero_bits);
  }
}

LlmSpec llm_from(const v1::LlmSpec& in) {
  LlmSpec m;
  m.name = in.name(), m.source = in.source(), m.family = in.family();
  m.layers = in.layers(), m.query_heads = in.query_heads(), m.kv_heads = in.kv_heads();
  m.head_dim = in.head_dim(), m.hidden = in.hidden(), m.intermediate = in.intermediate(),
  m.vocab = in.vocab();
  m.tied_embeddings = in.tied_embeddings(), m.qkv_bias = in.qkv_bias(), m.output_bias = in.output_bias();
  m.mlp_bias = in.mlp_bias(), m.qk_norm = in.qk_norm(), m.attention_sinks = in.attention_sinks();
  const v1::Moe& moe = in.moe();
  m.moe = {moe.experts(),
           moe.active(),
           moe.intermediate(),
           moe.shared(),
           moe.shared_intermediate(),
           {moe.dense_layers().begin(), moe.dense_layers().end()},
           moe.expert_bias(),
           moe.router_bias()};
  m.window = in.sliding_window().window();
  m.sliding_layers.assign(in.sliding_window().layers().begin(), in.sliding_window().layers().end());
  const v1::Rope& rope = in.rope();
  m.rope = {rope.theta(),
            rope.scaling(),
            rope.has_factor() ? rope.factor() : 1,
            rope.original_context_window(),
            rope.low_freq_factor(),
            rope.high_freq_factor(),
            rope.has_beta_fast() ? rope.beta_fast() : 32,
            rope.has_beta_slow() ? rope.beta_slow() : 1,
            rope.attention_factor(),
            !rope.has_truncate() || rope.truncate()};
  if (in.has_norm_eps()) m.norm_eps = in.norm_eps();
  m.context_window = in.context_window(), m.not_computed = in.not_computed();
  m.weights = format_from(in.weights());
  m.expert_weights = in.has_expert_weights() ? format_from(in.expert_weights()) : m.weights;
  m.kv = format_from(in.kv());
  return m;
}

v1::LlmSpec llm_to(const LlmSpec& m) {
  v1::LlmSpec out;
  out.set_name(m.name), out.set_source(m.source), out.set_family(m.family);
  out.set_layers(m.layers), out.set_query_heads(m.query_heads), out.set_kv_heads(m.kv_heads);
  out.set_head_dim(m.head_dim), out.set_hidden(m.hidden), out.set_intermediate(m.intermediate);
  out.set_vocab(m.vocab);
  out.set_tied_embeddings(m.tied_embeddings), out.set_qkv_bias(m.qkv_bias),
      out.set_output_bias(m.output_bias);
  out.set_mlp_bias(m.mlp_bias), out.set_qk_norm(m.qk_norm), out.set_attention_sinks(m.attention_sinks);
  if (m.moe.experts != 0) {
    v1::Moe* moe = out.mutable_moe();
    moe->set_experts(m.moe.experts), moe->set_active(m.moe.active), moe->set_intermediate(m.moe.intermediate);
    if (m.moe.shared != 0) {
      moe->set_shared(m.moe.shared), moe->set_shared_intermediate(m.moe.shared_intermediate);
    }
    for (const uint32_t layer : m.moe.dense_layers) moe->add_dense_layers(layer);
    if (m.moe.expert_bias) moe->set_expert_bias(true);
    if (m.moe.router_bias) moe->set_router_bias(true);
    format_to(m.expert_weights, out.mutable_expert_weights());
  }
  if (m.window != 0) {
    out.mutable_sliding_window()->set_window(m.window);
    for (const uint32_t layer : m.sliding_layers) out.mutable_sliding_window()->add_layers(layer);
  }
  v1::Rope* rope = out.mutable_rope();
  rope->set_theta(m.rope.theta);
  if (!m.rope.scaling.empty()) {
    rope->set_scaling(m.rope.scaling), rope->set_factor(m.rope.factor);
    if (m.rope.original_context_window) rope->set_original_context_window(m.rope.original_context_window);
    if (m.rope.low_freq_factor > 0) rope->set_low_freq_factor(m.rope.low_freq_factor);
    if (m.rope.high_freq_factor > 0) rope->set_high_freq_factor(m.rope.high_freq_factor);
    if (m.rope.beta_fast != 32) rope->set_beta_fast(m.rope.beta_fast);
    if (m.rope.beta_slow != 1) rope->set_beta_slow(m.rope.beta_slow);
    if (m.rope.attention_factor > 0) rope->set_attention_factor(m.rope.attention_factor);
    if (!m.rope.truncate) rope->set_truncate(false);
  }
  if (m.norm_eps != 1e-5) out.set_norm_eps(m.norm_eps);
  if (!m.not_computed.empty()) out.set_not_computed(m.not_computed);
  out.set_context_window(m.context_window);
  format_to(m.weights, out.mutable_weights());
  format_to(m.kv, out.mutable_kv());
  return out;
}

}  // namespace

Result<LlmSpec> parse_llm(std::string_view text, const std::string& where) {
  v1::LlmSpec message;
  if (auto r = parse_textproto(text, where, &message); !r) return tl::unexpected<Error>(r.error());
  LlmSpec llm = llm_from(message);
  if (auto r = check_llm(llm, where); !r) return tl::unexpected<Error>(r.error());
  return llm;
}

std::string llm_textproto(const LlmSpec& llm) { return textproto_file(llm_to(llm)); }

}  // namespace kvtwin
