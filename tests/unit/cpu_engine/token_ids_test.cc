#include "engine/common/token_ids.h"

#include <doctest/doctest.h>

#include <set>

#include "engine/chat/chat_renderer.h"

using namespace kvtwin;

namespace {

// Sends all its requests at the first wake.
class OneShot final : public Client {
 public:
  explicit OneShot(std::vector<RequestReady> requests) : requests_(std::move(requests)) {}
  Instant wake_at() const override { return kNever; }
  void wake(Instant, ClientEvents* events) override {
    for (const RequestReady& request : requests_) events->push_back(request);
  }
  void tokens_emitted(Instant, RequestId, uint32_t, ClientEvents*) override {}
  void request_finished(Instant, RequestId, uint32_t, bool, ClientEvents*) override {}
  void request_rejected(Instant, RequestId, ClientEvents*) override {}

 private:
  const std::vector<RequestReady> requests_;
};

}  // namespace

TEST_CASE("token ids: equal identities are equal tokens, different ones differ, and all are ordinary") {
  const std::vector<UnitRun> a = {{5, 100, 3}, {6, 0, 2}}, b = {{5, 101, 2}, {5, 104, 1}, {6, 1, 1}};
  OneShot client(
      {{.request = RequestId{0}, .prompt_tokens = 40, .output_tokens = 10, .identity = a, .triggers = {}},
       {.request = RequestId{1},
        .prompt_tokens = 32,
        .output_tokens = 10,
        .identity = b,
        .triggers = {},
        .index = 1}});
  cpu::IdentityTokens tokens({.seed = 9, .unit_tokens = 8, .vocab = 4096});
  ClientEvents events;
  tokens.watch(&client)->wake({}, &events);
  REQUIRE(events.size() == 2);
  CHECK(tokens.prompt_tokens(RequestId{0}) == 40);
  const auto unit = [&](uint32_t request, uint32_t index) {
    std::vector<uint32_t> out;
    for (uint32_t i = 0; i < 8; ++i) out.push_back(tokens.token(RequestId{request}, index * 8 + i));
    return out;
  };
  CHECK(unit(0, 1) == unit(1, 0));  // 5:101
  CHECK(unit(0, 2) == unit(1, 1));  // 5:102
  CHECK(unit(0, 4) == unit(1, 3));  // 6:1
  CHECK(unit(0, 0) != unit(1, 0));
  CHECK(unit(0, 3) != unit(1, 3));  // 6:0
  CHECK(unit(0, 5) != unit(1, 5));  // after the last run: private to the request
  std::set<uint32_t> seen;
  for (uint32_t request = 0; request < 2; ++request) {
    for (uint32_t position = 0; position < 42; ++position) {
      const uint32_t id = tokens.token(RequestId{request}, position);
      CHECK(id >= 512);  // an eighth of the vocabulary
      CHECK(id < 4032);  // all but the last 64th
      seen.insert(id);
    }
  }
  CHECK(seen.size() > 40);
}

TEST_CASE("token ids: given ids are used, and content among them is drawn as without them") {
  const std::vector<UnitRun> a = {{5, 100, 3}};
  OneShot client(
      {{.request = RequestId{0}, .prompt_tokens = 20, .output_tokens = 4, .identity = a, .triggers = {}}});
  const cpu::TokenIdOptions plain{.seed = 9, .unit_tokens = 8, .vocab = 4096};
  cpu::TokenIdOptions options = plain;
  options.given = [](RequestId) { return std::vector<uint32_t>{4090, 3, kContentToken, kContentToken, 17}; };
  cpu::IdentityTokens tokens(options), drawn(plain);
  ClientEvents events;
  tokens.watch(&client)->wake({}, &events);
  drawn.watch(&client)->wake({}, &events);
  CHECK(tokens.token(RequestId{0}, 0) == 4090);
  CHECK(tokens.token(RequestId{0}, 4) == 17);
  for (const uint32_t position : {2u, 3u, 5u, 23u})
    CHECK(tokens.token(RequestId{0}, position) == drawn.token(RequestId{0}, position));
  CHECK(cpu::ordinary_ids(4096).contains(512));
  CHECK(!cpu::ordinary_ids(4096).contains(511));
  CHECK(cpu::ordinary_ids(4096).contains(4031));
  CHECK(!cpu::ordinary_ids(4096).contains(4032));
}

TEST_CASE("token ids: private outputs have no identity") {
  const std::vector<UnitRun> a = {{5, 100, 3}, {6, 0, 2}};
  OneShot client(
      {{.request = RequestId{0}, .prompt_tokens = 30, .output_tokens = 10, .identity = a, .triggers = {}}});
  cpu::IdentityTokens tokens({.unit_tokens = 8, .vocab = 64, .outputs_unknown = true});
  ClientEvents events;
  Client* const watched = tokens.watch(&client);
  watched->wake({}, &events);
  const auto sent = std::get<RequestReady>(events.at(0)).identity;
  CHECK(std::vector<UnitRun>(sent.begin(), sent.end()) == std::vector<UnitRun>{{5, 100, 3}});
  watched->request_finished({}, RequestId{0}, 10, false, &events);
}
