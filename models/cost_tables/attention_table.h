// AttentionTable prices one layer's attention from measured times.
//
// Decodes alone: linear in their mean context; linear in their number only between points of the same kernel
// regime (see the constructor). Decodes together with prefill chunks: linear in the chunk, its context, the
// decodes and their context, for the chunk with most work; every other chunk adds its time alone above the
// smallest measured one. Where chunks were measured alone only, times of chunk and decodes add up. Unequal
// contexts move a batch towards the time of its longest request by the measured fraction alpha (SkewPoint),
// interpolated in log-log.

#ifndef KVTWIN_MODELS_COST_TABLES_ATTENTION_TABLE_H_
#define KVTWIN_MODELS_COST_TABLES_ATTENTION_TABLE_H_

#include <cstdint>
#include <map>
#include <vector>

#include "models/cost/interpolate.h"
#include "models/cost_tables/cost_tables.h"

namespace kvtwin {

struct AttentionTime {
  double us = 0;
  Evidence evidence = Evidence::kMeasured;
};

class AttentionTable {
 public:
  // `sm_count` 0: the device is unknown, and all decode counts are one regime.
  AttentionTable(const CostTables& tables, uint32_t kv_heads, uint32_t sm_count);

  AttentionTime step(const StepShape& shape);

 private:
  // Times of `decodes` requests over the axis of contexts, and the effect of unequal contexts. One per
  // (decodes, regime), computed on first use: a run uses few of them, a million times.
  struct Column {
    bool ready = false;
    Evidence evidence = Evidence::kMeasured;
    double alpha = 0;
  };
  // A curve: its axis, and where its values start in us_. Most curves of a profile have one of a few axes.
  struct Row {
    uint32_t axis = 0, first = 0;
  };
  struct Slice {
    uint32_t axis = 0;   // of chunk contexts
    uint32_t first = 0;  // in rows_
  };

  bool unsplit(uint32_t batch) const { return static_cast<double>(batch) * kv_heads_ >= split_limit_; }
  uint32_t axis_of(const std::vector<uint32_t>& at);
  Row add_row(const Curve& curve);
  void add_pure(const AttentionGrid& grid);
  void add_mixed(const AttentionGrid& grid);

  AttentionTime decode(const StepShape& shape);
  AttentionTime mixed(const StepShape& shape);
  AttentionTime concurrent(const StepShape& shape, const ChunkShape& chunk);
  AttentionTime mixed_at(const Bracket& chunk, const Bracket& decodes, double chunk_context,
                         double context) const;
  AttentionTime prefill(const ChunkShape& chunk) const;
  const Column& column(uint32_t decodes, bool unsplit, const double** us);
  void fill_column(uint32_t decodes, bool unsplit, Column* column, double* us) const;
  double mixed_alpha(uint32_t decodes, uint32_t chunk);

  std::vector<Axis> axes_;
  std::map<std::vector<uint32_t>, uint32_t> axis_ids_;
  std::vector<double> us_;
  std::vector<Row> rows_;

  Axis chunk_, decodes_mixed_, decode_context_;
  std::vector<uint32_t> decodes_;    // measured alone
  std::vector<double> pure_;         // us [decodes_][decode_context_]
  std::vector<Row> prefill_;         // [chunk_]
  std::vector<Slice> mixed_;         // [chunk_][decodes_mixed_]
  std::vector<uint32_t> regime_[2];  // indices into decodes_: split, unsplit
  std::vector<SkewPoint> skew_[2];   // by regime
  Axis skew_chunk_;
  std::vector<std::vector<SkewPoint>> skew_mixed_;
  double kv_heads_ = 1, split_limit_ = 0;

  std::vector<Column> columns_;    // [decodes][regime]
  std::vector<double> column_us_;  // [decodes][regime][decode_context_]
  Column spare_;                   // for more decodes than columns_ holds
  std::vector<double> spare_us_;
  std::vector<double> mixed_alpha_;  // [decodes][skew_chunk_]; NaN: not yet computed
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_TABLES_ATTENTION_TABLE_H_
