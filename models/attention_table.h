// AttentionTable prices one layer's attention from a measured grid.
//
// Decodes alone: linear in their mean context; linear in their number between points of the same kernel
// regime only (see split_rule()). Beside prefill chunks: 4-D linear for the chunk with most work; every
// other chunk adds what it costs alone above the smallest measured one. Unequal contexts move a batch
// towards the time of its longest call by the measured share alpha (SkewPoint), interpolated in log-log.

#ifndef KVTWIN_MODELS_ATTENTION_TABLE_H_
#define KVTWIN_MODELS_ATTENTION_TABLE_H_

#include <cstdint>
#include <vector>

#include "models/cost_tables.h"
#include "models/interpolate.h"

namespace kvtwin {

struct AttentionTime {
  double us = 0;
  Evidence evidence = Evidence::kMeasured;
};

class AttentionTable {
 public:
  // `sm_count` 0: the device is not known, all decode counts form one regime.
  AttentionTable(const CostTables& tables, uint32_t kv_heads, uint32_t sm_count);

  AttentionTime step(const StepShape& shape);

 private:
  // Times of `decodes` calls over the axis of contexts, and how unequal contexts change them. One per
  // (decodes, regime), computed when first needed: a run uses few, a million times.
  struct Column {
    bool ready = false;
    Evidence evidence = Evidence::kMeasured;
    double alpha = 0;
  };

  bool unsplit(uint32_t batch) const { return static_cast<double>(batch) * kv_heads_ >= split_limit_; }
  AttentionTime decode(const StepShape& shape);
  AttentionTime mixed(const StepShape& shape);
  const Column& column(uint32_t decodes, bool unsplit, const double** us);
  void fill_column(uint32_t decodes, bool unsplit, Column* column, double* us) const;
  double pure_alpha(uint32_t decodes, bool unsplit) const;
  double mixed_alpha(uint32_t decodes, const Bracket& chunk);
  AttentionTime prefill(const ChunkShape& chunk) const;

  AttentionGrid grid_;
  Axis chunk_, chunk_context_, decodes_mixed_, decode_context_;
  std::vector<SkewPoint> skew_[2];  // by regime: split, unsplit
  std::vector<std::vector<SkewPoint>> skew_mixed_;
  std::vector<uint32_t> rows_[2];  // indices into grid_.decodes, by regime
  double kv_heads_ = 1, split_limit_ = 0;

  std::vector<Column> columns_;    // [decodes][regime]
  std::vector<double> column_us_;  // [decodes][regime][decode_context]
  Column spare_;                   // for more decodes than columns_ holds
  std::vector<double> spare_us_;
  std::vector<double> mixed_alpha_;  // [decodes][chunk]; NaN: not yet computed
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_ATTENTION_TABLE_H_
