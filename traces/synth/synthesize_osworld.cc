// osworld-like: a computer-use agent that receives one screenshot per step.
//
// The number of steps is OSWorld's for humans (369 tasks, single actions) times 1.4-2.7, the factor that
// OSWorld-Human found for agents. Only the last screenshots and thoughts stay in the prompt and older ones
// are removed, so every step rewrites the prompt after the instructions and little of it can be reused.
// Defaults aim at TriAxialKV's replay: mean prefill 11,000, mean decode 300.

#include <algorithm>
#include <deque>

#include "traces/synth/synthesize_recipes.h"

namespace kvtwin::synth {
namespace {

enum class DesktopDraw : uint64_t { kInstructions, kTask, kHuman, kFactor, kThought, kAction, kTool };
constexpr uint32_t kAct = 1;

constexpr QuantilePoint kHumanSteps[] = {
    {0, 1},       {5'000, 1},   {15'000, 2},  {25'000, 4},  {40'000, 4},  {50'000, 6},  {60'000, 9},
    {70'000, 11}, {75'000, 13}, {80'000, 17}, {85'000, 20}, {90'000, 26}, {95'000, 58}, {100'000, 407}};

std::vector<v1::Span> desktop_prefix(const Plan&, const SessionDraws& dice) {
  return {plain_span(v1::INST, dice.between(2'000, 4'000, DesktopDraw::kInstructions))};
}

std::vector<v1::SharedSpanTable> desktop_tables(const Plan& plan) {
  return prefix_tables(plan, desktop_prefix);
}

SpanSpec screenshot(const Plan& plan) {
  return {.role = v1::OBS, .tokens = plan.tokens("image_tokens"), .tool = kAct, .modality = v1::IMAGE};
}

v1::Session make_session(const Plan& plan, uint64_t index) {
  const SessionDraws dice(plan.seed, index);
  SessionBuilder session(session_name("osworld", index), "computer-use", plan.tokens("key_block"));
  AgentThread agent(&session, session.add_agent("main", "computer-use", 0));
  open_with_prefix(plan, dice, desktop_prefix, &agent);
  agent.say({.role = v1::USER,
             .tokens = static_cast<uint32_t>(dice.between(20, 90, DesktopDraw::kTask)),
             .query = true});
  const int64_t factor =
      dice.between(plan["steps_factor_min_percent"], plan["steps_factor_max_percent"], DesktopDraw::kFactor);
  const int64_t human = dice.pick(kHumanSteps, DesktopDraw::kHuman);
  const int64_t steps = std::min(plan["steps_max"], (human * factor + 99) / 100);
  std::deque<uint32_t> fading;  // spans of the screenshot and the thought of each recent step
  fading.push_back(agent.say(screenshot(plan)).index);
  const auto keep = static_cast<size_t>(2 * plan["screenshots_kept"]) - 1;
  for (int64_t i = 0; i < steps && (i == 0 || fits(plan, agent.history, 460 + plan["image_tokens"])); ++i) {
    const auto step = static_cast<uint64_t>(i);
    std::vector<Piece> made;
    agent.request({{.role = v1::REASONING,
                    .tokens = static_cast<uint32_t>(dice.between(150, 400, DesktopDraw::kThought, step))},
                   {.role = v1::TOOL_CALL,
                    .tokens = static_cast<uint32_t>(dice.between(30, 60, DesktopDraw::kAction, step)),
                    .tool = kAct}},
                  &made);
    if (i + 1 == steps) break;  // the last action is "done"
    agent.tool(kAct, made[1], screenshot(plan),
               dice.between(500, 3'000, DesktopDraw::kTool, step) * kMillisecond);
    fading.push_back(made[0].index);
    fading.push_back(agent.history.pieces().back().index);
    for (; fading.size() > keep; fading.pop_front()) agent.history.remove(fading.front());
  }
  v1::Session done = session.take();
  for (v1::Span& span : *done.mutable_spans()) {
    if (span.modality() != v1::IMAGE) continue;
    span.mutable_image()->set_width(1'920);
    span.mutable_image()->set_height(1'080);
    span.mutable_image()->set_frames(1);
  }
  return done;
}

}  // namespace

Recipe osworld_like() {
  std::vector<SynthParam> params = common_params(0, 131'072);
  const std::vector<SynthParam> own = {
      {"image_tokens", "tokens", "one 1920x1080 screenshot: 2,652 at 28 pixels per merged token, 2,040 at 32",
       2'652, 1, 16'384},
      {"screenshots_kept", "screenshots", "in the prompt; older ones and their thoughts are taken out", 3, 1,
       1'000},
      {"steps_factor_min_percent", "percent", "agent steps per human step, least", 140, 1, 10'000},
      {"steps_factor_max_percent", "percent", "agent steps per human step, most", 270, 1, 10'000},
      {"steps_max", "steps", "an agent gives up after this many", 100, 1, 100'000},
  };
  params.insert(params.end(), own.begin(), own.end());
  return {.info = {"osworld-like",
                   "computer use as in OSWorld: a screenshot per step, only the latest stay in the prompt",
                   "osworld-human-facts; TriAxialKV section 5", std::move(params)},
          .tools = {"computer"},
          .tables = desktop_tables,
          .session = make_session};
}

}  // namespace kvtwin::synth
