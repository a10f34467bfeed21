// MeasuredCost prices steps from measurements of our own CUDA engine by `kvtwin calibrate device`.
//
//   step = embed + layers * (2 norms + qkv + append + decode attention + chunk attention + attention out +
//          gate up + activation + down) + logits + sample + host
//
// The tables; "heads" is query heads/KV heads x head dim, "rows" and "context" are the sizes of
// MeasuredTable:
//
//   table                    shape             rows                      context
//   qkv, attention out,
//     gate up, down          outputs x inputs  padded tokens             -
//   logits                   outputs x inputs  tokens that sample        -
//   embed, norm              hidden            padded tokens             -
//   activation               intermediate      padded tokens             -
//   append                   heads             padded tokens             -
//   sample                   vocabulary        tokens that sample        -
//   decode attention         heads             requests                  KV entries read by all of them
//   chunk attention          heads             tokens                    KV entries before them
//   decode host              model             requests                  -
//   chunk host               model             padded tokens             -
//   chunk host mixed         model             requests                  -
//   chunk host several       model             chunks                    -
//   launched host            model             requests                  -
//   chunk after load         model             tokens                    permille of recent time
//   chunk by busy time       model             tokens                    ms since the last pause
//   decode after load        model             ms of chunks              ms since they ended
//
// Times are of one operation of one layer, and linear between measured sizes. Decode attention is divided
// into equal splits whatever the lengths (kernels/attention/attention_decode.h), so the number of KV entries
// counts and not their distribution. Several chunks share the SMs: the table gives the time of one unit of
// ChunkTiles at their total size.
//
// "host" is the time of a step in addition to its operations: making and uploading work lists, starting the
// first kernel, waiting for tokens. It is charged to the device, because the engine starts no step before the
// previous one has ended. Decode steps are CUDA graphs that are made before the first step, or, where steps
// take many forms, while a form's first steps are launched kernel by kernel (GraphUse): these have "launched
// host", and so have all steps of an engine without graphs. Steps with chunks are launched kernel by kernel.
// For as many tokens as decodes were measured with, the tables of operations hold times within a graph, and
// "chunk host" by tokens and "chunk host mixed" by requests hold the additional time of single launches.
//
// "chunk after load" is a whole step of one chunk, by the fraction of the preceding "chunk load window" (a
// figure) that computed prompts: a GPU at its power limit is slower. All other tables were measured after
// chunks, except those of up to "chunk tables hold unloaded up to" tokens, which were measured between
// decodes. So steps with chunks take the tables' times multiplied by (chunk after this load / chunk after
// sustained load). "chunk by busy time" is the same step by the time since prompts were first computed
// without a pause of "chunk load is forgotten in": the clock falls and recovers. Other tables were measured
// from "chunk tables hold from" to "chunk tables hold to" of such a busy period, so their times are
// multiplied by (chunk at this busy time / its mean between these two).
//
// KV in a format other than bf16 (MeasuredKv) has tables of its own. "decode attention" is a decode step as
// measured, less everything that it takes in bf16 except attention, so packing is included. Chunks read bf16
// KV entries that are unpacked first: "chunk packing" (rows: their tokens; context: the KV entries before
// them, of all chunks together) is the additional time per layer. Where some KV entries of a request have
// fewer bits (LlmSpec::kv_low_bit), these tables are of requests without such entries, and the tables "...
// low-bit" are of requests whose whole prompt is low-bit; prices are interpolated by the fraction of low-bit
// entries.

#ifndef KVTWIN_MODELS_COST_TABLES_MEASURED_COST_H_
#define KVTWIN_MODELS_COST_TABLES_MEASURED_COST_H_

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "models/catalog/llm.h"
#include "models/cost/chunk_tiles.h"
#include "models/cost/graph_shapes.h"
#include "models/cost/interpolate.h"
#include "models/cost/partwise_cost.h"
#include "models/cost_tables/measured_device.h"

namespace kvtwin {

// The sizes of a model's operations, as tables name them.
struct MeasuredShapes {
  explicit MeasuredShapes(const LlmSpec& llm);
  std::string hidden, intermediate, vocab, heads, qkv, attention_out, gate_up, down, logits, model;
};

// Between measured points: a value with its spread.
struct Reading {
  Measured time;
  Evidence evidence = Evidence::kMeasured;
};

// A table with one size, or with two: a curve over contexts for each number of rows.
class MeasuredCurves {
 public:
  MeasuredCurves() = default;
  explicit MeasuredCurves(const MeasuredTable& table);
  // Beyond the last point the last segment is extended; before the first, the first point holds.
  Reading at(double rows, double context = 0) const;
  // The longest context that was measured with both numbers of rows around `rows`.
  double context_most(double rows) const;

