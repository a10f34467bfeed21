// CompressedCache drops KV entries on the GPU: cpu::CompressedCache's commands and answers, on KV entries in
// bf16 or packed (packed_heads.h).
//
// Which positions a head still has, and in which slots, is known on the host (cpu::RequestTable); keys,
// values, captured queries and scorer state are on the device alone, but for the pages of swapped requests.
// Attention reads each head's own KV entries: lists name heads, layer by layer. Compressions whose rows are
// staged run on the stream, right after their layer's attention: their counts are known. Those at the start
// of a turn run in begin(), before the rows. All others run in end(), when the rows went through all layers;
// dynamic budgets fetch the scores there, because counting is the host's. Either way the rows that were kept
// come back to the host before the step is answered.
//
// Files: kv_entry_memory (pages, scorer state, scratch), device_scorer (what scorers see),
// compressed_scratch.cc (what is taken before the first step), compressed_attend.cc (what a layer starts),
// compressed_reads.cc (which KV entries a head reads), compressed_packed.cc (what is packed and unpacked;
// retained_pages: what decodes choose of it), compressed_rank.cc (from a Compression to an answer),
// rank_batch (lists of launches).

#ifndef KVTWIN_ENGINE_CUDA_COMPRESSION_COMPRESSED_CACHE_H_
#define KVTWIN_ENGINE_CUDA_COMPRESSION_COMPRESSED_CACHE_H_

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "engine/common/kv_entry_budget.h"
#include "engine/common/shared_prefixes.h"
#include "engine/cuda/compression/device_scorer.h"
#include "engine/cuda/compression/host_scores.h"
#include "engine/cuda/compression/intent_scores.h"
#include "engine/cuda/compression/retained_pages.h"
#include "engine/cuda/device/device_tables.h"

namespace kvtwin::cuda {

class CompressedCache final : public KvCache {
 public:
  // `weights` must outlive it.
  static Result<OwnedCache> make(const CompressedOptions& options, const KvMemory& memory,
                                 const ModelWeights* weights);

  void serve(const EngineAccess& engine) override { access_ = engine; }
  void force_outcomes(const DataOutcomes* given) override { given_ = given; }
  void begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
             const StepStream& on, StepRows* rows) override;
  void plan(const DeviceRows& rows, const StepStream& on) override;
  void attend(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
              const StepStream& on) override;
  StepListSpec listed(const DeviceRows& /*rows*/) const override { return listed(0u); }
  // Of one layer: heads of different layers may have rows of other kinds, rings beside pages, say.
  StepListSpec listed(uint32_t layer) const;
  // Steps of decodes alone that compress nothing and keep no queries, all of whose KV entries stand in
  // tables.
  bool repeats(StepGraphKey* graph_key) const override;
  void end(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
           const StepStream& on, DataOutcomes* values) override;
  void notify(const Command& command) override;
  void copy(PageId source, PageId target, cudaStream_t stream) override;
  void warm_up(uint32_t size, const StepStream& on, StepRows* rows) override;
  // Padded steps are those that repeat (repeats()). Where slots are dropped in place there are two forms.
  uint32_t padded_forms() const override;
  void fill_up(uint32_t form, uint32_t size, const StepStream& on, StepRows* rows) override;

  // For who takes a request's KV entries over: where they are.
  const cpu::RequestTable& kv_entries(RequestId request) const { return requests_.at(request).kv_entries; }
  const cpu::RequestTableShape& shape() const { return shape_; }
  const KvEntryMemory& memory() const { return kv_entries_; }

