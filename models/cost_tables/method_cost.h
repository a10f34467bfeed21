// MethodCost prices the additional time of a KV method in steps of our dense CUDA engine, from measurements
// of real steps of that method (`kvtwin calibrate methods`):
//
//   step = the dense engine's step of the same shape + sum over MethodTerm of count * us
//
// and at least the host time of creating a graph, where it creates one. Counts are what a step does in the
// method's own units: tokens that it scores, KV entries that it ranks, lists that it writes. The sum is
// linear because the engine's work is (each head's list is written, each KV entry is scored once).
// Calibration prints how well that holds on steps that it was not fitted on.
//
// It replaces CompressionCost, which uses rooflines only, and the selection in RetrievalCost. Recalled pages
// stay in RetrievalCost, at the measured price, because they overlap with steps.

#ifndef KVTWIN_MODELS_COST_TABLES_METHOD_COST_H_
#define KVTWIN_MODELS_COST_TABLES_METHOD_COST_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/cost/cost_model.h"
#include "models/cost/cost_on_top.h"
#include "models/cost_tables/measured_device.h"

namespace kvtwin {

// What a step does, and in which unit it is counted. The device file has the names.
enum class MethodTerm : uint8_t {
  kStep,             // 1: lists are made and uploaded
  kDecode,           // requests that decode
  kDecodeKvEntries,  // thousands of KV entries that decodes read
  kChunkStep,        // 1 if prompts are computed
  kChunk,            // chunks
  kChunkTokens,      // thousands of tokens of chunks
  // The same, in the first step that computes prompts after idle time: lists are uploaded again.
  kIdleTokens,
  kHistory,  // millions of (token of a chunk, KV entry before the chunk)
  kOwn,      // millions of (token of a chunk, token of the same chunk)
  // Millions of (token of a chunk that wraps around a ring, entry of the ring), read from lists.
  kWrapped,
  kWrappedHistory,  // millions of (such a token, KV entry before its chunk)
  // Rounds of tokens whose attention scores are computed, where all tokens' are
  // (kernels/grids/attention_score_grid.h).
  kAttentionScore,
  kCompression,  // requests that are compressed, with the last pass of probe tokens before (pass_cost.h)
  kHeld,         // thousands of KV entries that they held
  kHeldMore,     // of the largest of these, thousands beyond the largest so far: memory is allocated
  // Prompts that end, in steps without compressions (steps with compressions have terms of their own).
  kPrompt,
  kChoosingStep,   // 1 if any request chooses pages
  kChoosing,       // requests that choose pages
  kChosenFrom,     // thousands of pages that they choose from
  kChosenEach,     // hundreds of pages that each of them chooses
  kFilled,         // pages of 16 tokens that the step completes, where methods store them elsewhere too
  kLoading,        // layers that recall pages before their attention; used by RetrievalCost
  kRecallingHead,  // KV heads that recall there, over all requests; used by RetrievalCost
  kRecallingNext,  // layers that recall pages for the next step, concurrently with later layers
  // Page of 16 tokens of one head, recalled before its layer's attention; used by RetrievalCost.
  kPageNow,
  kPageMixed,          // the same in steps that compute prompts, whose tokens the copy overlaps with
  kPageNext,           // the same for the next step, where the step waits for nothing else
  kPageConcurrent,     // page of one head of any size that the step does not wait for: slowdown of the step
  kPageLaunched,       // the additional slowdown of a step that is launched kernel by kernel
  kNewGraph,           // 1 if the step is a decode step without a graph of its key (graph_shapes.h)
  kRecorded,           // 1 if the host creates its graph meanwhile: the least time of such a step
  kRequantised,        // thousands of tokens whose KV entries get fewer bits
  kUnpackedStep,       // 1 if any decode unpacks KV entries that other decodes read in place
  kUnpacked,           // decodes that unpack
  kUnpackedKvEntries,  // thousands of KV entries that they read
  kListedStep,         // 1 if any decode reads KV entries one by one: then all decodes of the step do
  kListed,             // decodes of such a step
  kListedKvEntries,    // thousands of KV entries that they read
  kListedTokens,       // thousands of tokens of chunks that read KV entries one by one
  kListedPairs,        // millions of (token of such a chunk, KV entry before the token)
  // The first step of a run, which uses kernels and memory for the first time; used by the step clock.
  kFirstStep,
};
constexpr size_t kMethodTerms = 41;
constexpr double kMethodPageTokens = 16;  // pages of other sizes count by their tokens
const char* name_of(MethodTerm term);
// 0: the method has no price of this term.
double price_of(const MeasuredMethod& method, MethodTerm term);
bool is_method_term(std::string_view name);

using MethodCounts = std::array<double, kMethodTerms>;
MethodCounts prices_of(const MeasuredMethod& method);

// What is counted besides a step's shape.
struct MethodFacts {
  uint32_t ring_slots = 0;  // slots of a ring that chunks may wrap around; 0: none
  uint32_t attention_score_heads =
      0;  // KV heads of a layer if all their tokens' attention scores are computed; 0: not all
};

// Counts of recalls stay 0.
MethodCounts method_counts(const StepShape& shape, const MethodFacts& facts);
// Counts times prices in us; kRecorded is not a summand.
double method_sum(const MethodCounts& counts, const MethodCounts& us);

class MethodCost final : public CostOnTop {
 public:
  // `layers`: of the model. `retrieves`: the additional time goes to attention of every layer, else after the
  // step. REQUIRES: `model` is not null.
  MethodCost(const MeasuredMethod& method, uint32_t layers, const MethodFacts& facts, bool retrieves,
             std::unique_ptr<CostModel> model);

  StepCost step(const StepShape& shape) override;
  std::vector<StepPart> ops(const StepShape& shape) override;
  // The model's, widened by the 90th percentile of the errors of calibration.
  StepRange range(const StepShape& shape) override;

 private:
  struct Added {
    Ticks usual = 0, compressing = 0;
  };
  Added added(const StepShape& shape) const;

  const MethodCounts us_;
  const double error_;  // relative, 90th percentile
  const uint32_t layers_;
  const MethodFacts facts_;
  const bool retrieves_;
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_TABLES_METHOD_COST_H_
