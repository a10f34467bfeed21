// Retrieval on CUDA: the moved pages, their layout and their stream change no computed bit
// (docs/design/methods/freekv.md#recall, F-1 to F-7; docs/design/methods/composition.md#invariants, X-8).
// tests/unit/cuda_kernels/page_choice_test.cu compares the selections with their definitions.

#include "engine/cuda/retrieval/retrieved.h"

#include <doctest/doctest.h>

#include "tests/unit/cuda_engine/retrieved_run.h"

using namespace kvtwin;
using namespace kvtwin::testing;

TEST_CASE("F-5 cuda: corrected speculation, blocking recall and pages that never moved give the same bits") {
  for (const auto& [dim, heads, kv] : {std::tuple{64u, 8u, 2u}, {128u, 4u, 4u}}) {
    for (const uint32_t dense : {0u, 1u}) {
      CAPTURE(dim);
      CAPTURE(dense);
      const OnDevice d(retrieval_model(dim, heads, kv));
      const CudaOutcome still = run_on_cuda(setting_of("quest", 2, dense), *d.model, d.llm);
      const CudaOutcome blocking = run_on_cuda(setting_of("arkvale", 2, dense), *d.model, d.llm);
      const CudaOutcome corrected = run_on_cuda(setting_of("freekv", 2, dense), *d.model, d.llm);
      CHECK(blocking.logits == still.logits);
      CHECK(corrected.logits == still.logits);
      CHECK(still.recalled.blocking == 0);
      CHECK(blocking.recalled.blocking > 0);
      CHECK(corrected.recalled.blocking == blocking.recalled.blocking);
      CHECK(corrected.recalled.background == 0);
      CHECK(corrected.recalled.corrected > 0);
      MESSAGE("pages chosen " << blocking.recalled.chosen << ", recalled " << blocking.recalled.blocking);
    }
  }
}

namespace {

// Compares runs on the GPU with and without graphs.
void check_replays(const LlmSpec& llm) {
  const OnDevice d(llm);
  const struct {
    std::string method;
    double tau;
    uint32_t dense;
    HostPageLayout layout;
    uint64_t delays;
  } rows[] = {{"quest", 2, 0, HostPageLayout::kHnd, 0},     {"quest", 2, 1, HostPageLayout::kHnd, 0},
              {"arkvale", 2, 1, HostPageLayout::kHnd, 0},   {"freekv", 2, 1, HostPageLayout::kNhd, 0},
              {"freekv", -1, 0, HostPageLayout::kHnd, 0},   {"freekv", 0, 1, HostPageLayout::kNhd, 0},
              {"freekv", -0.1, 1, HostPageLayout::kHnd, 7}, {"freekv", 0, 0, HostPageLayout::kNhd, 8}};
  for (const auto& row : rows) {
    CAPTURE(row.method);
    CAPTURE(row.tau);
    RetrievalSetting setting = setting_of(row.method, row.tau, row.dense);
    setting.copies.layout = row.layout;
    const CudaOutcome unpadded = run_on_cuda(setting, *d.model, d.llm, {}, {}, 0);
    const auto compare = [&](uint32_t graphs, const CudaOutcome& launched) {
      CAPTURE(graphs);
      const CudaOutcome replayed = run_on_cuda(setting, *d.model, d.llm, {.delays = row.delays}, {}, graphs);
      CHECK(replayed.logits == launched.logits);
      CHECK(replayed.digest == launched.digest);
      CHECK(replayed.recalled.blocking == launched.recalled.blocking);
      CHECK(replayed.recalled.background == launched.recalled.background);
      CHECK(replayed.recalled.corrected == launched.recalled.corrected);
      CHECK(launched.replays == 0);
      MESSAGE(row.method << ", " << graphs << " graphs: " << replayed.replays << " steps were replays");
      return replayed.replays;
    };
    // With room for one graph, graphs are created and destroyed while their recalls may still run.
    CHECK(compare(1, unpadded) > 0);
    const uint64_t replays = compare(64, unpadded);
    CHECK(replays > 100);
    // Padded to captured sizes, whose graphs are made at start-up.
    setting.capture_sizes = {4, 8};
    CHECK(compare(1, run_on_cuda(setting, *d.model, d.llm, {}, {}, 0)) > replays);
  }
}

}  // namespace

TEST_CASE("cuda: retrieval replayed as graphs equals retrieval launched without them, to the bit") {
  check_replays(retrieval_model(64, 8, 2));
}
TEST_CASE(
    "cuda: with heads of 128, retrieval replayed as graphs equals retrieval launched without them, to the "
    "bit") {
  check_replays(retrieval_model(128, 4, 4));
}