 private:
  // KVzip: scores of the passes so far, [head][count], of positions from `first` on.
  struct RepeatedScores {
    uint32_t first = 0, count = 0;
    std::vector<float> scores{};
  };
  struct Request {
    cpu::RequestTable kv_entries;
    DeviceScorer::State captured;
    RetainedPages::Tail tail{};
    std::vector<DeviceTables::Table> tables{};  // of pages, by group
    DeviceTables::Table kv_entry_table{};       // kInPlace: of KV entries
    uint32_t ranked = 0;                        // tokens that compressions have ranked
    RepeatedScores repeated{};
  };
  // Which KV entries the rows of an entry read in some heads: `before` KV entries of a table, and themselves.
  struct Read {
    uint32_t table = 0;
    uint32_t before = 0;
    bool listed = false;          // the table names KV entries (kv_entry_heads.h)
    uint32_t sinks = UINT32_MAX;  // a ring whose oldest KV entries rows drop: after that many sinks ...
    uint32_t from = 0;            // ... the table goes on with this position
    uint32_t slot = UINT32_MAX;   // a full ring: the slot of the one new row
  };
  struct Work {
    cpu::StepRows rows;
    Request* request = nullptr;
    const ProbePass* pass = nullptr;  // of probe tokens, after the step's rows; it has none among them
    const Compression* compression = nullptr;
    std::vector<uint64_t> live;                              // kInPlace: after a compression before its rows
    uint32_t scratch = 0;                                    // its first scratch page
    std::vector<std::optional<Read>> reads;                  // by head tables (head_cells_)
    std::vector<std::optional<uint32_t>> pages;              // by group: where all its pages stand
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> held;  // rings: scratch pages by (group, lane)
    std::map<uint32_t, uint32_t> dequantized;  // packed: by head, the wide KV entry of its KV entry 0
  };
  // A part of a list: one layer's.
  struct Part {
    uint32_t first = 0, count = 0;
  };
  struct LayerLists {
    Part decodes, chunks, others;
    Part runs;                   // rows of chunks that read KV entry by KV entry, in run_rows_on_
    Part copies;                 // before rows are written
    Part holds;                  // after attention: into rings
    Part score_heads;            // of what becomes scorer state
    Part packs, unpacks, fused;  // packed KV entries
    RankBatch staged;
  };

  CompressedCache(const CompressedOptions& options, const KvMemory& memory, const ModelWeights* weights);
  Result<void> allocate();
  Result<void> make_attention();

  void take_pages(const LaunchStep& launch, uint32_t offset, cudaStream_t stream);
  Request& request_of(RequestId id);

  // compressed_attend.cc
  DeviceRows rows_of(uint32_t layer, const DeviceRows& rows) const;
  DeviceRows read_rows(uint32_t layer, const DeviceRows& rows) const;
  ListedCompression listed_compression(uint32_t layer) const;
  void start(const ListedOperation& one, const LayerRows& tensors, const DeviceRows& rows,
             const StepStream& on);
  void append(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows, const StepStream& on);
  void move(const ListAt<CompactHead>& list, const Part& part, const StepStream& on);
  void attend_packed(uint32_t layer, const LayerRows& tensors, const StepStream& on);
  void attend_runs(uint32_t layer, const LayerRows& tensors, const StepStream& on);
  void observe(uint32_t layer, const LayerRows& tensors, const StepStream& on);
  AttentionScoreArgs attention_score_args(const __nv_bfloat16* q) const;
  void add_works(const LaunchStep& launch, std::span<const PlanEntry> entries, const StepStream& on,
                 StepRows* rows);

  // compressed_scratch.cc
  Result<void> make_tables();
  void reserve();
  void reserve_lists(uint32_t requests, uint32_t kv_entries);
  void reserve_dequantized();
  uint32_t ranked_max() const;

  // compressed_reads.cc
  bool reads_alone(const cpu::StepRows& rows) const;
  bool has_decodes_alone() const;
  void pad(uint32_t size, StepRows* rows);
  void clear_tables();
  void clear_lists();
  void write_lists(const StepStream& on, bool listed = false);
  void add_cells();
  RowCells cells_of(const Work& work, const Read& read) const;
  void resend_tables(Request* request);
  AppendSlot* slots_of(uint32_t layer) const;
  void send_lists(const StepStream& on);
  void add_head(uint32_t layer, uint32_t kv_head, Work* work);
  const Read& read_of(Work* work, uint32_t head);
  Read move_read(Work* work, uint32_t head);
  Read ring_read(Work* work, uint32_t head);
  bool has_dropped_slots(const Work& work) const;
  Read in_place_read(Work* work);
  uint32_t pages_of(Work* work, uint32_t group);
  uint32_t listed(Work* work, const Read& read, uint32_t kv_entries);
  void add_rows(uint32_t head, uint32_t column, Work* work, const Read& read);
  void add_copy(uint32_t group, uint32_t column, Work* work, const Read& read);
  void add_holds(uint32_t head, Work* work);
  void add_attention_scores(uint32_t head, const Work& work, const Read& read);
  void add_run(const cpu::StepRows& rows, const Read& read, uint32_t table, uint32_t kv_head,
               uint32_t column);
  uint32_t past(const Work& work, uint32_t head) const;
  uint32_t ranked_tokens(const Work& work) const;

