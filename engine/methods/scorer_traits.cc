#include "engine/methods/scorer_traits.h"

namespace kvtwin {
namespace {

struct TraitsRow {
  std::string_view name;
  ScorerTraits traits;
};

// Scorers that are absent have none of the traits.
constexpr TraitsRow kScorerTraits[] = {
    {"none", {.by_position = true}},
    {"streaming_llm", {.by_position = true}},
    {"h2o", {.reads_decodes = true, .gathers = true}},
    {"h2o_prefill", {.gathers = true}},
    {"tova", {.reads_decodes = true, .heads_alike = true}},
    {"raas", {.reads_decodes = true, .heads_apart = true, .gathers = true}},
    {"duo_attention", {.by_position = true}},
    {"razor_attention", {.by_position = true}},
    {"intent_rule", {.scores_tokens = true}},
    {"intent_residual", {.scores_tokens = true}},
    {"critical_kv", {.heads_apart = true}},
};

}  // namespace

ScorerTraits scorer_traits(std::string_view name) {
  for (const TraitsRow& row : kScorerTraits) {
    if (row.name == name) return row.traits;
  }
  return {};
}

}  // namespace kvtwin
