// bcp-like and frames-like: a deep-research agent with two tools, search and get_document.
//
// Sizes are those of the BrowseComp-Plus README (5 snippets of at most 512 tokens per search, 12.6 searches
// per query for gpt-oss-20b), and for FRAMES those of IntentKV, appendix C: the same tools, at least as many
// hops as the question needs, more and shorter snippets (distractors), shorter documents. The history only
// grows; the question is the actionable query span (docs/design/trace-formats.md#synthetic).

#include <algorithm>

#include "traces/synth/synthesize_recipes.h"

namespace kvtwin::synth {
namespace {

enum class SearchDraw : uint64_t {
  kSchemas,
  kQuestion,
  kSearches,
  kOpen,
  kThought,
  kArguments,
  kSnippet,
  kDocument,
  kTool,
  kAnswer,
};
constexpr uint32_t kSearch = 1, kGetDocument = 2;

std::vector<v1::Span> search_prefix(const Plan& plan, const SessionDraws& dice) {
  return {plain_span(v1::INST, dice.between(600, 900, SearchDraw::kSchemas)),
          plain_span(v1::INST, plan["template_tokens"])};
}

std::vector<v1::SharedSpanTable> search_tables(const Plan& plan) {
  return prefix_tables(plan, search_prefix);
}

// One search, or one opened document. Returns the tokens of the result.
void look_up(const Plan& plan, const SessionDraws& dice, uint64_t step, const Piece& call_span,
             AgentThread* agent) {
  const int64_t took = dice.between(20, 200, SearchDraw::kTool, step) * kMillisecond;
  if (dice.chance(plan["documents_percent"], 100, SearchDraw::kOpen, step)) {
    const int64_t tokens =
        dice.between(plan["document_tokens_min"], plan["document_tokens_max"], SearchDraw::kDocument, step);
    agent->tool(kGetDocument, call_span, {.tokens = static_cast<uint32_t>(tokens), .tool = kGetDocument},
                took);
    return;
  }
  // A result is the sum of snippets, which are ranked and cut one by one.
  int64_t tokens = 0;
  const int64_t longest = plan["snippet_tokens_max"];
  for (int64_t i = 0; i < plan["snippets"]; ++i) {
    tokens += dice.between(longest / 2, longest, SearchDraw::kSnippet, step, static_cast<uint64_t>(i));
  }
  agent->tool(kSearch, call_span, {.tokens = static_cast<uint32_t>(tokens), .tool = kSearch}, took);
}

v1::Session make_session(const Plan& plan, uint64_t index, const char* name) {
  const SessionDraws dice(plan.seed, index);
  SessionBuilder session(session_name(name, index), "browse", plan.tokens("key_block"));
  AgentThread agent(&session, session.add_agent("main", "searcher", 0));
  open_with_prefix(plan, dice, search_prefix, &agent);
  agent.say({.role = v1::USER,
             .tokens = static_cast<uint32_t>(dice.between(60, 120, SearchDraw::kQuestion)),
             .query = true});
  const int64_t hops = plan["searches_min"];
  const int64_t more = exponential(std::max<int64_t>(0, plan["searches_mean_tenths"] - 10 * hops) * 1'000,
                                   dice.bits(SearchDraw::kSearches));
  const int64_t searches = hops + (more + 5'000) / 10'000;
  const int64_t largest =
      std::max(plan["document_tokens_max"], plan["snippets"] * plan["snippet_tokens_max"]);
  const int64_t answer = dice.between(200, 600, SearchDraw::kAnswer);
  for (int64_t i = 0; i < searches && fits(plan, agent.history, 400 + largest + answer); ++i) {
    const auto step = static_cast<uint64_t>(i);
    const auto arguments = static_cast<uint32_t>(dice.between(20, 60, SearchDraw::kArguments, step));
    const auto thought = static_cast<uint32_t>(dice.between(60, 340, SearchDraw::kThought, step));
    std::vector<Piece> made;
    agent.request({{.role = v1::REASONING, .tokens = thought},
                   {.role = v1::TOOL_CALL, .tokens = arguments, .tool = kSearch}},
                  &made);
    look_up(plan, dice, step, made[1], &agent);
  }
  agent.request({{.role = v1::ASSISTANT, .tokens = static_cast<uint32_t>(answer)}});
  return session.take();
}

std::vector<SynthParam> params(int64_t mean_tenths, int64_t least, int64_t snippets, int64_t snippet,
                               int64_t documents, int64_t document_low, int64_t document_high) {
  std::vector<SynthParam> list = common_params(0, 131'072);
  const std::vector<SynthParam> own = {
      {"searches_mean_tenths", "tenths", "look-ups per question, mean", mean_tenths, 10, 10'000},
      {"searches_min", "look-ups", "look-ups that every question needs (hops)", least, 1, 1'000},
      {"snippets", "snippets", "per search", snippets, 1, 100},
      {"snippet_tokens_max", "tokens", "a snippet has between half of this and this", snippet, 2, 10'000},
      {"documents_percent", "percent", "look-ups that open a document", documents, 0, 100},
      {"document_tokens_min", "tokens", "shortest document", document_low, 1, 1'000'000},
      {"document_tokens_max", "tokens", "longest document", document_high, 1, 1'000'000},
      {"template_tokens", "tokens", "query template after the tool schemas", 150, 1, 100'000},
  };
  list.insert(list.end(), own.begin(), own.end());
  return list;
}

}  // namespace

Recipe bcp_like() {
  return {
      .info = {"bcp-like", "deep research as in BrowseComp-Plus: search and get_document, history only grows",
               "BrowseComp-Plus README; IntentKV", params(126, 1, 5, 512, 15, 2'000, 15'000)},
      .tools = {"search", "get_document"},
      .tables = search_tables,
      .session = [](const Plan& plan, uint64_t i) { return make_session(plan, i, "bcp"); }};
}

Recipe multi_hop_search() {
  return {.info = {"frames-like",
                   "multi-hop questions as in FRAMES: more hops, distractor snippets, short documents",
                   "IntentKV appendix C", params(60, 3, 8, 256, 25, 500, 4'000)},
          .tools = {"search", "get_document"},
          .tables = search_tables,
          .session = [](const Plan& plan, uint64_t i) { return make_session(plan, i, "frames"); }};
}

}  // namespace kvtwin::synth
