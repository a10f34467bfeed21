// Outcomes written to a log and read back.

#include "engine/recorder/recorder_outcomes.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/base/prng.h"
#include "engine/recorder/recorder_log.h"
#include "engine/recorder/recorder_records.h"
#include "traces/proto/run.pb.h"

namespace kvtwin {
namespace {

// Draws outcomes: recalls for steps that decode, counts or live bits for compressions.
class Drawn final : public OutcomeSource {
 public:
  explicit Drawn(uint64_t seed) : prng_(seed) {}
  void step(const LaunchStep& launch, uint32_t, DataOutcomes* values) override {
    values->clear();
    for (int l = 0; l < 3; ++l) {
      values->recalls.push_back({static_cast<uint32_t>(prng_.range(0, 9)),
                                 static_cast<uint32_t>(prng_.range(0, 9)),
                                 static_cast<uint32_t>(prng_.range(0, 2))});
    }
    if (prng_.chance(1, 9)) values->eos.push_back(launch.entries[0].request);
    for (const Compression& c : launch.compressions) {
      values->retained_counts = {static_cast<uint32_t>(prng_.range(1, c.end)), c.end};
      values->retained_live = {prng_.next()};
      values->retained.push_back(
          {launch.entries[c.entry].request, values->retained_counts, values->retained_live});
    }
    said = *values;
  }
  void notify(const Command&) override {}
  DataOutcomes said;

