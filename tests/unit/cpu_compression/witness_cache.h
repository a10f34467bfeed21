// WitnessCache wraps a CompressedCache and checks its results and outcomes by other means: entries by
// position in a map, attention in double precision, retained sets by their rules.
//
//   G-1  the retained set ascends, its entries are forced or were ranked, and its size is as commanded
//   G-3  each token's attention is the softmax over exactly the KV entries that it may read
//   X-2  only retained KV entries are read, and a dropped entry never returns
//
// Where pages are packed, attention is recomputed from the bytes
// (docs/design/methods/triaxialkv.md#serving), which are packed here a second time, entry by entry. Where
// decodes select pages, the selection is repeated in double. The witness also collects the scorers' inputs
// (probabilities of the last tokens, sums over all tokens), so that tests can compute which KV entries must
// be retained.

#ifndef KVTWIN_TESTS_UNIT_CPU_COMPRESSION_WITNESS_CACHE_H_
#define KVTWIN_TESTS_UNIT_CPU_COMPRESSION_WITNESS_CACHE_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "engine/cpu/compression/compressed_cache.h"

namespace kvtwin::testing {

// Records the positions that selecting tokens read, by KV head of the current layer.
class ChoiceWitness final : public cpu::RetrievalWitness {
 public:
  void attends(const Read& read) override {
    reads[{read.at.request, read.at.head}].assign(read.positions.begin(), read.positions.end());
  }
  std::map<std::pair<RequestId, uint32_t>, std::vector<uint32_t>> reads;
};

class WitnessCache final : public cpu::KvCache {
 public:
  using Row = std::vector<double>;  // by position

  // One compression of one head, for the tests' `judge`.
  struct Retained {
    RequestId request{};
    uint32_t head = 0;
    uint32_t tokens = 0;
    const Compression* compression = nullptr;
    std::vector<uint32_t> before, after;  // positions
    // Probabilities of the newest tokens of the request, the newest last: by token, then head, then query
    // head.
    const std::deque<std::vector<std::vector<Row>>>* recent = nullptr;
    const Row* gathered = nullptr;  // sums over all tokens, mean over the group
    std::function<const std::vector<double>&(uint32_t position)> key;  // before its rotation
    // The key as it is read: rotated by its position.
    std::function<std::vector<double>(uint32_t position, uint32_t layer, uint32_t kv_head)> rotated_key;
  };

  // `choices`: the witness that the cache reports to; null without retrieval. Must outlive this.
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
           DataOutcomes* values) override;
  void notify(const Command& command) override;

  // One token of one query head: its query, and its weights over the entries read.
  struct RowSeen {
    RequestId request{};
    uint32_t layer = 0, query_head = 0, position = 0;
    const std::vector<double>& query;
    const std::vector<uint32_t>& reads;
    const std::vector<double>& weights;
  };
  std::function<void(const RowSeen&)> row_seen;
  std::function<void(RequestId, uint32_t layer, uint32_t position, const float* x)> hidden_seen;
  std::function<void(RequestId, uint32_t tokens)> prompt_ended;  // before `judge` gets its compression

  static constexpr uint32_t kRecentRows = 8;
  std::function<void(const Retained&)> judge;  // called after every compression, for each head
  double worst() const { return worst_; }      // largest |difference| / (1 + |value|) of an attention output
  uint64_t compressions() const { return compressions_; }
  uint64_t dropped() const { return dropped_; }                // of one head
  uint64_t reused() const { return reused_; }                  // positions that requests started with
  uint64_t reused_dropped() const { return reused_dropped_; }  // positions of these that one head had dropped
  uint64_t rows_checked() const { return rows_checked_; }
  uint64_t chose() const { return chose_; }  // tokens of one head that left pages out
  uint32_t token(RequestId request, uint32_t position) const { return engine_.token(request, position); }
  const cpu::CompressedCache& cache() const { return *cache_; }

 private:
  struct KvEntry {
    SessionId session{};                            // session that wrote it
    std::vector<std::vector<double>> keys, values;  // by layer: [kv_heads * head_dim], before the rotation
    // If packed: rotated, in bf16, and as the bytes decode.
    std::vector<std::vector<double>> exact_keys, exact_values, stored_keys, stored_values;
  };
  struct Request {
    std::vector<PageId> pages;                          // slots dropped in place: by position
    std::map<uint32_t, KvEntry> kv_entries;             // otherwise: by position
    std::vector<std::set<uint32_t>> dropped_positions;  // by head
    std::vector<Row> gathered;                          // by head
    std::deque<std::vector<std::vector<Row>>> recent;
    std::vector<uint32_t> tables;  // pages by group
  };

  void reuse(const PrefixHit& prefix_hit);
  void swap_in(const PrefixHit& prefix_hit);
  bool dropped_slots() const { return cache_->shape().slot_retention == SlotRetention::kInPlace; }
  KvEntry& kv_entry(Request* request, uint32_t position);
  struct Turn {
    double cosine, sine;
  };
  const std::vector<Turn>& turns_of(uint32_t phase) const;
  std::vector<double> turned(const double* row, uint32_t phase) const;
  void check_rows(uint32_t layer, const PlanEntry& entry, uint32_t row, Request* request, const float* q,
                  const float* out);
  void store(uint32_t layer, const float* k, const float* v, KvEntry* kv_entry) const;
  std::vector<double> key_of(const KvEntry& kv_entry, const PlanEntry& entry, uint32_t position,
                             uint32_t layer, uint32_t kv_head, uint32_t phase) const;
  std::vector<std::vector<uint32_t>> pages_of(const std::vector<uint32_t>& readable) const;
  std::vector<uint32_t> check_choice(Request* request, const PlanEntry& entry, uint32_t layer,
                                     uint32_t kv_head, const std::vector<uint32_t>& readable, const float* q);
  std::vector<double> scores_of(Request* request, const std::vector<std::vector<uint32_t>>& pages,
                                uint32_t layer, uint32_t kv_head, uint32_t position, const float* q);
  std::vector<uint32_t> readable(const PlanEntry& entry, uint32_t head, uint32_t row) const;
  void check_retained(const LaunchStep& launch, const Compression& c, const CompressionOutcome& retained);
  void check_retained_before(const PlanEntry& entry, const Compression& c,
                             const CompressionOutcome& retained);

  const std::unique_ptr<cpu::CompressedCache> cache_;
  const LlmSpec llm_;
  const RopeFrequencies rope_;
  mutable std::vector<std::vector<Turn>> turns_;  // by phase, then pair; computed once
  const CoreConfig config_;
  const uint32_t page_tokens_;
  const Format format_;
  ChoiceWitness* const choices_;
  std::map<RequestId, Request> requests_;
  std::map<uint32_t, Request> prefix_checkpoints_;  // by number: its KV entries and its dropped positions
  std::map<uint64_t, KvEntry> slots_;               // slots dropped in place: by page * page_tokens + slot
  cpu::EngineAccess engine_;
  std::vector<PlanEntry> entries_;
  // By entry, then head: the entries retained before the step's own tokens.
  std::vector<std::vector<std::vector<uint32_t>>> before_;
  double worst_ = 0;
  uint64_t compressions_ = 0, dropped_ = 0, reused_ = 0, reused_dropped_ = 0, rows_checked_ = 0, chose_ = 0;
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_CPU_COMPRESSION_WITNESS_CACHE_H_
