#include "traces/importers/weka_spans.h"

#include <algorithm>
#include <map>

#include "engine/base/prng.h"
#include "traces/importers/importers.h"

namespace kvtwin {
namespace {

// Number of earlier requests that are searched for the one whose prompt this one continues. It is nearly
// always the previous request; the rest are retries and returns from a side question.
constexpr size_t kBasesSearched = 32;

void append(uint32_t first, uint32_t count, uint32_t keep,
            google::protobuf::RepeatedPtrField<v1::SpanRun>* runs) {
  if (!runs->empty()) {
    v1::SpanRun& last = *runs->rbegin();
    if (last.keep_tokens() == 0 && last.first() + last.count() == first) {
      last.set_count(last.count() + count);
      last.set_keep_tokens(keep);
      return;
    }
  }
  v1::SpanRun& run = *runs->Add();
  run.set_first(first);
  run.set_count(count);
  run.set_keep_tokens(keep);
}

// The earlier request with the longest common prefix, the latest of equals; null if none shares a block.
const WekaKeyedRequest* find_base(const std::vector<WekaKeyedRequest>& requests, const IdRuns& ids,
                                  uint64_t* shared_blocks) {
  const WekaKeyedRequest* best = nullptr;
  *shared_blocks = 0;
  for (size_t n = 0; n < kBasesSearched && n < requests.size(); ++n) {
    const WekaKeyedRequest& candidate = requests[requests.size() - 1 - n];
    const uint64_t common = common_blocks(*candidate.ids, ids);
    if (common > *shared_blocks) best = &candidate, *shared_blocks = common;
    // It continues the previous request.
    if (n == 0 && best != nullptr && common == blocks_in(*candidate.ids)) break;
  }
  return best;
}

}  // namespace

bool WekaSpans::add(const WekaRequest& source, const std::vector<WekaKeyedRequest>& before, int last,
                    const WekaPrefix& prefix, v1::LlmRequest* request) {
  if (!good()) return false;
  Runs* const prompt = request->mutable_prompt();
  uint64_t left = source.prompt_tokens;
  bool continues = false;
  uint64_t shared_blocks = 0;
  if (const WekaKeyedRequest* const base = find_base(before, source.ids, &shared_blocks)) {
    const v1::LlmRequest& earlier = session_.nodes(base->node).llm();
    if (shared_blocks == blocks_in(*base->ids) && earlier.prompt_tokens() <= left) {
      left -= append_cut(earlier.prompt(), earlier.prompt_tokens(), prompt);
      const uint64_t appended = append_output(earlier, left, prompt);
      left -= appended;
      continues = appended > 0 && base->node == last;
    } else {
      left -= append_cut(earlier.prompt(), std::min(left, shared_blocks * block_tokens_), prompt);
    }
  }
  const uint64_t have = source.prompt_tokens - left;
  if (have < prefix.tokens()) {
    const uint64_t inst = std::min(left, prefix.tokens() - have);
    add_span(v1::INST, inst, request->turn(), prompt);
    left -= inst;
  }
  add_span(source.has_input("tool_result") ? v1::OBS : v1::USER, left, request->turn(), prompt);
  add_output(source, request->turn(), request->mutable_output());
  runs_ += static_cast<uint64_t>(request->prompt_size());
  return continues;
}

void WekaSpans::add_span(v1::Role role, uint64_t tokens, uint32_t turn, Runs* runs) {
  if (tokens == 0) return;
  v1::Span& span = *session_.add_spans();
  span.set_role(role);
  span.set_tokens(static_cast<uint32_t>(tokens));
  span.set_turn(turn);
  span.set_scope(v1::SCOPE_SESSION);
  before_.push_back(before_.back() + tokens);
  append(static_cast<uint32_t>(session_.spans_size() - 1), 1, 0, runs);
}

void WekaSpans::add_output(const WekaRequest& source, uint32_t turn, Runs* runs) {
  // In the order in which the API emits them.
  constexpr std::pair<const char*, v1::Role> kRoles[] = {
      {"thinking", v1::REASONING}, {"text", v1::ASSISTANT}, {"tool_use", v1::TOOL_CALL}};
  const auto& types = source.output_types;
  std::vector<v1::Role> roles;
  for (const auto& [type, role] : kRoles) {
    if (std::find(types.begin(), types.end(), type) != types.end()) roles.push_back(role);
  }
  if (roles.empty()) roles.push_back(v1::ROLE_UNKNOWN);
  uint64_t left = source.output_tokens;
  for (size_t i = 0; i < roles.size(); ++i) {
    const uint64_t fraction = left / (roles.size() - i);
    const int index = session_.spans_size();
    add_span(roles[i], fraction, turn, runs);
    left -= fraction;
    if (roles.size() == 1 || session_.spans_size() == index) continue;
    v1::ProvOverride& prov = *session_.mutable_spans(index)->add_prov();
    prov.set_field(v1::Span::kTokensFieldNumber);
    prov.set_prov(v1::SYNTHESISED);
    prov.set_recipe(kWekaSplitRecipe);
  }
}

// Appends the first `tokens` tokens of `source`, which may have fewer; returns the number appended.
uint64_t WekaSpans::append_cut(const Runs& source, uint64_t tokens, Runs* runs) const {
  uint64_t left = tokens;
  for (const v1::SpanRun& run : source) {
    if (left == 0) break;
    const uint32_t end = run.first() + run.count();
    const uint64_t last = before_[end] - before_[end - 1];
    const uint64_t dropped = run.keep_tokens() == 0 ? 0 : last - run.keep_tokens();
    const uint64_t in_run = before_[end] - before_[run.first()] - dropped;
    if (in_run <= left) {
      append(run.first(), run.count(), run.keep_tokens(), runs);
      left -= in_run;
      continue;
    }
    // The span that contains the cut: the first that ends at or after it.
    const uint64_t cut = before_[run.first()] + left;
    const auto it = std::lower_bound(before_.begin() + run.first() + 1, before_.begin() + end, cut);
    const auto after = static_cast<uint32_t>(it - before_.begin());
    const uint64_t keep = cut - before_[after - 1];
    append(run.first(), after - run.first(), *it == cut ? 0 : static_cast<uint32_t>(keep), runs);
    left = 0;
  }
  return tokens - left;
}

uint64_t WekaSpans::append_output(const v1::LlmRequest& request, uint64_t room, Runs* runs) const {
  if (request.output_tokens() <= room) return append_cut(request.output(), request.output_tokens(), runs);
  uint64_t left = room;
  for (const v1::SpanRun& run : request.output()) {
    for (uint32_t i = run.first(); i < run.first() + run.count() && left > 0; ++i) {
      const v1::Span& span = session_.spans(static_cast<int>(i));
      if (span.role() == v1::REASONING) continue;
      const uint64_t take = std::min<uint64_t>(left, span.tokens());
      append(i, 1, take == span.tokens() ? 0 : static_cast<uint32_t>(take), runs);
      left -= take;
    }
  }
  return room - left;
}

void share_weka_prefixes(const std::vector<WekaKeyedRequest>& requests, PrefixSharing sharing,
                         const WekaTrace& trace, v1::Session* session) {
  if (sharing == PrefixSharing::kNone) return;
  std::map<std::string, const WekaKeyedRequest*> first_of;  // family -> its first request
  for (const WekaKeyedRequest& request : requests) {
    const WekaKeyedRequest& first = *first_of.emplace(request.family, &request).first->second;
    uint64_t blocks =
        std::min(first.prefix.tokens() / trace.block_tokens, common_blocks(*first.ids, *request.ids));
    if (blocks == 0) continue;
    uint64_t name = 0;
    for (const char c : request.family) name = mix64(name ^ static_cast<uint8_t>(c));
    const uint64_t key = sharing == PrefixSharing::kAll
                             ? draw({name})
                             : draw({name, first.prefix.tool_tokens, first.prefix.system_tokens});
    // GLOBAL, because a clone of the session has the same system prompt. 40 bits leave room for page
    // arithmetic.
    IdRuns shared{{static_cast<int64_t>(key >> 24), static_cast<uint32_t>(blocks), v1::SCOPE_GLOBAL}};
    for (IdRun run : *request.ids) {
      const auto skipped = static_cast<uint32_t>(std::min<uint64_t>(blocks, run.count));
      blocks -= skipped;
      run.first += skipped;
      run.count -= skipped;
      append_run(&shared, run);
    }
    encode_key(shared, trace.scope,
               session->mutable_nodes(request.node)->mutable_llm()->mutable_prompt_key());
  }
}

}  // namespace kvtwin
