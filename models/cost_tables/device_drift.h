// Decides whether the profile of one GPU holds for another GPU of its kind. Anchors are steps that were
// measured when the profile was made and are measured again: the ratio of their time to the profile's is the
// machine's drift.
//
// The rule: a machine within 2 % uses the profile unchanged. Up to 8 % the profile may be rescaled: decode
// steps by the median drift of decodes, steps with prompts by that of chunks, because the first wait for
// memory and the second for clocks under a power limit. Beyond that it must be measured again. Each anchor
// counts too: a step that differs from the median of its kind by more than 5 % shows that this machine's
// times have another shape than the profile's, and the profile is rejected whatever the medians are. Copies
// are never rescaled.

#ifndef KVTWIN_MODELS_COST_TABLES_DEVICE_DRIFT_H_
#define KVTWIN_MODELS_COST_TABLES_DEVICE_DRIFT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "models/cost_tables/measured_device.h"

namespace kvtwin {

constexpr double kDriftAccepted = 0.02, kDriftRescaled = 0.08, kDriftOfRow = 0.05;

enum class AnchorKind : uint8_t { kDecode, kChunk, kCopy };

struct Anchor {
  std::string what;
  AnchorKind kind = AnchorKind::kDecode;
  double profile_us = 0, measured_us = 0;
  double drift() const { return measured_us / profile_us - 1; }
};

// Median drift of each kind; 0: no anchor of it.
struct Drift {
  double decodes = 0, chunks = 0, copies = 0;
};
Drift drift_of(const std::vector<Anchor>& anchors);

enum class DriftVerdict : uint8_t { kAccepted, kRescale, kRejected };
DriftVerdict verdict_of(const std::vector<Anchor>& anchors);
// The steps that differ from their kind's median, and the copies that differ at all, by more than a row may.
std::vector<Anchor> rows_that_differ(const std::vector<Anchor>& anchors);

// Multiplies the times of steps: those of tables of decodes and of up to `decode_rows_max` tokens as for
// decodes, those of all other tables of steps as for chunks. Operations of methods are scaled as decodes.
MeasuredDevice rescaled(MeasuredDevice device, const Drift& drift, uint32_t decode_rows_max);

// One line per anchor, and the conclusion.
std::string drift_table(const std::vector<Anchor>& anchors);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_TABLES_DEVICE_DRIFT_H_
