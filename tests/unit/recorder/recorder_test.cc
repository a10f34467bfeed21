#include "engine/recorder/recorder.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/prng.h"
#include "engine/methods/registry.h"
#include "engine/metrics/metrics_summary.h"
#include "engine/recorder/recorder_log.h"
#include "engine/recorder/recorder_records.h"
#include "engine/recorder/recorder_replay.h"
#include "tests/support/script_backend.h"
#include "tests/support/script_client.h"
#include "traces/proto/run.pb.h"

namespace kvtwin {
namespace {

using testing::ScriptBackend;
using testing::ScriptClient;

struct Setting {
  RunOptions run;
  testing::ScriptClientOptions client;
  testing::ScriptBackendOptions backend;
};

Setting draw_setting(uint64_t seed) {
  Prng prng(draw({seed, 0x10c}));
  Setting out;
  CoreConfig config;
  config.page_tokens = config.unit_tokens = 4;
  config.pages_gpu = static_cast<uint32_t>(prng.range(20, 80));
  config.requests_max = static_cast<uint32_t>(prng.range(1, 6));
  config.step_tokens_max = static_cast<uint32_t>(prng.range(8, 100));
  config.steps_in_flight_max = static_cast<uint32_t>(prng.range(1, 2));
  if (prng.chance(1, 2)) {
    config.policies.placement = "host";
    config.pages_host = 40;
    config.offload_pages_target = 10;
    config.offload_batch_pages = 4;
    if (prng.chance(1, 2)) config.pages_host = 6, config.pages_disk = 20, config.spill_pages_target = 3;
  }
  REQUIRE(!validate_core_config(config));
  out.run.routing = static_cast<RoutingKind>(prng.range(0, 2));
  const auto engines = static_cast<uint16_t>(prng.range(1, 3));
  for (uint16_t i = 0; i < engines; ++i) {
    config.engine = EngineId{i};
    out.run.engines.push_back(config);
  }
  out.client.seed = out.backend.seed = seed;
  out.client.sessions = 6;
  out.client.unit_tokens = 4;
  out.client.cancels_per_100 = static_cast<uint32_t>(prng.range(0, 20));
  out.client.spawns_per_100 = static_cast<uint32_t>(prng.range(0, 40));
  out.backend.transfer_fails_per_100 = static_cast<uint32_t>(prng.range(0, 30));
  out.backend.step_zero_per_100 = static_cast<uint32_t>(prng.range(0, 30));
  out.backend.eos_per_1000 = prng.chance(1, 2) ? 20 : 0;
  out.client.early_ends = out.backend.eos_per_1000 > 0;
  return out;
}

struct Recorded {
  RunEnd end;
  std::string log;
  Summary summary;
};

Recorded record(Setting setting, bool coalesced) {
  if (!coalesced) {
    for (CoreConfig& config : setting.run.engines) config.repeat_max = 1;
  }
  ScriptClient client(setting.client);
  ScriptBackend backend(setting.backend, setting.run.engines, nullptr);
  Recorder recorder(setting.run, {"script", setting.client.seed});
  std::vector<EngineFacts> facts(setting.run.engines.size(), {4, 1, setting.run.engines[0].pages_gpu,
                                                              setting.run.engines[0].steps_in_flight_max});
  Metrics metrics(facts);
  Recorded out;
  out.end = run(setting.run, recorder.watch(&client), &backend, {&recorder, &metrics});
  out.log = recorder.finish(out.end);
  out.summary = summarise(metrics);
  return out;
}

}  // namespace

TEST_CASE("recorder: a replay without the backend makes the same decisions, over 150 seeded adversaries") {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    CAPTURE(seed);
    const Recorded run = record(draw_setting(seed), true);
    const Result<Log> log = read_log("log", run.log);
    REQUIRE(log);
    CHECK(log->digest == run.end.digest);
    const Result<Replayed> again = replay("log", *log, {});
    REQUIRE(again);
    CAPTURE(again->difference);
    REQUIRE(again->same);
    CHECK(again->end.idle == run.end.idle);
  }
}

