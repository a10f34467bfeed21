// Lists of operations of models with three layers (engine/steps/step_list.h), by name. A file of each name in
// tests/golden/operations has its text. One test compares the files with the definition and with what the
// simulator prices, on every machine; another compares them with what the CUDA engine starts.

#ifndef KVTWIN_TESTS_SUPPORT_STEP_LISTS_H_
#define KVTWIN_TESTS_SUPPORT_STEP_LISTS_H_

#include <string>
#include <vector>

#include "engine/steps/step_graph_retrieval.h"

namespace kvtwin::testing {

struct NamedList {
  std::string name;
  StepListSpec spec;
  bool enters = false;  // prompts leave the GPU for resident pages
  // Of the method, which its other steps need.
  bool captures = false;
  CompressionPlace compresses = CompressionPlace::kNone;
  std::string text() const {
    return list_step(spec).text() + (enters ? list_entering(spec).text() : std::string());
  }
};

inline StepListSpec dense_list(const AttentionRows& rows, bool samples = true) {
  return {3, samples, {.listed = true, .rows = rows, .dense_rows = {}}};
}

// The first layer reads everything, and all layers have rows of the same kinds.
inline StepListSpec retrieving_list(RetrievalKind kind, bool speculation, const AttentionRows& rows,
                                    bool chooses, bool fills, bool samples = true) {
  return {3,
          samples,
          {.listed = true,
           .rows = rows,
           .dense_rows = rows,
           .layers_dense = 1,
           .kind = kind,
           .speculation = speculation,
           .chooses = chooses,
           .fills = fills,
           .uploads = 3}};
}

// `rows` read staged KV entries; decodes read packed pages as they are.
inline StepListSpec packed_list(const AttentionRows& rows, bool decodes, bool keeps) {
  return {3,
          decodes,
          {.listed = true,
           .rows = rows,
           .uploads = decodes ? 3u : 2u,
           .packed_decodes = decodes,
           .keeps = keeps}};
}

// Pages of head groups, whose lists are sent beside the step's rows.
inline StepListSpec dropping_list(const AttentionRows& rows, bool samples,
                                  const ListedCompression& compression) {
  return {3, samples, {.listed = true, .rows = rows, .uploads = 2}, compression};
}

inline std::vector<NamedList> named_lists() {
  constexpr AttentionRows kDecodes{true, false, false}, kChunks{false, true, false}, kBoth{true, true, false};
  constexpr CompressionPlace kInLayers = CompressionPlace::kInLayers,
                             kBehind = CompressionPlace::kBehindLayers;
  constexpr RetrievalKind kOnGpu = RetrievalKind::kPagesOnGpu, kRecalls = RetrievalKind::kRecallsPages;
  return {
      {"dense_decode", dense_list(kDecodes)},
      {"dense_chunk", dense_list(kChunks, false)},
      {"dense_mixed", dense_list(kBoth)},
      {"dense_rows", dense_list({false, false, true})},
      {"quest_decode", retrieving_list(kOnGpu, false, kDecodes, true, false)},
      {"quest_fills", retrieving_list(kOnGpu, false, kDecodes, true, true)},
      {"arkvale_decode", retrieving_list(kRecalls, false, kDecodes, true, false)},
      {"arkvale_fills", retrieving_list(kRecalls, false, kDecodes, true, true)},
      {"freekv_decode", retrieving_list(kRecalls, true, kDecodes, true, false)},
      {"freekv_fills", retrieving_list(kRecalls, true, kDecodes, true, true)},
      {"freekv_chunk", retrieving_list(kRecalls, true, kChunks, false, true, false)},
      {"freekv_mixed", retrieving_list(kRecalls, true, kBoth, true, true)},
      {"freekv_enters", retrieving_list(kRecalls, true, kChunks, false, true), true},
      {"snapkv_decode", dropping_list(kDecodes, true, {}), false, false, kInLayers},
      {"snapkv_captures", dropping_list(kChunks, false, {.plans_layers = true, .captures = true}), false,
       false, kInLayers},
      {"snapkv_compresses",
       dropping_list(kChunks, true, {.plans_layers = true, .captures = true, .behind = 1}), false, false,
       kInLayers},
      {"intentkv_decode", dropping_list(kDecodes, true, {}), false, false, kBehind},
      {"intentkv_compresses",
       dropping_list(kChunks, true, {.plans_layers = true, .captures = true, .behind = 1, .moves = false}),
       false, false, kBehind},
      {"intentkv_rows", dropping_list({true, false, true}, true, {}), false, false, kBehind},
      {"tangram_decode", dropping_list(kDecodes, true, {.state = true}), false, true, kInLayers},
      {"tangram_compresses",
       dropping_list(kChunks, true, {.plans_layers = true, .copies = true, .state = true, .in_layers = true}),
       false, true, kInLayers},
      {"snapkv_mixed", dropping_list(kBoth, true, {.plans_layers = true, .captures = true, .behind = 1}),
       false, false, kInLayers},
      {"intentkv_mixed",
       dropping_list({true, false, true}, true, {.captures = true, .behind = 1, .moves = false}), false,
       false, kBehind},
      {"tangram_chunk",
       dropping_list(kChunks, false,
                     {.plans_layers = true, .copies = true, .state = true, .in_layers = true}),
       false, true, kInLayers},
      {"tangram_mixed",
       dropping_list(kBoth, true, {.plans_layers = true, .copies = true, .state = true, .in_layers = true}),
       false, true, kInLayers},
      {"streaming_llm_wraps",
       dropping_list({false, false, true}, true, {.plans_layers = true, .wraps = true})},
      {"triaxial_decode", packed_list({}, true, false)},
      {"triaxial_chunk", packed_list(kChunks, false, true)}};
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_STEP_LISTS_H_
