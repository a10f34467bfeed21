// The client compared with an obviously correct model, on random traces.

#include <doctest/doctest.h>
#include <google/protobuf/stubs/logging.h>

#include "engine/base/prng.h"
#include "tests/unit/replay/fake_backend.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

constexpr int64_t kUnheard = -1;  // never completes

// Requests, tools and opaque agents, each waiting for up to three earlier nodes.
v1::Session random_dag(Prng* prng) {
  v1::Session session;
  session.set_arrival_at_ns(static_cast<int64_t>(prng->range(0, 3)) * kSecond);
  const auto time = [&] {
    return prng->chance(1, 3) ? 0 : static_cast<int64_t>(prng->range(0, 4)) * kSecond / 2;
  };
  const auto nodes = static_cast<uint32_t>(prng->range(0, 12));
  for (uint32_t i = 0; i < nodes; ++i) {
    v1::Node* node = nullptr;
    if (prng->chance(2, 3)) {
      node = add_request(&session, static_cast<uint32_t>(prng->range(1, 500)),
                         static_cast<uint32_t>(prng->range(1, 8)), time());
      if (prng->chance(1, 8))
        node->mutable_llm()->set_abort_after_tokens(static_cast<uint32_t>(prng->range(1, 9)));
    } else {
      node = add_tool(&session, time(), prng->chance(1, 2));
    }
    node->set_start_offset_ns(time());
    for (uint64_t d = prng->range(0, std::min(3u, i)); d > 0; --d) {
      const auto on = static_cast<uint32_t>(prng->range(0, i - 1));
      const bool token = session.nodes(static_cast<int>(on)).has_llm() && prng->chance(1, 4);
      add_dep(node, on, time() - (prng->chance(1, 8) ? kSecond : 0),
              token ? static_cast<uint32_t>(prng->range(1, 9)) : 0);
    }
  }
  return session;
}

// C(node), or E(node, token) for token > 0, as the backend observed it.
int64_t happened(const FakeBackend& backend, uint32_t request, uint32_t token) {
  if (backend.rejected.contains(request)) return kUnheard;
  const auto emitted = backend.emitted.find({request, token});
  if (token != 0 && emitted != backend.emitted.end()) return emitted->second.ns;
  return backend.finished.at(request).ns;
}

void check_session(const v1::Session& session, int64_t start, const ReplayOptions& options, bool tools,
                   const FakeBackend& backend, const std::map<uint32_t, uint32_t>& requests) {
  std::vector<int64_t> done(static_cast<size_t>(session.nodes_size()), kUnheard);
  for (int n = 0; n < session.nodes_size(); ++n) {
    CAPTURE(n);
    const v1::Node& node = session.nodes(n);
    int64_t release = start + node.start_offset_ns();
    if (node.deps_size() > 0) {
      int64_t gate = INT64_MIN, last = 0;
      for (const v1::Dep& dep : node.deps()) {
        int64_t at = done[dep.node()];
        if (at != kUnheard && dep.at_output_token() > 0)
          at = happened(backend, requests.at(dep.node()), dep.at_output_token());
        if (at == kUnheard) gate = INT64_MAX;
        gate = std::max(gate, gate == INT64_MAX ? gate : at + scaled(dep.delay_ns(), options.delay_scale));
        last = std::max(last, at);
      }
      if (gate == INT64_MAX) {
        CHECK_FALSE(requests.contains(static_cast<uint32_t>(n)));
        continue;
      }
      const int64_t think =
          std::min(scaled(node.llm().think_ns(), options.think_scale), options.think_cap.ns);
      release = std::max(last, gate + (node.has_llm() ? think : 0));
      if (!tools) release = std::min(release, last + std::min(options.think_cap.ns, INT64_MAX - last));
    }
    if (node.has_llm()) {
      REQUIRE(requests.contains(static_cast<uint32_t>(n)));
      const uint32_t request = requests.at(static_cast<uint32_t>(n));
      CHECK(backend.sent[request].request.ready.ns == release);
      CHECK(backend.sent[request].at.ns == release);
      done[static_cast<size_t>(n)] = happened(backend, request, 0);
    } else {
      done[static_cast<size_t>(n)] = release + scaled(node.tool().duration_ns(), options.tool_scale);
    }
  }
}

