// Parts of kvtwin serve without a network: bodies, tokens, replies, and the client of the simulation.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "scenarios/serve/api_reply.h"
#include "scenarios/serve/api_request.h"
#include "scenarios/serve/kv_events.h"
#include "scenarios/serve/live_client.h"
#include "scenarios/serve/trace_replies.h"

using namespace kvtwin;
using namespace kvtwin::serve;

namespace {

PromptTokens ids(std::initializer_list<uint32_t> list) {
  PromptTokens out;
  for (const uint32_t id : list) out.add_id(id);
  return out;
}

std::string said(bool chat, const std::string& body) {
  const auto parsed = parse_api_request(chat, body);
  return parsed ? "" : parsed.error().message;
}

std::unique_ptr<LiveRequest> request(uint32_t id, const std::string& session, Instant arrived) {
  auto out = std::make_unique<LiveRequest>();
  out->id = RequestId{id};
  out->session = session;
  out->prompt = ids({1, 2, 3});
  out->output_tokens = 2;
  out->arrived = arrived;
  return out;
}

const RequestReady& ready(const ClientEvents& events, size_t index) {
  return std::get<RequestReady>(events.at(index));
}

}  // namespace

TEST_CASE("serve: text has one token per four bytes, a message two more") {
  const auto chat = parse_api_request(true, R"({"messages":[{"role":"user","content":"123456789"}]})");
  REQUIRE(chat);
  CHECK(chat->prompt.count() == 1 + 3 + 1 + 1);
  CHECK(chat->prompt.turn() == 1);
  REQUIRE(chat->prompt.roles().size() == 3);
  CHECK(chat->prompt.roles()[1].role.semantic == Semantic::kUser);
  CHECK(chat->prompt.roles()[1].count == 3);
  const auto text = parse_api_request(false, R"({"prompt":"12345"})");
  REQUIRE(text);
  CHECK(text->prompt.count() == 2);
  CHECK(text->prompt.tokens()[1] != parse_api_request(false, R"({"prompt":"5"})")->prompt.tokens()[0] + 1);
  // A short last piece is not the same token as the piece with zero bytes.
  CHECK(parse_api_request(false, R"({"prompt":"a"})")->prompt.hash() !=
        parse_api_request(false, "{\"prompt\":\"a\\u0000\\u0000\\u0000\"}")->prompt.hash());
}

TEST_CASE("serve: prompts share the units of their common prefix, and no more") {
  const PromptTokens a = ids({1, 2, 3, 4, 5, 6, 7}), b = ids({1, 2, 3, 4, 9, 6, 7});
  const auto of_a = identity_of(a, 1, 3, 2), of_b = identity_of(b, 2, 3, 2);
  REQUIRE(of_a.size() == 5);
  CHECK(of_a[0] == of_b[0]);
  CHECK(of_a[1] == of_b[1]);
  for (size_t i = 2; i < 5; ++i) CHECK(of_a[i].space != of_b[i].space);
  // A prompt that repeats the answer continues it.
  PromptTokens next = a;
  next.add_text(std::string(generated_token(1, 0)) + std::string(generated_token(1, 1)) +
                std::string(generated_token(1, 2)));
  CHECK(identity_of(next, 5, 0, 2) == of_a);
  for (const UnitRun& run : of_a) CHECK((run.space & kPrivateSpace) == 0);
}

