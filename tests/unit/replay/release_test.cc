#include <doctest/doctest.h>

#include "tests/unit/replay/fake_backend.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

FakeBackend replay(const std::vector<v1::Session>& sessions, ReplayOptions options = {},
                   std::function<void(FakeBackend*)> set_up = {}, ReplayReport* report = nullptr) {
  auto client = build(plain_header(), sessions, options);
  REQUIRE_MESSAGE(client.has_value(), client.error().text());
  FakeBackend backend;
  if (set_up) set_up(&backend);
  backend.run(client->get());
  if (report != nullptr) *report = (*client)->report();
  return backend;
}

// request 0 (1 s) -> tool (2 s) -> request 2 with 10 s of think time, which also waits for request 0.
v1::Session tool_session() {
  v1::Session session;
  session.set_id("tool");
  session.set_arrival_at_ns(5 * kSecond);
  add_request(&session, 100, 10)->set_start_offset_ns(kSecond);
  add_dep(add_tool(&session, 2 * kSecond), 0, kSecond / 2);
  v1::Node* last = add_request(&session, 120, 10, 10 * kSecond);
  add_dep(last, 0);
  add_dep(last, 1);
  return session;
}

std::vector<int64_t> times(const FakeBackend& backend) {
  std::vector<int64_t> at;
  for (const Sent& sent : backend.sent) at.push_back(sent.at.ns);
  return at;
}

}  // namespace

TEST_CASE("requests are numbered by their place in the session, not by when they are sent") {
  v1::Session session;
  add_request(&session, 100, 10)->set_start_offset_ns(3 * kSecond);
  add_dep(add_tool(&session, kSecond), 0);
  add_request(&session, 100, 10)->set_start_offset_ns(2 * kSecond);
  add_request(&session, 100, 10)->set_start_offset_ns(kSecond);
  auto client = build(plain_header(), {session, session}, {});
  REQUIRE(client.has_value());
  ClientEvents events;
  std::vector<RequestKey> sent;
  for (Instant at = (*client)->wake_at(); at < kNever; at = (*client)->wake_at()) {
    events.clear();
    (*client)->wake(at, &events);
    for (const Event& event : events) {
      if (const auto* ready = std::get_if<RequestReady>(&event)) sent.push_back(ready->key());
    }
  }
  std::vector<RequestKey> expected;
  for (const uint32_t index : {2, 1, 0}) {
    for (const uint32_t of : {0, 1}) expected.push_back({SessionId{of}, index});
  }
  CHECK(sent == expected);
}

