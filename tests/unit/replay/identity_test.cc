#include <doctest/doctest.h>

#include <numeric>

#include "tests/unit/replay/fake_backend.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

// Replays the sessions in sequence and returns the request that each (session, node) sent.
std::vector<Sent> sent_of(const v1::TraceHeader& header, const std::vector<v1::Session>& sessions,
                          uint32_t page_tokens, const std::vector<v1::SharedSpanTable>& tables = {},
                          uint32_t replicas = 1) {
  ReplayOptions options;
  options.page_tokens = page_tokens;
  options.replicas = replicas;
  auto client = build(header, sessions, options, tables);
  REQUIRE_MESSAGE(client.has_value(), client.error().text());
  FakeBackend backend;
  backend.run(client->get());
  std::sort(backend.sent.begin(), backend.sent.end(), [](const Sent& a, const Sent& b) {
    return std::pair{raw(a.request.session), a.request.node} <
           std::pair{raw(b.request.session), b.request.node};
  });
  for (const Sent& sent : backend.sent) {
    const uint32_t units =
        (sent.request.prompt_tokens + sent.request.output_tokens) / (*client)->unit_tokens();
    CHECK(unit_count(sent.identity) == units);
    for (size_t i = 0; i + 1 < sent.identity.size(); ++i) CHECK(sent.identity[i].count > 0);
  }
  return backend.sent;
}

v1::Span* add_span(v1::Session* session, uint32_t tokens) {
  v1::Span* span = session->add_spans();
  span->set_tokens(tokens);
  return span;
}

void add_token_span(v1::Session* session, const std::vector<uint32_t>& ids,
                    v1::Scope scope = v1::SCOPE_GLOBAL) {
  v1::Span* span = add_span(session, static_cast<uint32_t>(ids.size()));
  span->mutable_token_ids()->Assign(ids.begin(), ids.end());
  span->set_scope(scope);
}

void list_spans(google::protobuf::RepeatedPtrField<v1::SpanRun>* runs, uint32_t first, uint32_t count,
                uint32_t table = 0, uint32_t keep = 0) {
  v1::SpanRun* run = runs->Add();
  run->set_first(first);
  run->set_count(count);
  run->set_table(table);
  run->set_keep_tokens(keep);
}

std::vector<uint32_t> numbers(uint32_t first, uint32_t count) {
  std::vector<uint32_t> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

}  // namespace

TEST_CASE("a unit is the greatest common divisor of hash block and page") {
  for (const auto& [block, page, unit] :
       {std::tuple{64u, 16u, 16u}, {64u, 64u, 64u}, {512u, 48u, 16u}, {0u, 16u, 16u}, {64u, 128u, 64u}}) {
    ReplayOptions options;
    options.page_tokens = page;
    auto client = build(plain_header(block), {}, options);
    REQUIRE(client.has_value());
    CHECK((*client)->unit_tokens() == unit);
  }
}

TEST_CASE("positions without an identity belong to the request alone") {
  v1::Session session;
  set_key(add_request(&session, 128, 128), {{1, 2}});
  set_key(add_request(&session, 128, 128), {{1, 2}});
  add_request(&session, 128, 128);
  const auto sent = sent_of(plain_header(64), {session, session}, 64);
  CHECK(common(sent[0], sent[1]) == 2);
  CHECK(sent[0].identity.back().count == 2);
  CHECK(sent[0].identity.back().space != sent[1].identity.back().space);
  CHECK(sent[2].identity.size() == 1);
  CHECK(sent[2].identity[0].space != sent[5].identity[0].space);
}

TEST_CASE("ids are compared within their scope: session, data set, everywhere, nowhere") {
  for (const auto& [scope, shared, cloned] : {std::tuple{v1::SCOPE_NONE, 0u, 0u},
                                              {v1::SCOPE_SESSION, 0u, 0u},
                                              {v1::SCOPE_DATASET, 10u, 0u},
                                              {v1::SCOPE_GLOBAL, 10u, 10u}}) {
    CAPTURE(static_cast<int>(scope));
    v1::Session session;
    set_key(add_request(&session, 640, 1), {{1, 10}}, scope);
    const auto sent = sent_of(plain_header(64), {session, session}, 64, {}, 2);
    REQUIRE(sent.size() == 4);
    CHECK(common(sent[0], sent[1]) == shared);
    CHECK(common(sent[0], sent[2]) == cloned);
    CHECK(common(sent[0], sent[0]) == 10);
  }
}