// The content of each unit; -1 - x: a private unit.
using Contents = std::vector<int64_t>;

uint64_t common(const Contents& a, const Contents& b) {
  return static_cast<uint64_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

bool prefix(const Contents& a, const Contents& b) { return a.size() < b.size() && common(a, b) == a.size(); }

}  // namespace

TEST_CASE(
    "every release is the formula of docs/design/trace-formats.md#replay, on random graphs with aborts, "
    "triggers and rejections") {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    std::vector<v1::Session> sessions(prng.range(1, 4));
    bool tools = false;
    for (v1::Session& session : sessions) {
      session = random_dag(&prng);
      for (const v1::Node& node : session.nodes()) tools = tools || node.has_tool();
    }
    ReplayOptions options;
    options.mode = ReplayMode::kClosedLoop;
    options.replicas = static_cast<uint32_t>(prng.range(1, 2));
    options.arrival_scale = {static_cast<int64_t>(prng.range(0, 3)), 2};
    options.think_scale = {static_cast<int64_t>(prng.range(0, 3)), 2};
    options.tool_scale = {static_cast<int64_t>(prng.range(0, 3)), 2};
    options.delay_scale = {static_cast<int64_t>(prng.range(0, 3)), 2};
    if (prng.chance(1, 2)) options.think_cap = Duration{static_cast<int64_t>(prng.range(0, 2)) * kSecond};
    auto client = build(plain_header(), sessions, options);
    REQUIRE(client.has_value());
    FakeBackend backend;
    backend.service = [&](const ReplayRequestInfo& request) {
      return static_cast<int64_t>(draw({seed, raw(request.session), request.node}) % 5) * kSecond / 2;
    };
    const uint64_t bad = prng.chance(1, 2) ? 6 : 0;
    backend.rejects = [&](const ReplayRequestInfo& request) {
      return bad != 0 && draw({seed, 9, raw(request.session), request.node}) % bad == 0;
    };
    backend.run(client->get());

    std::map<uint32_t, std::map<uint32_t, uint32_t>> requests;  // instance -> node -> request
    for (uint32_t i = 0; i < backend.sent.size(); ++i) {
      requests[raw(backend.sent[i].request.session)][backend.sent[i].request.node] = i;
    }
    for (uint32_t instance = 0; instance < sessions.size() * options.replicas; ++instance) {
      CAPTURE(instance);
      const v1::Session& session = sessions[instance % sessions.size()];
      check_session(session, scaled(session.arrival_at_ns(), options.arrival_scale), options, tools, backend,
                    requests[instance]);
    }
    const ReplayReport& report = (*client)->report();
    CHECK(report.sessions_ended == report.sessions_total);
    CHECK(report.requests_sent == backend.sent.size());
    CHECK(report.requests_total == report.requests_finished + report.requests_aborted +
                                       report.requests_rejected + report.requests_cancelled);
    CHECK(backend.live == 0);
  }
}

TEST_CASE("any mix of options sends every request and gets its answer, the same way twice") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    std::vector<v1::Session> sessions(prng.range(1, 5));
    for (v1::Session& session : sessions) {
      session = random_dag(&prng);
      for (v1::Node& node : *session.mutable_nodes()) {
        if (node.has_llm()) {
          node.mutable_llm()->set_recorded_at_ns(session.arrival_at_ns() +
                                                 static_cast<int64_t>(prng.range(0, 20)) * kSecond / 2);
        }
      }
    }
    ReplayOptions options;
    options.mode = static_cast<ReplayMode>(prng.range(0, 3));
    options.arrivals = static_cast<ArrivalMode>(prng.range(0, 3));
    options.population = static_cast<uint32_t>(prng.range(1, 3));
    options.replicas = static_cast<uint32_t>(prng.range(1, 3));
    options.on_reject = static_cast<RejectPolicy>(prng.range(0, 2));
    options.retries_max = static_cast<uint32_t>(prng.range(0, 3));
    options.requests_max = prng.range(0, 10);
    options.seed = seed;
    const bool rejects = prng.chance(1, 2);
    std::vector<std::tuple<int64_t, uint32_t, uint32_t>> first;
    for (int twice = 0; twice < 2; ++twice) {
      auto client = build(plain_header(), sessions, options);
      REQUIRE(client.has_value());
      FakeBackend backend;
      backend.service = [&](const ReplayRequestInfo& request) {
        return static_cast<int64_t>(draw({seed, raw(request.session), request.node}) % 5) * kSecond / 2;
      };
      backend.rejects = [&](const ReplayRequestInfo& request) {
        return rejects && draw({seed, 9, raw(request.session), request.node, request.attempt}) % 4 == 0;
      };
      backend.run(client->get());
      const ReplayReport& report = (*client)->report();
      CHECK(report.sessions_ended == report.sessions_total);
      CHECK(report.requests_total == report.requests_finished + report.requests_aborted +
                                         report.requests_rejected - report.requests_retried +
                                         report.requests_cancelled);
      std::vector<std::tuple<int64_t, uint32_t, uint32_t>> sent;
      for (const Sent& s : backend.sent) sent.emplace_back(s.at.ns, raw(s.request.session), s.request.node);
      if (twice == 0) first = sent;
      CHECK(sent == first);
    }
  }
}

