// compose(): reads the trace.

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "engine/common/token_ids.h"
#include "engine/methods/retention.h"
#include "engine/methods/scorer_traits.h"
#include "engine/methods/traits.h"
#include "scenarios/app/compose.h"
#include "scenarios/app/compose_parts.h"
#include "scenarios/load/names.h"
#include "traces/importers/formats.h"
#include "traces/replay/replay_builder.h"

namespace kvtwin {
namespace {

Ratio ratio(double value) {
  // Millionths are enough: users write scales as decimals.
  return {static_cast<int64_t>(std::llround(value * 1e6)), 1'000'000};
}

ReplayOptions replay_options(const v1::Scenario& values) {
  const v1::Replay& in = values.replay();
  ReplayOptions out;
  out.page_tokens = values.memory().page_tokens();
  out.mode = kReplayModes.value(in.mode());
  out.arrivals = kArrivalModes.value(in.arrivals());
  out.arrivals_per_s = ratio(in.sessions_per_s());
  out.population = in.population();
  out.seed = values.seed();
  out.arrival_scale = ratio(in.arrival_scale());
  out.tool_scale = ratio(in.tool_scale());
  out.think_scale = ratio(in.think_scale());
  out.delay_scale = ratio(in.delay_scale());
  if (in.think_cap_s() > 0) out.think_cap = {static_cast<int64_t>(std::llround(in.think_cap_s() * 1e9))};
  out.replicas = in.replicas();
  out.sessions_max = in.sessions_max();
  out.requests_max = in.requests_max();
  out.front_end = front_end_of(values.cost());
  out.hints = values.engines().routing() == "hint_aware" ||
              eviction_traits(values.policies().prefix_eviction()).reads_hints;
  out.on_reject = kRejectPolicies.value(in.on_reject());
  out.retries_max = in.retries_max();
  return out;
}

// A builder that reports progress, and gives the trace to the sinks of token ids too, in order.
class WatchedBuilder : public ReplayBuilder {
 public:
  WatchedBuilder(const std::function<void()>& on_session, std::vector<TraceSink*> sinks)
      : on_session_(on_session), sinks_(std::move(sinks)) {}
  Result<void> header(const v1::TraceHeader& header) override {
    for (TraceSink* const sink : sinks_)
      if (auto ok = sink->header(header); !ok) return ok;
    return ReplayBuilder::header(header);
  }
  Result<void> shared_spans(const v1::SharedSpanTable& table) override {
    for (TraceSink* const sink : sinks_)
      if (auto ok = sink->shared_spans(table); !ok) return ok;
    return ReplayBuilder::shared_spans(table);
  }
  Result<void> session(const v1::Session& session) override {
    if (on_session_) on_session_();
    for (TraceSink* const sink : sinks_)
      if (auto ok = sink->session(session); !ok) return ok;
    return ReplayBuilder::session(session);
  }