 private:
  Prng prng_;
};

constexpr RequestKey kRequest{SessionId{5}, 2};

// Files of schema 2 need no decision log.
Result<RequestNumbers> no_log() { return make_error("log.binpb", "is not there"); }

// One request with two attempts, and a compression at each prompt's end.
std::string write_log(std::vector<DataOutcomes>* said) {
  OutcomeLog log(2);
  Drawn drawn(7);
  OutcomeSource* const watched = log.watch(&drawn);
  DataOutcomes values;
  for (uint64_t step = 0; step < 12; ++step) {
    const bool prompt = step % 6 == 0;
    PlanEntry entry{RequestId{3},      prompt ? EntryKind::kChunk : EntryKind::kDecode,    prompt, true,
                    prompt ? 40u : 1u, prompt ? 0u : 39u + static_cast<uint32_t>(step % 6)};
    entry.key = kRequest;
    Compression compression;
    compression.end = 40;
    LaunchStep launch;
    launch.engine = EngineId{1};
    launch.step = StepId{step};
    launch.entries = {&entry, 1};
    if (prompt) launch.compressions = {&compression, 1};
    watched->step(launch, 0, &values);
    if (said != nullptr) said->push_back(drawn.said);
  }
  return log.finish();
}

}  // namespace

TEST_CASE("outcome log: outcomes are read back by step, and by request, attempt and position") {
  std::vector<DataOutcomes> said;
  const std::string bytes = write_log(&said);
  const Result<RecordedOutcomes> read = read_outcomes("log", bytes, no_log);
  REQUIRE(read);
  REQUIRE(read->engines.size() == 2);
  CHECK(read->engines[0].steps.empty());
  const RecordedOutcomes::Engine& engine = read->engines[1];
  CHECK(engine.layers == 3);
  CHECK(engine.groups == 2);
  REQUIRE(engine.steps.size() == said.size());
  for (size_t step = 0; step < said.size(); ++step) {
    const RecordedOutcomes::Step& one = engine.steps.at(step);
    CHECK(one.eos == std::vector<RequestKey>(said[step].eos.size(), kRequest));
    for (int l = 0; l < 3; ++l) CHECK(one.recalls[l].blocking == said[step].recalls[l].blocking);
    for (int l = 0; l < 3; ++l) CHECK(one.recalls[l].background == said[step].recalls[l].background);
    for (int l = 0; l < 3; ++l) CHECK(one.recalls[l].corrected == said[step].recalls[l].corrected);
  }
  REQUIRE(engine.retained.size() == 2);
  for (const uint32_t attempt : {1u, 2u}) {
    const RecordedOutcomes::Retained& retained = engine.retained.at({kRequest, attempt, 40});
    CHECK(retained.counts == said[(attempt - 1) * 6].retained_counts);
    CHECK(retained.live == said[(attempt - 1) * 6].retained_live);
  }
  CHECK(engine.steps.at(1).plan == engine.steps.at(7).plan);  // equal entries
  CHECK(engine.steps.at(1).plan != engine.steps.at(2).plan);
}

namespace {

// A file of schema 1: request 3 of its run retains 7 of 40 tokens and ends its sequence in step 0.
std::string by_request_number(uint32_t plan) {
  std::string out;
  v1::OutcomeRecord record;
  record.mutable_header()->set_schema_version(1);
  record.mutable_header()->set_engines(1);
  append_record(record, &out);
  v1::StepOutcomes& step = *record.mutable_step();
  step.set_plan(plan);
  step.add_eos(3);
  v1::StepOutcomes::Retained& retained = *step.add_retained();
  retained.set_request(3), retained.set_attempt(1), retained.set_tokens(40);
  retained.add_count(7);
  append_record(record, &out);
  record.mutable_end()->set_steps(1);
  append_record(record, &out);
  return out;
}

// The decision log of such a run: session 5 sends requests 1 and 3.
Log log_of_requests() {
  Log log;
  for (const uint32_t index : {0u, 1u}) {
    RequestReady ready;
    ready.request = RequestId{2 * index + 1}, ready.session = SessionId{5}, ready.index = index;
    log.client.emplace_back().event = ready;
  }
  return log;
}

}  // namespace

TEST_CASE("outcome log: files that number requests by order of sending are read with the decision log") {
  const Log log = log_of_requests();
  PlanEntry entry{RequestId{8}, EntryKind::kDecode, false, true, 1, 40};
  entry.key = {SessionId{5}, 1};
  LaunchStep launch;
  launch.entries = {&entry, 1};
  const uint32_t plan = plan_fingerprint(launch, 0, RequestNumbers(log));
  const std::string bytes = by_request_number(plan);
  const Result<RecordedOutcomes> read = read_outcomes("old", bytes, [&] { return RequestNumbers(log); });
  REQUIRE(read);
  const RecordedOutcomes::Engine& engine = read->engines.at(0);
  CHECK(engine.steps.at(0).eos == std::vector<RequestKey>{entry.key});
  CHECK(engine.retained.at({entry.key, 1, 40}).counts == std::vector<uint32_t>{7});
  CHECK(plan_fingerprint(launch, 0, read->numbers) == engine.steps.at(0).plan);
  entry.key.index = 0;
  CHECK(plan_fingerprint(launch, 0, read->numbers) != engine.steps.at(0).plan);

  const Result<RecordedOutcomes> alone = read_outcomes("old", bytes, no_log);
  REQUIRE_FALSE(alone);
  CHECK(alone.error().where == "log.binpb");
  const Result<RecordedOutcomes> other = read_outcomes("old", bytes, [] { return RequestNumbers(Log{}); });
  REQUIRE_FALSE(other);
  CHECK(other.error().what.find("request 3 is not in the log") != std::string::npos);
}

TEST_CASE("outcome log: a truncated or changed file is read or refused, without a crash") {
  const std::string whole = write_log(nullptr);
  for (size_t length = 0; length < whole.size(); ++length) {
    CHECK_FALSE(read_outcomes("log", whole.substr(0, length), no_log));
  }
  Prng prng(11);
  uint32_t refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string changed = whole;
    for (uint64_t n = prng.range(1, 4); n > 0; --n) {
      changed[prng.range(0, changed.size() - 1)] = static_cast<char>(prng.next());
    }
    const Result<RecordedOutcomes> read = read_outcomes("log", changed, no_log);
    refused += read ? 0 : 1;
    if (!read) CHECK_FALSE(read.error().what.empty());
  }
  CHECK(refused > 1000);
}

}  // namespace kvtwin
