// MethodCost prices what a KV method adds to the steps of our dense CUDA engine, from what `kvtwin calibrate
// methods` measured of real steps of that method:
//
//   step = the dense engine's step of the same shape + sum over MethodTerm of count * us
//
// and no less than the host takes where it makes a graph meanwhile. Counts are what a step does, in the
// method's own units: rows that it looks at, KV entries that it ranks, lists that it writes. They are linear
// because the engine's work is (each head's list is written, each KV entry is scored once); calibration
// prints how far that holds on steps that it did not learn from.
//
// It takes the place of CompressionCost, which knows rooflines only, and of the selection in RetrievalCost;
// pages that are recalled stay in RetrievalCost, at the measured price, because they overlap with steps.

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

// What a step does, and in which unit it is counted. Names are those of the device file.
enum class MethodTerm : uint8_t {
  kStep,             // 1: lists are made and sent
  kDecode,           // requests that decode
  kDecodeKvEntries,  // thousands of KV entries that decodes read
  kChunkStep,        // 1 if prompts are computed
  kChunk,            // chunks
  kChunkTokens,      // thousands of their tokens
  kIdleTokens,  // likewise, of the first step that computes prompts after idle time: lists are long again
  kHistory,     // millions of (row of a chunk, KV entry before the chunk)
  kOwn,         // millions of (row of a chunk, row of the same chunk)
  kWrapped,     // millions of (row of a chunk that runs over a ring's end, KV entry of the ring): read from
                // lists
  kWrappedHistory,  // millions of (such a row, KV entry before its chunk)
  kAttentionScore,  // rounds of rows that look at their KV entries, where all do
                    // (engine/base/attention_score_grid.h)
  kCompression,     // requests that are compressed
  kHeld,            // thousands of KV entries that they held
  kHeldMore,        // of these, in one of them, thousands beyond the most of any before: memory is taken
  kPrompt,          // prompts that are complete, in steps without compressions: those have their own
  kChoosingStep,    // 1 if any request chooses what it reads
  kChoosing,        // requests that do
  kChosenFrom,      // thousands of pages that these choose from
  kChosenEach,      // hundreds of pages that each of these chooses, in a step with such requests
  kFilled,         // pages that the step completes, where methods store them elsewhere; as pages of 16 tokens
  kLoading,        // layers that recall any page before their attention; of RetrievalCost
  kRecallingHead,  // likewise, its KV heads that do, over all requests
  kRecallingNext,  // layers that recall any page for the next step, beside the layers behind them
  kPageNow,        // page of 16 tokens of one head, recalled before its layer's attention; of RetrievalCost
  kPageMixed,      // likewise, where prompts are computed: its copy runs beside their rows
  kPageNext,       // likewise, for the next step, where a step waits for nothing else
  kPageConcurrent,  // page of one head, of whatever size, that a step does not wait for: slows it down by so
                    // much
  kPageLaunched,    // and by so much more a step that is started operation by operation
  kNewGraph,        // 1 if a decode step is: no graph of its form exists yet (graph_shapes.h)
  kRecorded,        // 1 if the host makes its graph meanwhile: such a step takes this long at least
  kRequantised,     // thousands of tokens whose KV entries get fewer bits
  kUnpackedStep,    // 1 if any decode unpacks what it reads, which others read as it lies
  kUnpacked,        // decodes that do
  kUnpackedKvEntries,  // thousands of KV entries that these read
  kListedStep,         // 1 if any decode reads KV entries one by one: then all of the step's decodes do
  kListed,             // decodes of such a step
  kListedKvEntries,    // thousands of KV entries that they read
  kListedTokens,       // thousands of tokens of chunks that read KV entries one by one
  kListedPairs,        // millions of (row of such a chunk, KV entry before the row)
  kFirstStep,  // the first step of a run, which uses kernels and memory for the first time; of the step clock
};
constexpr size_t kMethodTerms = 41;
constexpr double kMethodPageTokens = 16;  // pages of other sizes count by their tokens
const char* name_of(MethodTerm term);
// 0: the method has no such price.
double price_of(const MeasuredMethod& method, MethodTerm term);
bool is_method_term(std::string_view name);

using MethodCounts = std::array<double, kMethodTerms>;
MethodCounts prices_of(const MeasuredMethod& method);

// What is counted besides a step's shape.
struct MethodFacts {
  uint32_t ring_slots = 0;  // of a ring that chunks may run over the end of; 0: there is none
  uint32_t attention_score_heads =
      0;  // KV heads of a layer whose rows all look at their KV entries; 0: not all rows do
};

// What recalls count stays 0.
MethodCounts method_counts(const StepShape& shape, const MethodFacts& facts);
// Prices times counts in us; kRecorded's is no summand.
double method_sum(const MethodCounts& counts, const MethodCounts& us);

// How a policy set is called in device files: "snapkv/uniform/compact", "freekv"; where all is kept and read,
// by its precision: "triaxial".
std::string method_name(const std::string& scorer, const std::string& budget, const std::string& layout,
                        const std::string& retrieval, const std::string& precision);

class MethodCost final : public CostOnTop {
 public:
  // `layers`: of the model. `retrieves`: what it adds stands beside attention in every layer, else behind the
  // step. REQUIRES: `model` is not null.
  MethodCost(const MeasuredMethod& method, uint32_t layers, const MethodFacts& facts, bool retrieves,
             std::unique_ptr<CostModel> model);

  StepCost step(const StepShape& shape) override;
  std::vector<StepPart> ops(const StepShape& shape) override;
  // The model's, widened by nine tenths of the errors that calibration saw.
  StepRange range(const StepShape& shape) override;

 private:
  struct Added {
    Ticks usual = 0, compressing = 0;
  };
  Added added(const StepShape& shape) const;

  const MethodCounts us_;
  const double error_;  // relative, of nine of ten steps
  const uint32_t layers_;
  const MethodFacts facts_;
  const bool retrieves_;
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_TABLES_METHOD_COST_H_
