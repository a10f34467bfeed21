// What combinations of a scorer with other policies depend on.

#ifndef KVTWIN_ENGINE_METHODS_SCORER_TRAITS_H_
#define KVTWIN_ENGINE_METHODS_SCORER_TRAITS_H_

#include <string_view>

namespace kvtwin {

struct ScorerTraits {
  bool by_position = false;    // retains sinks and the newest tokens of a head, whatever the values are
  bool reads_decodes = false;  // uses the attention of decode tokens
  bool heads_alike = false;    // ranks the tokens of a layer once, for all of its heads
  bool heads_apart = false;    // what a token is worth is defined for a single head only
  bool gathers = false;        // keeps a sum or a time for each KV entry
  bool scores_tokens = false;  // one score per token, for all layers and heads
  bool reads_roles = false;    // retains template and query by the roles of messages (PromptSpans)
  bool repeats = false;        // passes of probe tokens repeat the context (KVzip)

  friend bool operator==(const ScorerTraits&, const ScorerTraits&) = default;
};

ScorerTraits scorer_traits(std::string_view name);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_SCORER_TRAITS_H_
