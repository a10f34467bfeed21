// coding-agent-like: sessions with the shape of the WEKA set of Claude Code traces (692 sessions, 46,218
// requests).
//
// The tables are percentiles of that set (docs/design/trace-formats.md#weka, recomputed at more points):
// requests per session, first prompt, growth beyond the previous prompt and output, outputs, gaps, context
// rewrites, sub-agents. Tool durations are percentiles of AgentCgroup's 1,151 + 1,287 tool calls
// (docs/design/trace-formats.md#agentcgroup). What the recordings do not show is invented: which tool ran,
// how a gap divides into tool and think time (tool first, at most the gap), how an output divides into prose
// and tool calls.
//
// Not append-only: 2.7 % of the recorded steps rewrite the context. Sessions that reach their limit, mostly
// 120k-175k tokens, are compacted (instructions and a summary remain), and reset_per_mille of all steps
// diverge somewhere inside.

#include <fmt/format.h>

#include <algorithm>

#include "traces/synth/synthesize_coding_tables.h"
#include "traces/synth/synthesize_recipes.h"

namespace kvtwin::synth {
namespace {

using namespace coding;

enum class CodingDraw : uint64_t {
  kSchemas,
  kSystem,
  kRequests,
  kFirst,
  kStops,
  kOutput,
  kGrowth,
  kGap,
  kFanOut,
  kTool,
  kToolTime,
  kEarly,
  kCompactAt,
  kReset,
  kResetKind,
  kRetained,
  kCompacted,
  kReplaced,
  kSubAgents,
  kSubFanOut,
  kSubRequests,
  kSubFirst,
  kSubDelay,
  kReport,
  kThought,
};

std::vector<v1::Span> coding_prefix(const Plan&, const SessionDraws& dice) {
  return {plain_span(v1::INST, dice.pick(kSchemas, CodingDraw::kSchemas)),
          plain_span(v1::INST, dice.pick(kSystem, CodingDraw::kSystem))};
}

// Divides `total` into `parts` nearly equal parts of at least one token.
std::vector<uint32_t> divide(int64_t total, int64_t parts) {
  std::vector<uint32_t> out;
  for (int64_t i = 0; i < parts; ++i) {
    out.push_back(static_cast<uint32_t>(std::max<int64_t>(1, total * (i + 1) / parts - total * i / parts)));
  }
  return out;
}

uint64_t key(const AgentThread& agent, int64_t step) {
  return (uint64_t{agent.agent()} << 32) | static_cast<uint64_t>(step);
}

class CodingSession {
 public:
  CodingSession(const Plan& plan, uint64_t index)
      : plan_(plan),
        dice_(plan.seed, index),
        session_(session_name("coding", index), "coding-agent", plan.tokens("key_block")),
        main_(&session_, session_.add_agent("main", "main", 0)) {}

