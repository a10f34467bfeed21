// Invariants of docs/design/methods/composition.md#invariants over whole runs of the CPU engine, on two
// models each (GQA 4:1 and MHA): how retained entries grow with the budget, what scores do not depend on,
// and who owns each page.

#include <set>
#include <tuple>

#include "engine/methods/budget_groups.h"
#include "tests/unit/cpu_compression/compress_run.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

using Retained = WitnessCache::Retained;
using Key = std::tuple<uint32_t, uint32_t, uint32_t>;  // request, head, tokens
using Sets = std::map<Key, std::vector<uint32_t>>;

std::vector<LlmSpec> invariant_models() { return {tiny_models()[0], tiny_models()[1]}; }

RunOf some(const Method& method, const LlmSpec& llm) {
  RunOf what{.llm = llm, .config = config_of(method, llm), .seed = 3};
  what.client = {.sessions = 3, .requests_per_session = 2, .prompt_tokens_max = 60, .output_tokens_max = 16};
  return what;
}

// The entries that each compression retained of each head, and the result of the run.
Sets sets_of(RunOf what, RunResult* result = nullptr) {
  Sets out;
  what.judge = [&](const Retained& retained) {
    out[{raw(retained.request), retained.head, retained.tokens}] = retained.after;
  };
  const RunResult ran = run_of(what);
  CHECK(ran.dropped > 0);
  if (result != nullptr) *result = ran;
  return out;
}

// Doubles KV head `head` of the last layer's key projection. Doubling a float is exact.
void double_keys(const ModelWeights& weights, uint32_t head) {
  const LlmSpec& llm = weights.llm();
  const TensorView& k = weights.layer(llm.layers - 1).k;
  REQUIRE(k.type == TensorType::kBf16);
  // Drawn weights have writable memory.
  auto* const data = const_cast<uint16_t*>(reinterpret_cast<const uint16_t*>(k.data.data()));
  const size_t rows = size_t{llm.head_dim} * llm.hidden;
  for (size_t i = head * rows; i < (head + 1) * rows; ++i) {
    if ((data[i] & 0x7f80) != 0) data[i] = static_cast<uint16_t>(data[i] + 0x80);
  }
}

// The owner of each page as the backend sees it, from allocations, compressions and ends of requests.
class Owners {
 public:
  explicit Owners(const CoreConfig& config)
      : page_tokens_(config.page_tokens), pages_(config.pages_gpu), groups_(make_groups(config.policies)) {}
  // Single step `offset` of a launch begins; pages allocated for a later step may never be used.
  void launched(const LaunchStep& launch, uint32_t offset) {
    CHECK(launch.prefix_hits.empty());
    for (const PageAllocation& allocation : launch.allocations) {
      if (allocation.offset != offset) continue;
      const RequestId request = launch.entries[allocation.entry].request;
      CHECK(raw(allocation.page) < pages_);
      const auto [at, is_new] = owner_.insert({allocation.page, {request, allocation.group}});
      CHECK_MESSAGE(is_new, "page ", raw(allocation.page), " is request ", raw(at->second.first), "'s");
      tables_[request].resize(groups_.groups());
      tables_[request][allocation.group].push_back(allocation.page);
    }
    most_ = std::max(most_, owner_.size());
    if (offset == 0 && launch.held.slots > 0) check_held(launch);
  }
  // A compression frees the pages of the group's table after its last KV entry.
  void left(const Retained& retained) {
    std::vector<PageId>& table = tables_.at(retained.request)[groups_.group_of(retained.head)];
    const size_t needed = div_ceil(retained.after.size(), size_t{page_tokens_});
    REQUIRE(needed <= table.size());
    for (; table.size() > needed; ++freed_) {
      owner_.erase(table.back());
      table.pop_back();
    }
  }
  void dropped(RequestId request) {
    for (const std::vector<PageId>& table : tables_[request]) {
      for (const PageId page : table) owner_.erase(page);
    }
    tables_.erase(request);
  }
  size_t owned() const { return owner_.size(); }
  size_t most() const { return most_; }
  uint64_t freed() const { return freed_; }
  uint64_t held_checked() const { return held_checked_; }

