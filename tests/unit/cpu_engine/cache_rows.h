// Drives a KvCache step by step with rows drawn from (layer, request position) and without a model, so that
// the cache's contents and attention can be compared with definitions. Rows of equal positions are equal in
// any steps.

#ifndef KVTWIN_TESTS_UNIT_CPU_ENGINE_CACHE_ROWS_H_
#define KVTWIN_TESTS_UNIT_CPU_ENGINE_CACHE_ROWS_H_

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/prng.h"
#include "engine/cpu/kv_cache.h"
#include "models/catalog/llm.h"

namespace kvtwin::testing {

class CacheRows {
 public:
  CacheRows(LlmSpec model, cpu::KvMemory given, uint64_t seed) : llm(std::move(model)), memory(given) {
    for (uint32_t i = 0; i < memory.pages_gpu; ++i) free_.push_back(PageId{i});
    Prng prng(seed);
    for (size_t i = free_.size(); seed != 0 && i > 1; --i)
      std::swap(free_[i - 1], free_[prng.range(0, i - 1)]);
    std::reverse(free_.begin(), free_.end());
  }

  struct Want {
    RequestId request{};
    uint32_t tokens = 1;
  };
  void begin(RequestId request, const std::vector<PageId>& reused = {}) {
    requests_[request] = {reused, static_cast<uint32_t>(reused.size()) * memory.page_tokens, true, reused};
  }
  // Runs one single step.
  void step(const std::vector<Want>& wants) {
    std::vector<PlanEntry> entries;
    std::vector<PageAllocation> allocations;
    std::vector<PrefixHit> prefix_hits;
    std::vector<uint64_t> positions;
    for (uint32_t i = 0; i < wants.size(); ++i) {
      Request& request = requests_.at(wants[i].request);
      const bool decode = wants[i].tokens == 1 && request.kv > 0 && !request.fresh;
      entries.push_back({wants[i].request, decode ? EntryKind::kDecode : EntryKind::kChunk, request.fresh,
                         decode, wants[i].tokens, request.kv});
      if (request.fresh && !request.reused.empty()) prefix_hits.push_back({wants[i].request, request.reused});
      request.fresh = false;
      for (uint32_t t = 0; t < wants[i].tokens; ++t) positions.push_back(request.kv++);
      while (request.pages.size() * memory.page_tokens < request.kv) {
        request.pages.push_back(take());
        allocations.push_back({0, i, request.pages.back()});
      }
    }
    run({.entries = entries, .allocations = allocations, .prefix_hits = prefix_hits}, positions);
  }
  // `positions` of the launch's tokens.
  void run(const LaunchStep& launch, const std::vector<uint64_t>& positions) {
    DataOutcomes values;
    cache->begin(launch, 0, launch.entries);
    outputs_.clear(), queries_.clear();
    for (uint32_t layer = 0; layer < llm.layers; ++layer) {
      std::vector<float> q = rows(layer, 0, llm.query_heads, positions);
      std::vector<float> k = rows(layer, 1, llm.kv_heads, positions);
      const std::vector<float> v = rows(layer, 2, llm.kv_heads, positions);
      std::vector<float> out(q.size());
      cache->attend(layer, q.data(), k.data(), v.data(), out.data());
      queries_.insert(queries_.end(), q.begin(), q.end());
      outputs_.insert(outputs_.end(), out.begin(), out.end());
    }
    rows_ = positions.size();
    cache->end(launch, 0, launch.entries, &values);
  }

  PageId take() {
    KVT_CHECK(!free_.empty());
    const PageId page = free_.back();
    free_.pop_back();
    return page;
  }
  const std::vector<PageId>& pages(RequestId request) const { return requests_.at(request).pages; }
  // Outputs of the last step: [layers][rows][query_heads][head_dim].
  const std::vector<float>& outputs() const { return outputs_; }
  const float* output(uint32_t layer, size_t row, uint32_t head) const {
    return outputs_.data() + ((layer * rows_ + row) * llm.query_heads + head) * llm.head_dim;
  }
  const float* rotated_query(uint32_t layer, size_t row, uint32_t head) const {
    return queries_.data() + ((layer * rows_ + row) * llm.query_heads + head) * llm.head_dim;
  }

  const LlmSpec llm;
  const cpu::KvMemory memory;
  std::unique_ptr<cpu::KvCache> cache;

 private:
  struct Request {
    std::vector<PageId> pages;
    uint32_t kv = 0;
    bool fresh = true;
    std::vector<PageId> reused;
  };
  // Numbers in [-2, 2).
  std::vector<float> rows(uint32_t layer, uint32_t which, uint32_t heads,
                          const std::vector<uint64_t>& positions) const {
    std::vector<float> out;
    for (const uint64_t position : positions) {
      for (uint32_t i = 0; i < heads * llm.head_dim; ++i) {
        const uint64_t drawn = draw({layer, which, position, i}) >> 40;  // 24 bits
        out.push_back(static_cast<float>(drawn) / static_cast<float>(1 << 22) - 2);
      }
    }
    return out;
  }

  std::vector<PageId> free_;  // taken from the back
  std::map<RequestId, Request> requests_;
  std::vector<float> outputs_, queries_;
  size_t rows_ = 0;
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_CPU_ENGINE_CACHE_ROWS_H_
