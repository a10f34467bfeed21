// Tasks: the correct answer of the trace follows from the prompt's tokens.

#include "traces/tasks/make_task.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "traces/format/check.h"
#include "traces/tasks/task_tokens.h"

namespace kvtwin {
namespace {

using namespace task;
using Ids = std::vector<uint32_t>;

class Kept final : public TraceSink {
 public:
  Result<void> header(const v1::TraceHeader& header) override {
    header_ = header;
    return {};
  }
  Result<void> shared_spans(const v1::SharedSpanTable&) override { return {}; }
  Result<void> session(const v1::Session& session) override {
    sessions.push_back(session);
    return {};
  }
  v1::TraceHeader header_;
  std::vector<v1::Session> sessions;
};

Kept made(const TaskOptions& options) {
  Kept out;
  REQUIRE(make_task(options, &out));
  return out;
}

Ids ids_of(const v1::Session& session, const google::protobuf::RepeatedPtrField<v1::SpanRun>& runs) {
  Ids out;
  for (const v1::SpanRun& run : runs) {
    for (uint32_t i = 0; i < run.count(); ++i) {
      const v1::Span& span = session.spans(static_cast<int>(run.first() + i));
      out.insert(out.end(), span.token_ids().begin(), span.token_ids().end());
    }
  }
  return out;
}

bool is_key(uint32_t id) { return id >= kKeyFirst && id < kKeyFirst + kKeys; }
bool is_value(uint32_t id) { return id >= kValueFirst && id < kValueFirst + kValues; }

// The facts of a document, read from tokens alone, without knowledge of the task.
struct DocumentFacts {
  std::map<uint32_t, Ids> values, schemas;
  std::map<uint32_t, uint32_t> same;
};
DocumentFacts read(const Ids& prompt) {
  DocumentFacts out;
  for (size_t i = 0; i + 1 < prompt.size(); ++i) {
    if (prompt[i] == kSchema) {
      Ids& parameters = out.schemas[prompt[i + 1]];
      for (size_t j = i + 2; j < prompt.size() && is_key(prompt[j]); ++j) parameters.push_back(prompt[j]);
    }
    if (!is_key(prompt[i])) continue;
    if (prompt[i + 1] == kSame) out.same[prompt[i]] = prompt[i + 2];
    // Excludes repetitions by earlier answers.
    for (size_t j = i + 1; j < prompt.size() && is_value(prompt[j]); ++j)
      out.values[prompt[i]].push_back(prompt[j]);
  }
  return out;
}

Ids value_of(const DocumentFacts& known, uint32_t key) {
  for (int hops = 0; hops < 8 && known.same.contains(key); ++hops) key = known.same.at(key);
  return known.values.contains(key) ? known.values.at(key) : Ids{};
}

Ids solve(const Ids& prompt) {
  const DocumentFacts known = read(prompt);
  size_t user = prompt.size();
  while (prompt[user - 1] != kUser) --user;
  while (prompt[user] >= kWordFirst) ++user;  // filler words
  uint32_t verb = prompt[user];
  size_t what = user + 1;
  if (verb == kEarlier) {
    const auto asked = std::find(prompt.rbegin(), prompt.rend(), kAsk);
    what = prompt.size() - static_cast<size_t>(asked - prompt.rbegin());
    verb = kAsk;
  }
  Ids out = {verb == kUse || verb == kFetch ? kRequest : kAssistant};
  if (verb == kAll && what == prompt.size()) {  // all of the newest document
    const auto begin = std::find(prompt.rbegin(), prompt.rend(), kResult).base();
    out.insert(out.end(), begin, std::find(begin, prompt.end(), kEnd));
  } else if (verb == kAsk || verb == kAll) {
    const Ids value = value_of(known, prompt[what]);
    out.insert(out.end(), value.begin(), value.end());
  } else if (verb == kList) {
    for (size_t i = what; i < prompt.size(); ++i) {
      const Ids value = value_of(known, prompt[i]);
      out.push_back(prompt[i]);
      out.insert(out.end(), value.begin(), value.end());
    }
  } else {
    out.push_back(prompt[what]);
    if (verb == kUse) {
      const Ids& parameters = known.schemas.at(prompt[what]);
      out.insert(out.end(), parameters.begin(), parameters.end());
    }
  }
  out.push_back(kEnd);
  return out;
}

TEST_CASE("make_task: every answer follows from the tokens of its prompt") {
  for (const TaskInfo& one : tasks()) {
    for (const uint32_t tokens : {96u, 200u, 384u, 1024u}) {
      const Kept kept = made({.task = one.name, .sessions = 20, .seed = 3, .tokens = tokens});
      uint64_t scored = 0;
      SessionChecker checker;
      REQUIRE(checker.header(kept.header_));
      for (const v1::Session& session : kept.sessions) {
        REQUIRE(checker.session(session));
        // A list repeats facts, which read() would count twice.
        uint32_t requests = 0;
        for (const v1::Node& node : session.nodes()) {
          if (!node.has_llm()) continue;
          const v1::LlmRequest& request = node.llm();
          REQUIRE(request.prompt_tokens() + request.output_tokens() <= tokens);
          REQUIRE(node.extras_size() == 1);
          scored += node.extras(0).value_json().find("\"scored\":true") != std::string::npos;
          if (session.workload() == "long_list" && requests++ > 0) continue;
          CAPTURE(session.id());
          CHECK(ids_of(session, request.output()) == solve(ids_of(session, request.prompt())));
        }
      }
      CHECK(scored >= kept.sessions.size());
    }
  }
}

std::string bytes(const Kept& kept) {
  std::string out;
  for (const v1::Session& session : kept.sessions) out += session.SerializeAsString();
  return out;
}

TEST_CASE("make_task: equal options give equal bytes; other splits and seeds differ") {
  const TaskOptions options{.task = "mixed", .sessions = 30, .seed = 5};
  TaskOptions train = options, other = options;
  train.split = "train";
  other.seed = 6;
  CHECK(bytes(made(options)) == bytes(made(options)));
  std::set<Ids> seen;
  for (const v1::Session& session : made(options).sessions) {
    for (const v1::Span& span : session.spans()) {
      if (span.tokens() > 40) seen.insert({span.token_ids().begin(), span.token_ids().end()});
    }
  }
  CHECK(seen.size() >= 20);
  for (const TaskOptions& different : {train, other}) {
    for (const v1::Session& session : made(different).sessions) {
      for (const v1::Span& span : session.spans())
        CHECK_FALSE(seen.contains({span.token_ids().begin(), span.token_ids().end()}));
    }
  }
}

TEST_CASE("make_task: asked_again repeats earlier questions, and \"mixed\" has none of them") {
  const auto questions = [](const v1::Session& session) {
    std::vector<uint32_t> keys;
    for (const v1::Span& span : session.spans()) {
      if (span.role() == v1::USER && span.token_ids_size() == 3 && span.token_ids(1) == kAsk)
        keys.push_back(span.token_ids(2));
    }
    return keys;
  };
  uint32_t others = 0;
  for (const v1::Session& session : made({.task = "asked_again", .sessions = 20, .seed = 1}).sessions) {
    const std::vector<uint32_t> keys = questions(session);
    REQUIRE(keys.size() > 3);
    for (size_t i = 3; i < keys.size(); ++i) CHECK((keys[i] == keys[0] || keys[i] == keys[1]));
  }
  for (const v1::Session& session : made({.task = "old_result", .sessions = 20, .seed = 1}).sessions) {
    const std::vector<uint32_t> keys = questions(session);
    for (size_t i = 3; i < keys.size(); ++i) others += keys[i] != keys[0] && keys[i] != keys[1];
  }
  CHECK(others > 10);
  // Ten tasks: the eleventh session has the first one's task again.
  const Kept mixed = made({.task = "mixed", .sessions = 11, .seed = 1});
  for (const v1::Node& node : mixed.sessions.back().nodes()) {
    for (const v1::Extra& extra : node.extras())
      CHECK(extra.value_json().find("asked_again") == std::string::npos);
  }
}

TEST_CASE("make_task: refined_goal comes back to the four facts of its first four questions") {
  uint32_t scored = 0;
  for (const uint32_t tokens : {96u, 384u}) {
    const Kept kept =
        made({.task = "refined_goal", .sessions = 20, .seed = 1, .tokens = tokens, .questions = 12});
    for (const v1::Session& session : kept.sessions) {
      std::vector<uint32_t> keys;
      for (const v1::Span& span : session.spans()) {
        if (span.role() == v1::USER && span.token_ids_size() == 3 && span.token_ids(1) == kAsk)
          keys.push_back(span.token_ids(2));
      }
      REQUIRE(keys.size() > 4);
      const std::set<uint32_t> goal(keys.begin(), keys.begin() + 4);
      CHECK(goal.size() == 4);
      for (const uint32_t key : keys) CHECK(goal.contains(key));
      for (const v1::Node& node : session.nodes()) {
        for (const v1::Extra& extra : node.extras())
          scored += extra.value_json().find("\"scored\":true") != std::string::npos;
      }
      scored -= static_cast<uint32_t>(keys.size()) - 4;
    }
  }
  CHECK(scored == 0);  // all questions after the first round count, and no other output
}

TEST_CASE("make_task: with drop_turns prompts have neither questions nor answers of earlier turns") {
  for (const char* task : {"refined_goal", "asked_again", "question_first", "tool_schema"}) {
    CAPTURE(task);
    TaskOptions options{.task = task, .sessions = 10, .seed = 2, .questions = 8};
    const Kept whole = made(options);
    options.drop_turns = true;
    const Kept dropped = made(options);
    SessionChecker checker;
    REQUIRE(checker.header(dropped.header_));
    for (size_t i = 0; i < dropped.sessions.size(); ++i) {
      const v1::Session& session = dropped.sessions[i];
      REQUIRE(checker.session(session));
      REQUIRE(session.nodes_size() == whole.sessions[i].nodes_size());
      for (int n = 0; n < session.nodes_size(); ++n) {
        if (!session.nodes(n).has_llm()) continue;
        const v1::LlmRequest& request = session.nodes(n).llm();
        const v1::LlmRequest& longer = whole.sessions[i].nodes(n).llm();
        // The same request: its output, and what its prompt ends with.
        const Ids prompt = ids_of(session, request.prompt());
        const Ids before = ids_of(whole.sessions[i], longer.prompt());
        CHECK(ids_of(session, request.output()) == ids_of(whole.sessions[i], longer.output()));
        CHECK(std::equal(prompt.end() - 2, prompt.end(), before.end() - 2));
        CHECK(std::count(prompt.begin(), prompt.end(), kAssistant) == 0);
        CHECK(std::count(prompt.begin(), prompt.end(), kResult) ==
              std::count(before.begin(), before.end(), kResult));
        CHECK(std::count(prompt.begin(), prompt.end(), kRequest) ==
              std::count(before.begin(), before.end(), kRequest));
        if (std::string_view(task) != "tool_schema")
          CHECK(std::count(prompt.begin(), prompt.end(), kAsk) <= 1);
        CHECK(ids_of(session, request.output()) == solve(prompt));
      }
    }
  }
}

TEST_CASE("make_task: roles, tools and turns are those of the trace") {
  const Kept kept = made({.task = "old_result", .sessions = 5, .seed = 1});
  for (const v1::Session& session : kept.sessions) {
    std::set<v1::Role> roles;
    for (const v1::Span& span : session.spans()) roles.insert(span.role());
    CHECK(roles == std::set<v1::Role>{v1::INST, v1::USER, v1::ASSISTANT, v1::TOOL_CALL, v1::OBS});
    const auto called = std::count_if(session.nodes().begin(), session.nodes().end(),
                                      [](const v1::Node& node) { return node.has_tool(); });
    CHECK(called == 3);
  }
}

}  // namespace
}  // namespace kvtwin
