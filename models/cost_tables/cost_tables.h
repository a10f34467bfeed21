// Reads kernel times that were measured on a real GPU from a profile folder of LLMServingSim.
//
//   FOLDER/meta.yaml             what was measured, and on which grid
//   FOLDER/tpN/dense.csv         layer, tokens                                -> us
//   FOLDER/tpN/per_sequence.csv  layer, rows that sample                      -> us
//   FOLDER/tpN/attention.csv     prefill chunk, its context, decodes, their context -> us
//   FOLDER/tpN/skew.csv          the same batch with equal and with unequal contexts (optional)
//
// meta.yaml of a profile from another tool lists what the profile lacks (import_vidur.h writes it):
//   not_measured: [output_head]  no per_sequence.csv: head and sampler come from the roofline
//   not_measured: [mixed]        no chunks with decodes: their attention is two launches, whose times add up
//
// Nothing is interpolated here; table_cost.h says how the numbers are used.

#ifndef KVTWIN_MODELS_COST_TABLES_COST_TABLES_H_
#define KVTWIN_MODELS_COST_TABLES_COST_TABLES_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin {

// Profiled vocabularies may have that many entries more than the model: they are padded so that they can be
// cut.
constexpr uint32_t kVocabularyPadding = 1024;

// A time measured at some counts, ascending.
struct Curve {
  std::vector<uint32_t> at;
  std::vector<double> us;
};

enum class DenseOp : uint8_t {
  kEmbedding,
  kLayernorm,
  kQkv,
  kRotary,
  kOutput,
  kGateUp,
  kActivation,
  kDown,
  kFinalNorm
};
constexpr size_t kDenseOps = 9;
const char* name_of(DenseOp op);

// Times over the contexts of decodes: one curve per context of the chunk in the same step.
struct ContextCurves {
  std::vector<uint32_t> chunk_context;
  std::vector<Curve> by_context;
};

// Times of one layer's attention. Every (chunk, decodes) pair was measured at contexts of its own: profiles
// are refined where times bend. Axes ascend.
struct AttentionGrid {
  std::vector<uint32_t> chunk;    // tokens of the prefill chunk, without 0
  std::vector<uint32_t> decodes;  // decodes without a chunk
  // Decodes together with a chunk: those that were measured with every chunk.
  std::vector<uint32_t> decodes_mixed;
  std::vector<Curve> pure;           // [decodes], over the context of each decode
  std::vector<Curve> prefill;        // [chunk], over the context of the chunk
  std::vector<ContextCurves> mixed;  // [chunk][decodes_mixed]; empty: not measured
};

// How far unequal contexts move a batch's time from T(all at the mean) towards T(all at the longest): 0 not
// at all, 1 all the way. Least squares over the skew rows of one (regime, decodes, chunk).
struct SkewPoint {
  uint32_t decodes = 0;
  double alpha = 0;
};

struct CostTables {
  std::string where;  // the folder, for messages
  std::string gpu, model;
  std::array<Curve, kDenseOps> dense;
  Curve lm_head, sampler;  // empty: not measured
  Curve qk_norm;           // norms of queries and keys; empty: not measured
  AttentionGrid attention;
  std::vector<SkewPoint> skew_pure;                // ascending in decodes; empty: not measured
  std::vector<uint32_t> skew_chunk;                // ascending
  std::vector<std::vector<SkewPoint>> skew_mixed;  // [skew_chunk]
  // Geometry of the profiled layer on one GPU; 0: not in meta.yaml.
  uint32_t query_heads = 0, kv_heads = 0, intermediate = 0, vocab = 0;
  std::vector<uint32_t> tp_degrees;
  std::vector<std::string> unread;  // layers with rows that no price reads
};

// Reads FOLDER/meta.yaml and FOLDER/tpN. Messages name file and line.
Result<CostTables> load_cost_tables(const std::string& folder, uint32_t tp);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_TABLES_COST_TABLES_H_
