#include "traces/synth/synthesize.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "traces/synth/synthesize_recipes.h"

namespace kvtwin {
namespace synth {
namespace {

constexpr uint64_t kSessionsMax = 1'000'000;      // an hour apart they fit into 63 bits of nanoseconds
constexpr int64_t kTokensMax = int64_t{1} << 29;  // the writer takes prompts of up to 2^30
constexpr int64_t kWindowMin = 32'768;  // the longest instructions, their output and a first message
// Sessions draw with their index; values of the whole trace are drawn with this.
constexpr uint64_t kWholeTrace = UINT64_MAX;
enum class GroupDraw : uint64_t { kGroup = 1'000, kArrival };

SessionDraws group_dice(const Plan& plan, int64_t group) {
  return {plan.seed, kWholeTrace - 1 - static_cast<uint64_t>(group)};
}

std::vector<Recipe> all_recipes() {
  std::vector<Recipe> recipes;
  recipes.push_back(coding_agent_like());
  recipes.push_back(bcp_like());
  recipes.push_back(multi_hop_search());
  recipes.push_back(osworld_like());
  recipes.push_back(scbench_like());
  recipes.push_back(bfcl_memory_like());
  recipes.push_back(reasoning());
  return recipes;
}

Result<Plan> checked_plan(const Recipe& recipe, const SynthOptions& options) {
  if (options.sessions < 1 || options.sessions > kSessionsMax) {
    return make_error("sessions", fmt::format("{} sessions were asked for", options.sessions),
                      fmt::format("1 to {} can be made", kSessionsMax));
  }
  Plan plan{.sessions = options.sessions, .seed = options.seed, .values = {}};
  std::string names;
  for (const SynthParam& param : recipe.info.params) {
    plan.values[param.name] = param.value;
    names += (names.empty() ? "" : ", ") + param.name;
  }
  for (const auto& [name, text] : options.params) {
    const std::string where = recipe.info.name + "." + name;
    if (!plan.values.contains(name)) return make_error(where, "no such parameter", "there are " + names);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) {
      return make_error(where, fmt::format("\"{}\" is no integer", text.substr(0, 40)));
    }
    for (const SynthParam& param : recipe.info.params) {
      if (param.name == name && (value < param.low || value > param.high)) {
        return make_error(where, fmt::format("{} {} is out of range", value, param.unit),
                          fmt::format("{} to {} is allowed", param.low, param.high));
      }
    }
    plan.values[name] = value;
  }
  if (const int64_t window = plan["window_tokens"]; window != 0 && window < kWindowMin) {
    return make_error(recipe.info.name + ".window_tokens", fmt::format("{} tokens hold no session", window),
                      fmt::format("0 means no limit, {} is the least", kWindowMin));
  }
  for (const auto& [name, low] : plan.values) {
    const size_t at = name.find("_min");
    if (at == std::string::npos) continue;
    std::string upper = name;
    upper.replace(at, 4, "_max");
    const auto high = plan.values.find(upper);
    if (high != plan.values.end() && high->second < low) {
      return make_error(recipe.info.name + "." + name,
                        fmt::format("{} is above {}={}", low, upper, high->second));
    }
  }
  return plan;
}

v1::TraceHeader header_of(const Recipe& recipe, const Plan& plan) {
  v1::TraceHeader header;
  header.set_schema_version(1);
  header.set_trace_id(fmt::format("{}-{}-seed{}", recipe.info.name, plan.sessions, plan.seed));
  header.mutable_source()->set_name("synth:" + recipe.info.name);
  header.mutable_source()->set_licence("Apache-2.0");
  header.mutable_source()->set_importer("kvtwin trace synth");
  v1::Tokenizer* tokenizer = header.add_tokenizers();
  tokenizer->set_name("none");
  tokenizer->set_prov(v1::SYNTHESISED);
  header.add_models("synthetic");
  for (const std::string& tool : recipe.tools) header.add_tool_names(tool);
  v1::SynthRecipe* made_by = header.add_recipes();
  made_by->set_name(recipe.info.name);
  nlohmann::json params = plan.values;
  params["sessions"] = plan.sessions;
  made_by->set_params_json(params.dump());
  made_by->set_seed(plan.seed);
  made_by->set_fitted_on(recipe.info.fitted_on);
  for (const char* field :
       {"Span.role", "Span.tokens", "LlmRequest.prompt_tokens", "LlmRequest.output_tokens",
        "LlmRequest.prompt_key", "LlmRequest.think_ns", "ToolCall.duration_ns", "Dep.delay_ns",
        "Dep.at_output_token", "Session.arrival_at_ns"}) {
    v1::FieldPolicy* policy = header.add_policies();
    policy->set_field(field);
    policy->set_prov(v1::SYNTHESISED);
    policy->set_recipe(1);  // 1 + index in header.recipes
  }
  header.set_session_arrivals(plan["rate_per_hour"] > 0 ? v1::ARR_OPEN_LOOP : v1::ARR_NONE);
  header.set_request_arrivals(v1::ARR_NONE);
  header.set_block_tokens(plan.tokens("key_block"));
  header.set_block_ids_chained(plan["key_block"] > 0);
  header.set_tail_block_hashed(false);
  header.set_time_resolution_ns(1);
  return header;
}

}  // namespace

std::vector<SynthParam> common_params(int64_t key_block, int64_t window_tokens) {
  return {
      {"share_groups", "groups",
       "system prompts shared by sessions: each session has one of this many, 0: its own", 1, 0, 100'000},
      {"key_block", "tokens", "block size of prompt keys, 0: identity is the place among the session's spans",
       key_block, 0, 4'096},
      {"window_tokens", "tokens",
       "what a request may hold: a session ends or compacts before one that would not fit, 0: no limit",
       window_tokens, 0, 10'000'000},
      {"rate_per_hour", "sessions", "Poisson arrivals, 0: none", 0, 0, 100'000'000},
  };
}

std::vector<v1::SharedSpanTable> prefix_tables(const Plan& plan, MakePrefix make) {
  std::vector<v1::SharedSpanTable> tables;
  for (int64_t group = 0; group < plan["share_groups"]; ++group) {
    v1::SharedSpanTable& table = tables.emplace_back();
    table.set_table(1 + static_cast<uint32_t>(group));
    for (const v1::Span& span : make(plan, group_dice(plan, group))) *table.add_spans() = span;
  }
  return tables;
}

void open_with_prefix(const Plan& plan, const SessionDraws& dice, MakePrefix make, AgentThread* thread) {
  const int64_t groups = plan["share_groups"];
  if (groups == 0) {
    for (const v1::Span& span : make(plan, dice)) {
      thread->say({.role = span.role(), .tokens = span.tokens()});
    }
    return;
  }
  const int64_t group = dice.between(0, groups - 1, GroupDraw::kGroup);
  const std::vector<v1::Span> spans = make(plan, group_dice(plan, group));
  for (uint32_t i = 0; i < spans.size(); ++i) {
    thread->history.add({1 + static_cast<uint32_t>(group), i, spans[i].tokens(), spans[i].tokens()});
  }
}

v1::Span plain_span(v1::Role role, int64_t tokens) {
  v1::Span span;
  span.set_role(role);
  span.set_tokens(static_cast<uint32_t>(tokens));
  return span;
}

std::string session_name(const std::string& recipe, uint64_t index) {
  return fmt::format("{}-{:06}", recipe, index);
}

bool fits(const Plan& plan, const History& history, int64_t more) {
  const int64_t window = plan["window_tokens"] > 0 ? plan["window_tokens"] : kTokensMax;
  return static_cast<int64_t>(history.tokens()) + more <= window;
}

}  // namespace synth

std::vector<SynthRecipeInfo> synth_recipes() {
  std::vector<SynthRecipeInfo> infos;
  for (synth::Recipe& recipe : synth::all_recipes()) infos.push_back(std::move(recipe.info));
  return infos;
}

Result<void> synthesize(const SynthOptions& options, TraceSink* sink) {
  std::string names;
  const std::vector<synth::Recipe> recipes = synth::all_recipes();
  for (const synth::Recipe& recipe : recipes) {
    names += (names.empty() ? "" : ", ") + recipe.info.name;
    if (recipe.info.name != options.recipe) continue;
    const Result<synth::Plan> plan = synth::checked_plan(recipe, options);
    if (!plan) return tl::unexpected(plan.error());
    if (Result<void> sent = sink->header(synth::header_of(recipe, *plan)); !sent) return sent;
    for (const v1::SharedSpanTable& table : recipe.tables(*plan)) {
      if (Result<void> sent = sink->shared_spans(table); !sent) return sent;
    }
    const SessionDraws whole(plan->seed, synth::kWholeTrace);
    const int64_t rate = (*plan)["rate_per_hour"];
    int64_t at_ns = 0;
    for (uint64_t i = 0; i < plan->sessions; ++i) {
      v1::Session session = recipe.session(*plan, i);
      if (rate > 0) {
        at_ns += exponential(3'600'000'000'000 / rate, whole.bits(synth::GroupDraw::kArrival, i));
        session.set_arrival_at_ns(at_ns);
      }
      if (Result<void> sent = sink->session(session); !sent) return sent;
    }
    return sink->done();
  }
  return make_error("recipe", fmt::format("\"{}\" is no recipe", options.recipe.substr(0, 40)),
                    "there are " + names);
}

}  // namespace kvtwin
