#include "models/catalog.h"

#include <fmt/format.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "models/textproto.h"
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
    default:
      break;
  }
  out.group = in.group();
  out.scale_bits = in.scale_bits();
  out.zero_bits = in.zero_bits();
  return out;
}

void format_to(const TensorFormat& in, v1::TensorFormat* out) {
  constexpr v1::NumberFormat kinds[] = {v1::BF16, v1::FP8, v1::INT8, v1::INT4, v1::MXFP4};
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
            rope.high_freq_factor()};
  m.context_window = in.context_window();
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
  }
  out.set_context_window(m.context_window);
  format_to(m.weights, out.mutable_weights());
  format_to(m.kv, out.mutable_kv());
  return out;
}

// Reads figures of one message and remembers the first that is wrong.
class FigureReader {
 public:
  explicit FigureReader(const std::string& where) : where_(where) {}

  Figure read(const char* field, bool present, const v1::Figure& in, bool required, double low, double high) {
    Figure out;
    if (!present) {
      if (required) fail(fmt::format("no figure \"{}\"", field), "give its value, basis and source");
      return out;
    }
    if (!(in.value() >= low && in.value() <= high)) {
      fail(fmt::format("{} is {}", field, in.value()), fmt::format("{} to {} is right", low, high));
    } else if (in.basis() == v1::BASIS_UNSPECIFIED || !v1::Basis_IsValid(in.basis())) {
      fail(fmt::format("{} has no basis", field), "DATASHEET, MEASURED, DERIVED or ASSUMED");
    } else if (in.source().empty()) {
      fail(fmt::format("{} has no source", field), "say where the figure was read, or why it is assumed");
    }
    return {in.value(), static_cast<Basis>(in.basis()), in.source()};
  }
  Result<void> result() const {
    return first_.what.empty() ? Result<void>() : tl::unexpected<Mistake>(first_);
  }

 private:
  void fail(std::string what, std::string hint) {
    if (first_.what.empty()) first_ = {where_, std::move(what), std::move(hint)};
  }
  std::string where_;
  Mistake first_;
};

#define KVT_FIGURE(field, required, low, high) \
  out.field = reader.read(#field, in.has_##field(), in.field(), required, low, high)

Result<DeviceSpec> device_from(const v1::DeviceSpec& in, const std::string& where) {
  FigureReader reader(where);
  DeviceSpec out;
  out.name = in.name(), out.title = in.title();
  KVT_FIGURE(hbm_bytes, true, 1e6, 1e14);
  KVT_FIGURE(hbm_bytes_per_s, true, 1e6, 1e15);
  KVT_FIGURE(bf16_flop_per_s, true, 1e6, 1e18);
  KVT_FIGURE(fp8_flop_per_s, false, 1e6, 1e18);
  KVT_FIGURE(int8_op_per_s, false, 1e6, 1e18);
  KVT_FIGURE(sm_count, true, 1, 1e5);
  KVT_FIGURE(pcie_gen, true, 1, 10);
  KVT_FIGURE(pcie_lanes, true, 1, 64);
  KVT_FIGURE(nvlink_bytes_per_s, false, 1e6, 1e14);
  KVT_FIGURE(price_usd_per_hour, false, 0, 1e6);
  KVT_FIGURE(read_fraction, true, 0.01, 1);
  KVT_FIGURE(gemm_fraction, true, 0.01, 1);
  KVT_FIGURE(prefill_fraction, true, 0.01, 1);
  KVT_FIGURE(decode_fraction, true, 0.01, 1);
  KVT_FIGURE(gemm_fixed_ns, true, 0, 1e9);
  KVT_FIGURE(attention_fixed_ns, true, 0, 1e9);
  KVT_FIGURE(small_fixed_ns, true, 0, 1e9);
  KVT_FIGURE(sampler_fixed_ns, true, 0, 1e9);
  KVT_FIGURE(nvlink_fraction, true, 0.01, 1);
  KVT_FIGURE(all_reduce_fixed_ns, true, 0, 1e9);
  if (auto r = reader.result(); !r) return tl::unexpected<Mistake>(r.error());
  return out;
}

Result<NodeSpec> node_from(const v1::NodeSpec& in, const std::string& where) {
  FigureReader reader(where);
  NodeSpec out;
  out.name = in.name(), out.device = in.device();
  out.gpus = in.gpus(), out.sockets = in.sockets(), out.gpus_per_pcie_link = in.gpus_per_pcie_link();
  KVT_FIGURE(pcie_bytes_per_s, true, 1e6, 1e13);
  KVT_FIGURE(pcie_latency_ns, true, 0, 1e9);
  KVT_FIGURE(copy_overhead_h2d_ns, true, 0, 1e9);
  KVT_FIGURE(copy_overhead_d2h_ns, true, 0, 1e9);
  KVT_FIGURE(host_memory_bytes, true, 1e6, 1e15);
  KVT_FIGURE(host_memory_bytes_per_s, true, 1e6, 1e14);
  KVT_FIGURE(nvlink_bytes_per_s, false, 1e6, 1e14);
  KVT_FIGURE(nvlink_latency_ns, in.has_nvlink_bytes_per_s(), 0, 1e9);
  KVT_FIGURE(price_usd_per_hour, false, 0, 1e6);
  if (auto r = reader.result(); !r) return tl::unexpected<Mistake>(r.error());
  const struct {
    const char* name;
    uint32_t value, high;
  } counts[] = {{"gpus", out.gpus, 1024},
                {"sockets", out.sockets, 64},
                {"gpus_per_pcie_link", out.gpus_per_pcie_link, out.gpus}};
  for (const auto& c : counts) {
    if (c.value < 1 || c.value > c.high) {
      return mistake(where, fmt::format("{} is {}", c.name, c.value),
                     fmt::format("1 to {} is right", c.high));
    }
  }
  if (out.device.empty()) return mistake(where, "no device", "name a device of the catalog");
  return out;
}
#undef KVT_FIGURE

}  // namespace