TEST_CASE("a request is released its think time after the last dependency, delays and tool time included") {
  const FakeBackend backend = replay({tool_session()});
  // Root at 5 + 1; done at 7; tool from 7.5 to 9.5; think time 10.
  CHECK(times(backend) == std::vector<int64_t>{6 * kSecond, 19'500'000'000});
  REQUIRE(backend.ended.size() == 1);
  CHECK(backend.ended[0].first.ns == 20'500'000'000);
}

TEST_CASE("each scale stretches its own kind of time, and the cap exempts tools where tools are known") {
  ReplayOptions options;
  options.arrival_scale = {1, 5};  // arrival at 1 s; start_offset is not scaled as an arrival
  options.tool_scale = {3, 2};     // 3 s
  options.delay_scale = {2, 1};    // 1 s
  options.think_scale = {1, 2};    // 5 s
  CHECK(times(replay({tool_session()}, options)) == std::vector<int64_t>{2 * kSecond, 12 * kSecond});
  options.think_cap = Duration{kSecond};
  CHECK(times(replay({tool_session()}, options)) == std::vector<int64_t>{2 * kSecond, 8 * kSecond});
}

TEST_CASE(
    "successors without delay are sent at the same instant, in node order, after all their dependencies") {
  v1::Session session;
  add_request(&session, 100, 10);
  for (int i = 0; i < 3; ++i) add_dep(add_request(&session, 100, 10), 0);
  v1::Node* join = add_request(&session, 100, 10);
  for (uint32_t i = 1; i < 4; ++i) add_dep(join, i);
  const FakeBackend backend = replay({session}, {}, [](FakeBackend* w) {
    w->service = [](const ReplayRequestInfo& request) { return (5 - int64_t{request.node}) * kSecond; };
  });
  REQUIRE(backend.sent.size() == 5);
  for (uint32_t i = 0; i < 5; ++i) CHECK(backend.sent[i].request.node == i);
  CHECK(times(backend) == std::vector<int64_t>{0, 5 * kSecond, 5 * kSecond, 5 * kSecond, 9 * kSecond});
}

TEST_CASE("a sub-agent is spawned after its parent's request and joined by the parent's next one") {
  v1::Session session;
  session.add_agents()->set_name("main");
  session.add_agents()->set_name("explore");
  add_request(&session, 100, 10);
  v1::Node* inner = add_request(&session, 50, 10);
  inner->set_agent(1);
  add_dep(inner, 0, kSecond, 0, v1::DEP_SPAWN);
  v1::Node* second = add_request(&session, 60, 10);
  second->set_agent(1);
  add_dep(second, 1);
  v1::Node* opaque = session.add_nodes();
  opaque->mutable_opaque()->set_duration_ns(10 * kSecond);
  add_dep(opaque, 0, 0, 0, v1::DEP_SPAWN);
  v1::Node* join = add_request(&session, 200, 10);
  add_dep(join, 0, 0, 0, v1::DEP_CONTROL);
  add_dep(join, 2, kSecond, 0, v1::DEP_JOIN);
  add_dep(join, 3, 0, 0, v1::DEP_JOIN);
  const FakeBackend backend = replay({session});
  CHECK(times(backend) == std::vector<int64_t>{0, 2 * kSecond, 3 * kSecond, 11 * kSecond});
  CHECK(backend.sent[1].request.agent == 1);
}

TEST_CASE("a background tool delays only the nodes that list it, and the session's end") {
  v1::Session session;
  add_request(&session, 100, 10);
  add_dep(add_tool(&session, 100 * kSecond, true), 0);
  add_dep(add_request(&session, 100, 10), 0);
  const FakeBackend backend = replay({session});
  CHECK(times(backend) == std::vector<int64_t>{0, kSecond});
  CHECK(backend.ended[0].first.ns == 101 * kSecond);
}

TEST_CASE(
    "abort_after_tokens cancels the request there, and its successors continue from the request's end") {
  v1::Session session;
  add_request(&session, 100, 10)->mutable_llm()->set_abort_after_tokens(3);
  add_dep(add_request(&session, 100, 10), 0);
  ReplayReport report;
  const FakeBackend backend = replay({session}, {}, {}, &report);
  CHECK(backend.sent[0].triggers == std::vector<uint32_t>{3});
  REQUIRE(backend.cancelled.size() == 1);
  CHECK(backend.cancelled[0].first.ns == 3 * kSecond / 10);
  CHECK(times(backend) == std::vector<int64_t>{0, 3 * kSecond / 10});
  CHECK(report.requests_aborted == 1);
  CHECK(report.requests_finished == 1);
  CHECK(report.sessions_failed == 0);
}

TEST_CASE("a rejected request cancels its dependants only") {
  v1::Session session;
  add_request(&session, 100, 10);
  add_dep(add_request(&session, 999, 10), 0);           // rejected
  add_dep(add_request(&session, 100, 10, kSecond), 0);  // independent of it
  add_dep(add_tool(&session, 5 * kSecond), 1);
  add_dep(add_request(&session, 100, 10), 3);
  v1::Node* both = add_request(&session, 100, 10);
  add_dep(both, 2);
  add_dep(both, 4);
  const auto reject_long = [](FakeBackend* w) {
    w->rejects = [](const ReplayRequestInfo& request) { return request.prompt_tokens == 999; };
  };
  ReplayReport report;
  ReplayOptions options;
  const FakeBackend failed = replay({session}, options, reject_long, &report);
  CHECK(times(failed) == std::vector<int64_t>{0, kSecond, 2 * kSecond});
  CHECK(failed.ended[0].first.ns == 3 * kSecond);
  CHECK(report.sessions_failed == 1);
  CHECK(report.requests_rejected == 1);
  CHECK(report.requests_cancelled == 2);
  CHECK(report.requests_total ==
        report.requests_finished + report.requests_rejected + report.requests_cancelled);

  options.on_reject = RejectPolicy::kSkipRequest;
  const FakeBackend skipped = replay({session}, options, reject_long, &report);
  CHECK(times(skipped) == std::vector<int64_t>{0, kSecond, 2 * kSecond, 6 * kSecond, 7 * kSecond});
  CHECK(report.sessions_failed == 0);
  CHECK(report.requests_cancelled == 0);
}

TEST_CASE("a retry follows a backoff that doubles, under a new id, until the tries are used up") {
  v1::Session session;
  add_request(&session, 999, 10);
  ReplayOptions options;
  options.on_reject = RejectPolicy::kRetry;
  options.retries_max = 3;
  options.retry_backoff = Duration{kSecond};
  ReplayReport report;
  const FakeBackend backend = replay(
      {session}, options, [](FakeBackend* w) { w->rejects = [](const ReplayRequestInfo&) { return true; }; },
      &report);
  REQUIRE(backend.sent.size() == 4);
  for (uint32_t i = 0; i < 4; ++i) CHECK(backend.sent[i].request.attempt == i);
  for (uint32_t i = 1; i < 4; ++i) {
    const int64_t wait = times(backend)[i] - times(backend)[i - 1];
    CHECK(wait >= (kSecond << (i - 1)) / 2);
    CHECK(wait <= kSecond << (i - 1));
  }
  CHECK(report.requests_retried == 3);
  CHECK(report.requests_rejected == 4);
  CHECK(report.sessions_failed == 1);
  CHECK(backend.ended.size() == 1);
}

// 16 tries with an hour before the first: the longest wait is below 2^57 ns, so doubling never overflows.
TEST_CASE("a retry's backoff doubles without overflow up to the limit of the options") {
  v1::Session session;
  add_request(&session, 999, 10);
  ReplayOptions options;
  options.on_reject = RejectPolicy::kRetry;
  options.retries_max = 16;
  options.retry_backoff = Duration{3'600 * kSecond};
  ReplayReport report;
  const FakeBackend backend = replay(
      {session}, options, [](FakeBackend* w) { w->rejects = [](const ReplayRequestInfo&) { return true; }; },
      &report);
  REQUIRE(backend.sent.size() == 17);
  for (uint32_t i = 1; i < 17; ++i) {
    const int64_t wait = times(backend)[i] - times(backend)[i - 1];
    CHECK(wait >= 3'600 * kSecond / 2 * (int64_t{1} << (i - 1)));
    CHECK(wait <= 3'600 * kSecond * (int64_t{1} << (i - 1)));
  }
  options.retries_max = 17;
  CHECK(!validate(options));
  options.retries_max = 16;
  options.retry_backoff.ns += 1;
  CHECK(!validate(options));
}

TEST_CASE("open loop sends at recorded times regardless of completions, and counts the early ones") {
  v1::Session session;
  session.set_arrival_at_ns(10 * kSecond);
  for (const int64_t at : {10, 12, 15}) {
    v1::Node* request = add_request(&session, 100, 10, 77 * kSecond);
    request->mutable_llm()->set_recorded_at_ns(at * kSecond);
    if (session.nodes_size() > 1) add_dep(request, static_cast<uint32_t>(session.nodes_size()) - 2, kSecond);
  }
  const auto slow = [](FakeBackend* w) {
    w->service = [](const ReplayRequestInfo&) { return 3 * kSecond - 1; };
  };
  ReplayReport report;
  ReplayOptions options;
  options.mode = ReplayMode::kOpenLoop;
  CHECK(times(replay({session}, options, slow, &report)) ==
        std::vector<int64_t>{10 * kSecond, 12 * kSecond, 15 * kSecond});
  CHECK(report.causality_violations == 1);
  options.arrival_scale = {1, 2};
  CHECK(times(replay({session}, options, slow, &report)) ==
        std::vector<int64_t>{5 * kSecond, 6 * kSecond, 15 * kSecond / 2});
  CHECK(report.causality_violations == 2);
  options.arrival_scale = {};
  options.mode = ReplayMode::kGuardedOpen;
  CHECK(times(replay({session}, options, slow, &report)) ==
        std::vector<int64_t>{10 * kSecond, 13 * kSecond - 1, 16 * kSecond - 2});
  CHECK(report.causality_violations == 0);
}

TEST_CASE("a late wake changes the time of notification, not the due time") {
  auto client = build(plain_header(), {tool_session()}, {});
  REQUIRE(client.has_value());
  ClientEvents events;
  (*client)->wake(Instant{8 * kSecond}, &events);
  REQUIRE(events.size() == 1);
  CHECK((*client)->request_info(RequestId{0}).ready.ns == 6 * kSecond);
  events.clear();
  (*client)->request_finished(Instant{9 * kSecond}, RequestId{0}, 10, false, &events);
  CHECK(events.empty());
  CHECK((*client)->wake_at().ns == 9'500'000'000);
  (*client)->wake(Instant{100 * kSecond}, &events);
  REQUIRE(events.size() == 1);
  CHECK((*client)->request_info(RequestId{1}).ready.ns == 21'500'000'000);
  CHECK((*client)->wake_at() == kNever);
}

TEST_CASE("waits and tokens are reported by the source of their numbers") {
  v1::TraceHeader header = plain_header();
  const auto policy = [&](const char* field, v1::Prov prov) {
    v1::FieldPolicy* entry = header.add_policies();
    entry->set_field(field);
    entry->set_prov(prov);
  };
  policy("LlmRequest.prompt_tokens", v1::RECORDED);
  policy("LlmRequest.output_tokens", v1::ESTIMATED);
  policy("LlmRequest.think_ns", v1::DERIVED);
  policy("ToolCall.duration_ns", v1::SYNTHESISED);
  policy("Dep.delay_ns", v1::UNKNOWN);
  v1::Session session = tool_session();
  v1::ProvOverride* override = session.mutable_nodes(2)->add_prov();
  override->set_field(v1::LlmRequest::kPromptTokensFieldNumber);
  override->set_prov(v1::ESTIMATED);
  auto client = build(header, {session}, {});
  REQUIRE(client.has_value());
  FakeBackend().run(client->get());
  const ReplayReport& report = (*client)->report();
  CHECK(report.prompt_tokens.sourced() == 100);
  CHECK(report.prompt_tokens.made() == 120);
  CHECK(report.output_tokens.made() == 20);
  CHECK(report.wait_ns.by[static_cast<size_t>(Provenance::kDerived)] == 10 * kSecond);
  CHECK(report.wait_ns.by[static_cast<size_t>(Provenance::kSynthesised)] == 2 * kSecond);
  CHECK(report.wait_ns.by[static_cast<size_t>(Provenance::kUnknown)] == kSecond / 2);
}
