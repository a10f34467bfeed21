#include <doctest/doctest.h>

#include <vector>

#include "traces/replay/replay_roles.h"

using namespace kvtwin;

namespace {

v1::Span span(v1::Role role, uint32_t tokens, uint32_t turn, v1::Modality modality = v1::TEXT) {
  v1::Span s;
  s.set_role(role), s.set_tokens(tokens), s.set_turn(turn), s.set_modality(modality);
  return s;
}

}  // namespace

TEST_CASE("replay roles: spans become runs of roles, and tokens without a role are counted") {
  const v1::Span session_spans[] = {span(v1::INST, 10, 0), span(v1::USER, 5, 1), span(v1::USER, 3, 1),
                                    span(v1::OBS, 8, 2, v1::IMAGE), span(v1::ROLE_UNKNOWN, 4, 9)};
  const v1::Span shared = span(v1::DELIM, 2, 0);
  const FindSpan find = [&](uint32_t table, uint32_t index) -> const v1::Span* {
    if (table == 1) return index == 0 ? &shared : nullptr;
    return index < 5 ? &session_spans[index] : nullptr;
  };
  v1::LlmRequest request;
  request.set_turn(3);
  const auto add = [&](uint32_t table, uint32_t first, uint32_t count, uint32_t keep) {
    v1::SpanRun* run = request.add_prompt();
    run->set_table(table), run->set_first(first), run->set_count(count), run->set_keep_tokens(keep);
  };
  add(1, 0, 1, 0);
  add(0, 0, 4, 6);  // only 6 tokens of the image
  add(0, 4, 1, 0);
  request.set_prompt_tokens(2 + 10 + 8 + 6 + 4 + 7);
  const PromptRoles roles = prompt_roles(request, find);
  REQUIRE(roles.runs.size() == 5);
  CHECK(roles.runs[0] == RoleRun{{0, Modal::kText, Semantic::kDelim}, 2});
  CHECK(roles.runs[2] == RoleRun{{1, Modal::kText, Semantic::kUser}, 8});
  CHECK(roles.runs[3] == RoleRun{{2, Modal::kImage, Semantic::kObs}, 6});
  CHECK(roles.runs[4] == RoleRun{{3, Modal::kText, Semantic::kUser}, 11});  // at most the request's turn
  CHECK(roles.unknown_tokens == 11);
  request.set_prompt_tokens(4);
  const PromptRoles cut = prompt_roles(request, find);
  REQUIRE(cut.runs.size() == 2);
  CHECK(cut.runs[1].count == 2);
  CHECK(cut.unknown_tokens == 0);
}

TEST_CASE("replay roles: what a prompt asks, by the spans' roles and marks") {
  v1::Span asked = span(v1::USER, 6, 1);
  asked.set_query_span(true);
  const v1::Span session_spans[] = {span(v1::INST, 10, 0), asked,
                                    span(v1::USER, 3, 1),  span(v1::ASSISTANT, 4, 1),
                                    span(v1::OBS, 8, 1),   span(v1::ROLE_UNKNOWN, 4, 1)};
  const v1::Span shared = span(v1::DELIM, 2, 0);
  const FindSpan find = [&](uint32_t table, uint32_t index) -> const v1::Span* {
    if (table == 1) return index == 0 ? &shared : nullptr;
    return index < 6 ? &session_spans[index] : nullptr;
  };
  struct Row {
    std::vector<int> prompt;  // indices of session spans; -1: the shared one
    uint32_t tokens;          // of the prompt; the rest has no role
    PromptSpans found;
  };
  const Row rows[] = {
      {{0, 1, 2}, 19, {10, {10, 16}, {10, 16}}},         // the marked one
      {{0, 2}, 13, {10, {10, 13}, {10, 13}}},            // none is marked
      {{0, 1, 3, 4, -1}, 30, {10, {20, 28}, {20, 30}}},  // a tool's result, and template tokens after it
      {{0, 1, 3, 4, -1}, 40, {10, {20, 28}, {20, 30}}},  // further tokens of the prompt are passed over
      {{-1, 0, -1, 1}, 17, {14, {14, 17}, {14, 17}}},    // the prompt is cut
      {{5}, 4, {}},
      {{}, 50, {}},
  };
  for (const Row& row : rows) {
    v1::LlmRequest request;
    for (const int index : row.prompt) {
      v1::SpanRun* run = request.add_prompt();
      run->set_table(index < 0 ? 1 : 0), run->set_first(index < 0 ? 0 : static_cast<uint32_t>(index));
      run->set_count(1);
    }
    CHECK(prompt_spans(request, row.tokens, find) == row.found);
  }
}