TEST_CASE("a hashed tail is shared only if both keys are equal") {
  v1::Session session;
  set_key(add_request(&session, 1000, 100), {{0, 2}}, v1::SCOPE_DATASET);          // tail: 488 of block 1
  set_key(add_request(&session, 1000, 100), {{0, 2}}, v1::SCOPE_DATASET);          // equal key
  set_key(add_request(&session, 1500, 100), {{0, 1}, {9, 2}}, v1::SCOPE_DATASET);  // continues differently
  set_key(add_request(&session, 2000, 100), {{0, 4}}, v1::SCOPE_DATASET);          // id 1 as a full block
  const auto sent = sent_of(plain_header(512, true), {session}, 16);
  CHECK(common(sent[0], sent[1]) == 1000 / 16);
  CHECK(common(sent[0], sent[2]) == 512 / 16);
  CHECK(common(sent[0], sent[3]) == 512 / 16);
  // With the source's block as the page, a tail has no whole unit.
  const auto coarse = sent_of(plain_header(512, true), {session}, 512);
  CHECK(common(coarse[0], coarse[1]) == 1);
}

TEST_CASE("a full last block of a rounded-up source is an ordinary block") {
  v1::Session session;
  set_key(add_request(&session, 1024, 512), {{0, 2}}, v1::SCOPE_DATASET);
  set_key(add_request(&session, 2000, 100), {{0, 4}}, v1::SCOPE_DATASET);
  const auto sent = sent_of(plain_header(512, true), {session}, 512);
  CHECK(common(sent[0], sent[1]) == 3);  // the output of the first is block 2 of the second
}

TEST_CASE("unchained ids are shared only after equal prefixes") {
  v1::TraceHeader header = plain_header(64);
  header.set_block_ids_chained(false);
  v1::Session session;
  set_key(add_request(&session, 320, 64), {{1, 5}});
  set_key(add_request(&session, 320, 1),
          {{1, 2}, {9, 1}, {4, 2}});  // blocks 4, 5 at the same positions, after another prefix
  set_key(add_request(&session, 448, 1), {{1, 2}, {3, 2}, {5, 3}});  // the first request's key, in other runs
  const auto sent = sent_of(header, {session}, 64);
  CHECK(common(sent[0], sent[1]) == 2);
  CHECK(common(sent[0], sent[2]) == 6);
  for (const UnitRun& a : sent[1].identity) {
    for (const UnitRun& b : sent[0].identity) {
      if (a.space != b.space || a.first < 2) continue;
      const bool overlap = a.first < b.first + b.count && b.first < a.first + a.count;
      CHECK((!overlap || a.first == b.first));
    }
  }
}

TEST_CASE("ids of any size stay distinct or equal as they are") {
  v1::Session session;
  const std::vector<int64_t> firsts = {0,  (1 << 20) - 2, (int64_t{1} << 51) - 2, INT64_MAX - 10,
                                       -5, INT64_MIN + 3};
  for (const int64_t first : firsts) {
    for (const uint32_t count : {4u, 3u}) {
      v1::Node* node = add_request(&session, count * 64, 1);
      v1::BlockKey* key = node->mutable_llm()->mutable_prompt_key();
      key->set_default_scope(v1::SCOPE_SESSION);
      key->add_first_delta(first);
      key->add_count(count);
    }
  }
  const auto sent = sent_of(plain_header(64), {session}, 16);
  for (size_t i = 0; i < sent.size(); ++i) {
    for (size_t j = 0; j < sent.size(); ++j) {
      if (i / 2 == j / 2) {
        CHECK(common(sent[i], sent[j]) == (i == j && i % 2 == 0 ? 16 : 12));
      } else {
        CHECK(common(sent[i], sent[j]) == 0);
      }
    }
  }
}