TEST_CASE("serve: malformed bodies are named") {
  CHECK(said(false, "{").find("not valid JSON") != std::string::npos);
  CHECK(said(false, R"({"prompt":[1,"a"]})").find("token id \"a\"") != std::string::npos);
  CHECK(said(false, R"({"prompt":[4294967296]})").find("token id 4294967296") != std::string::npos);
  CHECK(said(false, R"({"prompt":"a","max_tokens":2,"min_tokens":3})").find("'min_tokens' is 3") !=
        std::string::npos);
  CHECK(said(true, R"({"messages":[{"role":"user","content":7}]})").find("'messages[0].content'") !=
        std::string::npos);
  const std::pair<const char*, const char*> places[] = {{"{", "line 1, column 2, where it ends"},
                                                        {"", "line 1, column 1, where it ends"},
                                                        {"{\"prompt\":\n 'a'}", "line 2, column 2"}};
  for (const auto& [body, place] : places)
    CHECK_MESSAGE(said(false, body).ends_with(place), said(false, body));
  for (const char* const message :
       {R"({"role":"user"})", R"({"role":"tool","content":null})", R"({"role":"assistant"})"})
    CHECK(said(true, fmt::format(R"({{"messages":[{}]}})", message)) == "'messages[0].content' is missing");
  CHECK(said(true, R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"a"}]}]})") == "");
  CHECK(said(true, R"({"messages":[{"role":"user"}],"tools":{}})").find("'tools'") != std::string::npos);
}

TEST_CASE("serve: events of a stream are chunks of HTTP with valid JSON") {
  ReplyFacts facts;
  facts.chat = facts.include_usage = facts.stops = true;
  facts.model = "a\"b";
  facts.tools = {{"read", R"({"path":"x"})"}};
  const Reply reply(facts);
  std::string out;
  reply.begin_stream(false, engine_header(3), &out);
  CHECK(out.find("\r\nX-Kvtwin-Engine: 3\r\n") != std::string::npos);
  reply.add_token(0, &out);
  reply.end_stream(1, 0, &out);
  size_t at = out.find("\r\n\r\n") + 4;
  std::vector<nlohmann::json> events;
  for (;;) {
    const size_t size = std::stoul(out.substr(at), nullptr, 16);
    at = out.find("\r\n", at) + 2;
    if (size == 0) break;
    const std::string event = out.substr(at, size);
    CHECK(event.starts_with("data: "));
    CHECK(event.ends_with("\n\n"));
    if (event != "data: [DONE]\n\n") events.push_back(nlohmann::json::parse(event.substr(6)));
    at += size + 2;
  }
  REQUIRE(events.size() == 5);
  CHECK(events[0]["model"] == "a\"b");
  CHECK(events[2]["choices"][0]["delta"]["tool_calls"][0]["function"]["name"] == "read");
  CHECK(events[3]["choices"][0]["finish_reason"] == "tool_calls");
  CHECK(events[4]["usage"]["completion_tokens"] == 1);
  CHECK(nlohmann::json::parse(reply.whole(2, 0))["choices"][0]["message"]["content"]
            .get<std::string>()
            .size() == 8);
}

TEST_CASE("serve: an answer to a completion calls no tools") {
  ReplyFacts facts;
  facts.stops = true;
  facts.tools = {{"read", "{}"}};
  for (const bool chat : {false, true}) {
    facts.chat = chat;
    const nlohmann::json whole = nlohmann::json::parse(Reply(facts).whole(2, 0));
    CHECK(whole["choices"][0]["finish_reason"] == (chat ? "tool_calls" : "stop"));
  }
}

