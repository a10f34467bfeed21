// Checks for combinations that the policy allows and CompressedCache does not support.

#include <fmt/format.h>

#include "engine/cuda/compression/compressed_cache.h"
#include "engine/methods/budget_groups.h"
#include "engine/methods/registry.h"

namespace kvtwin::cuda {
namespace {

// Checks for decodes that choose among retained pages (retained_pages.h).
std::optional<std::string> check_retained_pages(const CoreConfig& config, const LlmSpec& llm) {
  const PolicySet& set = config.policies;
  if (set.retrieval == "all") return std::nullopt;
  const PolicyAxes axes = make_axes(set);
  const Format format = axes.precision->prompt_format();
  const std::string what = "retrieval " + set.retrieval + " among KV entries that are left ";
  if (set.retrieval != "quest" || format == Format::kBf16)
    return what + "in " + set.precision + " is not computed on CUDA; quest of fp8, int4 or fp4 is";
  if (axes.layout->slot_retention() != SlotRetention::kMove ||
      axes.scorer->compression_trigger() != CompressionTrigger::kChunkEnd ||
      !axes.budget->known_at_admission())
    return what + "by scorer " + set.scorer + ", budget " + set.budget + " and layout " + set.layout +
           " is not computed on CUDA; a scorer that works at chunk ends, a budget whose counts are known and "
           "layout compact or ragged are";
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

std::optional<std::string> check_compressed(const CoreConfig& config, const kernels::ScoreSpec& score,
                                            const LlmSpec& llm) {
  if (const auto problem = cpu::check_compressed(config, llm)) return problem;
  using kernels::ScoreSource;
  const ScoreSource source = score.scorer->source;
  const PolicySet& set = config.policies;
  const bool dropped_slots = set.layout == "slot_mask" || set.layout == "page_mask";
  if (llm.head_dim != 64 && llm.head_dim != 128)
    return fmt::format("heads of {} numbers are not ranked on CUDA; 64 and 128 are", llm.head_dim);
  if (config.page_tokens != 1 && config.page_tokens % 16 != 0)
    return fmt::format("pages of {} tokens are not ranked on CUDA; 1 and multiples of 16 are",
                       config.page_tokens);
  const bool gathers =
      source == ScoreSource::kSums || source == ScoreSource::kPromptSums || source == ScoreSource::kStamps;
  if (set.precision != "bf16" && gathers)
    return "what scorer " + set.scorer + " gathers of KV entries that are packed (precision " +
           set.precision + ") is not computed on CUDA; set precision: bf16, or --backend=cpu";
  if (auto problem = check_retained_pages(config, llm)) return problem;
  switch (source) {
    case ScoreSource::kSessionMemory:
      if (!layout_has_groups(set.layout)) break;
      return "scorer " + set.scorer + " scores tokens for all heads at once, and layout " + set.layout +
             " lets heads hold different ones: that is not computed on CUDA; choose layout compact";
    case ScoreSource::kProbes:
      if (!score.renormalise) break;
      return "scorer judge_q with renormalised probabilities is not computed on CUDA; --backend=cpu computes "
             "it";
    case ScoreSource::kSums:
    case ScoreSource::kPromptSums:
      if (!dropped_slots) break;
      return "what scorer " + set.scorer + " gathers lies with its KV entries, and layout " + set.layout +
             " lets requests share them; choose layout compact";
    default:
      break;
  }
  if (config.prefix_cache && !dropped_slots && set.budget != "all" && set.layout != "ring")
    return "layout " + set.layout +
           " shares compressed prefixes, whose pages are not copied on CUDA; set prefix_cache: false, or "
           "--backend=cpu";
  if (set.scorer_spec.compression_trigger == CompressionTrigger::kTurnStart)
    return "scorer " + set.scorer +
           " works at the start of a turn, which is not computed on CUDA; set "
           "scorer_options.compression_trigger: "
           "prompt_end, or --backend=cpu";
  if (score.trim.key_norm)
    return "scorer trimkv with key_norm is not computed on CUDA; --backend=cpu computes it";
  return std::nullopt;
}

}  // namespace kvtwin::cuda
