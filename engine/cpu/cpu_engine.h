// CpuEngine performs the steps of one serving engine: real tokens, real pages, real sums.
//
// It is asked for single steps in order, and answers with what the values decided. Two clocks drive it:
// cpu_backend.h measures how long each step takes; the simulated world asks it as its OutcomeSource and keeps
// its own time (--clock=virtual). What it computes does not depend on which.
//
// The policy says which pages; this says what is in them. A call's page table starts with its adoption and
// grows with its grants. A transfer copies pages when it is asked for: the policy lets nobody write to its
// source or read its target before it is answered (backend.h), so no result depends on the moment.

#ifndef KVTWIN_ENGINE_CPU_CPU_ENGINE_H_
#define KVTWIN_ENGINE_CPU_CPU_ENGINE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/cpu/forward.h"
#include "engine/cpu/kv_store.h"
#include "engine/cpu/token_ids.h"
#include "engine/outcome_source.h"
#include "kernels/attention.h"
#include "kernels/rope_append.h"

namespace kvtwin::cpu {

enum class Decoding : uint8_t {
  kForced,  // the next input is what the trace says the output was
  kGreedy,  // the next input is the sampled token, the one with the largest logit
};

struct CpuEngineConfig {
  EngineId engine{};
  uint32_t page_tokens = 16;
  uint32_t pages_gpu = 0;
  uint32_t pages_host = 0;
  Decoding decoding = Decoding::kForced;
  std::vector<uint32_t> end_tokens{};  // greedy: sampling one ends the call
  bool poison = false;                 // pages are filled with NaN when they are granted: tests
};

class CpuEngine final : public OutcomeSource {
 public:
  // `weights` and `tokens` must outlive this. Wrong: no room for so many pages.
  static Result<std::unique_ptr<CpuEngine>> make(const CpuEngineConfig& config, const ModelWeights* weights,
                                                 const TokenIds* tokens);

  void step(const LaunchStep& launch, uint32_t offset, StepValues* values) override;
  void told(const Command& command) override;

  // Of the last step, one per entry that samples, in their order.
  struct Sample {
    CallId call{};
    uint32_t position = 0;  // of the token that was sampled
    uint32_t token = 0;     // the largest logit, whatever the decoding
  };
  std::span<const Sample> samples() const { return samples_; }
  std::span<const float> logits() const { return logits_; }  // [samples().size()][vocab]

  // Tokens that went through the model.
  uint64_t tokens_computed() const { return tokens_computed_; }
  // Fingerprint of what all ended calls sampled, whatever the order in which they ended.
  uint64_t samples_digest() const { return samples_digest_; }
  const KvStore& kv() const { return kv_; }

 private:
  struct Call {
    std::vector<kernels::ReadRun> pages;  // whole pages, in order of position
    std::vector<uint32_t> sampled;        // by output token
  };
  // One row per token of the step.
  struct Batch {
    std::vector<uint32_t> tokens;
    std::vector<kernels::AppendRow> appends;
    std::vector<kernels::AttentionRow> reads;
    std::vector<uint32_t> sampling;
    void clear();
  };
  class PagedAttention;

  CpuEngine(const CpuEngineConfig& config, const ModelWeights* weights, const TokenIds* tokens, KvStore kv)
      : config_(config), tokens_(tokens), forward_(weights), kv_(std::move(kv)) {}

  void take_pages(const LaunchStep& launch, uint32_t offset);
  void add_entry(const PlanEntry& entry);
  uint32_t input_token(CallId call, const Call& state, uint32_t position) const;
  void take_sample(const PlanEntry& entry, size_t index, StepValues* values);

  const CpuEngineConfig config_;
  const TokenIds* const tokens_;
  Forward forward_;
  KvStore kv_;
  std::map<CallId, Call> calls_;
  Batch batch_;
  std::vector<Sample> samples_;
  std::vector<float> logits_;
  uint64_t tokens_computed_ = 0;
  uint64_t samples_digest_ = 0;
};

// Several engines as one OutcomeSource: steps and commands go to the engine that they name.
class EngineSources final : public OutcomeSource {
 public:
  // In engine order; they must outlive this.
  explicit EngineSources(std::vector<OutcomeSource*> engines) : engines_(std::move(engines)) {}

  void step(const LaunchStep& launch, uint32_t offset, StepValues* values) override;
  void told(const Command& command) override;

 private:
  const std::vector<OutcomeSource*> engines_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_CPU_ENGINE_H_