TEST_CASE("a session of any bytes is refused with a reason or replayed to its end") {
  const google::protobuf::LogSilencer silence;  // protobuf's own messages on invalid UTF-8
  uint64_t refused = 0, replayed = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    v1::Session session = random_dag(&prng);
    v1::Span* literal = session.add_spans();
    literal->set_tokens(40);
    literal->set_scope(v1::SCOPE_GLOBAL);
    for (uint32_t id = 0; id < 40; ++id) literal->add_token_ids(id);
    session.add_spans()->set_tokens(50);
    for (v1::Node& node : *session.mutable_nodes()) {
      if (!node.has_llm()) continue;
      if (prng.chance(1, 2)) {
        set_key(&node, {{3, node.llm().prompt_tokens() / 8}, {0, 1}});
      } else {
        node.mutable_llm()->add_prompt()->set_count(2);
      }
    }
    std::string bytes = session.SerializeAsString();
    if (bytes.empty()) continue;
    for (uint64_t n = prng.range(1, 4); n > 0; --n) {
      bytes[prng.range(0, bytes.size() - 1)] = static_cast<char>(prng.range(0, 255));
    }
    if (!session.ParsePartialFromString(bytes)) continue;
    ReplayOptions options;
    options.mode = static_cast<ReplayMode>(prng.range(0, 3));
    v1::TraceHeader header = plain_header(8, prng.chance(1, 2));
    header.set_block_ids_chained(prng.chance(1, 2));
    auto client = build(header, {session, session}, options);
    if (!client) {
      CHECK(client.error().text().find("session") == 0);
      ++refused;
      continue;
    }
    FakeBackend backend;
    backend.run(client->get());
    for (const Sent& sent : backend.sent) {
      CHECK(unit_count(sent.identity) ==
            (sent.request.prompt_tokens + sent.request.output_tokens) / (*client)->unit_tokens());
    }
    CHECK((*client)->report().sessions_ended == 2);
    ++replayed;
  }
  CHECK(refused > 100);
  CHECK(replayed > 100);
}