  // compressed_packed.cc
  uint32_t cell_of(const Work& work, const Read& read, uint32_t row) const;
  uint32_t kv_entries_of(const Work& work, const Read& read) const;
  bool is_fused(const Work& work, const Read& read) const;
  void add_spans(const Read& read, uint32_t column, uint32_t from, uint32_t to, uint32_t base, bool packs,
                 std::vector<KvEntrySpan>* spans) const;
  void add_dequantized(uint32_t layer, uint32_t kv_head, Work* work, const Read& read);
  void add_dequantized_rows(uint32_t head, uint32_t column, Work* work, const Read& read);
  RetainedPages::Head head_pages(const Work& work, uint32_t head) const;
  void add_cut(const RankBatch& batch, uint32_t index);
  Result<void> make_pages();
  void open_ranked(Work* work);
  void unpack_ranked(uint32_t layer, const StepStream& on) const;
  void grow_dequantized();
  void convert_rows(uint32_t layer, const StepStream& on);

  // compressed_rank.cc
  void add_ranked(size_t work, uint32_t head, RankBatch* batch);
  void add_query_tokens(const Work& work, uint32_t head, uint32_t first, uint32_t rows, RankBatch* batch);
  void plan_staged();
  void score_staged(uint32_t layer, const LayerRows& tensors, const StepStream& on);
  void move_staged(uint32_t layer, const StepStream& on);
  void choose(RankBatch* batch, uint32_t index, uint32_t keep);
  void select(const RankBatch& batch, const DeviceLists& lists, const float* scores, const StepStream& on);
  void move_retained(const RankBatch& batch, const DeviceLists& lists, const StepStream& on);
  void fetch_retained(const StepStream& on);
  void apply(const RankBatch& batch);
  void answer(size_t work, const StepStream& on, DataOutcomes* values);
  void compress(size_t work, const StepStream& on, DataOutcomes* values);
  void compress_before(size_t work, const StepStream& on);
  RankBatch ranked(size_t work);
  RankBatch chosen(size_t work, RankBatch batch, const StepStream& on);
  RankBatch run_compression(size_t work, const StepStream& on);
  void send_ranked(RankBatch* batch, const StepStream& on);
  void score_all(size_t work, const RankBatch& batch, const StepStream& on);
  const float* mean_score(const RankBatch& batch, const StepStream& on);
  void send_position_scores(const RankBatch& batch, const StepStream& on);
  void send_choice(RankBatch* batch, const StepStream& on);
  std::vector<uint32_t> counts(const Work& work, const RankBatch& batch, const StepStream& on);
  void drop_slots(Work* work, const RankBatch& batch, std::vector<uint64_t>* live);
  std::vector<uint32_t> rows_left(const Work& work, const RankBatch& batch, uint32_t retained) const;
  void force_counts(const Work& work, const RankBatch& batch, std::vector<uint32_t>* counts) const;
  uint32_t rows_ranked(const Work& work, uint32_t head, uint32_t first) const;
  std::vector<cpu::RankedHead> ranked_heads(const Work& work, const RankBatch& batch,
                                            const float* scores) const;
  void send_scores(const StepStream& on);

  // compressed_probes.cc
  void run_pass(size_t work, const StepStream& on);
  void run_soft_tokens(Work* work, const StepStream& on);
  void run_repeat(Work* work, const StepStream& on);
  void fetch_repeated(Work* work, const StepStream& on);
  void send_repeated(Work* work, const StepStream& on);
  void probe(Work* work, const std::vector<uint32_t>& tokens, const std::vector<float>& values,
             const StepStream& on);
  void add_probe_scores(uint32_t head, const Work& work, const Read& read);
  void score_probes(uint32_t layer, const LayerRows& tensors, const StepStream& on);
  void score_on_host(const Work& work, const RankBatch& batch, bool listed, const StepStream& on);
  void score_intents(const Work& work, const RankBatch& batch, bool listed, const StepStream& on);
  void remember(const Work& work, const StepStream& on);

