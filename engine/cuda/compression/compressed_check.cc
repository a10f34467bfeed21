// Checks for numbers and options that the policy allows and CompressedCache does not support.

#include <fmt/format.h>

#include "engine/cuda/compression/compressed_cache.h"
#include "engine/methods/combinations.h"

namespace kvtwin::cuda {
namespace {

// Checks for decodes that choose among retained pages (retained_pages.h).
std::optional<std::string> check_retained_pages(const CoreConfig& config, const LlmSpec& llm) {
  const PolicySet& set = config.policies;
  if (retrieval_traits(set.retrieval).reads_everything()) return std::nullopt;
  const Format format = precision_traits(set.precision).prompt_format;
  const std::string what = "retrieval " + set.retrieval + " among KV entries that are left ";
  const uint32_t group = set.precision_spec.group;
  if (config.page_tokens != kDequantizedPage || !PackedHeads::fuses(llm, {format, group, config.page_tokens}))
    return what + fmt::format(
                      "on pages of {} tokens, {} in groups of {}, heads of {} is not computed on CUDA; "
                      "pages of {} and groups of 32 are",
                      config.page_tokens, set.precision, group, llm.head_dim, kDequantizedPage);
  const cpu::ResidentShape budget(set.retrieval_spec, config.page_tokens);
  if (budget.window == 0 || budget.extra > 0 || budget.selectable == 0 || budget.selectable > kChosenMax ||
      llm.query_heads / llm.kv_heads > 8)
    return what + fmt::format(
                      "choosing {} pages beside a window of {} and {} others is not computed on CUDA; "
                      "1 to {} beside a window are",
                      budget.selectable, budget.window, budget.extra, kChosenMax);
  return std::nullopt;
}

}  // namespace

// A split is made of blocks (decode_splits.h).
std::optional<std::string> check_partition(const CoreConfig& config, const PartitionSpec& spec) {
  const std::string& name = config.policies.partition;
  if (!lists_splits(partition_kind(name))) return std::nullopt;
  if (config.page_tokens % kDecodeBlockTokens != 0)
    return fmt::format("partition {} with pages of {} tokens is not computed on CUDA; multiples of {} are",
                       name, config.page_tokens, kDecodeBlockTokens);
  if (spec.tile % kDecodeBlockTokens != 0)
    return fmt::format("partition {} with tiles of {} tokens is not computed on CUDA; multiples of {} are",
                       name, spec.tile, kDecodeBlockTokens);
  return std::nullopt;
}

std::optional<std::string> check_compressed(const CoreConfig& config, const kernels::ScoreSpec& score,
                                            const LlmSpec& llm) {
  if (const auto problem = cpu::check_compressed(config, llm)) return problem;
  if (auto problem = cannot_combine(config, Computes::kCuda)) return problem;
  if (llm.head_dim != 64 && llm.head_dim != 128)
    return fmt::format("heads of {} numbers are not ranked on CUDA; 64 and 128 are", llm.head_dim);
  if (config.page_tokens != 1 && config.page_tokens % 16 != 0)
    return fmt::format("pages of {} tokens are not ranked on CUDA; 1 and multiples of 16 are",
                       config.page_tokens);
  if (auto problem = check_retained_pages(config, llm)) return problem;
  if (score.renormalise)
    return "scorer judge_q with renormalised probabilities is not computed on CUDA; --backend=cpu computes "
           "it";
  if (score.trim.key_norm)
    return "scorer trimkv with key_norm is not computed on CUDA; --backend=cpu computes it";
  return std::nullopt;
}

}  // namespace kvtwin::cuda
