#include <doctest/doctest.h>

#include "tests/unit/replay/fake_backend.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

std::string problem(const std::function<void(v1::Session*)>& spoil,
                    const v1::TraceHeader& header = plain_header(64)) {
  v1::Session session;
  session.set_id("s");
  session.add_spans()->set_tokens(64);
  add_request(&session, 100, 10);
  add_dep(add_tool(&session, kSecond), 0);
  spoil(&session);
  auto client = build(header, {session}, {});
  return client ? "" : client.error().text();
}

std::string invalid_options(const std::function<void(ReplayOptions*)>& spoil,
                            v1::TraceHeader header = plain_header()) {
  ReplayOptions options;
  spoil(&options);
  auto client = build(header, {}, options);
  return client ? "" : client.error().text();
}

}  // namespace

TEST_CASE("a malformed session is named with its node and its value") {
  CHECK(problem([](v1::Session*) {}) == "");
  CHECK(problem([](v1::Session* s) { add_dep(s->mutable_nodes(0), 1); }) ==
        "session 0 \"s\", node 0: waits for node 1; dependencies point backwards");
  CHECK(problem([](v1::Session* s) { s->add_nodes(); }).find("node 2: is neither llm, tool nor opaque") !=
        std::string::npos);
  CHECK(problem([](v1::Session* s) { s->set_arrival_at_ns(-1); }).find("arrival_at_ns is -1") !=
        std::string::npos);
  CHECK(problem([](v1::Session* s) { add_tool(s, -5); }).find("duration_ns is -5") != std::string::npos);
  CHECK(problem([](v1::Session* s) { add_request(s, 10, 10, INT64_MAX); }).find("think_ns is 92233") !=
        std::string::npos);
  CHECK(problem([](v1::Session* s) { add_request(s, UINT32_MAX, 10); }).find("4294967295 prompt") !=
        std::string::npos);
  CHECK(problem([](v1::Session* s) {
          add_dep(add_request(s, 10, 10), 1, 0, 3);
        }).find("which is no request") != std::string::npos);
}

TEST_CASE("a malformed key or span list is refused early, without cost in time or memory") {
  CHECK(problem([](v1::Session* s) {
          set_key(add_request(s, 640, 1), {{1, 11}});
        }).find("at most 10 blocks") != std::string::npos);
  CHECK(problem([](v1::Session* s) {
          set_key(add_request(s, 640, 1), {{1, 5}, {9, UINT32_MAX}});
        }).find("at most 10 blocks") != std::string::npos);
  CHECK(problem(
            [](v1::Session* s) {
              set_key(add_request(s, 640, 1), {{1, 5}});
            },
            plain_header(0))
            .find("block_tokens") != std::string::npos);
  CHECK(problem([](v1::Session* s) {
          v1::BlockKey* key = add_request(s, 640, 1)->mutable_llm()->mutable_prompt_key();
          key->add_first_delta(INT64_MAX);
          key->add_count(2);
        }).find("leaves 64 bits") != std::string::npos);
  CHECK(problem([](v1::Session* s) {
          v1::BlockKey* key = add_request(s, 640, 1)->mutable_llm()->mutable_prompt_key();
          key->add_count(2);
        }).find("0 first_delta, 1 count") != std::string::npos);
  const auto listing = [](uint32_t first, uint32_t count, uint32_t table) {
    return [=](v1::Session* s) {
      v1::SpanRun* run = add_request(s, 640, 1)->mutable_llm()->add_prompt();
      run->set_first(first);
      run->set_count(count);
      run->set_table(table);
    };
  };
  CHECK(problem(listing(0, 1, 0)) == "");
  CHECK(problem(listing(1, 1, 0)).find("session has 1 spans") != std::string::npos);
  CHECK(problem(listing(UINT32_MAX, UINT32_MAX, 0)).find("session has 1 spans") != std::string::npos);
  CHECK(problem(listing(0, UINT32_MAX, 3)) != "");
  CHECK(problem(listing(0, 1, 3)).find("shared table 3, which has 0") != std::string::npos);
}

