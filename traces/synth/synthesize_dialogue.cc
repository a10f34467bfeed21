// scbench-like, bfcl-memory-like and reasoning: workloads of questions to a model.
//
// scbench-like: one long context, read by turn 0 (one output token), then questions about it; with
// sessions_per_context = k it is SCBench's multi-request mode, k sessions over one shared context (TANGRAM
// section 5.1). bfcl-memory-like: scenarios of BFCL v4, a few dialogues that fill a memory and then many
// short sessions that query it. reasoning: one short prompt and one very long output; output lengths are
// those of 28 AIME24 runs capped at 16,384 tokens.

#include <fmt/format.h>

#include <algorithm>

#include "traces/synth/synthesize_recipes.h"

namespace kvtwin::synth {
namespace {

enum class DialogueDraw : uint64_t {
  kTemplate,
  kClass,
  kContext,
  kQuestions,
  kQuestion,
  kTask,
  kOutput,
  kTurns,
  kStores,
  kArguments,
  kResult,
  kReply,
  kTool,
  kLookUps,
};

// Log-uniform between low and high.
uint32_t log_uniform(const SessionDraws& dice, int64_t low, int64_t high, DialogueDraw field,
                     uint64_t n = 0) {
  const QuantilePoint points[] = {{0, low}, {100'000, high}};
  return static_cast<uint32_t>(dice.pick(points, field, n));
}

std::vector<SynthParam> with_common(int64_t window_tokens, const std::vector<SynthParam>& own) {
  std::vector<SynthParam> list = common_params(0, window_tokens);
  list.insert(list.end(), own.begin(), own.end());
  return list;
}

// ---- scbench-like

std::vector<v1::Span> scbench_prefix(const Plan&, const SessionDraws& dice) {
  return {plain_span(v1::INST, dice.between(40, 120, DialogueDraw::kTemplate))};
}

uint32_t context_tokens(const Plan& plan, uint64_t context) {
  const SessionDraws dice(~plan.seed, context);
  const int64_t size = plan["class"] < 3 ? plan["class"] : dice.between(0, 2, DialogueDraw::kClass);
  constexpr int64_t kLow[] = {4'000, 20'000, 100'000}, kHigh[] = {20'000, 100'000, 300'000};
  const int64_t tokens = log_uniform(dice, kLow[size], kHigh[size], DialogueDraw::kContext);
  // Room for the instructions and the first question.
  const int64_t window = plan["window_tokens"];
  return static_cast<uint32_t>(window > 0 ? std::min(tokens, window - 2'000) : tokens);
}

// Contexts of k > 1 sessions are tables of their own, after those of the prefixes.
std::vector<v1::SharedSpanTable> scbench_tables(const Plan& plan) {
  std::vector<v1::SharedSpanTable> tables = prefix_tables(plan, scbench_prefix);
  const auto k = static_cast<uint64_t>(plan["sessions_per_context"]);
  for (uint64_t context = 0; k > 1 && context * k < plan.sessions; ++context) {
    v1::SharedSpanTable& table = tables.emplace_back();
    table.set_table(static_cast<uint32_t>(tables.size()));
    *table.add_spans() = plain_span(v1::OBS, context_tokens(plan, context));
  }
  return tables;
}

v1::Session scbench_session(const Plan& plan, uint64_t index) {
  const SessionDraws dice(plan.seed, index);
  SessionBuilder session(session_name("scbench", index), "long-context", plan.tokens("key_block"));
  AgentThread agent(&session, session.add_agent("main", "reader", 0));
  open_with_prefix(plan, dice, scbench_prefix, &agent);
  const auto k = static_cast<uint64_t>(plan["sessions_per_context"]);
  const uint32_t tokens = context_tokens(plan, index / k);
  if (k > 1) {
    const auto table = static_cast<uint32_t>(plan["share_groups"] + 1 + static_cast<int64_t>(index / k));
    agent.history.add({table, 0, tokens, tokens});
  } else {
    agent.say({.role = v1::OBS, .tokens = tokens});
  }
  agent.request({{.role = v1::ASSISTANT, .tokens = 1}});
  // Each task has its own answer length: a label, a sentence or a summary.
  const uint32_t typical = log_uniform(dice, 10, 400, DialogueDraw::kTask);
  const int64_t questions = dice.between(2, 5, DialogueDraw::kQuestions);
  for (uint64_t i = 0; i < static_cast<uint64_t>(questions) && fits(plan, agent.history, 1'000); ++i) {
    agent.turn += 1;
    agent.think_ns = plan["think_ms"] * kMillisecond;
    agent.say({.role = v1::USER,
               .tokens = static_cast<uint32_t>(dice.between(30, 200, DialogueDraw::kQuestion, i)),
               .query = true});
    agent.request(
        {{.role = v1::ASSISTANT,
          .tokens = log_uniform(dice, std::max(10u, typical / 2), 2 * typical, DialogueDraw::kOutput, i)}});
  }
  return session.take();
}

// ---- bfcl-memory-like

constexpr uint32_t kStore = 1, kRetrieve = 2;

// Tool schemas of BFCL's key-value, vector and recursive-summary memories, in tokens.
std::vector<v1::Span> memory_prefix(const Plan& plan, const SessionDraws&) {
  constexpr int64_t kSchemas[] = {2'218, 1'839, 601};
  return {plain_span(v1::INST, kSchemas[plan["backend"]])};
}

// The content of the memory after all dialogues of a scenario: the same for all its questions.
std::vector<v1::SharedSpanTable> memory_tables(const Plan& plan) {
  std::vector<v1::SharedSpanTable> tables = prefix_tables(plan, memory_prefix);
  const auto size = static_cast<uint64_t>(plan["dialogues"] + plan["questions"]);
  for (uint64_t first = 0; plan["share_groups"] > 0 && first < plan.sessions; first += size) {
    v1::SharedSpanTable& table = tables.emplace_back();
    table.set_table(static_cast<uint32_t>(tables.size()));
    *table.add_spans() = plain_span(v1::INST, plan["dialogues"] * plan["dump_tokens"]);
  }
  return tables;
}

void memory_turn(const Plan& plan, const SessionDraws& dice, uint64_t turn, uint32_t user_tokens,
                 int64_t requests, uint32_t tool, AgentThread* agent) {
  agent->turn = static_cast<uint32_t>(turn);
  if (turn > 0) agent->think_ns = plan["think_ms"] * kMillisecond;
  agent->say({.role = v1::USER, .tokens = user_tokens, .query = true});
  for (uint64_t i = 0; i < static_cast<uint64_t>(requests); ++i) {
    const uint64_t n = turn * 16 + i;
    const auto arguments = dice.between(15, tool == kStore ? 120 : 40, DialogueDraw::kArguments, n);
    std::vector<Piece> made;
    agent->request({{.role = v1::TOOL_CALL, .tokens = static_cast<uint32_t>(arguments), .tool = tool}},
                   &made);
    const auto result = dice.between(10, tool == kStore ? 40 : 300, DialogueDraw::kResult, n);
    agent->tool(tool, made[0], {.tokens = static_cast<uint32_t>(result)},
                dice.between(1, 5, DialogueDraw::kTool, n) * kMillisecond);
  }
  agent->request({{.role = v1::ASSISTANT,
                   .tokens = static_cast<uint32_t>(dice.between(20, 100, DialogueDraw::kReply, turn))}});
}

v1::Session memory_session(const Plan& plan, uint64_t index) {
  const SessionDraws dice(plan.seed, index);
  const auto size = static_cast<uint64_t>(plan["dialogues"] + plan["questions"]);
  const uint64_t scenario = index / size;
  const auto place = static_cast<int64_t>(index % size);
  SessionBuilder session(session_name("bfcl-memory", index), "memory", plan.tokens("key_block"));
  session.session().set_tenant(fmt::format("scenario-{:05}", scenario));
  AgentThread agent(&session, session.add_agent("main", "memory", 0));
  open_with_prefix(plan, dice, memory_prefix, &agent);
  const int64_t filled = std::min(place, plan["dialogues"]);
  const auto dump = static_cast<uint32_t>(filled * plan["dump_tokens"]);
  if (filled == plan["dialogues"] && plan["share_groups"] > 0) {
    agent.history.add(
        {static_cast<uint32_t>(plan["share_groups"] + 1) + static_cast<uint32_t>(scenario), 0, dump, dump});
  } else if (dump > 0) {
    agent.say({.role = v1::INST, .tokens = dump});
  }
  if (place >= plan["dialogues"]) {
    memory_turn(plan, dice, 0, static_cast<uint32_t>(dice.between(8, 25, DialogueDraw::kQuestion)),
                dice.between(1, 3, DialogueDraw::kLookUps), kRetrieve, &agent);
    return session.take();
  }
  const int64_t turns = dice.between(5, 13, DialogueDraw::kTurns);
  for (uint64_t turn = 0;
       turn < static_cast<uint64_t>(turns) && (turn == 0 || fits(plan, agent.history, 600)); ++turn) {
    const auto said = static_cast<uint32_t>(dice.between(100, 230, DialogueDraw::kQuestion, turn));
    memory_turn(plan, dice, turn, said, dice.chance(7, 10, DialogueDraw::kStores, turn) ? 1 : 0, kStore,
                &agent);
  }
  return session.take();
}

// ---- reasoning

constexpr QuantilePoint kAimeOutputs[] = {{0, 2'563},       {3'704, 3'001},   {7'407, 3'267},
                                          {11'111, 3'462},  {14'815, 4'320},  {18'519, 4'390},
                                          {22'222, 4'514},  {25'926, 6'555},  {29'630, 12'255},
                                          {33'333, 13'846}, {37'037, 16'384}, {100'000, 16'384}};

std::vector<v1::Span> reasoning_prefix(const Plan&, const SessionDraws& dice) {
  return {plain_span(v1::INST, dice.between(20, 60, DialogueDraw::kTemplate))};
}

v1::Session reasoning_session(const Plan& plan, uint64_t index) {
  const SessionDraws dice(plan.seed, index);
  SessionBuilder session(session_name("reasoning", index), "reasoning", plan.tokens("key_block"));
  AgentThread agent(&session, session.add_agent("main", "solver", 0));
  open_with_prefix(plan, dice, reasoning_prefix, &agent);
  agent.say({.role = v1::USER,
             .tokens = static_cast<uint32_t>(dice.between(100, 400, DialogueDraw::kQuestion)),
             .query = true});
  int64_t longest = plan["output_tokens_max"];
  if (plan["window_tokens"] > 0) {
    longest = std::min(longest, plan["window_tokens"] - static_cast<int64_t>(agent.history.tokens()));
  }
  const int64_t total = std::min(dice.pick(kAimeOutputs, DialogueDraw::kOutput), longest);
  const int64_t answer = std::min(total - 1, dice.between(200, 600, DialogueDraw::kReply));
  const bool cut = total == longest;  // no answer was reached
  std::vector<SpanSpec> output = {
      {.role = v1::REASONING, .tokens = static_cast<uint32_t>(cut ? total : total - answer)}};
  if (!cut) output.push_back({.role = v1::ASSISTANT, .tokens = static_cast<uint32_t>(answer)});
  const uint32_t node = agent.request(output);
  session.llm(node).set_max_output_tokens(static_cast<uint32_t>(longest));
  session.llm(node).set_stop_reason(cut ? "length" : "stop");
  return session.take();
}

const SynthParam kThink = {"think_ms", "ms", "before every further question", 0, 0, 100'000'000};

}  // namespace

Recipe scbench_like() {
  return {.info = {"scbench-like", "one long context, then questions about it, as in SCBench",
                   "TANGRAM section 5.1",
                   with_common(0, {{"class", "class",
                                    "context: 0 is 4-20k tokens, 1 is 20-100k, 2 is 100-300k, 3 any of them",
                                    3, 0, 3},
                                   {"sessions_per_context", "sessions",
                                    "that share one context (multi-request mode)", 1, 1, 100'000},
                                   kThink})},
          .tools = {},
          .tables = scbench_tables,
          .session = scbench_session};
}

Recipe bfcl_memory_like() {
  return {.info = {"bfcl-memory-like",
                   "dialogues that fill a memory, then short sessions that ask for it, as in BFCL v4",
                   "bfcl v4 memory: schemas, 37 dialogues, 155 questions",
                   with_common(
                       131'072,
                       {{"backend", "kind", "memory: 0 key-value, 1 vector, 2 recursive summary", 0, 0, 2},
                        {"dialogues", "sessions", "that fill the memory of one scenario", 10, 1, 100},
                        {"questions", "sessions", "that ask for it", 31, 1, 100'000},
                        {"dump_tokens", "tokens", "that each dialogue adds to the memory shown in the prompt",
                         150, 1, 10'000},
                        kThink})},
          .tools = {"memory_store", "memory_retrieve"},
          .tables = memory_tables,
          .session = memory_session};
}

Recipe reasoning() {
  return {.info = {"reasoning", "one short question, one very long answer, as in AIME24",
                   "reasoning-decode-aime24",
                   with_common(0, {{"output_tokens_max", "tokens", "longer outputs are cut here", 16'384, 2,
                                    1'000'000}})},
          .tools = {},
          .tables = [](const Plan& plan) { return prefix_tables(plan, reasoning_prefix); },
          .session = reasoning_session};
}

}  // namespace kvtwin::synth
