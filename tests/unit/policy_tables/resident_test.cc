// Placement "resident": the whole prompt is on the GPU until it is complete, then the resident pages only.
// Every page of context has a host page.

#include <doctest/doctest.h>

#include "engine/kv/managers/request_fit.h"
#include "engine/methods/registry.h"
#include "engine/scheduler/core.h"
#include "tests/support/policy_configs.h"
#include "tests/support/table.h"

using namespace kvtwin;
using kvtwin::testing::check_table;
using kvtwin::testing::resident_config;

namespace {

// Drives a Core and gives access to its page counts.
class CoreDriver {
 public:
  explicit CoreDriver(const CoreConfig& config) : config_(config), core_(config) {}
  void arrive(uint32_t request, uint32_t prompt, uint32_t output) {
    apply(RequestReady{RequestId{request}, SessionId{request}, prompt, output, {}, {}});
  }
  void step() {
    const std::vector<Instant> ends{{++now_.ns}};
    apply(StepDone{config_.engine, StepId{done_++}, ends, {}, {}});
  }
  CoreGauges gauges() const { return core_.gauges(); }
  bool idle() const { return core_.idle(); }

 private:
  void apply(const Event& event) {
    commands_.clear();
    core_.apply(now_, event, &commands_);
    core_.check_invariants();
  }
  const CoreConfig config_;
  Core core_;
  Instant now_{};
  uint64_t done_ = 0;
  std::vector<Command> commands_;
};

}  // namespace

TEST_CASE("X-3 resident: surplus GPU pages are freed at the prompt's end, host pages at the request's end") {
  CoreDriver engine(resident_config());
  engine.arrive(0, 64 + 16, 16);  // two chunks: 64 tokens, then 16
  CHECK(engine.gauges().pages_gpu_held == 4);
  CHECK(engine.gauges().pages_host_free == 20 - 4);
  engine.step();
  // The step that completes the prompt is planned: 5 pages of context, of which 3 stay on the GPU from then
  // on.
  CHECK(engine.gauges().pages_gpu_held == 3);
  CHECK(engine.gauges().pages_host_free == 20 - 5);
  for (int i = 0; i < 10; ++i) engine.step();
  CHECK(engine.gauges().pages_gpu_held == 3);
  CHECK(engine.gauges().pages_host_free == 20 - 6);
  while (!engine.idle()) engine.step();
  CHECK(engine.gauges().pages_gpu_held == 0);
  CHECK(engine.gauges().pages_host_free == 20);
}

TEST_CASE("X-3 resident: the fraction of each page that stays on the GPU is counted") {
  CoreConfig config = resident_config();
  config.policies.retrieval_spec.resident_fraction_q32 = 1u << 30;  // a quarter
  config.pages_gpu = 8;
  CoreDriver engine(config);
  engine.arrive(0, 64, 40);
  // 4 pages of context: 3 resident pages and ceil(4 / 4) for what stays of each.
  CHECK(engine.gauges().pages_gpu_held == 4);
  for (int i = 0; i < 18; ++i) engine.step();
  CHECK(engine.gauges().pages_gpu_held == 5);  // 3 + ceil(6 / 4)
}

TEST_CASE("X-4 resident: a reservation is the prompt's pages, then the resident pages") {
  CoreConfig config = resident_config();
  config.admission = AdmissionKind::kFullReservation;
  // Without resident pages each alone would need 4 + 9 GPU pages; neither is rejected.
  const auto needed = [&config](uint32_t prompt, uint32_t output) {
    return pages_needed_resident(config, prompt, output);
  };
  CHECK(needed(64, 80).gpu == 4);
  CHECK(needed(64, 80).host == 9);
  CHECK(needed(16, 128).gpu == 3);
  config.admission = AdmissionKind::kWatermark;
  CHECK(needed(64, 80).gpu == 9);  // after a preemption all of it would be a prompt
  config.admission = AdmissionKind::kFullReservation;
  check_table(config, R"(
    arrive r1 prompt=64 output=80     launch s1 r1:64
    arrive r2 prompt=48 output=60     -
    done s1                           launch s2 r1:1 r2:48
    done s2                           launch s3 r1:1 r2:1
  )");
}

TEST_CASE("resident: entries dropped from a prompt have no host page, and pages hold the retained entries") {
  CoreConfig config = resident_config();
  config.pages_gpu = 16;
  config.pages_host = 10;
  config.policies.scorer = "snapkv";
  config.policies.budget = "uniform";
  config.policies.layout = "compact";
  config.policies.identity = "none";
  config.policies.budget_spec.kv_entries = 56;
  CoreDriver engine(config);
  engine.arrive(0, 90, 40);  // two chunks
  CHECK(engine.gauges().pages_host_free == 10 - 4);
  engine.step();
  // 6 pages of prompt, reduced to 56 KV entries: 4 pages, of which 3 are resident.
  CHECK(engine.gauges().pages_host_free == 10 - 4);
  CHECK(engine.gauges().pages_gpu_held == 3);
  CHECK(engine.gauges().entries_held == 56);
  for (int i = 0; i < 8; ++i) engine.step();
  CHECK(engine.gauges().pages_host_free == 10 - 4);  // 64 KV entries
  engine.step();
  CHECK(engine.gauges().pages_host_free == 10 - 5);
  CHECK(engine.gauges().entries_held == 65);
  while (!engine.idle()) engine.step();
  CHECK(engine.gauges().pages_host_free == 10);
}
