#include "scenarios/app/chat_prompts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "scenarios/app/prompt_tagger.h"
#include "traces/replay/replay_roles.h"
#include "traces/synth/synthesize.h"
#include "traces/tasks/make_task.h"
#include "traces/tasks/task_tokens.h"

namespace kvtwin {
namespace {

constexpr uint32_t kVocab = 1u << 20;
constexpr uint32_t kAny = kContentToken;

// Gives a trace to both sinks of token ids, and retains it.
class Trace final : public TraceSink {
 public:
  Trace(const char* chat, uint32_t vocab)
      : chat_(*find_chat_template(chat)), own_(vocab), prompts_(chat_, vocab, &own_) {}
  Result<void> header(const v1::TraceHeader& header) override { return own_.header(header); }
  Result<void> shared_spans(const v1::SharedSpanTable& table) override {
    tables_[table.table()] = table;
    if (auto ok = own_.shared_spans(table); !ok) return ok;
    return prompts_.shared_spans(table);
  }
  Result<void> session(const v1::Session& session) override {
    sessions.push_back(session);
    if (auto ok = own_.session(session); !ok) return ok;
    return prompts_.session(session);
  }

  const v1::Span* span(uint32_t session, uint32_t table, uint32_t index) const {
    const auto& spans = table == 0 ? sessions[session].spans() : tables_.at(table).spans();
    return index < static_cast<uint32_t>(spans.size()) ? &spans.Get(static_cast<int>(index)) : nullptr;
  }
  const ChatPrompts& prompts() const { return prompts_; }
  const ChatTemplate& chat() const { return chat_; }

  std::vector<v1::Session> sessions;

 private:
  const ChatTemplate& chat_;
  TraceTokens own_;
  ChatPrompts prompts_;
  std::map<uint32_t, v1::SharedSpanTable> tables_;
};

v1::TraceHeader header_of(uint32_t vocab) {
  v1::TraceHeader header;
  header.add_tokenizers()->set_vocab(vocab);
  return header;
}

v1::Span* add_span(v1::Session* session, v1::Role role, uint32_t tokens, std::vector<uint32_t> ids = {}) {
  v1::Span* const span = session->add_spans();
  span->set_role(role), span->set_tokens(tokens), span->set_turn(1);
  span->mutable_token_ids()->Assign(ids.begin(), ids.end());
  return span;
}

v1::LlmRequest* add_request(v1::Session* session, uint32_t prompt_spans, uint32_t prompt_tokens) {
  v1::LlmRequest* const request = session->add_nodes()->mutable_llm();
  request->add_prompt()->set_count(prompt_spans);
  request->set_prompt_tokens(prompt_tokens), request->set_turn(1);
  return request;
}

// Tokens of all prompts: content, of it with another role or another age than in the trace, delimiters, of
// them tagged as something else.
struct Compared {
  uint64_t content = 0, other_role = 0, other_age = 0, delimiters = 0, undelimited = 0;
};

std::vector<TokenRole> by_token(const std::vector<RoleRun>& runs) {
  std::vector<TokenRole> out;
  for (const RoleRun& run : runs) out.insert(out.end(), run.count, run.role);
  return out;
}

void compare(const Trace& trace, uint32_t session, uint32_t node, Compared* out) {
  const v1::LlmRequest& request = trace.sessions[session].nodes(static_cast<int>(node)).llm();
  const std::vector<uint32_t> ids = trace.prompts().prompt(session, node);
  const PromptTags tags = tags_of(trace.chat(), {.roles = true}, ids);
  const auto find = [&](uint32_t table, uint32_t index) { return trace.span(session, table, index); };
  const std::vector<TokenRole> found = by_token(tags.roles),
                               given = by_token(prompt_roles(request, find).runs);
  REQUIRE(ids.size() == request.prompt_tokens());
  REQUIRE(found.size() == given.size());
  const std::vector<uint32_t> special = special_ids(trace.chat());
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool own = ids[i] < task::kVocab && trace.chat().name == "tasks";
    const bool content = ids[i] == kAny || ids[i] == image_token(trace.chat()) ||
                         (own && std::find(special.begin(), special.end(), ids[i]) == special.end());
    if (content) {
      ++out->content;
      out->other_role += found[i].semantic != given[i].semantic || found[i].modal != given[i].modal;
      // Before the first turn, all is instructions.
      out->other_age += given[i].turn > 0 && tags.turn - found[i].turn != request.turn() - given[i].turn;
    } else {
      ++out->delimiters;
      out->undelimited += found[i].semantic != Semantic::kDelim;
    }
  }
}

Compared compare_all(const Trace& trace) {
  Compared out;
  for (uint32_t s = 0; s < trace.sessions.size(); ++s) {
    for (int n = 0; n < trace.sessions[s].nodes_size(); ++n)
      if (trace.sessions[s].nodes(n).has_llm()) compare(trace, s, static_cast<uint32_t>(n), &out);
  }
  return out;
}

}  // namespace

TEST_CASE("chat prompts: on synthetic traces the tagger finds the roles of the spans") {
  for (const std::string recipe : {"coding-agent-like", "bcp-like", "osworld-like"}) {
    for (const std::string name : {"llama3", "chatml", "mistral"}) {
      CAPTURE(recipe);
      CAPTURE(name);
      Trace trace(name.c_str(), kVocab);
      REQUIRE(synthesize({.recipe = recipe, .sessions = 2, .seed = 3, .params = {}}, &trace));
      CHECK(!trace.prompts().misfit());
      const Compared all = compare_all(trace);
      CHECK(all.undelimited == 0);
      CHECK(all.delimiters > 0);
      CHECK(all.other_role <= trace.prompts().unmarked_tokens());
      CHECK(trace.prompts().unmarked_tokens() * 50 < all.content);
    }
  }
}

