// Hand-made steps for a CpuEngine: a page table per request, with pages in a chosen order.

#ifndef KVTWIN_TESTS_UNIT_CPU_ENGINE_STEPS_H_
#define KVTWIN_TESTS_UNIT_CPU_ENGINE_STEPS_H_

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <span>
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

// Drives any engine with CpuEngine's interface.
template <typename Engine>
class EngineSteps {
 public:
  // Pages are allocated in an order drawn from `seed`; 0: ascending.
  EngineSteps(uint32_t page_tokens, uint32_t pages_gpu, uint64_t seed, std::unique_ptr<Engine> engine)
      : page_tokens_(page_tokens), engine_(std::move(engine)) {
    for (uint32_t i = 0; i < pages_gpu; ++i) free_.push_back(PageId{i});
    Prng prng(seed);
    for (size_t i = free_.size(); seed != 0 && i > 1; --i)
      std::swap(free_[i - 1], free_[prng.range(0, i - 1)]);
    std::reverse(free_.begin(), free_.end());
  }

  // A request begins with the pages that it reuses.
  void begin(RequestId request, const std::vector<PageId>& reused = {}) {
    requests_[request] = {reused, static_cast<uint32_t>(reused.size()) * page_tokens_, true, reused};
  }
  void end(RequestId request, DropRequestState::Reason reason = DropRequestState::Reason::kFinished) {
    engine_->notify(DropRequestState{EngineId{}, request, reason});
    requests_.erase(request);
  }

  // Steps from now on run at least this many rows of matrix products.
  void pad_to(uint32_t rows) { tokens_padded_ = rows; }

  struct Want {
    RequestId request{};
    uint32_t tokens = 1;
    bool samples = true;
  };
  // Runs one launch of `repeat` steps. Returns the logits of all its samples, [steps][samples][vocab].
  std::vector<float> run(const std::vector<Want>& wants, uint32_t repeat = 1) {
    std::vector<PlanEntry> entries;
    std::vector<PageAllocation> allocations;
    std::vector<PrefixHit> prefix_hits;
    for (const Want& want : wants) {
      Request& request = requests_.at(want.request);
      entries.push_back({want.request,
                         request.kv == 0 || want.tokens > 1 ? EntryKind::kChunk : EntryKind::kDecode,
                         request.fresh, want.samples, want.tokens, request.kv});
      if (request.fresh && !request.reused.empty()) prefix_hits.push_back({want.request, request.reused});
      request.fresh = false;
    }
    for (uint32_t offset = 0; offset < repeat; ++offset) {
      for (uint32_t i = 0; i < wants.size(); ++i) {
        Request& request = requests_.at(wants[i].request);
        request.kv += wants[i].tokens;
        while (request.pages.size() * page_tokens_ < request.kv) {
          request.pages.push_back(take());
          allocations.push_back({offset, i, request.pages.back()});
        }
      }
    }
    const LaunchStep launch{.engine = EngineId{},
                            .step = StepId{step_},
                            .repeat = repeat,
                            .tokens_padded = tokens_padded_,
                            .entries = entries,
                            .allocations = allocations,
                            .prefix_hits = prefix_hits};
    step_ += repeat;
    std::vector<float> logits;
    for (uint32_t offset = 0; offset < repeat; ++offset) {
      engine_->step(launch, offset, &values_);
      const auto& some = engine_->logits();
      logits.insert(logits.end(), some.begin(), some.end());
      for (const auto& sample : engine_->samples()) sampled_[sample.request].push_back(sample.token);
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
  const std::vector<PageId>& pages(RequestId request) { return requests_.at(request).pages; }
  const std::vector<uint32_t>& sampled(RequestId request) { return sampled_[request]; }
  const DataOutcomes& values() const { return values_; }

 private:
  struct Request {
    std::vector<PageId> pages;
    uint32_t kv = 0;
    bool fresh = true;
    std::vector<PageId> reused;
  };

  const uint32_t page_tokens_;
  std::unique_ptr<Engine> engine_;
  std::vector<PageId> free_;  // taken from the back
  std::map<RequestId, Request> requests_;
  std::map<RequestId, std::vector<uint32_t>> sampled_;
  DataOutcomes values_;
  uint64_t step_ = 0;
  uint32_t tokens_padded_ = 0;
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

// |got - expected| / |expected|, as vectors; infinite if their sizes differ.
inline double relative_error(std::span<const float> got, std::span<const float> expected) {
  if (got.size() != expected.size() || got.empty()) return INFINITY;
  double difference = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = double{got[i]} - double{expected[i]};
    difference += d * d;
    size += double{expected[i]} * double{expected[i]};
  }
  return std::sqrt(difference / size);
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_CPU_ENGINE_STEPS_H_