TEST_CASE("options that are inconsistent, or do not fit the trace, are refused with a remedy") {
  v1::TraceHeader bare;
  CHECK(invalid_options([](ReplayOptions* o) { o->page_tokens = 0; }).find("page_tokens: is 0") == 0);
  CHECK(invalid_options([](ReplayOptions* o) { o->think_scale.den = 0; }).find("think_scale: is 1/0") == 0);
  CHECK(invalid_options([](ReplayOptions* o) { o->tool_scale.num = -1; }).find("tool_scale: is -1/1") == 0);
  CHECK(invalid_options([](ReplayOptions* o) { o->replicas = 0; }).find("replicas: is 0") == 0);
  CHECK(invalid_options([](ReplayOptions* o) {
          o->arrivals = ArrivalMode::kPoisson;
          o->arrivals_per_s.num = 0;
        }).find("arrivals_per_s: is 0/1") == 0);
  CHECK(invalid_options([](ReplayOptions* o) {
          o->arrivals = ArrivalMode::kFixedPopulation;
          o->population = 0;
        }).find("population: is 0") == 0);
  CHECK(invalid_options([](ReplayOptions*) {}, bare).find("poisson") != std::string::npos);
  CHECK(invalid_options(
            [](ReplayOptions* o) {
              o->arrivals = ArrivalMode::kAllAtOnce;
              o->mode = ReplayMode::kOpenLoop;
            },
            bare)
            .find("records no request times") != std::string::npos);
  CHECK(invalid_options([](ReplayOptions* o) { o->arrivals = ArrivalMode::kAllAtOnce; }, bare) == "");
  v1::TraceHeader coarse = plain_header(1u << 20);
  CHECK(invalid_options([](ReplayOptions* o) { o->page_tokens = 16; }, coarse).find("65536 units") !=
        std::string::npos);
}

TEST_CASE("parts in the wrong order are refused") {
  ReplayBuilder builder;
  CHECK_FALSE(builder.session({}).has_value());
  CHECK_FALSE(builder.shared_spans({}).has_value());
  CHECK_FALSE(builder.build({}).has_value());
  CHECK(builder.header(plain_header()).has_value());
  CHECK_FALSE(builder.header(plain_header()).has_value());
  v1::SharedSpanTable table;
  CHECK_FALSE(builder.shared_spans(table).has_value());
  table.set_table(4);
  CHECK(builder.shared_spans(table).has_value());
  CHECK_FALSE(builder.shared_spans(table).has_value());
}

TEST_CASE(
    "the mode is closed loop where there are dependencies, else open loop where there are request times") {
  v1::Session session;
  add_request(&session, 10, 10);
  CHECK((*build(plain_header(), {session}, {}))->mode() == ReplayMode::kOpenLoop);
  add_dep(add_request(&session, 10, 10), 0);
  CHECK((*build(plain_header(), {session}, {}))->mode() == ReplayMode::kClosedLoop);
}

TEST_CASE("absent token counts are those of the spans, and an output has at least one token") {
  v1::Session session;
  session.add_spans()->set_tokens(70);
  session.add_spans()->set_tokens(30);
  v1::LlmRequest* request = add_request(&session, 0, 0)->mutable_llm();
  request->add_prompt()->set_count(2);
  request->mutable_prompt(0)->set_keep_tokens(20);
  request->add_output()->set_first(1);
  request->mutable_output(0)->set_count(1);
  add_request(&session, 10, 0);
  auto client = build(plain_header(), {session}, {});
  REQUIRE(client.has_value());
  CHECK((*client)->table().nodes[0].prompt_tokens == 90);
  CHECK((*client)->table().nodes[0].output_tokens == 30);
  CHECK((*client)->table().nodes[1].output_tokens == 1);
}