 private:
  struct Curve {
    Axis axis;
    std::vector<Measured> at;
  };
  Axis rows_;
  std::vector<Curve> curves_;  // by rows
};

class MeasuredCost final : public PartwiseCost {
 public:
  // `where` is for messages. Fails if the model has shapes that were not measured, or is not dense. Tables
  // without "launched host" price engines without graphs in the same way as others. `format`:
  // of KV, as policies.precision names it, empty for the model's; fails if it was not measured.
  static Result<std::unique_ptr<MeasuredCost>> make(const MeasuredDevice& device, const LlmSpec& llm,
                                                    const HostTime& host, const std::string& where,
                                                    DecodeGraphs graphs = DecodeGraphs::kPrepared,
                                                    const std::string& format = "");
  // Attention and the memory-bound kernels of methods take less power than matrix products. Chosen by
  // held-out steps of two GPUs' calibration runs (reports/evidence/validation/2026-11-28-two-gpus.md#load).
  LoadQuarters load_quarters() const override { return {.attention = 3, .added = 2}; }
  Ticks load_window() const override { return load_window_; }
  Ticks forgets_after() const override { return forgets_after_; }
  uint32_t graphs_kept() const override {
    return graphs_ == DecodeGraphs::kMet && launched_host_ ? kGraphsKept : 0;
  }
  StepRange range(const StepShape& shape) override;

 private:
  static constexpr uint32_t kGraphsKept = 64;  // CudaEngineConfig::graphs_max
  struct Op {
    const char* name;
    PartKind kind;
    PartPlace place;
    uint32_t times;
    Reading reading;
  };
  MeasuredCost(const LlmSpec& llm, uint32_t sms, const HostTime& host);
  void take_clock(const MeasuredDevice& device, const std::string& model);
  Result<void> take_format(const MeasuredDevice& device, const std::string& name, const std::string& heads,
                           const std::string& where);
  static StepPart part_of(const Op& op);

  std::vector<StepPart> dense_ops(uint32_t tokens) const override;
  std::vector<StepPart> head_ops(uint32_t rows) const override;
  size_t attention_ops(const StepShape& shape, AttentionOps* out) override;
  double pace(const StepShape& shape) const override;
  double decode_pace(const StepShape& shape) const;
  double usual_chunk(double rows) const;

  std::vector<Op> dense(uint32_t tokens) const;
  std::vector<Op> head(uint32_t rows) const;
  size_t attention(const StepShape& shape, std::array<Op, kAttentionOpsMax>* out);
  Reading decode_attention(const StepShape& shape) const;
  Reading chunk_attention(const StepShape& shape);
  Reading packing(std::span<const ChunkShape> chunks) const;
  Reading host(const StepShape& shape) const;
  Reading decode_host(const StepShape& shape) const;

  MeasuredCurves embed_, norm_, qkv_, append_, attention_out_, gate_up_, activation_, down_, logits_, sample_;
  MeasuredCurves decode_, chunk_, decode_host_, chunk_host_;   // chunk_: one unit of ChunkTiles
  MeasuredCurves decode_low_bit_, packing_, packing_low_bit_;  // of formats: if low_bit_known_, if packs_
  Measured decode_host_least_;                                 // of the smallest batch
  MeasuredCurves after_load_;
  MeasuredCurves busy_curves_;
  std::optional<MeasuredCurves> decode_after_;
  double decode_after_last_ = 0, decode_after_longest_ = 0;  // ms: calm from then on; of chunks
  std::optional<MeasuredCurves> launched_host_, concurrent_host_, several_host_;
  DecodeGraphs graphs_ = DecodeGraphs::kPrepared;
  bool packs_ = false, low_bit_known_ = false;
  double unloaded_rows_ = 0;
  Ticks load_window_ = 0, forgets_after_ = 0;  // 0: the effect of load was not measured
  double busy_from_ = 0, busy_to_ = 0;         // ms: where the other tables hold
  double busy_first_ = 0, busy_last_ = 0;      // measured,
  double busy_rows_ = 0;                       // with chunks of this size
  ChunkTiles tiles_;
  const uint32_t layers_;
  double interpolation_ = 0;  // 90th percentile of the relative error of held-out steps
};

// Chunks of one step as one chunk: all their tokens, and their mean context.
ChunkShape merged(std::span<const ChunkShape> chunks);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_TABLES_MEASURED_COST_H_
