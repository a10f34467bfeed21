#include <doctest/doctest.h>

#include <cmath>

#include "engine/base/prng.h"
#include "tests/unit/replay/fake_backend.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

std::vector<v1::Session> sessions(int count, int requests = 1) {
  std::vector<v1::Session> made;
  for (int i = 0; i < count; ++i) {
    v1::Session session;
    session.set_arrival_at_ns((count - i) * kSecond);  // the file is not in order of time
    for (int k = 0; k < requests; ++k) {
      v1::Node* node = add_request(&session, 100, 10);
      if (k > 0) add_dep(node, static_cast<uint32_t>(k) - 1);
    }
    made.push_back(session);
  }
  return made;
}

std::vector<uint32_t> order(const FakeBackend& backend) {
  std::vector<uint32_t> ids;
  for (const Sent& sent : backend.sent) ids.push_back(raw(sent.request.session));
  return ids;
}

}  // namespace

TEST_CASE("recorded sessions start in order of arrival, and equal ones in file order") {
  auto trace = sessions(4);
  trace[0].set_arrival_at_ns(2 * kSecond);
  auto client = build(plain_header(), trace, {});
  REQUIRE(client.has_value());
  CHECK((*client)->wake_at().ns == kSecond);
  FakeBackend backend;
  backend.run(client->get());
  CHECK(order(backend) == std::vector<uint32_t>{3, 0, 2, 1});
}

TEST_CASE("a fixed population starts each session once, in file order, when another ends, and drains") {
  ReplayOptions options;
  options.arrivals = ArrivalMode::kFixedPopulation;
  options.population = 3;
  options.replicas = 2;
  v1::TraceHeader header = plain_header();
  header.set_session_arrivals(v1::ARR_NONE);
  auto client = build(header, sessions(5, 2), options);
  REQUIRE(client.has_value());
  FakeBackend backend;
  backend.service = [](const ReplayRequestInfo& request) {
    return (1 + int64_t{raw(request.session)} % 3) * kSecond;
  };
  backend.run(client->get());
  CHECK(backend.live_most == 3);
  CHECK(backend.ended.size() == 10);
  CHECK((*client)->report().sessions_ended == 10);
  CHECK((*client)->report().requests_finished == 20);
  std::vector<uint32_t> first;
  for (const Sent& sent : backend.sent) {
    if (sent.request.node == 0) first.push_back(raw(sent.request.session));
  }
  CHECK(first == std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(backend.sent[3].at.ns == kSecond);                 // the second request of session 0
  CHECK(backend.sent[5].request.session == SessionId{3});  // when session 0 has ended
  CHECK(backend.sent[5].at.ns == 2 * kSecond);
}

TEST_CASE("all at once starts every session at once, and max_requests keeps the head of the file") {
  ReplayOptions options;
  options.arrivals = ArrivalMode::kAllAtOnce;
  options.requests_max = 5;
  auto client = build(plain_header(), sessions(4, 2), options);
  REQUIRE(client.has_value());
  FakeBackend backend;
  backend.run(client->get());
  CHECK(order(backend) == std::vector<uint32_t>{0, 1, 2, 0, 1});
  CHECK(backend.sent[2].at.ns == 0);
  CHECK(backend.ended.size() == 3);
  CHECK((*client)->report().requests_total == 5);

  options.requests_max = 0;
  options.sessions_max = 2;
  client = build(plain_header(), sessions(4, 2), options);
  REQUIRE(client.has_value());
  FakeBackend two;
  two.run(client->get());
  CHECK(two.sent.size() == 4);
}

TEST_CASE("poisson gaps have the requested rate and spread, and depend on the seed alone") {
  ReplayOptions options;
  options.arrivals = ArrivalMode::kPoisson;
  options.arrivals_per_s = {5, 2};
  const auto gaps = [&](uint64_t seed) {
    options.seed = seed;
    auto client = build(plain_header(), sessions(20000), options);
    REQUIRE(client.has_value());
    FakeBackend backend;
    backend.run(client->get());
    std::vector<double> found;
    for (size_t i = 1; i < backend.sent.size(); ++i) {
      CHECK(raw(backend.sent[i].request.session) == i);
      found.push_back(static_cast<double>((backend.sent[i].at - backend.sent[i - 1].at).ns) * 1e-9);
    }
    return found;
  };
  const auto found = gaps(1);
  double sum = 0, squares = 0;
  for (const double gap : found) sum += gap, squares += gap * gap;
  const auto n = static_cast<double>(found.size());
  CHECK(sum / n == doctest::Approx(0.4).epsilon(0.03));
  CHECK(squares / n - (sum / n) * (sum / n) == doctest::Approx(0.16).epsilon(0.06));
  CHECK(gaps(1) == found);
  CHECK(gaps(2) != found);
}

TEST_CASE("the integer logarithm agrees with libm to 2^-30") {
  Prng prng(7);
  for (int i = 0; i < 10000; ++i) {
    const uint64_t word = prng.next() >> prng.range(0, 63);
    if (word == 0) continue;
    const double exact = -std::log(std::ldexp(static_cast<double>(word), -64));
    const double got = std::ldexp(static_cast<double>(exponential_q32(word)), -32);
    CAPTURE(word);
    CHECK(std::abs(got - exact) < 1e-8);
  }
}

TEST_CASE("sessions without requests start and end without an event") {
  auto trace = sessions(3);
  trace[1].clear_nodes();
  add_tool(&trace[1], kSecond);
  trace.emplace_back();
  ReplayOptions options;
  options.arrivals = ArrivalMode::kFixedPopulation;
  options.mode = ReplayMode::kClosedLoop;
  auto client = build(plain_header(), trace, options);
  REQUIRE(client.has_value());
  FakeBackend backend;
  backend.run(client->get());
  CHECK(order(backend) == std::vector<uint32_t>{0, 2});
  CHECK(backend.ended.size() == 2);
  CHECK(backend.sent[1].at.ns == 2 * kSecond);
  CHECK((*client)->report().sessions_ended == 4);
}
