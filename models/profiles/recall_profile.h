// RecallProfile: the behaviour of retrieval on real values: the similarity of consecutive queries, how often
// it causes a correction, and the fraction of chosen pages that were not chosen one step earlier
// (traces/proto/profile.proto).
//
// Tables are by layer, then KV head, or by layer alone. Layers that the method leaves dense have zeros.

#ifndef KVTWIN_MODELS_PROFILES_RECALL_PROFILE_H_
#define KVTWIN_MODELS_PROFILES_RECALL_PROFILE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin {

struct RecallProfile {
  std::string name, model, method, source;
  uint32_t layers = 0, kv_heads = 0, page_tokens = 0, selectable_pages = 0;
  uint32_t contexts = 0, steps = 0;  // decode steps are over all contexts
  std::vector<double> similarity,
      similarity_deviation;             // [layers][kv_heads], C of docs/design/methods/freekv.md#step
  std::vector<double> tau;              // ascending
  std::vector<double> correction_rate;  // [layers][tau]: fraction of (head, step) with C < tau
  std::vector<double> miss_rate;        // [layers]: fraction of the chosen pages that are new
  std::vector<double> miss_by_step;     // by decode step, mean over layers and contexts

  // Fraction of the heads of `layer` that are corrected at tau = `value`: linear between points of the table,
  // 0 below the first and 1 above the last.
  double corrections(uint32_t layer, double value) const;
};

Result<RecallProfile> parse_recall_profile(std::string_view text, const std::string& where);
std::string recall_textproto(const RecallProfile& profile);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_PROFILES_RECALL_PROFILE_H_
