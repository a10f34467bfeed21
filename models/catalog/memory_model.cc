#include "models/catalog/memory_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvtwin {
namespace {

// The memory of vLLM's profiling step, as measured (v0.11, H100, 1,024 sampled tokens; six text models with
// vocabularies of 128,256 to 201,088; published by the llm-d capacity planner, "vLLM Empirical Memory
// Profiling Results"). 38.3 bytes per logit explain all six peaks of torch within 0.6 %. The same source
// measured the memory that the runtime allocates outside torch, on one GPU and on two.
constexpr double kSamplerBytesPerLogit = 38.3;
constexpr double kGib = 1024.0 * 1024 * 1024;
constexpr double kRuntimeBytes = 0.13 * kGib, kRuntimeBytesParallel = 0.55 * kGib;

struct Peak {
  double bytes = 0;
  std::string how;
};

// The profiling step computes step_tokens_max tokens through one layer after the other and then samples
// requests_max tokens. Its peak is the larger of the two. Activations are bf16.
Peak activation_peak(const MemorySpec& s) {
  const LlmSpec& m = s.llm;
  const double tokens = s.step_tokens_max, tp = s.tp;
  const double residual = 2 * 2 * tokens * m.hidden;  // hidden states and the residual stream
  const double qkv = 2 * tokens * m.head_dim * (2.0 * m.query_heads / tp + 2.0 * m.kv_heads_per_gpu(s.tp));
  const double dense = m.dense_layers() > 0 ? 2 * tokens * 3 * m.intermediate / tp : 0;
  const double routed =
      m.moe_layers() > 0 ? 2 * tokens * m.moe.active * (3.0 * m.moe.intermediate / tp + m.hidden) : 0;
  const double layer = residual + std::max({qkv, dense, routed});
  const double rows = std::min(s.requests_max, s.step_tokens_max);
  const double sampler = residual / 2 + kSamplerBytesPerLogit * rows * m.vocab;
  if (layer > sampler) return {layer, fmt::format("one layer of {} tokens", s.step_tokens_max)};
  return {sampler,
          fmt::format("sampling {:.0f} rows of {} logits at {} bytes", rows, m.vocab, kSamplerBytesPerLogit)};
}

double total_of(const MemorySpec& s) {
  return s.total_bytes ? static_cast<double>(*s.total_bytes) : s.device.hbm_bytes.value;
}

struct Terms {
  std::vector<MemoryTerm> list;
  int64_t left = 0;