TEST_CASE("F-6 cuda: with a budget beyond every request no page moves, and the dense engine's bits result") {
  const OnDevice d(retrieval_model(64, 8, 2));
  RetrievalSetting setting = setting_of("freekv", 0.5);
  setting.spec.budget_tokens = 960, setting.pages_gpu = 200;
  RetrievalSetting dense = setting;
  dense.retrieval = "all", dense.pages_host = 0;
  const CudaOutcome retrieved = run_on_cuda(setting, *d.model, d.llm);
  CHECK(retrieved.logits == run_on_cuda(dense, *d.model, d.llm).logits);
  CHECK(retrieved.recalled.heads == 0);
  // A small budget changes the logits.
  CHECK(run_on_cuda(setting_of("freekv", 0.5), *d.model, d.llm).logits != retrieved.logits);
}

TEST_CASE(
    "F-7, X-8 cuda: randomly late streams and either host layout give the same bits with all dependencies "
    "present") {
  const OnDevice d(retrieval_model(64, 8, 2));
  for (const double tau : {-1.0, -0.1, 0.0}) {
    CAPTURE(tau);
    RetrievalSetting setting = setting_of("freekv", tau);
    const CudaOutcome expected = run_on_cuda(setting, *d.model, d.llm);
    CHECK(expected.recalled.background > 0);
    if (tau == 0) CHECK(expected.recalled.corrected > 0);
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      CAPTURE(seed);
      setting.copies.layout = seed % 2 == 0 ? HostPageLayout::kHnd : HostPageLayout::kNhd;
      cuda::HappensBefore watch;
      const CudaOutcome late = run_on_cuda(setting, *d.model, d.llm, {.delays = seed, .watch = &watch});
      CHECK(late.logits == expected.logits);
      CHECK(late.recalled.background == expected.recalled.background);
      CHECK(watch.operations() > 1000);
      for (const std::string& finding : watch.findings()) FAIL_CHECK(finding);
    }
  }
}

TEST_CASE("cuda: pages recalled by a kernel and by every form of copies give the same bits") {
  constexpr HostPageLayout kHnd = HostPageLayout::kHnd, kNhd = HostPageLayout::kNhd;
  const OnDevice d(retrieval_model(64, 8, 2));
  const struct {
    const char* method;
    double tau;
  } methods[] = {{"arkvale", 2}, {"freekv", -1}, {"freekv", -0.1}, {"freekv", 2}};
  for (const auto& method : methods) {
    CAPTURE(method.method);
    CAPTURE(method.tau);
    RetrievalSetting setting = setting_of(method.method, method.tau);
    setting.copies = {kHnd, HostCopy::kKernel, 2};
    const CudaOutcome expected = run_on_cuda(setting, *d.model, d.llm);
    uint64_t delays = 0;
    for (const RecallCopies& copies : {RecallCopies{kHnd, HostCopy::kStrided, 2},
                                       {kHnd, HostCopy::kStrided, 1},
                                       {kHnd, HostCopy::kEachPiece, 2},
                                       {kNhd, HostCopy::kStrided, 1},
                                       {kNhd, HostCopy::kEachPiece, 1}}) {
      CAPTURE(static_cast<int>(copies.layout));
      CAPTURE(static_cast<int>(copies.copy));
      CAPTURE(copies.staging_buffers);
      setting.copies = copies;
      cuda::HappensBefore watch;
      const CudaOutcome copied = run_on_cuda(setting, *d.model, d.llm, {.delays = ++delays, .watch = &watch});
      CHECK(copied.logits == expected.logits);
      CHECK(copied.digest == expected.digest);
      CHECK(copied.recalled.blocking == expected.recalled.blocking);
      CHECK(copied.recalled.background == expected.recalled.background);
      CHECK(copied.replays == 0);  // the host starts copies
      for (const std::string& finding : watch.findings()) FAIL_CHECK(finding);
    }
  }
}

TEST_CASE("X-8 cuda: the recorder finds each missing dependency") {
  const OnDevice d(retrieval_model(64, 8, 2));
  for (const Edge edge :
       {Edge::kAttended, Edge::kRecalled, Edge::kSealed, Edge::kOffloaded, Edge::kQueried, Edge::kChosen}) {
    CAPTURE(static_cast<int>(edge));
    cuda::HappensBefore watch;
    run_on_cuda(setting_of("freekv", 0), *d.model, d.llm, {.left_out = edge, .watch = &watch});
    CHECK(!watch.findings().empty());
  }
}

TEST_CASE("cuda: requests preempted under retrieval resume and end with finite logits") {
  const OnDevice d(retrieval_model(64, 8, 2));
  uint64_t preemptions = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    RetrievalSetting setting = setting_of("freekv", 0);
    setting.seed = seed, setting.pages_gpu = 34, setting.in_flight = 1 + seed % 2;
    cuda::HappensBefore watch;
    const CudaOutcome out = run_on_cuda(setting, *d.model, d.llm, {.delays = seed, .watch = &watch});
    preemptions += out.preemptions;
    for (const std::string& finding : watch.findings()) FAIL_CHECK(finding);
  }
  MESSAGE(preemptions << " preemptions");
  CHECK(preemptions > 0);
}