TEST_CASE("serve: a request reaches its engine after the front end, unless its client leaves before") {
  const WallClock clock(1000);
  // 10 simulated seconds per request and one per token.
  LiveClient client(
      clock, {.roles = false, .output_tokens_max = 8, .front_end = {10'000'000'000, 1'000'000'000'000}},
      [] {});
  const Instant arrived = clock.now();
  client.submit(request(0, "", arrived));
  client.submit(request(1, "", arrived));
  client.cancel(RequestId{1});
  ClientEvents events;
  client.wake(arrived, &events);
  CHECK(events.empty());
  REQUIRE(client.wake_at() == arrived + Duration{13'000'000'000});
  client.wake(client.wake_at(), &events);
  REQUIRE(events.size() == 1);
  CHECK(ready(events, 0).request == RequestId{0});
}

TEST_CASE("serve: the client waits for the wall clock, sends in order of arrival and ends sessions") {
  const WallClock clock(1000);  // a millisecond is a simulated second
  int notified = 0;
  LiveClient client(clock, {.roles = false, .output_tokens_max = 8}, [&] { ++notified; });
  client.submit(request(0, "", clock.now()));
  client.submit(request(1, "named", clock.now()));
  ClientEvents events;
  client.wake(Instant{0}, &events);
  CHECK(events.empty());  // the simulation continues at the arrival
  const Instant at = client.wake_at();
  REQUIRE(at > Instant{0});
  const Instant later = at + Duration{1'000'000'000};
  client.wake(later, &events);
  REQUIRE(events.size() == 2);
  CHECK(ready(events, 0).session != ready(events, 1).session);
  CHECK(ready(events, 0).triggers.size() == 2);
  CHECK(client.wake_at() == later + Duration{kTick.ns * 1000});
  events.clear();
  client.wake(client.wake_at(), &events);
  CHECK(clock.now() >= client.wake_at() + Duration{-kTick.ns * 1000});
  client.tokens_emitted(later, RequestId{0}, 1, &events);
  client.tokens_emitted(later, RequestId{0}, 2, &events);
  CHECK(notified == 1);  // until the progress is taken
  client.request_finished(later, RequestId{0}, 2, false, &events);
  client.request_finished(later, RequestId{1}, 2, false, &events);
  REQUIRE(events.size() == 1);  // the named session goes on
  CHECK(std::get<SessionHint>(events[0]).kind == SessionHint::Kind::kSessionEnds);
  std::vector<Progress> progress;
  client.take_progress(&progress);
  REQUIRE(progress.size() == 4);
  CHECK(progress[2].kind == Progress::Kind::kFinished);
  client.stop();
  client.wake(client.wake_at(), &events);
  CHECK(client.wake_at() == kNever);
}

TEST_CASE("serve: a chat without a session's name continues the session that it extends") {
  const WallClock clock(1000);
  LiveClient client(clock, {.spans = true, .output_tokens_max = 8}, [] {});
  const std::string first = R"({"role":"user","content":"one question"})";
  const std::string answer = R"({"role":"assistant","content":"an answer"})";
  const std::string chats[] = {first, first + "," + answer + R"(,{"role":"user","content":"more"})",
                               R"({"role":"user","content":"another question"})"};
  for (uint32_t i = 0; i < 3; ++i) {
    auto one = request(i, "", Instant{clock.now().ns + i});
    one->prompt = parse_api_request(true, R"({"messages":[)" + chats[i] + "]}")->prompt;
    client.submit(std::move(one));
  }
  ClientEvents events;
  client.wake(Instant{0}, &events);
  client.wake(client.wake_at() + Duration{1'000'000'000}, &events);
  REQUIRE(events.size() == 3);
  CHECK(ready(events, 0).session == ready(events, 1).session);
  CHECK(ready(events, 0).session != ready(events, 2).session);
  // Role, 3 tokens, end, role of the answer.
  CHECK(ready(events, 0).spans == PromptSpans{1, {1, 4}, {1, 6}});
  // The same up to the answer: 3 tokens and an end; role, 1 token, end, role of the answer.
  CHECK(ready(events, 1).spans == PromptSpans{1, {11, 12}, {9, 14}});
}

TEST_CASE("serve: a request is cancelled once, and what has ended is not") {
  const WallClock clock(1000);
  LiveClient client(clock, {.roles = false, .output_tokens_max = 8}, [] {});
  client.submit(request(0, "", {0}));
  ClientEvents events;
  client.wake({0}, &events);
  REQUIRE(events.size() == 1);
  client.cancel(RequestId{0});
  client.cancel(RequestId{0});
  client.cancel(RequestId{7});
  client.stop();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  events.clear();
  client.wake(clock.now(), &events);
  REQUIRE(events.size() == 1);
  CHECK(std::get<RequestCancelled>(events[0]).request == RequestId{0});
}

TEST_CASE("serve: a trace's session gives lengths and tools") {
  v1::TraceHeader header;
  header.add_tool_names("bash");
  v1::Session session;
  session.set_id("s");
  session.add_nodes()->mutable_llm()->set_output_tokens(7);
  v1::Node* const tool = session.add_nodes();
  tool->add_deps()->set_node(0);
  tool->mutable_tool()->set_tool(1);
  session.add_nodes()->mutable_llm()->set_output_tokens(9);
  TraceReplies replies;
  REQUIRE(replies.header(header));
  REQUIRE(replies.session(session));
  CHECK(replies.next("other") == nullptr);
  const TraceReply* const first = replies.next("s");
  REQUIRE(first != nullptr);
  CHECK(first->output_tokens == 7);
  REQUIRE(first->tools.size() == 1);
  CHECK(first->tools[0].name == "bash");
  CHECK(replies.next("s")->output_tokens == 9);
  CHECK(replies.next("s") == nullptr);
}

TEST_CASE("serve: blocks are stored in chains, and removed when their page is allocated again") {
  const WallClock clock(1000);
  LiveClient client(clock, {.roles = false, .output_tokens_max = 8}, [] {});
  auto sent = request(0, "", {0});
  sent->prompt = ids({1, 2, 3, 4, 5});
  sent->identity = identity_of(sent->prompt, 0, 2, 2);
  const std::vector<UnitRun> identity = sent->identity;
  client.submit(std::move(sent));
  ClientEvents events;
  client.wake({0}, &events);
  CoreConfig config;
  config.page_tokens = config.unit_tokens = 2;
  config.pages_gpu = 10;
  CHECK(KvEvents::describes(config));
  std::vector<KvEventBatch> batches;
  KvEvents kv({config}, client, [&](EngineId, const KvEventBatch& batch) { batches.push_back(batch); });
  const std::vector<PlanEntry> chunk = {
      {.request = RequestId{0}, .kind = EntryKind::kChunk, .first = true, .tokens = 5}};
  const std::vector<PageAllocation> pages = {{0, 0, PageId{4}}, {0, 0, PageId{5}}, {0, 0, PageId{6}}};
  LaunchStep launch;
  launch.entries = chunk;
  launch.allocations = pages;
  kv.saw_command({0}, launch);
  CHECK(batches.empty());  // computed when the step has ended
  const std::vector<PlanEntry> decode = {
      {.request = RequestId{0}, .kind = EntryKind::kDecode, .tokens = 1, .context = 5}};
  launch.entries = decode;
  launch.allocations = {};
  kv.saw_command({0}, launch);
  REQUIRE(batches.size() == 1);
  REQUIRE(batches[0].stored.size() == 2);
  CHECK(batches[0].stored[1].parent == identity[0].space);
  CHECK(batches[0].stored[1].token_ids == std::vector<uint32_t>{3, 4});
  kv.saw_command({0}, DropRequestState{EngineId{0}, RequestId{0}, DropRequestState::Reason::kFinished});
  REQUIRE(batches.size() == 2);  // the third block has the last prompt token and the first generated one
  CHECK(batches[1].stored[0].hash == identity[2].space);
  const std::vector<PlanEntry> other = {
      {.request = RequestId{1}, .kind = EntryKind::kChunk, .first = true, .tokens = 2}};
  const std::vector<PageAllocation> again = {{0, 0, PageId{5}}};
  launch.entries = other;
  launch.allocations = again;
  kv.saw_command({0}, launch);
  REQUIRE(batches.size() == 3);
  CHECK(batches[2].removed == std::vector<uint64_t>{identity[1].space});
  config.policies.layout = "ring";
  CHECK_FALSE(KvEvents::describes(config));
}
