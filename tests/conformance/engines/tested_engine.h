// The engine that a program of the conformance suite tests: the CPU engine (cpu_under_test.cc) or the CUDA
// engine (cuda_under_test.cc). The suite's cases know neither; each program links one of the two files.

#ifndef KVTWIN_TESTS_CONFORMANCE_ENGINES_TESTED_ENGINE_H_
#define KVTWIN_TESTS_CONFORMANCE_ENGINES_TESTED_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/common/request_tokens.h"
#include "engine/methods/combinations.h"
#include "engine/runtime/outcome_source.h"
#include "models/weights/weights.h"
#include "tests/unit/cpu_compression/compress_run.h"

namespace kvtwin::testing {

struct EngineSetup {
  EngineId engine{};
  uint32_t page_tokens = 16;
  uint32_t pages_gpu = 200, pages_host = 0, pages_disk = 0;
  uint32_t rows_max = 128;    // tokens of one step
  uint32_t samples_max = 16;  // requests of one step
  std::vector<uint32_t> capture_sizes{};
  cpu::Decoding decoding = cpu::Decoding::kForced;
  std::vector<uint32_t> end_tokens{};
  bool concurrent_copies = false;  // copies run beside the steps that follow, where the engine can
};

// An engine that drops KV entries by the policies of `core`, and has its sizes.
struct CompressedSetup {
  CoreConfig core;
  kernels::ScoreSpec score;
  bool concurrent_copies = false;
  // Called after each compression, for each head (layer * kv_heads + head), with the positions that it
  // retains.
  std::function<void(RequestId request, uint32_t head, std::span<const uint32_t> positions)> retained{};
};
constexpr uint64_t kScorerSeed = 9;  // of drawn weights of scorers

// An engine whose pages are poisoned when they are allocated.
class TestedEngine : public OutcomeSource {
 public:
  struct Sample {
    RequestId request{};
    uint32_t position = 0;
    uint32_t token = 0;
  };
  // Of the last step, one per entry that samples, in their order.
  virtual std::vector<Sample> samples() const = 0;
  virtual std::vector<float> logits() const = 0;  // [samples][vocab]
  virtual uint64_t samples_digest() const = 0;
  // Waits for a copy and returns its duration. REQUIRES: concurrent_copies, of an engine that has them.
  virtual Duration copy_time(TransferId transfer) = 0;
};

// Weights where the engine reads them.
class TestedModel {
 public:
  virtual ~TestedModel() = default;
  // With an unquantised paged cache.
  virtual std::unique_ptr<TestedEngine> engine(const EngineSetup& setup,
                                               const cpu::TokenIds* tokens) const = 0;
  virtual std::unique_ptr<TestedEngine> compressed(const CompressedSetup& setup,
                                                   const cpu::TokenIds* tokens) const = 0;
  // With KV entries in two formats.
  virtual std::unique_ptr<TestedEngine> mixed_precision(const CoreConfig& core, bool concurrent_copies,
                                                        const cpu::TokenIds* tokens) const = 0;
};

struct TestedKind {
  Computes computes = Computes::kCpu;
  std::vector<LlmSpec> models;
  std::vector<LlmSpec> compressed_models{};  // of engines that drop KV entries
  bool concurrent_copies = false;
  bool disk_tier = false;
  // Results equal those of the CPU engine to the bit, whatever the shapes of the steps.
  bool exact = false;
};
TestedKind tested_kind();
std::unique_ptr<TestedModel> tested_model(const ModelWeights& weights);

// A configuration of the method that drops many entries, with plenty of pages.
CoreConfig compressed_config(const Method& method, const LlmSpec& llm);

// The largest relative error of logits against the CPU engine's; 0 if the engine is exact.
double tolerance(const LlmSpec& llm, std::string_view precision = "bf16");

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_CONFORMANCE_ENGINES_TESTED_ENGINE_H_
