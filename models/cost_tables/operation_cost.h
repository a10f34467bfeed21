// OperationCost prices what KV methods add to steps of our dense CUDA engine, by operation:
//
//   step = the dense engine's step of the same shape + sum over families of count * ns
//
// A family is one kernel, or one kind of work of the host, that several methods share; it has one price on a
// GPU for all methods and models. Counts are logical sizes: entries of work lists, rows, KV entries of a
// head, pairs of a query and a KV entry, pages of a head. `kvtwin calibrate device` measures the prices in
// steps of the engine itself, because sums of isolated benchmarks do not give a step's time.
//
// Three groups of families take time at different places of a step:
// * lists: the host writes them before the device starts anything;
// * layers: kernels of a layer, in or beside its attention;
// * behind: compressions, after the last layer.
//
// Recalled pages are RetrievalCost's, at the prices of the last families, because they overlap with steps.

#ifndef KVTWIN_MODELS_COST_TABLES_OPERATION_COST_H_
#define KVTWIN_MODELS_COST_TABLES_OPERATION_COST_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "models/cost/cost_model.h"
#include "models/cost/cost_on_top.h"
#include "models/cost_tables/measured_device.h"

namespace kvtwin {

// In the comments, a head is a KV head of a layer.
enum class Family : uint8_t {
  // Lists of methods whose pages belong to head groups.
  kListedStep,  // step
  kRowSlot,     // slot of a row and head
  kTableEntry,  // page of a request and head group; KV entry, where they are listed one by one
  kTable,       // request and head group, if each group has a table of its own
  // In layers.
  kChunkPlan,     // layer that plans attention of prompts
  kGate,          // layer that computes gates
  kGateRow,       // row of such a layer
  kScoredChunk,   // layer in which a chunk computes attention scores
  kScoreRound,    // its rounds of tiles there (kernels/grids/attention_score_grid.h)
  kScoredDecode,  // layer in which decodes compute attention scores
  kScoredEntry,   // KV entry of a head that they read
  kCapture,       // layer that copies queries of a request
  kListedPair,    // row of a query head and KV entry that it reads from a list or a ring
  kListedChunk,   // KV entry of a head that a chunk reads from a list or a ring
  kListedEntry,   // KV entry of a head that a decode reads from a list
  kChoice,        // layer in which requests choose pages
  kChoosing,      // request that chooses there
  kCandidate,     // page of a head that is scored
  kRecall,        // layer that may recall pages before its attention
  kRecallAhead,   // layer that may recall pages for the next step
  kEnteredPage,   // page of 16 tokens of a head, chosen when a prompt's pages leave the GPU
  kUnpackStep,    // layer that unpacks KV entries of two formats, which no kernel reads in place
  kUnpack,        // decode or chunk whose KV entries it unpacks
  kUnpacked,      // KV entry of a head that is unpacked
  kRequantised,   // KV entry of a head that gets fewer bits
  kStagedLayer,   // layer that scores, selects and moves staged KV entries
  // Behind the layers.
  kCompression,  // compression of a request: the host's part
  kAsked,        // layer of a compression that scores by the attention of queries or probe rows
  kAskedPair,    // row of a query head and KV entry that it scores
  kRanked,       // KV entry of a head: scored by what is stored, and selected among
  kCounted,      // KV entry of a head, where scores of all heads decide how many stay
  kRetained,     // KV entry of a head that stays: moved, and noted by the host
  // Recalled pages of 16 tokens of a head, used by RetrievalCost.
  kPageNow,         // before its layer's attention
  kPageNext,        // for the next step, where the step waits for nothing else
  kPageConcurrent,  // that the step does not wait for: slowdown of the step
  kPageLaunched,    // the additional slowdown of a step that is launched kernel by kernel
};
constexpr size_t kOperationFamilies = 36;
const char* name_of(Family family);
bool is_family(std::string_view name);

// Pages and heads of any size count in units of pages of 16 tokens of a head of 128 numbers.
struct PageUnit {
  double tokens = 16, dim = 128;
  constexpr double of(uint32_t page_tokens, uint32_t head_dim) const {
    return page_tokens / tokens * (head_dim / dim);
  }
};
constexpr PageUnit kPageUnit;

using FamilyCounts = std::array<double, kOperationFamilies>;
// In ns; 0: not measured.
FamilyCounts prices_of(const MeasuredOperations& operations);

// What a method does in a step, in plain numbers; scenarios/app/method_work.h fills it by policy.
struct MethodWork {
  uint32_t layers = 1, kv_heads = 1, query_heads = 1, head_dim = 128;
  uint32_t page_tokens = 16;
  bool lists = false;             // pages belong to head groups: lists are written head by head
  uint32_t groups = 1;            // with a page table each
  uint32_t ring_slots = 0;        // slots of a ring that chunks may wrap around; 0: none
  bool gates = false;             // a gate for each new KV entry
  bool sums = false;              // attention scores of all rows of prompts,
  bool sums_decodes = false;      // and of decodes
  bool captures = false;          // queries of the last rows of prompts,
  bool captures_decodes = false;  // and of each decode
  uint32_t asked_rows = 0;        // rows whose attention scores KV entries in a compression
  bool staged = false;            // each layer compresses its KV entries of a chunk before they get pages
  bool counts_by_scores = false;
  bool moves = true;             // KV entries that stay
  double retained_fraction = 1;  // where a compression does not say how many stay: a fraction, at most
  uint32_t retained_entries = UINT32_MAX;
  bool chooses = false;      // requests choose the pages that they read;
  bool recalls = false;      // these may be on the host,
  bool ahead = false;        // and are recalled for the next step
  uint32_t selectable = 0;   // pages that a request may choose
  bool two_formats = false;  // KV entries of a request have one of two
};

// Counts of recalls stay 0.
FamilyCounts family_counts(const StepShape& shape, const MethodWork& work);
// Counts times ns, in us.
double family_us(const FamilyCounts& counts, const FamilyCounts& ns);

class OperationCost final : public CostOnTop {
 public:
  // REQUIRES: `model` is not null.
  OperationCost(const MeasuredOperations& operations, const MethodWork& work,
                std::unique_ptr<CostModel> model);

  StepCost step(const StepShape& shape) override;
  // The model's, and a part for each family of the step, which has the family's name.
  std::vector<StepPart> ops(const StepShape& shape) override;
  // The model's, widened by the 90th percentile of the errors of calibration.
  StepRange range(const StepShape& shape) override;

 private:
  // By family; those of layers are a multiple of their number.
  using Added = std::array<Ticks, kOperationFamilies>;
  Added added(const StepShape& shape) const;

  const FamilyCounts ns_;
  const double error_;  // relative, 90th percentile
  const MethodWork work_;
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_TABLES_OPERATION_COST_H_