TEST_CASE("units are shared exactly as far as chained block ids are, outputs from the successor included") {
  constexpr uint32_t kBlock = 4;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    const uint32_t unit = prng.chance(1, 2) ? 4 : 2;
    std::map<std::pair<int64_t, uint64_t>, int64_t> chain;  // (previous id, symbol) -> id
    v1::Session session;
    std::vector<Contents> keys;
    for (uint64_t requests = prng.range(1, 8); requests > 0; --requests) {
      Contents key;
      if (!keys.empty()) key = keys[prng.range(0, keys.size() - 1)];
      if (!key.empty() && prng.chance(1, 3)) key.resize(prng.range(0, key.size()));
      for (uint64_t more = prng.range(0, 4); more > 0; --more) {
        const int64_t previous = key.empty() ? -1 : key.back();
        const auto id = static_cast<int64_t>(chain.size());
        key.push_back(chain.try_emplace({previous, prng.range(0, 1)}, id).first->second);
      }
      const auto tail = static_cast<uint32_t>(prng.range(0, kBlock - 1));
      v1::Node* node = add_request(&session, static_cast<uint32_t>(key.size()) * kBlock + tail,
                                   static_cast<uint32_t>(prng.range(1, 12)));
      std::vector<std::pair<int64_t, uint32_t>> runs;
      for (const int64_t id : key) {
        if (!runs.empty() && runs.back().first + runs.back().second == id && prng.chance(3, 4)) {
          ++runs.back().second;
        } else {
          runs.emplace_back(id, 1);
        }
      }
      set_key(node, runs);
      keys.push_back(key);
    }
    ReplayOptions options;
    options.page_tokens = unit;
    options.mode = ReplayMode::kClosedLoop;
    auto client = build(plain_header(kBlock), {session}, options);
    REQUIRE(client.has_value());
    FakeBackend backend;
    backend.run(client->get());
    REQUIRE(backend.sent.size() == keys.size());

    std::vector<Contents> contents;
    for (size_t i = 0; i < keys.size(); ++i) {
      Contents known = keys[i];
      for (size_t later = i + 1; later < keys.size() && !keys[i].empty(); ++later) {
        if (!prefix(keys[i], keys[later])) continue;
        known = keys[later];
        break;
      }
      const v1::LlmRequest& request = session.nodes(static_cast<int>(i)).llm();
      Contents units;
      for (uint32_t u = 0; u < (request.prompt_tokens() + request.output_tokens()) / unit; ++u) {
        const uint32_t block = u * unit / kBlock;
        units.push_back(block < known.size() ? known[block] : -1 - static_cast<int64_t>(i));
      }
      contents.push_back(units);
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      for (size_t j = 0; j < keys.size(); ++j) {
        CAPTURE(i);
        CAPTURE(j);
        CHECK(common(backend.sent[i], backend.sent[j]) == common(contents[i], contents[j]));
      }
    }
  }
}

TEST_CASE("units are shared exactly as far as token ids are, outputs from the successor included") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    const auto unit = static_cast<uint32_t>(prng.range(1, 5));
    v1::Session session;
    std::vector<Contents> prompts;
    for (uint64_t requests = prng.range(1, 7); requests > 0; --requests) {
      Contents tokens;
      if (!prompts.empty()) tokens = prompts[prng.range(0, prompts.size() - 1)];
      if (prng.chance(1, 3)) tokens.resize(prng.range(0, tokens.size()));
      for (uint64_t more = prng.range(1, 9); more > 0; --more)
        tokens.push_back(static_cast<int64_t>(prng.range(0, 1)));
      v1::Node* node = add_request(&session, static_cast<uint32_t>(tokens.size()),
                                   static_cast<uint32_t>(prng.range(1, 9)));
      for (size_t at = 0; at < tokens.size();) {  // split at random
        const size_t take = std::min<size_t>(tokens.size() - at, prng.range(1, 7));
        v1::SpanRun* run = node->mutable_llm()->add_prompt();
        run->set_first(static_cast<uint32_t>(session.spans_size()));
        run->set_count(1);
        v1::Span* span = session.add_spans();
        span->set_tokens(static_cast<uint32_t>(take));
        span->set_scope(v1::SCOPE_SESSION);
        for (; span->token_ids_size() < static_cast<int>(take); ++at) {
          span->add_token_ids(static_cast<uint32_t>(tokens[at]));
        }
      }
      prompts.push_back(tokens);
    }
    ReplayOptions options;
    options.page_tokens = unit;
    options.mode = ReplayMode::kClosedLoop;
    auto client = build(plain_header(), {session}, options);
    REQUIRE(client.has_value());
    FakeBackend backend;
    backend.run(client->get());
    std::vector<Contents> contents;
    for (size_t i = 0; i < prompts.size(); ++i) {
      Contents known = prompts[i];
      for (size_t later = i + 1; later < prompts.size(); ++later) {
        if (!prefix(prompts[i], prompts[later])) continue;
        known = prompts[later];
        break;
      }
      known.resize(prompts[i].size() + session.nodes(static_cast<int>(i)).llm().output_tokens(),
                   -1 - static_cast<int64_t>(i));
      known.resize(known.size() / unit * unit);
      contents.push_back(known);
    }
    for (size_t i = 0; i < prompts.size(); ++i) {
      for (size_t j = 0; j < prompts.size(); ++j) {
        CAPTURE(i);
        CAPTURE(j);
        CHECK(common(backend.sent[i], backend.sent[j]) == common(contents[i], contents[j]) / unit);
      }
    }
  }
}
