#include "models/cost_tables/device_drift.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvtwin {
namespace {

double median(const std::vector<Anchor>& anchors, AnchorKind kind) {
  std::vector<double> drifts;
  for (const Anchor& one : anchors) {
    if (one.kind == kind) drifts.push_back(one.drift());
  }
  return drifts.empty() ? 0 : measured_of(drifts).us;
}

bool is_copy(const std::string& operation) { return operation.starts_with("copy "); }
bool is_of_decodes(const std::string& operation) {
  return operation.starts_with("decode ") || operation.starts_with("launched ");
}
bool is_of_chunks(const std::string& operation) { return operation.starts_with("chunk "); }

void rescale(const Drift& drift, uint32_t decode_rows_max, MeasuredTable* table) {
  if (is_copy(table->operation)) return;
  for (size_t i = 0; i < table->rows.size(); ++i) {
    const bool decodes = is_of_decodes(table->operation) ||
                         (!is_of_chunks(table->operation) && table->rows[i] <= decode_rows_max);
    const double factor = 1 + (decodes ? drift.decodes : drift.chunks);
    table->at[i] = {table->at[i].us * factor, table->at[i].p10 * factor, table->at[i].p90 * factor};
  }
}

}  // namespace

Drift drift_of(const std::vector<Anchor>& anchors) {
  return {median(anchors, AnchorKind::kDecode), median(anchors, AnchorKind::kChunk),
          median(anchors, AnchorKind::kCopy)};
}

std::vector<Anchor> rows_that_differ(const std::vector<Anchor>& anchors) {
  const Drift drift = drift_of(anchors);
  std::vector<Anchor> out;
  for (const Anchor& one : anchors) {
    const double usual = one.kind == AnchorKind::kDecode  ? drift.decodes
                         : one.kind == AnchorKind::kChunk ? drift.chunks
                                                          : 0;
    const double most = one.kind == AnchorKind::kCopy ? kDriftRescaled : kDriftOfRow;
    if (std::abs((1 + one.drift()) / (1 + usual) - 1) > most) out.push_back(one);
  }
  return out;
}

DriftVerdict verdict_of(const std::vector<Anchor>& anchors) {
  const Drift drift = drift_of(anchors);
  const double steps = std::max(std::abs(drift.decodes), std::abs(drift.chunks));
  if (steps > kDriftRescaled || !rows_that_differ(anchors).empty()) return DriftVerdict::kRejected;
  return steps > kDriftAccepted ? DriftVerdict::kRescale : DriftVerdict::kAccepted;
}

MeasuredDevice rescaled(MeasuredDevice device, const Drift& drift, uint32_t decode_rows_max) {
  for (MeasuredTable& table : device.tables) rescale(drift, decode_rows_max, &table);
  for (MeasuredKv& format : device.formats) {
    for (MeasuredTable& table : format.tables) rescale(drift, decode_rows_max, &table);
  }
  if (device.operations) {
    for (MeasuredOperations::Price& one : device.operations->prices) one.ns *= 1 + drift.decodes;
  }
  return device;
}

std::string drift_table(const std::vector<Anchor>& anchors) {
  std::string out = fmt::format("  {:<40}{:>12}{:>12}{:>9}\n", "anchor", "profile us", "now us", "drift");
  for (const Anchor& one : anchors) {
    out += fmt::format("  {:<40}{:>12.1f}{:>12.1f}{:>+8.2f}%\n", one.what, one.profile_us, one.measured_us,
                       100 * one.drift());
  }
  const Drift drift = drift_of(anchors);
  const char* const message[] = {"within 2 %: the profile is taken as it is",
                                 "2 to 8 %: good once it is rescaled (--rescale)",
                                 "this is another machine: kvtwin calibrate device must measure it"};
  for (const Anchor& one : rows_that_differ(anchors))
    out += fmt::format("  differs from its kind: {} ({:+.2f} %)\n", one.what, 100 * one.drift());
  return out + fmt::format("  medians: decodes {:+.2f} %, chunks {:+.2f} %, copies {:+.2f} %; {}\n",
                           100 * drift.decodes, 100 * drift.chunks, 100 * drift.copies,
                           message[static_cast<size_t>(verdict_of(anchors))]);
}

}  // namespace kvtwin
