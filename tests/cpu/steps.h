// Hand-made steps for a CpuEngine: a page table per call, pages in any order the test likes.

#ifndef KVTWIN_TESTS_CPU_STEPS_H_
#define KVTWIN_TESTS_CPU_STEPS_H_

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/prng.h"
#include "engine/cpu/cpu_engine.h"
#include "engine/cpu/paged_cache.h"

namespace kvtwin::testing {

inline std::unique_ptr<cpu::KvCache> paged(const cpu::KvMemory& memory, const LlmSpec& llm) {
  Result<std::unique_ptr<cpu::KvCache>> made = cpu::PagedCache::make(memory, llm);
  KVT_CHECK(made.has_value());
  return std::move(*made);
}

// Of any engine that is driven like CpuEngine.
template <typename Engine>
class EngineSteps {
 public:
  // Pages are dealt in an order drawn from `seed`; 0: ascending.
  EngineSteps(uint32_t page_tokens, uint32_t pages_gpu, uint64_t seed, std::unique_ptr<Engine> engine)
      : page_tokens_(page_tokens), engine_(std::move(engine)) {
    for (uint32_t i = 0; i < pages_gpu; ++i) free_.push_back(PageId{i});
    Prng prng(seed);
    for (size_t i = free_.size(); seed != 0 && i > 1; --i)
      std::swap(free_[i - 1], free_[prng.range(0, i - 1)]);
    std::reverse(free_.begin(), free_.end());
  }

  // A call begins, with what it adopts.
  void begin(CallId call, const std::vector<PageId>& adopted = {}) {
    calls_[call] = {adopted, static_cast<uint32_t>(adopted.size()) * page_tokens_, true, adopted};
  }
  void end(CallId call, DropCallState::Reason reason = DropCallState::Reason::kFinished) {
    engine_->told(DropCallState{EngineId{}, call, reason});
    calls_.erase(call);
  }

  struct Want {
    CallId call{};
    uint32_t tokens = 1;
    bool samples = true;
  };
  // One launch of `repeat` steps. Returns the logits of all its samples, [steps][samples][vocab].
  std::vector<float> run(const std::vector<Want>& wants, uint32_t repeat = 1) {
    std::vector<PlanEntry> entries;
    std::vector<PageGrant> grants;
    std::vector<Adoption> adoptions;
    for (const Want& want : wants) {
      Call& call = calls_.at(want.call);
      entries.push_back({want.call, call.kv == 0 || want.tokens > 1 ? EntryKind::kChunk : EntryKind::kDecode,
                         call.fresh, want.samples, want.tokens, call.kv});
      if (call.fresh && !call.adopted.empty()) adoptions.push_back({want.call, call.adopted});
      call.fresh = false;
    }
    for (uint32_t offset = 0; offset < repeat; ++offset) {
      for (uint32_t i = 0; i < wants.size(); ++i) {
        Call& call = calls_.at(wants[i].call);
        call.kv += wants[i].tokens;
        while (call.pages.size() * page_tokens_ < call.kv) {
          call.pages.push_back(take());
          grants.push_back({offset, i, call.pages.back()});
        }
      }
    }
    const LaunchStep launch{.engine = EngineId{},
                            .step = StepId{step_},
                            .repeat = repeat,
                            .entries = entries,
                            .grants = grants,
                            .adoptions = adoptions};
    step_ += repeat;
    std::vector<float> logits;
    for (uint32_t offset = 0; offset < repeat; ++offset) {
      engine_->step(launch, offset, &values_);
      const auto& some = engine_->logits();
      logits.insert(logits.end(), some.begin(), some.end());
      for (const auto& sample : engine_->samples()) sampled_[sample.call].push_back(sample.token);
    }
    return logits;
  }

  PageId take() {
    KVT_CHECK(!free_.empty());
    const PageId page = free_.back();
    free_.pop_back();
    return page;
  }
  Engine& engine() { return *engine_; }
  const std::vector<PageId>& pages(CallId call) { return calls_.at(call).pages; }
  const std::vector<uint32_t>& sampled(CallId call) { return sampled_[call]; }
  const StepValues& values() const { return values_; }

 private:
  struct Call {
    std::vector<PageId> pages;
    uint32_t kv = 0;
    bool fresh = true;
    std::vector<PageId> adopted;
  };

  const uint32_t page_tokens_;
  std::unique_ptr<Engine> engine_;
  std::vector<PageId> free_;  // the next one last
  std::map<CallId, Call> calls_;
  std::map<CallId, std::vector<uint32_t>> sampled_;
  StepValues values_;
  uint64_t step_ = 0;
};

class Steps : public EngineSteps<cpu::CpuEngine> {
 public:
  Steps(const cpu::KvMemory& memory, const ModelWeights* weights, const cpu::TokenIds* tokens, uint64_t seed,
        const cpu::CpuEngineConfig& config = {})
      : EngineSteps(
            memory.page_tokens, memory.pages_gpu, seed,
            std::make_unique<cpu::CpuEngine>(config, weights, tokens, paged(memory, weights->llm()))) {}
};

inline std::vector<uint32_t> random_tokens(uint64_t seed, size_t count, uint32_t vocab) {
  std::vector<uint32_t> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<uint32_t>(draw({seed, i}) % vocab);
  return out;
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_CPU_STEPS_H_