TEST_CASE("recorder: a log keeps the numbers of each engine's scorer") {
  Setting setting = draw_setting(3);
  ScorerSpec spec;
  spec.compression_trigger = CompressionTrigger::kChunkEnd;
  spec.query_tokens = 17;
  spec.window_closed = true;
  spec.repeat_tokens = 512;
  spec.repeat_tail = 3;
  spec.repeat_instruction = 9;
  for (CoreConfig& config : setting.run.engines) {
    config.policies.scorer = "snapkv";
    config.policies.scorer_spec = spec;
  }
  const Result<Log> log = read_log("log", record(setting, true).log);
  REQUIRE(log);
  CHECK(log->options.engines[0].policies.scorer_spec == spec);
  for (CoreConfig& config : setting.run.engines) {
    config.policies.scorer = "judge_q";
    config.policies.identity = "none";
    config.policies.scorer_spec = {};
    config.policies.scorer_spec.probe_tokens = 5;
  }
  const Result<Log> other = read_log("log", record(setting, true).log);
  REQUIRE(other);
  CHECK(other->options.engines[0].policies.scorer_spec == setting.run.engines[0].policies.scorer_spec);
}

TEST_CASE("recorder: logs of versions that did not plan passes of probe tokens are refused") {
  struct Row {
    const char *scorer, *budget;
    bool plans_passes, refused;
  };
  for (const Row& row : {Row{"judge_q", "ratio", false, true}, Row{"kvzip", "ratio", false, true},
                         Row{"judge_q", "ratio", true, false}, Row{"judge_q", "all", false, false},
                         Row{"snapkv", "ratio", false, false}}) {
    CAPTURE(row.scorer);
    Setting setting = draw_setting(3);
    for (CoreConfig& config : setting.run.engines) {
      config.policies.scorer = row.scorer, config.policies.budget = row.budget;
      config.policies.identity = "none";
    }
    v1::LogRecord header, end;
    *header.mutable_header() = log_header(setting.run, {"old", 3});
    CHECK(header.header().plans_passes());
    header.mutable_header()->set_plans_passes(row.plans_passes);
    end.mutable_end();
    std::string bytes;
    append_record(header, &bytes);
    append_record(end, &bytes);
    const Result<Log> log = read_log("log", bytes);
    CHECK(log.has_value() != row.refused);
    if (!row.refused) continue;
    CHECK(log.error().what == std::string("plans_passes is false, but scorer ") + row.scorer +
                                  " runs passes of probe tokens, which are planned as entries of steps");
    CHECK(log.error().hint == "record the run again with this version");
  }
}

TEST_CASE("recorder: a log does not depend on how the backend coalesced its steps") {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    CAPTURE(seed);
    const Recorded coalesced = record(draw_setting(seed), true), single = record(draw_setting(seed), false);
    CHECK(coalesced.end.digest == single.end.digest);
    REQUIRE(coalesced.log == single.log);
  }
}

TEST_CASE("recorder: metrics of a coalesced run and of its replay equal those of the uncoalesced run") {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    CAPTURE(seed);
    const Recorded coalesced = record(draw_setting(seed), true), single = record(draw_setting(seed), false);
    const Result<Log> log = read_log("log", coalesced.log);
    REQUIRE(log);
    Metrics metrics(std::vector<EngineFacts>(
        log->engines.size(),
        {4, 1, log->options.engines[0].pages_gpu, log->options.engines[0].steps_in_flight_max}));
    REQUIRE(replay("log", *log, {&metrics}));
    const Summary again = summarise(metrics);
    for (const Summary* other : {&single.summary, &again}) {
      CHECK(coalesced.summary.steps == other->steps);
      CHECK(coalesced.summary.request_steps == other->request_steps);
      CHECK(coalesced.summary.e2e.mean == other->e2e.mean);
      CHECK(coalesced.summary.ttft_from_queued.p99 == other->ttft_from_queued.p99);
      CHECK(coalesced.summary.itl.mean == other->itl.mean);
      CHECK(coalesced.summary.tail_fragmentation == other->tail_fragmentation);
      CHECK(coalesced.summary.pages_held_peak == other->pages_held_peak);
      CHECK(coalesced.summary.preemptions == other->preemptions);
      CHECK(coalesced.summary.reused_tokens == other->reused_tokens);
      CHECK(coalesced.summary.bytes_in == other->bytes_in);
      CHECK(coalesced.summary.latency_ns == other->latency_ns);
    }
  }
}