TEST_CASE("token ids are compared one by one, however they are split into spans") {
  v1::Session a;
  add_token_span(&a, numbers(0, 100));
  list_spans(add_request(&a, 100, 1)->mutable_llm()->mutable_prompt(), 0, 1);
  v1::Session b;
  add_token_span(&b, numbers(0, 37));
  add_token_span(&b, numbers(37, 53));  // the same up to token 90
  add_token_span(&b, numbers(500, 30));
  list_spans(add_request(&b, 120, 1)->mutable_llm()->mutable_prompt(), 0, 3);
  v1::Session c;
  add_token_span(&c, numbers(1, 100));  // the same ids, shifted by one position
  list_spans(add_request(&c, 100, 1)->mutable_llm()->mutable_prompt(), 0, 1);
  for (const uint32_t page : {1u, 16u, 64u}) {
    CAPTURE(page);
    const auto sent = sent_of(plain_header(), {a, b, c}, page);
    CHECK(common(sent[0], sent[1]) == 90 / page);
    CHECK(common(sent[0], sent[2]) == 0);
    if (page == 16) CHECK(sent[0].identity.size() == 1);  // numbered in the order of first occurrence
  }
}

TEST_CASE("spans without content are equal only by their place among the spans, outputs included") {
  v1::Session session;
  for (const uint32_t tokens : {100u, 60u, 300u, 60u}) add_span(&session, tokens);
  v1::Node* first = add_request(&session, 100, 60);
  list_spans(first->mutable_llm()->mutable_prompt(), 0, 1);
  list_spans(first->mutable_llm()->mutable_output(), 1, 1);
  v1::Node* second = add_request(&session, 460, 10);
  list_spans(second->mutable_llm()->mutable_prompt(), 0, 3);
  v1::Node* dropped = add_request(&session, 400, 10);  // without the first output
  list_spans(dropped->mutable_llm()->mutable_prompt(), 0, 1);
  list_spans(dropped->mutable_llm()->mutable_prompt(), 2, 1);
  v1::Node* cut = add_request(&session, 280, 10);  // 120 tokens of span 2
  list_spans(cut->mutable_llm()->mutable_prompt(), 0, 3, 0, 120);
  for (int node = 1; node < 4; ++node) add_dep(session.mutable_nodes(node), static_cast<uint32_t>(node) - 1);
  const auto sent = sent_of(plain_header(), {session, session}, 16);
  CHECK(common(sent[0], sent[1]) == 160 / 16);
  CHECK(common(sent[1], sent[2]) == 100 / 16);
  CHECK(common(sent[1], sent[3]) == 280 / 16);
  CHECK(common(sent[0], sent[4]) == 0);
}

TEST_CASE("content hashes are compared within their scope, and shared tables everywhere") {
  v1::SharedSpanTable table;
  table.set_table(1);
  table.add_spans()->set_tokens(160);
  for (const auto& [scope, shared, cloned] : {std::tuple{v1::SCOPE_NONE, 10u, 10u},
                                              {v1::SCOPE_SESSION, 10u, 10u},
                                              {v1::SCOPE_DATASET, 20u, 10u},
                                              {v1::SCOPE_GLOBAL, 20u, 20u}}) {
    CAPTURE(static_cast<int>(scope));
    v1::Session session;
    v1::Span* span = add_span(&session, 160);
    span->set_content_hash("0123456789abcdef");
    span->set_scope(scope);
    v1::Node* request = add_request(&session, 320, 1);
    list_spans(request->mutable_llm()->mutable_prompt(), 0, 1, 1);
    list_spans(request->mutable_llm()->mutable_prompt(), 0, 1);
    const auto sent = sent_of(plain_header(), {session, session}, 16, {table}, 2);
    CHECK(common(sent[0], sent[1]) == shared);
    CHECK(common(sent[0], sent[2]) == cloned);
  }
}

TEST_CASE("prompt_tokens overrides the spans") {
  v1::Session session;
  add_span(&session, 100);
  list_spans(add_request(&session, 64, 16)->mutable_llm()->mutable_prompt(), 0, 1);   // fewer than its spans
  list_spans(add_request(&session, 160, 16)->mutable_llm()->mutable_prompt(), 0, 1);  // more
  list_spans(add_request(&session, 160, 16)->mutable_llm()->mutable_prompt(), 0, 1);
  const auto sent = sent_of(plain_header(), {session}, 16);
  CHECK(common(sent[1], sent[2]) == 6);
  CHECK(common(sent[0], sent[1]) == 5);  // the first's output is in the second's prompt
}
