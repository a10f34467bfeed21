// Prices of a method on a GPU or for a model for which it was not calibrated, from measured profiles of
// others.

#ifndef KVTWIN_MODELS_COST_TABLES_SIBLING_METHODS_H_
#define KVTWIN_MODELS_COST_TABLES_SIBLING_METHODS_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/catalog/catalog.h"
#include "models/catalog/llm.h"
#include "models/cost_tables/measured_device.h"

namespace kvtwin {

struct SiblingMethod {
  MeasuredMethod method;
  std::vector<std::string> gpus;    // of the profiles, in order of their files
  std::vector<std::string> models;  // other models that it was calibrated with; empty: with this one
};

// The mean of calibrations of the same method and model, term by term; a term that a calibration lacks counts
// as 0 there. Prices are linear in their terms, so a step's price is the mean of its prices. The error is the
// largest. Calibrations of equal GPUs differ, so the mean of several is closer than any one.
// The least time of a step during which a graph is created is left out: it is the time to read the weights,
// which follows from the GPU's memory. REQUIRES: not empty, equal names and models.
MeasuredMethod mean_of_calibrations(std::span<const MeasuredMethod> methods);

// `method`, calibrated with `from`, for `to`. Terms count tokens, KV entries or requests of the whole model:
// all scale by layers, terms of tokens by query heads and terms of KV entries by KV heads too. Terms of one
// head or layer (recalled pages) stay as they are.
MeasuredMethod method_of_model(MeasuredMethod method, const LlmSpec& from, const LlmSpec& to);

// `method` where the host takes `ratio` times as long: it writes lists and starts kernels one by one, which
// is most of what methods add to steps. Terms of one head or layer (recalled pages) stay as they are.
MeasuredMethod method_of_host(MeasuredMethod method, double ratio);

// From all profiles in `folder` whose GPUs have as many SMs as `device`: SMs compute what methods add to
// steps, and the host starts it. Each is scaled by the ratio of the two hosts, as the launches of the two
// device calibrations ("launched host") show it. Profiles of other models count where none is of `llm`.
// Empty: none of them holds this method.
std::optional<SiblingMethod> sibling_method(const std::string& folder, const MeasuredDevice& device,
                                            const std::string& name, const LlmSpec& llm,
                                            const Catalog& catalog);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_TABLES_SIBLING_METHODS_H_