const char* name_of(Basis basis) {
  constexpr const char* names[] = {"absent", "datasheet", "measured", "derived", "assumed"};
  return names[static_cast<size_t>(basis)];
}

std::string default_models_dir() {
  const char* dir = std::getenv("KVTWIN_MODELS");
  return dir != nullptr && *dir != '\0' ? dir : KVTWIN_MODELS_DIR;
}

Result<LlmSpec> parse_llm(std::string_view text, const std::string& where) {
  v1::LlmSpec message;
  if (auto r = parse_textproto(text, where, &message); !r) return tl::unexpected<Mistake>(r.error());
  LlmSpec llm = llm_from(message);
  if (auto r = check_llm(llm, where); !r) return tl::unexpected<Mistake>(r.error());
  return llm;
}

Result<DeviceSpec> parse_device(std::string_view text, const std::string& where) {
  v1::DeviceSpec message;
  if (auto r = parse_textproto(text, where, &message); !r) return tl::unexpected<Mistake>(r.error());
  return device_from(message, where);
}

Result<NodeSpec> parse_node(std::string_view text, const std::string& where) {
  v1::NodeSpec message;
  if (auto r = parse_textproto(text, where, &message); !r) return tl::unexpected<Mistake>(r.error());
  return node_from(message, where);
}

std::string llm_textproto(const LlmSpec& llm) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetUseShortRepeatedPrimitives(true);
  std::string text;
  printer.PrintToString(llm_to(llm), &text);
  return text;
}

std::vector<std::string> Catalog::names(const char* kind) const {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir_ + "/" + kind, error)) {
    if (entry.path().extension() == ".textproto") out.push_back(entry.path().stem().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

Result<std::string> Catalog::path_of(const char* kind, const std::string& name) const {
  if (name.find('/') != std::string::npos || name.ends_with(".textproto")) return name;
  std::vector<std::string> known = names(kind);
  if (std::binary_search(known.begin(), known.end(), name))
    return fmt::format("{}/{}/{}.textproto", dir_, kind, name);
  std::string hint = did_you_mean(name, known);
  if (hint.empty()) hint = fmt::format("known: {}", fmt::join(known, ", "));
  return mistake(std::string(kind), fmt::format("no {} is called \"{}\"", kind, name), hint);
}

namespace {
template <typename Spec>
Result<Spec> load(Result<std::string> path, Result<Spec> (*parse)(std::string_view, const std::string&)) {
  if (!path) return tl::unexpected<Mistake>(path.error());
  const Result<std::string> text = read_text_file(*path, size_t{1} << 20);
  if (!text) return tl::unexpected<Mistake>(text.error());
  return parse(*text, *path);
}
}  // namespace

Result<LlmSpec> Catalog::llm(const std::string& name) const {
  return load<LlmSpec>(path_of("llm", name), parse_llm);
}
Result<DeviceSpec> Catalog::device(const std::string& name) const {
  return load<DeviceSpec>(path_of("device", name), parse_device);
}
Result<NodeSpec> Catalog::node(const std::string& name) const {
  return load<NodeSpec>(path_of("node", name), parse_node);
}

}  // namespace kvtwin