  const CompressedOptions options_;
  const KvMemory memory_;
  const LlmSpec llm_;
  cpu::RequestTableShape shape_;
  KvEntryMemory kv_entries_;
  RowAttention attention_;
  std::unique_ptr<DeviceScorer> scores_;
  std::unique_ptr<DecodePartition> partition_;  // lists splits of decodes; else null
  std::unique_ptr<RetainedPages> pages_;        // decodes choose among what is left; else null
  std::unique_ptr<cpu::KvEntryBudget> budget_;
  std::unique_ptr<IntentScores> intents_;  // scorers that ask sessions' memories
  std::unique_ptr<HostScores> host_;       // scorers that our kernels do not compute
  cpu::ScorerWeights weights_;
  const ModelWeights* const model_;
  EngineAccess access_;
  std::set<RequestId> remembered_;  // requests whose prompt the session's memory knows
  Buffer inv_freq_;                 // rerotate
  // By head: which tables it has, of those that different heads of a request have, and its column.
  std::vector<HeadCells> head_cells_;
  std::vector<uint32_t> table_heads_;  // a head for each of these tables
  Buffer head_cells_on_;               // head_cells_ on the GPU
  Buffer slots_;                       // [layers][rows][kv_heads], of the step's rows
  Buffer run_rows_on_;                 // QueryRow's of the step's runs
  std::map<RequestId, Request> requests_;
  cpu::SharedPrefixes shared_;
  // Of the step at hand.
  std::vector<Work> work_;
  std::vector<LayerLists> layers_;
  DeviceTables tables_;
  std::vector<uint32_t> visible_, iota_;
  std::vector<RowOf> slot_rows_;
  std::vector<RowCells> slot_cells_;
  std::vector<AppendSlot> dequantized_slots_;
  std::vector<KvEntrySpan> packs_, unpacks_;
  std::vector<PackedSequence> fused_;
  std::vector<DecodeSequence> decodes_;
  std::vector<PrefillSequence> chunks_;
  std::vector<QueryRow> others_;
  std::vector<QueryRun> runs_;
  std::vector<CompactHead> copies_, holds_;
  std::vector<AttentionScoreHead> score_heads_;
  const DataOutcomes* given_ = nullptr;  // what is forced on it
  bool planned_ = false;                 // all layers at once
  bool listed_ = false;  // decodes read KV entries: of all requests, if one of them has dropped slots
  uint32_t padded_ = 0;  // rows, those of padding among them
  uint32_t rows_ = 0, retained_total_ = 0, score_rows_max_ = 0, score_queries_max_ = 0;
  uint32_t run_rows_ = 0;        // rows of runs_
  uint32_t visible_before_ = 0;  // of the last head of score_heads_: KV entries before the step
  DeviceLists lists_;
  struct {
    ListAt<uint32_t> visible, iota;
    ListAt<RowOf> slot_rows;
    ListAt<RowCells> slot_cells;
    ListAt<DecodeSequence> decodes;
    ListAt<PrefillSequence> chunks;
    ListAt<QueryRow> others;
    ListAt<QueryRun> runs;
    ListAt<CompactHead> copies, holds;
    ListAt<AttentionScoreHead> score_heads;
    ListAt<AppendSlot> dequantized_slots;
    ListAt<KvEntrySpan> packs, unpacks;
    ListAt<PackedSequence> fused;
  } at_;
  // Of a compression in end().
  DeviceLists rank_lists_, choice_lists_;
  std::vector<KvEntrySpan> rank_unpacks_;
  std::vector<Part> rank_parts_;  // of these, by layer
  ListAt<KvEntrySpan> rank_unpacks_at_;
  Buffer retained_, retained_host_, nan_;
  Buffer counted_host_;  // scores that counts depend on
  std::vector<float> host_scores_;
  Buffer fetched_, fetched_host_;  // keys and values of a layer
  // A pass of rows that are not among the KV entries, while it runs.
  struct Probing {
    uint64_t stride = 0;  // of the scores that it makes
    ProbePass pass;
    uint32_t sinks = 0;  // KVzip
  };
  std::optional<Probing> probing_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_COMPRESSION_COMPRESSED_CACHE_H_
