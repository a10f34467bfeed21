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
  bool takes_over = false;  // what is retained of prompts moves to pages of its own, and fills some
  std::string text() const {
    StepListSpec moved = spec;
    moved.attention.fills = true;
    return list_step(spec).text() + (takes_over ? list_taking_over(moved).text() : std::string()) +
           (enters ? list_entering(spec).text() : std::string());
  }
};

inline StepListSpec dense_list(const AttentionRows& rows, bool samples = true) {
  return {3, samples, {.rows = rows, .dense_rows = {}}};
}

// The first layer reads everything, and all layers have rows of the same kinds.
inline StepListSpec retrieving_list(RetrievalKind kind, bool speculation, const AttentionRows& rows,
                                    bool chooses, bool fills, bool samples = true) {
  return {3,
          samples,
          {.rows = rows,
           .dense_rows = rows,
           .layers_dense = 1,
           .kind = kind,
           .speculation = speculation,
           .chooses = chooses,
           .fills = fills,
           .uploads = 3}};
}

// ShadowKV, whose rows all come to the host.
inline StepListSpec shadowkv_list(const AttentionRows& rows, bool chooses, bool fills, bool samples = true) {
  StepListSpec out = retrieving_list(RetrievalKind::kRecallsValues, false, rows, chooses, fills, samples);
  out.attention.fetches_rows = true;
  return out;
}

// InfiniGen: `rows` choose no tokens, `decodes` come after prompts. Rows of prompts come to the host.
inline StepListSpec infinigen_list(const AttentionRows& rows, bool decodes, bool prompts, bool chooses,
                                   bool fills, bool samples = true) {
  StepListSpec out = retrieving_list(RetrievalKind::kRecallsTokens, false, rows, chooses, fills, samples);
  out.attention.dense_rows.decodes = rows.decodes || decodes;
  out.attention.fetches_rows = prompts, out.attention.projects_keys = decodes;
  return out;
}

// Prompts under a budget beside decodes that choose pages of what it retained (RecalledEntries).
inline StepListSpec retaining_list(bool speculation, const ListedPrompts& prompts, bool chooses, bool fills,
                                   const ListedCompression& compression, bool samples = true) {
  const AttentionRows decodes{prompts.residents, false, false};
  StepListSpec out =
      retrieving_list(RetrievalKind::kRecallsPages, speculation, decodes, chooses, fills, samples);
  // The step's rows, those of each part, lists of each cache, and rows of dense layers.
  out.attention.uploads = 4 + (prompts.prompts ? 1 : 0) + (prompts.residents ? 1 : 0);
  out.compression = compression, out.prompts = prompts;
  out.prompts.apart = true;
  return out;
}

// `rows` read staged KV entries; decodes read packed pages as they are.
inline StepListSpec packed_list(const AttentionRows& rows, bool decodes, bool keeps) {
  return {
      3, decodes, {.rows = rows, .uploads = decodes ? 3u : 2u, .packed_decodes = decodes, .keeps = keeps}};
}

// Pages of head groups, whose lists are sent beside the step's rows.
inline StepListSpec dropping_list(const AttentionRows& rows, bool samples,
                                  const ListedCompression& compression) {
  return {3, samples, {.rows = rows, .uploads = 2}, compression};
}

constexpr AttentionRows kDecodes{true, false, false}, kChunks{false, true, false}, kBoth{true, true, false};

inline std::vector<NamedList> retrieving_lists() {
  constexpr RetrievalKind kOnGpu = RetrievalKind::kPagesOnGpu, kRecalls = RetrievalKind::kRecallsPages;
  return {{"quest_decode", retrieving_list(kOnGpu, false, kDecodes, true, false)},
          {"quest_fills", retrieving_list(kOnGpu, false, kDecodes, true, true)},
          {"arkvale_decode", retrieving_list(kRecalls, false, kDecodes, true, false)},
          {"arkvale_fills", retrieving_list(kRecalls, false, kDecodes, true, true)},
          {"freekv_decode", retrieving_list(kRecalls, true, kDecodes, true, false)},
          {"freekv_fills", retrieving_list(kRecalls, true, kDecodes, true, true)},
          {"freekv_chunk", retrieving_list(kRecalls, true, kChunks, false, true, false)},
          {"freekv_mixed", retrieving_list(kRecalls, true, kBoth, true, true)},
          {"freekv_enters", retrieving_list(kRecalls, true, kChunks, false, true), true},
          {"shadowkv_decode", shadowkv_list(kDecodes, true, false)},
          {"shadowkv_fills", shadowkv_list(kDecodes, true, true)},
          {"shadowkv_chunk", shadowkv_list(kChunks, false, true, false)},
          {"shadowkv_mixed", shadowkv_list(kBoth, true, true)},
          {"shadowkv_enters", shadowkv_list(kChunks, false, true), true},
          {"infinigen_decode", infinigen_list({}, true, false, true, false)},
          {"infinigen_fills", infinigen_list({}, true, false, true, true)},
          {"infinigen_chunk", infinigen_list(kChunks, false, true, false, true, false)},
          {"infinigen_mixed", infinigen_list(kChunks, true, true, true, true)},
          {"infinigen_enters", infinigen_list(kChunks, false, true, false, true), true}};
}

inline std::vector<NamedList> dropping_lists() {
  constexpr CompressionPlace kInLayers = CompressionPlace::kInLayers,
                             kBehind = CompressionPlace::kBehindLayers;
  return {
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
      {"retained_chunk",
       retaining_list(true, {.prompts = true, .attention = {.rows = kChunks}}, false, false,
                      {.plans_layers = true}, false),
       false, false, kInLayers},
      {"retained_decode", retaining_list(true, {.residents = true}, true, false, {}), false, false,
       kInLayers},
      {"retained_mixed",
       retaining_list(true, {.prompts = true, .residents = true, .attention = {.rows = kChunks}}, true, false,
                      {.plans_layers = true}),
       false, false, kInLayers},
      {"retained_enters",
       retaining_list(true, {.prompts = true, .last = true, .attention = {.rows = kChunks}}, false, false,
                      {.plans_layers = true, .behind = 1}),
       true, false, kInLayers, true}};
}

inline std::vector<NamedList> named_lists() {
  std::vector<NamedList> out = {{"dense_decode", dense_list(kDecodes)},
                                {"dense_chunk", dense_list(kChunks, false)},
                                {"dense_mixed", dense_list(kBoth)},
                                {"dense_rows", dense_list({false, false, true})},
                                {"triaxial_decode", packed_list({}, true, false)},
                                {"triaxial_chunk", packed_list(kChunks, false, true)}};
  for (const auto& lists : {retrieving_lists(), dropping_lists()})
    out.insert(out.end(), lists.begin(), lists.end());
  return out;
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_STEP_LISTS_H_
