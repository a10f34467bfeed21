#include "scenarios/load/foreign_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace kvtwin {
namespace {

constexpr std::string_view kV = "vLLM", kS = "SGLang", kVS = "vLLM, SGLang", kT = "TensorRT-LLM",
                           kAll = "vLLM, SGLang, TensorRT-LLM";

constexpr ForeignWord kWords[] = {
    {kV, "max_num_seqs", "limits.requests_max", ""},
    {kV, "max_num_batched_tokens", "limits.step_tokens_max", ""},
    {kV, "long_prefill_token_threshold", "limits.chunk_tokens_max", ""},
    {kV, "max_model_len", "model.context_window", ""},
    {kV, "gpu_memory_utilization", "memory.gpu_fraction", ""},
    {kV, "tensor_parallel_size", "engines.tensor_parallel", ""},
    {kV, "data_parallel_size", "engines.count", "as many engines of tensor_parallel GPUs each"},
    {kV, "pipeline_parallel_size", "", "there is no pipeline parallelism"},
    {kV, "enable_expert_parallel", "", "there is no expert parallelism; experts are split as tensors are"},
    {kV, "block_size", "memory.page_tokens", ""},
    {kV, "num_gpu_blocks_override", "memory.gpu_pages", ""},
    {kV, "enable_prefix_caching", "limits.prefix_cache", ""},
    {kV, "no_enable_prefix_caching", "limits.prefix_cache=false", ""},
    {kV, "enable_chunked_prefill", "limits.chunk_tokens_max",
     "prompts are always split; 0: by step_tokens_max"},
    {kV, "kv_cache_dtype", "policies.precision", ""},
    {kV, "swap_space", "memory.host_bytes", "with limits.preemption=swap; GiB per GPU there, bytes here"},
    {kV, "kv_offloading_size", "memory.host_bytes", "GiB there, bytes here"},
    {kV, "cpu_offload_gb", "", "weights always stay on the GPU; memory.host_bytes is a tier for KV"},
    {kV, "async_scheduling", "limits.steps_in_flight_max=2", ""},
    {kV, "cudagraph_capture_sizes", "limits.capture_sizes", ""},
    {kV, "quantization", "model.weights", ""},
    {kV, "speculative_config", "", "there is no speculative decoding"},
    {kS, "mem_fraction_static", "memory.gpu_fraction", "SGLang leaves activations out of its fraction"},
    {kS, "chunked_prefill_size", "limits.chunk_tokens_max", "also limits.step_tokens_max"},
    {kS, "max_prefill_tokens", "limits.step_tokens_max", ""},
    {kS, "max_running_requests", "limits.requests_max", ""},
    {kS, "max_total_tokens", "memory.gpu_pages", "pages of memory.page_tokens tokens"},
    {kS, "page_size", "memory.page_tokens", ""},
    {kS, "context_length", "model.context_window", ""},
    {kS, "disable_radix_cache", "limits.prefix_cache=false", ""},
    {kS, "cuda_graph_bs", "limits.capture_sizes", ""},
    {kS, "schedule_policy", "limits.batch_order", ""},
    {kS, "hicache_size", "memory.host_bytes", "GB there, bytes here"},
    {kS, "hicache_ratio", "memory.host_bytes", "a multiple of the GPU's pool there, bytes here"},
    {kVS, "tp", "engines.tensor_parallel", ""},
    {kVS, "tp_size", "engines.tensor_parallel", ""},
    {kVS, "dp", "engines.count", "as many engines of tensor_parallel GPUs each"},
    {kVS, "dp_size", "engines.count", "as many engines of tensor_parallel GPUs each"},
    {kVS, "pp", "", "there is no pipeline parallelism"},
    {kVS, "pp_size", "", "there is no pipeline parallelism"},
    {kVS, "ep_size", "", "there is no expert parallelism; experts are split as tensors are"},
    {kAll, "dtype", "model.weights", ""},
    {kAll, "served_model_name", "model.name", ""},
    {kAll, "model_path", "model.name", ""},
    {kT, "max_batch_size", "limits.requests_max", ""},
    {kT, "max_num_tokens", "limits.step_tokens_max", ""},
    {kT, "max_seq_len", "model.context_window", ""},
    {kT, "free_gpu_memory_fraction", "memory.gpu_fraction", "TensorRT-LLM counts what the weights leave"},
    {kT, "tokens_per_block", "memory.page_tokens", ""},
    {kT, "enable_block_reuse", "limits.prefix_cache", ""},
    {kT, "host_cache_size", "memory.host_bytes", ""},
    {kVS, "request_rate", "replay.sessions_per_s", "with replay.arrivals=poisson"},
    {kVS, "max_concurrency", "replay.population", "with replay.arrivals=fixed_population"},
    {kVS, "num_prompts", "replay.requests_max", ""},
};

}  // namespace

std::span<const ForeignWord> foreign_words() { return kWords; }

const ForeignWord* foreign_word(std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
  std::string plain(word);
  for (char& c : plain) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto* const found = std::find_if(std::begin(kWords), std::end(kWords),
                                         [&](const ForeignWord& one) { return one.word == plain; });
  return found == std::end(kWords) ? nullptr : found;
}

std::string foreign_hint(std::string_view word) {
  const ForeignWord* const row = foreign_word(word);
  if (row == nullptr) return {};
  if (row->ours.empty()) return std::string(row->note);
  return fmt::format("{} ({}) is {} here{}{}", row->word, row->engines, row->ours,
                     row->note.empty() ? "" : ": ", row->note);
}

}  // namespace kvtwin
