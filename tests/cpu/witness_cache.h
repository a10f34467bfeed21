// WitnessCache stands before a CompressedCache and checks everything that it says and computes, by other
// means: values by position in a map, attention in double precision, kept sets by their rules.
//
//   G-1  what is left ascends, is forced or was ranked, and has the size that was asked for
//   G-3  each row's attention is the softmax over the cells that it may read, and nothing else
//   X-2  only cells that are left are read; what was dropped never comes back
// Where pages are packed, attention is recomputed from what the bytes say of each row (METHODS 4.6), packed
// here once more, cell by cell. Where decodes choose pages, the choice is made once more in double.
// Beside it, it gathers what scorers would see (probabilities of the last rows, sums over all rows), so that
// tests can say which cells had to stay.

#ifndef KVTWIN_TESTS_CPU_WITNESS_CACHE_H_
#define KVTWIN_TESTS_CPU_WITNESS_CACHE_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "engine/cpu/compressed_cache.h"

namespace kvtwin::testing {

// What rows that choose are told to read, by KV head of the layer at hand.
class ChoiceWitness final : public cpu::RetrievalWitness {
 public:
  void attends(const Read& read) override {
    reads[{read.at.call, read.at.head}].assign(read.positions.begin(), read.positions.end());
  }
  std::map<std::pair<CallId, uint32_t>, std::vector<uint32_t>> reads;
};

class WitnessCache final : public cpu::KvCache {
 public:
  using Row = std::vector<double>;  // by position

  // One compression of one head, as tests judge it.
  struct Kept {
    CallId call{};
    uint32_t head = 0;
    uint32_t tokens = 0;
    const Compression* compression = nullptr;
    std::vector<uint32_t> before, after;  // positions
    // Probabilities of the newest rows of the call, the newest last: by row, then head, then query head.
    const std::deque<std::vector<std::vector<Row>>>* recent = nullptr;
    const Row* gathered = nullptr;  // sums over all rows, mean over the group
    std::function<const std::vector<double>&(uint32_t position)> key;  // as it was before its rotation
    // As it is read: rotated by its position.
    std::function<std::vector<double>(uint32_t position, uint32_t layer, uint32_t kv_head)> rotated_key;
  };

  // `choices`: the one that the cache tells; null where nothing is chosen. Must outlive this.
  WitnessCache(std::unique_ptr<cpu::CompressedCache> cache, const LlmSpec& llm, const CoreConfig& config,
               ChoiceWitness* choices = nullptr);

  void serve(const cpu::EngineAccess& engine) override {
    engine_ = engine;
    cache_->serve(engine);
  }
  void begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) override;
  void hidden(uint32_t layer, const float* x) override;
  void attend(uint32_t layer, float* q, float* k, const float* v, float* out) override;
  void end(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
           StepValues* values) override;
  void told(const Command& command) override;

  // One row of one query head: what it asked, and how it weighed what it read.
  struct RowSeen {
    CallId call{};
    uint32_t layer = 0, query_head = 0, position = 0;
    const std::vector<double>& query;
    const std::vector<uint32_t>& reads;
    const std::vector<double>& weights;
  };
  std::function<void(const RowSeen&)> row_seen;
  std::function<void(CallId, uint32_t layer, uint32_t position, const float* x)> hidden_seen;
  std::function<void(CallId, uint32_t tokens)> prompt_ended;  // before its compression is judged

  static constexpr uint32_t kRecentRows = 8;
  std::function<void(const Kept&)> judge;  // after every compression, for each head
  double worst() const { return worst_; }  // largest |difference| / (1 + |value|) of an attention output
  uint64_t compressions() const { return compressions_; }
  uint64_t dropped() const { return dropped_; }            // cells of one head
  uint64_t adopted() const { return adopted_; }            // positions that calls started with
  uint64_t adopted_dead() const { return adopted_dead_; }  // likewise, of which a head had nothing left
  uint64_t rows_checked() const { return rows_checked_; }
  uint64_t chose() const { return chose_; }  // rows of one head that left pages out
  uint32_t token(CallId call, uint32_t position) const { return engine_.token(call, position); }
  const cpu::CompressedCache& cache() const { return *cache_; }

 private:
  struct Cell {
    SessionId session{};                            // that wrote it
    std::vector<std::vector<double>> keys, values;  // by layer: [kv_heads * head_dim], before the rotation
    // Packed: rotated, in bf16, and as the bytes say.
    std::vector<std::vector<double>> exact_keys, exact_values, stored_keys, stored_values;
  };
  struct Call {
    std::vector<PageId> pages;             // holes: by position
    std::map<uint32_t, Cell> cells;        // else: by position
    std::vector<std::set<uint32_t>> gone;  // by head
    std::vector<Row> gathered;             // by head
    std::deque<std::vector<std::vector<Row>>> recent;
    std::vector<uint32_t> tables;  // pages by group
  };

  void adopt(const Adoption& adoption);
  bool holes() const { return cache_->shape().keeping == Keeping::kHoles; }
  Cell& cell(Call* call, uint32_t position);
  std::vector<double> turned(const double* row, uint32_t phase) const;
  void check_rows(uint32_t layer, const PlanEntry& entry, uint32_t row, Call* call, const float* q,
                  const float* out);
  void store(uint32_t layer, const float* k, const float* v, Cell* cell) const;
  std::vector<double> key_of(const Cell& cell, const PlanEntry& entry, uint32_t position, uint32_t layer,
                             uint32_t kv_head, uint32_t phase) const;
  std::vector<std::vector<uint32_t>> pages_of(const std::vector<uint32_t>& readable) const;
  std::vector<uint32_t> check_choice(Call* call, const PlanEntry& entry, uint32_t layer, uint32_t kv_head,
                                     const std::vector<uint32_t>& readable, const float* q);
  std::vector<double> scores_of(Call* call, const std::vector<std::vector<uint32_t>>& pages, uint32_t layer,
                                uint32_t kv_head, uint32_t position, const float* q);
  std::vector<uint32_t> readable(const PlanEntry& entry, uint32_t head, uint32_t row) const;
  void check_kept(const LaunchStep& launch, const Compression& c, const CellsKept& kept);
  void check_kept_before(const PlanEntry& entry, const Compression& c, const CellsKept& kept);

  const std::unique_ptr<cpu::CompressedCache> cache_;
  const LlmSpec llm_;
  const RopeFrequencies rope_;
  const CoreConfig config_;
  const uint32_t page_tokens_;
  const Format format_;
  ChoiceWitness* const choices_;
  std::map<CallId, Call> calls_;
  std::map<uint32_t, Call> snapshots_;  // by number: its cells, and what was gone
  std::map<uint64_t, Cell> slots_;      // holes: by page * page_tokens + slot
  cpu::EngineAccess engine_;
  std::vector<PlanEntry> entries_;
  // By entry, then head: what was left before the step's own rows.
  std::vector<std::vector<std::vector<uint32_t>>> before_;
  double worst_ = 0;
  uint64_t compressions_ = 0, dropped_ = 0, adopted_ = 0, adopted_dead_ = 0, rows_checked_ = 0, chose_ = 0;
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_CPU_WITNESS_CACHE_H_