TEST_CASE("recorder: other limits on the same log cause other decisions, and the first one is named") {
  int named = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    const Recorded run = record(draw_setting(seed), true);
    Result<Log> log = read_log("log", run.log);
    REQUIRE(log);
    for (CoreConfig& config : log->options.engines) config.step_tokens_max = config.requests_max + 1;
    const Result<Replayed> again = replay("log", *log, {});
    REQUIRE(again);
    if (again->same) continue;
    CHECK(again->difference.find("engine") != std::string::npos);
    ++named;
  }
  CHECK(named > 10);
}

TEST_CASE("recorder: a log that is truncated at any byte is refused") {
  const std::string whole = record(draw_setting(3), true).log;
  for (size_t length = 0; length < whole.size(); length += 1 + length / 40) {
    CAPTURE(length);
    CHECK(!read_log("log", std::string_view(whole).substr(0, length)));
  }
}

TEST_CASE("recorder: damaged logs are refused or replayed, without a crash") {
  const std::string whole = record(draw_setting(5), true).log;
  Prng prng(11);
  int refused = 0, other = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = whole;
    for (uint64_t i = prng.range(1, 4); i > 0; --i) {
      bytes[prng.range(0, bytes.size() - 1)] = static_cast<char>(prng.range(0, 255));
    }
    const Result<Log> log = read_log("log", bytes);
    const Result<Replayed> again = log ? replay("log", *log, {}) : Result<Replayed>(make_error("", ""));
    if (!log || !again) {
      ++refused;
    } else if (!again->same) {
      ++other;
    }
  }
  CHECK(refused > 0);
  CHECK(other > 0);
}

// The memory is reserved but untouched, except for the bytes between the records.
TEST_CASE("recorder: records are found far beyond 2 GiB") {
  constexpr size_t kRecord = (size_t{1} << 31) - 9;  // nearly the longest that protobuf accepts
  constexpr size_t kBytes = 3 * (kRecord + 5) + 2;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* const bytes = static_cast<unsigned char*>(memory);
  size_t at = 0;
  for (int i = 0; i < 3; ++i) {
    for (size_t length = kRecord; length > 0; length >>= 7) {
      bytes[at++] = static_cast<unsigned char>((length & 0x7f) | (length > 0x7f ? 0x80 : 0));
    }
    at += kRecord;
  }
  bytes[at++] = 1;
  bytes[at++] = 77;
  REQUIRE(at == kBytes);
  RecordReader reader({static_cast<const char*>(memory), kBytes});
  std::string_view record;
  for (int i = 0; i < 3; ++i) {
    REQUIRE(reader.next(&record));
    CHECK(record.size() == kRecord);
  }
  REQUIRE(reader.next(&record));
  CHECK(record == "M");
  CHECK(reader.whole());
  CHECK(!reader.next(&record));
  RecordReader cut({static_cast<const char*>(memory), kBytes - 1});
  for (int i = 0; i < 3; ++i) REQUIRE(cut.next(&record));
  CHECK(!cut.next(&record));
  CHECK(!cut.whole());
  munmap(memory, kBytes);
}

TEST_CASE("recorder: bytes that are not a log are refused") {
  CHECK(!read_log("log", ""));
  CHECK(!read_log("log", "hello, this is not a log at all"));
  CHECK(!read_log("log", std::string(100000, '\0')));
}

}  // namespace kvtwin