  v1::Session make() {
    open_with_prefix(plan_, dice_, coding_prefix, &main_);
    prefix_tokens_ = main_.history.tokens();
    const int64_t drawn = dice_.pick(kRequests, CodingDraw::kRequests);
    const int64_t requests = std::min(drawn, plan_["requests_max"]);
    int64_t first = drawn < kLongSession ? dice_.pick(kFirstOfShort, CodingDraw::kFirst)
                                         : dice_.pick(kFirstOfLong, CodingDraw::kFirst);
    if (window_ > 0) first = std::min(first, window_ / 2);
    say(&main_, v1::USER, first - static_cast<int64_t>(prefix_tokens_));
    for (const GrowthFactor& factor : kGrowthFactors) {
      if (drawn >= factor.requests) growth_percent_ = factor.percent;
    }
    const int64_t limit = dice_.pick(kCompactAt, CodingDraw::kCompactAt) * plan_["compact_percent"] / 100;
    // A session that starts above it has a model with a larger window.
    const bool compacts = limit > 0 && first < limit;
    for (int64_t step = 0; step < requests; ++step) {
      const uint64_t n = key(main_, step);
      const bool last = step + 1 == requests;
      const bool asks = !last && dice_.chance(85, 100, CodingDraw::kStops, n);
      int64_t output = dice_.pick(asks ? kOutputTool : kOutputEnd, CodingDraw::kOutput, n);
      if (step > 0 && dice_.chance(plan_["reset_per_mille"], 1'000, CodingDraw::kReset, n)) rewrite(n);
      const bool above = compacts && static_cast<int64_t>(main_.history.tokens()) > limit;
      if (above || !fits(plan_, main_.history, output)) compact(n);
      if (window_ > 0) output = std::min(output, window_ - static_cast<int64_t>(main_.history.tokens()));
      if (!asks) {
        main_.request({{.role = v1::ASSISTANT, .tokens = static_cast<uint32_t>(output)}});
        if (last) break;
        main_.turn += 1;
        main_.think_ns = dice_.pick(kGapUser, CodingDraw::kGap, n) * kMillisecond;
        say(&main_, v1::USER, growth_percent_ * dice_.pick(kGrowthUser, CodingDraw::kGrowth, n) / 100);
      } else if (dice_.chance(plan_["subagents_per_mille"], 1'000, CodingDraw::kSubAgents, n)) {
        delegate(n, output);
      } else {
        use_tools(&main_, n, output, growth_percent_ * dice_.pick(kGrowthTool, CodingDraw::kGrowth, n) / 100,
                  kGapTool);
      }
    }
    return session_.take();
  }

 private:
  void say(AgentThread* agent, v1::Role role, int64_t tokens) {
    agent->say({.role = role,
                .tokens = static_cast<uint32_t>(std::max<int64_t>(1, tokens)),
                .query = role == v1::USER});
  }

  // The prose of an output, and then `parts` tool calls that divide its second half.
  std::vector<SpanSpec> output_of(int64_t output, int64_t parts, uint32_t tool) {
    std::vector<SpanSpec> spans = {
        {.role = v1::ASSISTANT, .tokens = static_cast<uint32_t>(std::max<int64_t>(1, output - output / 2))}};
    for (const uint32_t tokens : divide(output / 2, parts)) {
      spans.push_back({.role = v1::TOOL_CALL, .tokens = tokens, .tool = tool});
    }
    return spans;
  }

  // Where a tool that is not the last of its message starts: at its own last token, for some tools.
  uint32_t start_token(const std::vector<Piece>& made, size_t i, uint64_t n) {
    if (i + 1 == made.size() || !dice_.chance(plan_["early_start_percent"], 100, CodingDraw::kEarly, n, i))
      return 0;
    uint32_t tokens = 0;
    for (size_t j = 0; j <= i; ++j) tokens += made[j].tokens;
    return tokens;
  }

  void use_tools(AgentThread* agent, uint64_t n, int64_t output, int64_t growth, QuantileTable gaps) {
    const int64_t dealt = dice_.between(1, 100, CodingDraw::kFanOut, n);
    const int64_t tools = dealt <= 86 ? 1 : dealt <= 97 ? 2 : 3;
    std::vector<SpanSpec> spans = output_of(output, tools, 0);
    std::vector<uint32_t> used;
    for (size_t i = 1; i < spans.size(); ++i) {
      int64_t left = dice_.between(1, 100, CodingDraw::kTool, n, i);
      uint32_t tool = 0;
      while (left > kTools[tool].percent) left -= kTools[tool++].percent;
      spans[i].tool = 1 + tool;
      used.push_back(tool);
    }
    std::vector<Piece> made;
    agent->request(spans, &made);
    const int64_t gap = dice_.pick(gaps, CodingDraw::kGap, n);
    const std::vector<uint32_t> results = divide(growth, tools);
    int64_t longest = 0;
    for (size_t i = 0; i < used.size(); ++i) {
      const int64_t took = std::min(gap, dice_.pick(kTools[used[i]].time, CodingDraw::kToolTime, n, i));
      longest = std::max(longest, took);
      agent->tool(1 + used[i], made[i + 1], {.tokens = results[i]}, took * kMillisecond,
                  start_token(made, i + 1, n));
    }
    agent->think_ns = (gap - longest) * kMillisecond;
  }

  // One to three concurrent sub-agents, each with its own instructions; the next request waits for all.
  void delegate(uint64_t n, int64_t output) {
    const int64_t count = dice_.between(1, 3, CodingDraw::kSubFanOut, n);
    std::vector<Piece> made;
    const uint32_t parent = main_.request(output_of(output, count, kTask), &made);
    for (size_t i = 1; i < made.size(); ++i) {
      AgentThread helper(
          &session_,
          session_.add_agent(fmt::format("agent-{}", session_.session().agents_size()), "Explore", 0));
      helper.wait_for(parent, v1::DEP_SPAWN,
                      dice_.between(200, 2'000, CodingDraw::kSubDelay, n, i) * kMillisecond,
                      start_token(made, i, n));
      run_helper(&helper);
      main_.wait_for(helper.last_request(), v1::DEP_JOIN,
                     dice_.between(20, 200, CodingDraw::kSubDelay, n, 16 + i) * kMillisecond);
    }
    for (size_t i = 1; i < made.size(); ++i) {
      main_.say({.role = v1::OBS,
                 .tokens = static_cast<uint32_t>(dice_.between(300, 2'000, CodingDraw::kReport, n, i)),
                 .tool = kTask});
    }
  }

  // All sub-agents of a session have the same instructions, so one span serves them.
  void run_helper(AgentThread* helper) {
    const int64_t first = dice_.pick(kSubFirst, CodingDraw::kSubFirst, helper->agent());
    if (helper_instructions_.tokens == 0) {
      helper_instructions_ = session_.add_span({.role = v1::INST, .tokens = 8'600});
    }
    helper->history.add(helper_instructions_);
    say(helper, v1::USER, first - helper_instructions_.tokens);
    const int64_t requests = dice_.pick(kSubRequests, CodingDraw::kSubRequests, helper->agent());
    for (int64_t step = 0; step < requests; ++step) {
      const uint64_t n = key(*helper, step);
      const int64_t output = dice_.pick(kSubOutput, CodingDraw::kOutput, n);
      const bool last =
          step + 1 == requests ||
          !fits(plan_, helper->history, output + dice_.pick(kSubGrowth, CodingDraw::kGrowth, n) + 9'829);
      if (last) {
        helper->request({{.role = v1::ASSISTANT, .tokens = static_cast<uint32_t>(output)}});
        return;
      }
      use_tools(helper, n, output, dice_.pick(kSubGrowth, CodingDraw::kGrowth, n), kSubGap);
    }
  }

  // A compaction, or an edit somewhere inside the context: after the edit the same spans follow, but at
  // positions where their KV cannot be reused.
  void rewrite(uint64_t n) {
    if (dice_.chance(5, 100, CodingDraw::kResetKind, n)) return compact(n);
    const std::vector<Piece> old = main_.history.pieces();
    const auto before = static_cast<int64_t>(main_.history.tokens());
    const int64_t kept =
        std::max<int64_t>(1, before * dice_.pick(kRetained, CodingDraw::kRetained, n) / 1'000);
    if (kept >= before) return;
    main_.history.cut(static_cast<uint64_t>(kept));
    size_t next = main_.history.pieces().size();
    uint32_t edited = old[next - 1].kept - main_.history.pieces()[next - 1].kept;
    if (edited == 0) edited = old[next++].kept;
    main_.say({.role = v1::INST, .tokens = edited});
    for (; next < old.size(); ++next) main_.history.add(old[next]);
  }

  // Instructions and a summary remain.
  void compact(uint64_t n) {
    const auto before = static_cast<int64_t>(main_.history.tokens());
    int64_t after = std::min(dice_.pick(kCompacted, CodingDraw::kCompacted, n), before * 6 / 10);
    if (window_ > 0) after = std::min(after, window_ / 2);
    main_.history.cut(prefix_tokens_);
    say(&main_, v1::USER, after - static_cast<int64_t>(prefix_tokens_));
  }

  const Plan& plan_;
  const int64_t window_ = plan_["window_tokens"];
  SessionDraws dice_;
  SessionBuilder session_;
  AgentThread main_;
  uint64_t prefix_tokens_ = 0;
  int64_t growth_percent_ = 100;
  Piece helper_instructions_;
};

}  // namespace

Recipe coding_agent_like() {
  std::vector<SynthParam> params = common_params(64, 0);
  const std::vector<SynthParam> own = {
      {"requests_max", "requests", "of the main agent in a session", 514, 1, 1'000'000},
      {"reset_per_mille", "per mille", "steps that rewrite the context, compactions at the limit apart", 23,
       0, 1'000},
      {"compact_percent", "percent",
       "the prompt at which a session is compacted, of the recorded ones (mostly 120k-175k tokens), 0: never",
       100, 0, 10'000},
      {"subagents_per_mille", "per mille", "requests with tools that start sub-agents instead", 1, 0, 1'000},
      {"early_start_percent", "percent",
       "tools and sub-agents, not last of their message, that start at their last token", 100, 0, 100},
  };
  params.insert(params.end(), own.begin(), own.end());
  SynthRecipeInfo info{"coding-agent-like",
                       "coding agents with tools, sub-agents and context rewrites, shaped like WEKA",
                       "weka-claude-code (692 sessions), agentcgroup tool times", std::move(params)};
  Recipe recipe{
      .info = std::move(info),
      .tools = {},
      .tables = [](const Plan& plan) { return prefix_tables(plan, coding_prefix); },
      .session = [](const Plan& plan, uint64_t index) { return CodingSession(plan, index).make(); }};
  for (const Tool& tool : kTools) recipe.tools.emplace_back(tool.name);
  return recipe;
}

}  // namespace kvtwin::synth