 private:
  const std::function<void()>& on_session_;
  const std::vector<TraceSink*> sinks_;
};

// Fails unless content is never drawn as one of the template's special ids.
Result<void> check_vocabulary(const Scenario& scenario, const ChatTemplate& chat, const LlmSpec& llm) {
  const cpu::OrdinaryIds ordinary = cpu::ordinary_ids(llm.vocab);
  for (const uint32_t id : special_ids(chat)) {
    if (id < llm.vocab && !ordinary.contains(id)) continue;
    return make_error(scenario.where("replay.chat_template"),
                      fmt::format("token {} is special in {}, but {} of {}, with {} ids", id, chat.name,
                                  id < llm.vocab ? "ordinary in the vocabulary" : "not in the vocabulary",
                                  llm.name, llm.vocab),
                      "the template of the model's tokenizer, or \"\" for the roles of the trace");
  }
  return {};
}

// What the trace is read into beside the replay, and how its requests will be tagged.
Result<void> prepare_chat(const Scenario& scenario, const TraceTokens& tokens, Composed* out) {
  const ChatTemplate* const chat = find_chat_template(scenario.values.replay().chat_template());
  if (chat == nullptr) return {};
  if (Result<void> ok = check_vocabulary(scenario, *chat, out->llm); !ok) return ok;
  out->chat = std::make_unique<ChatPrompts>(*chat, out->llm.vocab, &tokens);
  const v1::Policies& policies = scenario.values.policies();
  const TagsWanted wanted{.roles = precision_traits(policies.precision()).by_tag,
                          .spans = scorer_traits(policies.scorer()).reads_roles};
  if (wanted.roles || wanted.spans)
    out->tagger = std::make_unique<PromptTagger>(*chat, out->chat.get(), wanted);
  return {};
}

// How token ids are made in a chat template.
void note_chat(const ChatTemplate& chat, const ChatPrompts& prompts, std::vector<std::string>* notes) {
  notes->push_back(fmt::format("roles of tokens are read from token ids, in chat template {}", chat.name));
  if (prompts.unknown_tokens() > 0)
    notes->push_back(fmt::format("{} prompt tokens have no role in the trace; they are texts of the user",
                                 prompts.unknown_tokens()));
  if (prompts.unmarked_tokens() > 0)
    notes->push_back(fmt::format(
        "{} prompt tokens get the role of the message before them: their spans are shorter than the "
        "ids that begin a message, or the template cannot begin it there",
        prompts.unmarked_tokens()));
}

// How requests' queries and templates are found.
std::string query_note(const v1::Scenario& scenario, const ReplayTable& table) {
  const std::string scorer = "scorer " + scenario.policies().scorer();
  const v1::BudgetOptions& budget = scenario.policies().budget_options();
  const std::string counts =
      fmt::format("the first {} and the last {} tokens (policies.budget_options)", budget.sinks(),
                  budget.window() > 0 ? budget.window() : kQueryTokens);
  if (!scenario.replay().chat_template().empty())
    return fmt::format("{}: templates and queries are found by token ids", scorer);
  if (!scenario.replay().roles())
    return fmt::format("{}: replay.roles is false, so templates and queries are {}", scorer, counts);
  if (table.spans_unknown == 0)
    return fmt::format("{}: templates and queries are those of the trace's roles", scorer);
  return fmt::format("{}: {} of {} requests of the trace have no roles; their templates and queries are {}",
                     scorer, table.spans_unknown, table.requests, counts);
}

}  // namespace

FrontEnd front_end_of(const v1::Cost& cost) {
  return {cost.front_end_request_ns(), std::llround(cost.front_end_token_ns() * 1e3)};
}

Result<void> read_trace(const Scenario& scenario, std::vector<std::string>* notes, TraceSink* sink) {
  const v1::TraceChoice& trace = scenario.values.trace();
  ImportOptions options;
  options.seed = scenario.values.seed();
  options.block_tokens = trace.block_tokens();
  options.infer_sessions = trace.infer_sessions();
  options.jitter_ns = trace.jitter_ns();
  options.all_files = trace.all_files();
  options.notes = notes;
  options.sharing = kSharings.value(trace.prefix_sharing());
  return import_trace(trace.format(), scenario.file(trace.path()), options, sink);
}

void load_trace(const Scenario& scenario, const std::function<void()>& on_session, Composed* out,
                Errors* errors) {
  // The simulated backend reads no tokens; calibrations run checkpoints under any backend.
  const bool computed = scenario.values.backend() != "sim" || !scenario.values.cpu().checkpoint().empty();
  const bool in_template = !scenario.values.replay().chat_template().empty();
  auto tokens = std::make_unique<TraceTokens>(computed || in_template ? out->llm.vocab : 0);
  if (Result<void> ok = prepare_chat(scenario, *tokens, out); !ok) return errors->push_back(ok.error());
  std::vector<TraceSink*> sinks = {tokens.get()};
  if (out->chat) sinks.push_back(out->chat.get());
  WatchedBuilder builder(on_session, sinks);
  const v1::Policies& policies = scenario.values.policies();
  const bool reads_roles = scorer_traits(policies.scorer()).reads_roles;
  if (scenario.values.replay().roles() && !in_template) {
    if (precision_traits(policies.precision()).by_tag) builder.keep_roles();
    if (reads_roles) builder.keep_spans();
  }
  if (Result<void> ok = read_trace(scenario, &out->notes, &builder); !ok)
    return errors->push_back(ok.error());
  Result<std::unique_ptr<ReplayClient>> client = builder.build(replay_options(scenario.values));
  if (!client) return errors->push_back(client.error());
  out->client = std::move(*client);
  out->client->read_tags_from(out->tagger.get());
  if (out->chat) {
    if (const std::optional<std::string> misfit = out->chat->misfit())
      return errors->push_back(
          {scenario.where("replay.chat_template"), *misfit, "another template, or \"\""});
    note_chat(*find_chat_template(scenario.values.replay().chat_template()), *out->chat, &out->notes);
  }
  if (tokens->any()) out->notes.push_back("tokens are the trace's own");
  if (tokens->any() || out->chat) out->tokens = std::move(tokens);
  if (const uint64_t unknown = out->client->table().roles_unknown; unknown > 0) {
    out->notes.push_back(
        fmt::format("{} prompt tokens have no role in the trace; they count as user text", unknown));
  }
  if (reads_roles) out->notes.push_back(query_note(scenario.values, out->client->table()));
  const uint64_t sessions = out->client->report().sessions_total;
  if (const v1::Replay& replay = scenario.values.replay();
      replay.arrivals() == "fixed_population" && replay.population() > sessions)
    out->notes.push_back(
        fmt::format("replay.population is {}, but the trace has {} sessions: never more are in flight; "
                    "replay.replicas repeats them",
                    replay.population(), sessions));
  const v1::Cost& cost = scenario.values.cost();
  if (cost.front_end_request_ns() > 0 || cost.front_end_token_ns() > 0)
    out->notes.push_back(fmt::format(
        "TTFT and latency contain a front end (HTTP, tokenizer) of {:.3g} ms and {:.3g} us per prompt "
        "token (cost.front_end_request_ns, _token_ns)",
        static_cast<double>(cost.front_end_request_ns()) / 1e6, cost.front_end_token_ns() / 1e3));
  for (CoreConfig& config : out->options.engines) config.unit_tokens = out->client->unit_tokens();
  if (scenario.values.replay().think_cap_s() > 0) {
    out->notes.push_back(
        fmt::format("{} are capped at {} s",
                    out->client->cap_reaches_every_gap() ? "all gaps between requests" : "think times",
                    scenario.values.replay().think_cap_s()));
  }
}

}  // namespace kvtwin
