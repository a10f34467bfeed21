// Retired names: scenario fields and their values, flags, columns and files that have a new name (the table
// is in CHANGELOG). No old name is accepted. A message about an unknown name gives its successor by
// `name_now`. tests/unit/tidy checks this table against tests/unit/tidy/retired_identifiers.tsv.

#ifndef KVTWIN_ENGINE_BASE_RETIRED_NAMES_H_
#define KVTWIN_ENGINE_BASE_RETIRED_NAMES_H_

#include <string>
#include <string_view>
#include <vector>

namespace kvtwin {

struct RetiredName {
  std::string_view old;
  std::string_view now;
};

inline constexpr RetiredName kRetiredNames[] = {
    {"LlmCall", "LlmRequest"},
    {"--world", "--backend"},
    {"--calls", "--requests"},
    {"--min-calls", "--min-requests"},
    {"--error-rows", "--error-tokens"},
    {"world", "backend"},
    {"calls_max", "requests_max"},
    {"clean_batch_pages", "offload_batch_pages"},
    {"clean_pages_target", "offload_pages_target"},
    {"cells", "kv_entries"},
    {"shares", "relative"},
    {"kept_min", "retained_min"},
    {"moment", "compression_trigger"},
    {"query_rows", "query_tokens"},
    {"probe_rows", "probe_tokens"},
    {"judge_rows", "judge_tokens"},
    {"fold", "coalesce"},
    {"kept", "retained"},
    {"impose", "force_outcomes"},
    {"share_mu", "fraction_mu"},
    {"share_sigma", "fraction_sigma"},
    {"demote", "swap"},
    {"arena", "ring"},
    {"arena", "resident"},
    {"page_mask_dead", "page_mask"},
    {"slot_dead", "slot_mask"},
    {"skip_call", "skip_request"},
    {"calls", "requests"},
    {"call", "request"},
    {"calls_finished", "requests_finished"},
    {"calls_cancelled", "requests_cancelled"},
    {"calls_rejected", "requests_rejected"},
    {"calls_open", "requests_open"},
    {"calls_per_s", "requests_per_s"},
    {"calls_running", "requests_running"},
    {"calls_waiting", "requests_waiting"},
    {"call_steps", "request_steps"},
    {"calls_per_session", "requests_per_session"},
    {"kv_share", "kv_fraction"},
    {"calls_that_fit", "requests_that_fit"},
    {"attention_stretch", "attention_slowdown"},
    {"llm_calls", "llm_requests"},
    {"calls.csv", "requests.csv"},
};

// The name among `known` that replaced `word`. Empty if `word` is not retired, or its successor is not in
// `known`.
inline std::string_view name_now(std::string_view word, const std::vector<std::string>& known) {
  for (const RetiredName& name : kRetiredNames) {
    if (name.old != word) continue;
    for (const std::string& one : known) {
      if (one == name.now) return name.now;
    }
  }
  return {};
}

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_RETIRED_NAMES_H_
