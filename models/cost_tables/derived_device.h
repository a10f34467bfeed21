// The measured efficiency of one GPU, applied to another GPU or another model: what `kvtwin calibrate device`
// would measure there, as far as it follows from a profile and two rooflines.
//
// An operation takes (its measured time) * (its roofline there) / (its roofline here), at the same rows.
// Kernels that the arithmetic bounds take as long on two GPUs of equal arithmetic, and those that the memory
// bounds follow its bandwidth, so the ratio carries over where GPUs have the same SMs. Measured rows of an
// H100 and of an H200 agree with this rule (docs/accuracy.md#other-gpus).
//
//   no weights         norms, activation, append, embedding: what fits into L2 takes as long on both GPUs
//   decode attention   equal bytes read: the measured KV entries are divided by the ratio of bytes per entry
//   chunk attention    the units of ChunkTiles there and here, by head_dim and by the arithmetic of one SM
//   host               kernels launched one by one: by layers; graphs and work lists: as measured
//   clock              relative effects, so they are used as measured
//   formats of KV      by bytes, as bf16
//   copies             as measured if the GPUs have equal PCIe links; else left out
//
// The 10th and 90th percentiles are those of the measurement, widened by kDerivedSpread.

#ifndef KVTWIN_MODELS_COST_TABLES_DERIVED_DEVICE_H_
#define KVTWIN_MODELS_COST_TABLES_DERIVED_DEVICE_H_

#include <optional>
#include <string>

#include "models/catalog/catalog.h"
#include "models/catalog/device.h"
#include "models/catalog/llm.h"
#include "models/cost_tables/measured_device.h"

namespace kvtwin {

// Relative; the 90th percentile of step errors of derived profiles (docs/accuracy.md#other-gpus).
constexpr double kDerivedSpread = 0.1;

// A model on one GPU.
struct ModelOnGpu {
  LlmSpec llm;
  DeviceSpec device;
};

// Whether a profile of `source` may be used for `target`: both models are dense with bf16 weights and without
// sliding windows, and the GPUs have as many SMs.
bool can_derive(const ModelOnGpu& source, const ModelOnGpu& target);

// `measured` on `source` as a profile of `target`: its gpu and model are the target's. REQUIRES:
// can_derive().
MeasuredDevice derive_device(const MeasuredDevice& measured, const ModelOnGpu& source,
                             const ModelOnGpu& target);

// What a profile was measured on, from the catalog. Empty: the catalog lacks its GPU or its model.
std::optional<ModelOnGpu> measured_on(const MeasuredDevice& measured, const Catalog& catalog);

// The profile in `folder` from which `target` can be derived, or which is of `target`: of the same GPU rather
// than of another, then of the same model, then of the nearest memory bandwidth, then by file name. Empty:
// there is none.
std::optional<std::string> nearest_profile(const std::string& folder, const ModelOnGpu& target,
                                           const Catalog& catalog);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_TABLES_DERIVED_DEVICE_H_