  void add(std::string name, double bytes, Basis basis, std::string how) {
    const auto rounded = static_cast<int64_t>(std::llround(bytes));
    left += rounded;
    list.push_back({std::move(name), rounded, basis, std::move(how)});
  }
  // Subtracts the given number, or `model` if none is given.
  void take(const char* name, const std::optional<uint64_t>& given, double model, Basis basis,
            std::string how) {
    if (given) return add(name, -static_cast<double>(*given), Basis::kMeasured, "given");
    add(name, -model, basis, std::move(how));
  }
};

Terms plan_terms(const MemorySpec& s) {
  Terms terms;
  const double total = total_of(s);
  if (s.total_bytes) {
    terms.add("device memory", total, Basis::kMeasured, "given");
  } else {
    terms.add("device memory", total, s.device.hbm_bytes.basis, s.device.hbm_bytes.source);
  }
  const bool sglang = s.rule == CapacityRule::kSglang;
  const auto take_runtime = [&] {
    terms.take("runtime", s.runtime_bytes, s.tp > 1 ? kRuntimeBytesParallel : kRuntimeBytes, Basis::kMeasured,
               "beside torch, as vLLM 0.11 reports it on an H100");
  };
  if (sglang) take_runtime();
  terms.add(sglang ? "activations and graphs" : "kept free",
            -static_cast<double>(terms.left) * (1 - s.utilization), Basis::kDerived,
            fmt::format("{} {}", sglang ? "mem_fraction_static" : "utilization", s.utilization));
  terms.take("weights", s.weight_bytes, weight_bytes(s.llm, s.tp).total(), Basis::kDerived,
             fmt::format("{:.3f} B parameters, {}, tensor parallelism {}",
                         static_cast<double>(s.llm.parameters()) / 1e9, name_of(s.llm.weights.dtype), s.tp));
  if (!sglang) {
    const Peak peak = activation_peak(s);
    terms.take("activation peak", s.activation_bytes, peak.bytes, Basis::kDerived, peak.how);
    take_runtime();
  }
  if (s.rule == CapacityRule::kVllmGraphs || s.graph_bytes) {
    // A captured size holds its kernels' parameters and its fraction of the pool; sizes share activations.
    constexpr double bytes_per_layer_and_size = 256 << 10;
    terms.take("graph pools", s.graph_bytes, bytes_per_layer_and_size * s.llm.layers * s.capture_sizes,
               Basis::kAssumed,
               fmt::format("256 KiB per layer and captured size, {} sizes", s.capture_sizes));
  }
  if (s.staging_bytes > 0)
    terms.add("staging", -static_cast<double>(s.staging_bytes), Basis::kDerived, "asked for");
  return terms;
}

Result<void> check_spec(const MemorySpec& s) {
  const auto no = [](const char* field, double value, const char* right) {
    return make_error("memory", fmt::format("{} is {}", field, value), right);
  };
  if (!(s.utilization > 0 && s.utilization <= 1))
    return no("utilization", s.utilization, "more than 0, at most 1");
  if (s.page_tokens < 1 || s.page_tokens > (1u << 20))
    return no("page_tokens", s.page_tokens, "1 to 1048576 is right");
  if (s.step_tokens_max < 1) return no("step_tokens_max", 0, "1 or more is right");
  if (s.requests_max < 1) return no("requests_max", 0, "1 or more is right");
  for (const auto* given : {&s.total_bytes, &s.weight_bytes, &s.activation_bytes, &s.runtime_bytes,
                            &s.graph_bytes, &s.kv_bytes}) {
    if (*given && **given > (uint64_t{1} << 50))
      return no("a given size", static_cast<double>(**given), "less than 1 PiB is right");
  }
  if (s.staging_bytes > (uint64_t{1} << 50))
    return no("staging_bytes", static_cast<double>(s.staging_bytes), "less than 1 PiB is right");
  if (auto r = check_llm(s.llm, "memory"); !r) return r;
  return check_tp(s.llm, s.tp, "memory");
}

// The smallest number of GPUs that would fit, or else what could help.
std::string way_out(const MemorySpec& s) {
  MemorySpec wider = s;
  for (wider.tp = s.tp * 2; wider.tp <= 64 && check_tp(s.llm, wider.tp, ""); wider.tp *= 2) {
    const double weights = weight_bytes(s.llm, wider.tp).total();
    if (!s.weight_bytes && s.device.hbm_bytes.value * s.utilization - weights > 0 &&
        plan_terms(wider).left > 0) {
      return fmt::format("tensor parallelism {} would fit", wider.tp);
    }
  }
  return "raise the utilization, quantise the weights, or take a larger GPU";
}

Error does_not_fit(const MemorySpec& s, const std::vector<MemoryTerm>& terms, int64_t left) {
  std::string text;
  for (const MemoryTerm& term : terms) {
    if (term.bytes > -(1 << 20)) continue;
    text += fmt::format("{}{} {:.2f} GB", text.empty() ? "" : ", ", term.name,
                        -1e-9 * static_cast<double>(term.bytes));
  }
  return {"memory",
          fmt::format("{} on {} leaves {:.2f} GB for KV after {}", s.llm.name, s.device.name,
                      1e-9 * static_cast<double>(left), text),
          way_out(s)};
}

}  // namespace

double sglang_fraction(const MemorySpec& s) {
  constexpr double mib = 1024.0 * 1024;
  const double total = total_of(s) / mib;
  const double graph_requests = std::min(s.requests_max, s.tp < 4 ? 256u : 512u);
  double kept = 512 + 1.5 * std::max(s.step_tokens_max, 2048u) + 2 * graph_requests + s.tp * 1024.0 / 8;
  if (total > 60 * 1024) kept = std::max(kept, 10.0 * 1024);
  return std::max(0.01, std::round(1000 * (total - kept) / total) / 1000);
}

Result<MemoryPlan> plan_memory(const MemorySpec& s) {
  if (auto r = check_spec(s); !r) return tl::unexpected<Error>(r.error());
  Terms terms = plan_terms(s);
  MemoryPlan plan;
  plan.kv_bytes = terms.left;
  plan.page_bytes = s.llm.kv_bytes_per_token(s.tp) * s.page_tokens;
  if (s.kv_bytes) {
    plan.kv_bytes = static_cast<int64_t>(*s.kv_bytes);
    terms.list.push_back({"correction", plan.kv_bytes - terms.left, Basis::kMeasured, "KV bytes are given"});
  }
  plan.terms = std::move(terms.list);
  const int64_t pages = plan.kv_bytes / static_cast<int64_t>(plan.page_bytes);
  if (pages < 1) return tl::unexpected<Error>(does_not_fit(s, plan.terms, plan.kv_bytes));
  plan.pages = static_cast<uint32_t>(std::min<int64_t>(pages, UINT32_MAX));
  return plan;
}

}  // namespace kvtwin