TEST_CASE("chat prompts: the tagger finds roles and turns in the ids of tasks") {
  for (const TaskInfo& task : tasks()) {
    CAPTURE(task.name);
    Trace trace("tasks", task::kVocab);
    REQUIRE(make_task({.task = task.name, .sessions = 3, .seed = 5}, &trace));
    CHECK(!trace.prompts().misfit());
    const Compared all = compare_all(trace);
    CHECK(all.content > 500);
    CHECK(all.other_role == 0);
    // There a turn has a text of the user after a tool's result, which opens a turn for the tagger.
    if (task.name != "question_first") CHECK(all.other_age == 0);
    CHECK(all.delimiters > 10);
    CHECK(all.undelimited == 0);
  }
  // A template knows the ids of task_tokens.h by their values.
  const std::vector<uint32_t> special = special_ids(*find_chat_template("tasks"));
  CHECK(std::set<uint32_t>(special.begin(), special.end()) ==
        std::set<uint32_t>{task::kPad, task::kBegin, task::kSystem, task::kUser, task::kAssistant,
                           task::kRequest, task::kResult, task::kEnd});
}

TEST_CASE("chat prompts: the trace's own ids precede rendered ones") {
  v1::Session session;
  add_span(&session, v1::ROLE_UNKNOWN, 5, {151644, 8948, 198, 7, 151645});
  add_span(&session, v1::ROLE_UNKNOWN, 5, {151644, 872, 198, 8, 9});
  add_span(&session, v1::USER, 6);
  add_request(&session, 2, 10);
  add_request(&session, 3, 16);
  Trace trace("chatml", kVocab);
  REQUIRE(trace.header(header_of(kVocab)));
  REQUIRE(trace.session(session));
  CHECK(!trace.prompts().misfit());
  const PromptTags tags = tags_of(trace.chat(), {.roles = true, .spans = true}, trace.prompts().prompt(0, 0));
  CHECK(tags.turn == 1);
  REQUIRE(tags.roles.size() == 5);
  CHECK(tags.roles[1] == RoleRun{{0, Modal::kText, Semantic::kInst}, 1});
  CHECK(tags.roles[4] == RoleRun{{1, Modal::kText, Semantic::kUser}, 2});
  CHECK(tags.spans.query == TokenRange{8, 10});
  // A span without ids: the whole prompt is rendered. Spans without a role are texts of the user.
  const std::vector<uint32_t> rendered = trace.prompts().prompt(0, 1);
  CHECK(rendered == std::vector<uint32_t>{151644, 872, 198, kAny, kAny, kAny, kAny, kAny, kAny, kAny, kAny,
                                          kAny, kAny, kAny, kAny, kAny});
  CHECK(trace.prompts().unknown_tokens() == 10);
  // Ids of another vocabulary are not read.
  Trace other("chatml", kVocab);
  REQUIRE(other.header(header_of(32'000)));
  REQUIRE(other.session(session));
  CHECK(other.prompts().prompt(0, 0)[3] == kAny);
}

TEST_CASE("chat prompts: cut spans, tokens beyond the spans, outputs") {
  v1::Session session;
  add_span(&session, v1::USER, 6);
  add_span(&session, v1::ASSISTANT, 6);
  v1::LlmRequest* const cut = add_request(&session, 1, 5);
  cut->mutable_prompt(0)->set_keep_tokens(5);
  v1::LlmRequest* const longer = add_request(&session, 1, 12);
  longer->add_output()->set_first(1), longer->mutable_output(0)->set_count(1);
  Trace trace("llama3", kVocab);
  REQUIRE(trace.session(session));
  CHECK(trace.prompts().request(0, 0) == std::vector<uint32_t>{128006, 882, 128007, 271, kAny});
  const std::vector<uint32_t> all = trace.prompts().request(0, 1);
  CHECK(all.size() == 18);
  CHECK(trace.prompts().prompt(0, 1).size() == 12);
  CHECK(all[11] == kAny);
  CHECK(all[12] == 128009);
  CHECK(trace.prompts().unknown_tokens() == 6);
  CHECK(trace.prompts().unmarked_tokens() == 0);
}

TEST_CASE("chat prompts: traces that the template does not fit") {
  v1::Session plain;
  add_span(&plain, v1::USER, 3, {1, 2, 3});
  add_request(&plain, 1, 3);
  Trace own("chatml", kVocab);
  REQUIRE(own.header(header_of(kVocab)));
  REQUIRE(own.session(plain));
  CHECK(*own.prompts().misfit() == "no message begins in the trace's token ids by chat template chatml");

  v1::Session hashes;
  add_span(&hashes, v1::ROLE_UNKNOWN, 30);
  add_request(&hashes, 1, 30);
  Trace unknown("mistral", kVocab);
  REQUIRE(unknown.session(hashes));
  CHECK(unknown.prompts().misfit()->find("neither token ids of the model's vocabulary nor roles") !=
        std::string::npos);

  v1::Session image;
  image.set_id("shot");
  add_span(&image, v1::OBS, 30)->set_modality(v1::IMAGE);
  Trace small("llama3", 128'256);
  const Result<void> refused = small.session(image);
  REQUIRE(!refused);
  CHECK(refused.error().text() ==
        "session \"shot\": has an image, which is token 128256 in chat template llama3; a model for images; "
        "this "
        "one's vocabulary has 128256 ids");
}

}  // namespace kvtwin