 private:
  // The policy counts the same slots unless the step itself compresses.
  void check_held(const LaunchStep& launch) {
    if (!launch.compressions.empty()) return;
    uint64_t pages = 0;
    for (const PlanEntry& entry : launch.entries) {
      for (const std::vector<PageId>& table : tables_[entry.request]) pages += table.size();
    }
    CHECK(launch.held.slots == pages * page_tokens_);
    ++held_checked_;
  }

  const uint32_t page_tokens_, pages_;
  const GroupMap groups_;
  std::map<PageId, std::pair<RequestId, uint32_t>> owner_;
  std::map<RequestId, std::vector<std::vector<PageId>>> tables_;
  size_t most_ = 0;
  uint64_t freed_ = 0, held_checked_ = 0;
};

}  // namespace

TEST_CASE("T-5 backend: each request's pages grow with alpha, group by group, up to all pages") {
  for (const LlmSpec& llm : invariant_models()) {
    for (const uint32_t heads : {1u, 2u}) {
      Sets before;
      uint64_t grew = 0;
      for (const uint32_t quarters : {0u, 2u, 4u, 8u, 64u}) {
        CAPTURE(quarters);
        RunOf what = some({"random", "reserved", "ragged", heads, Clustering::kAcrossLayers}, llm);
        BudgetSpec& budget = what.config.policies.budget_spec;
        budget.alpha = kWhole / 4 * quarters;
        budget.chunk_tokens = what.config.step_tokens_max = 256;
        for (size_t i = 0; i < budget.sigma.size(); ++i) budget.sigma[i] = kWhole / 16 * (1 + i % 3);
        Sets now;
        what.judge = [&](const Retained& retained) {
          now[{raw(retained.request), retained.head, retained.tokens}] = retained.after;
        };
        const RunResult ran = run_of(what);
        CHECK((ran.dropped == 0) == (quarters == 64));                        // B is 1 for all heads
        REQUIRE(now.size() >= 6 * what.config.policies.layout_spec.heads());  // requests
        std::map<std::pair<uint32_t, uint32_t>, uint64_t> sum, sum_before;
        for (const auto& [key, after] : now) {
          const auto& [request, head, tokens] = key;
          if (!before.contains(key)) continue;
          const auto pages = [&](size_t kv_entries) {
            return div_ceil<uint64_t>(kv_entries, what.config.page_tokens);
          };
          sum[{request, tokens}] += pages(after.size());
          sum_before[{request, tokens}] += pages(before[key].size());
          // The scores are equal, so a larger budget retains a superset.
          CHECK(std::includes(after.begin(), after.end(), before[key].begin(), before[key].end()));
        }
        CHECK(sum.size() == (quarters == 0 ? 0 : sum_before.size()));
        for (const auto& [of, pages] : sum) {
          CHECK(pages >= sum_before[of]);
          grew += pages > sum_before[of];
        }
        before = std::move(now);
      }
      CHECK(grew > 4);
    }
  }
}

TEST_CASE("G-4 backend: a repeated run retains the same KV entries and computes the same bits") {
  for (const LlmSpec& llm : invariant_models()) {
    for (const Method& method :
         {Method{"snapkv", "ada", "ragged", 1}, Method{"expected_attention", "ratio", "compact"},
          Method{"h2o", "uniform", "compact"}, Method{"judge_q", "top_per_layer", "ragged", 1},
          Method{"fastkvzip", "released", "ragged", 1}}) {
      CAPTURE(method.scorer);
      RunResult first, second;
      const Sets sets = sets_of(some(method, llm), &first);
      CHECK(sets == sets_of(some(method, llm), &second));
      CHECK(first.logits == second.logits);
      CHECK(first.digest == second.digest);
    }
  }
}

TEST_CASE("G-4 backend: with fixed chunks, steps, concurrent requests and pages change no score") {
  for (const LlmSpec& llm : invariant_models()) {
    for (const Method& method : {Method{"knorm", "ratio", "compact"}, Method{"keydiff", "ratio", "ragged", 1},
                                 Method{"fastkvzip", "reserved", "ragged", 1}}) {
      CAPTURE(method.scorer);
      const Sets sets = sets_of(some(method, llm));
      for (const uint32_t step_tokens : {16u, 40u}) {
        RunOf what = some(method, llm);
        what.config.step_tokens_max = step_tokens;  // chunks still have 16 tokens
        what.config.requests_max = step_tokens == 16 ? 1 : 3;
        what.config.pages_gpu = 900;
        CHECK(sets_of(what) == sets);
      }
    }
  }
}

TEST_CASE("G-4 backend: the steps that passes of probe tokens are in change no score") {
  for (const LlmSpec& llm : invariant_models()) {
    for (const Method& method :
         {Method{"judge_q", "uniform", "compact"}, Method{"judge_q", "ada", "ragged", 1},
          Method{"kvzip", "ratio", "compact"}, Method{"kvzip", "top_across_layers", "ragged", 1}}) {
      CAPTURE(method.scorer);
      const Sets sets = sets_of(some(method, llm));
      // Of KVzip's passes of up to 27 tokens, none, some or all fit a step.
      for (const uint32_t step_tokens : {5u, 16u, 40u, 200u}) {
        RunOf what = some(method, llm);
        what.config.step_tokens_max = step_tokens;
        what.config.steps_in_flight_max = step_tokens == 40 ? 2 : 1;
        what.config.requests_max = step_tokens == 16 ? 1 : 3;
        CHECK(sets_of(what) == sets);
      }
    }
  }
}

TEST_CASE("G-4 backend: a constant added to all scores of one head retains the same KV entries") {
  // TrimKV with key norms adds log |K|: keys twice as long add log 2. Only the last layer's head is scaled,
  // so no other scorer input changes.
  for (const LlmSpec& llm : invariant_models()) {
    for (const uint32_t head : {0u, llm.kv_heads - 1}) {
      RunOf what = some({"trimkv", "uniform", "compact"}, llm);
      what.scorer = [](kernels::ScoreSpec* spec) { spec->trim.key_norm = true; };
      RunResult plain, doubled;
      const Sets sets = sets_of(what, &plain);
      what.weigh = [&](const ModelWeights& weights) { double_keys(weights, head); };
      CHECK(sets_of(what, &doubled) == sets);
      CHECK(plain.logits != doubled.logits);  // attention is sharper
    }
  }
}

TEST_CASE("G-5 backend: every page has at most one owner under drops, frees and preemptions") {
  uint64_t preemptions = 0, freed = 0, held_checked = 0;
  for (const LlmSpec& llm : invariant_models()) {
    for (const Method& method :
         {Method{"knorm", "ratio", "compact"}, Method{"snapkv", "ada", "ragged", 1},
          Method{"h2o", "uniform", "ragged", 1}, Method{"fastkvzip", "released", "ragged", 1},
          Method{"judge_q", "top_across_layers", "ragged", 2, Clustering::kAcrossLayers}}) {
      CAPTURE(method.scorer);
      RunOf what = some(method, llm);
      what.client.sessions = 5;
      const uint32_t groups = make_groups(what.config.policies).groups();
      what.config.pages_gpu = groups * 30;  // three requests of maximum length
      Owners owners(what.config);
      what.launched = [&](const LaunchStep& launch, uint32_t offset) { owners.launched(launch, offset); };
      what.request_dropped = [&](RequestId request) { owners.dropped(request); };
      what.judge = [&](const Retained& retained) { owners.left(retained); };
      const RunResult ran = run_of(what);
      CHECK(ran.dropped > 0);
      CHECK(owners.owned() == 0);  // all pages are free again
      CHECK(owners.most() <= what.config.pages_gpu);
      freed += owners.freed();
      held_checked += owners.held_checked();
      preemptions += ran.preemptions;
    }
  }
  CHECK(preemptions > 0);
  CHECK(freed > 100);
  CHECK(held_checked > 30);
}
