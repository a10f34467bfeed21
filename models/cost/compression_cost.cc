#include "models/cost/compression_cost.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "models/cost/partwise_cost.h"
#include "models/cost/roofline_figures.h"

namespace kvtwin {
namespace {

constexpr double kMoveFraction = 0.80;  // of the read rate: gather_entries, kernels/README.md
// Radix selection: four passes that read every score, then one that reads again and writes indices.
constexpr uint32_t kSelectKernels = 5;
constexpr double kSelectBytes = 5 * kFp32Bytes;

KernelWork times(const KernelWork& work, double count) {
  return {work.bytes * count, work.product_flop * count, work.vector_flop * count};
}
KernelWork sum(const KernelWork& a, const KernelWork& b) {
  return {a.bytes + b.bytes, a.product_flop + b.product_flop, a.vector_flop + b.vector_flop};
}

// Number of (token of the chunk, KV entry that it sees) pairs, the token itself included.
double pairs(const ChunkShape& chunk) {
  return chunk.tokens * (static_cast<double>(chunk.context) + (1.0 + chunk.tokens) / 2);
}

}  // namespace

CompressionCost::CompressionCost(const LlmSpec& llm, const DeviceSpec& device, const CompressionWork& work,
                                 std::unique_ptr<CostModel> model)
    : CostOnTop(std::move(model)), work_(work), layers_(llm.layers), kv_heads_(work.kv_heads) {
  constexpr double per_ns = 1e-9;
  bytes_per_ns_ = device.hbm_bytes_per_s.value * per_ns * device.read_fraction.value;
  move_bytes_per_ns_ = bytes_per_ns_ * kMoveFraction;
  flop_per_ns_ = device.bf16_flop_per_s.value * per_ns * device.gemm_fraction.value;
  vector_flop_per_ns_ = device.bf16_flop_per_s.value * per_ns * kVectorFraction;
  small_fixed_ns_ = device.small_fixed_ns.value;
}

double CompressionCost::kernel_ns(const KernelWork& work, uint32_t kernels) const {
  const double arithmetic =
      std::max(work.product_flop / flop_per_ns_, work.vector_flop / vector_flop_per_ns_);
  return std::max(work.bytes / bytes_per_ns_, arithmetic) + kernels * small_fixed_ns_;
}

double CompressionCost::retained(const CompressionShape& one) const {
  if (one.retained != CompressionShape::kUnknown) return one.retained;
  return std::min<double>(work_.retained_fraction * one.ranked, work_.retained_entries);
}

StepPart CompressionCost::layer_part(const char* name, PartKind kind, bool after, double ns) const {
  return {name,
          kind,
          after ? PartPlace::kAfter : PartPlace::kLayer,
          layers_,
          ticks_from_ns(ns),
          Evidence::kRoofline};
}

void CompressionCost::add_parts(const StepShape& shape, Parts* out) {
  uint32_t rows = work_.captures_decodes ? shape.decodes : 0;
  for (const ChunkShape& chunk : shape.chunks) rows += chunk.tokens;
  if (work_.capture_kernels > 0 && rows > 0) {
    KernelWork work = times(work_.per_row, rows);
    work.bytes += work_.row_weight_bytes;
    if (work_.captures_decodes)
      work = sum(work, times(work_.per_kv_entry, static_cast<double>(shape.decode_context_sum)));
    for (const ChunkShape& chunk : shape.chunks) work = sum(work, times(work_.per_pair, pairs(chunk)));
    out->add(layer_part("capture", PartKind::kCapture, false, kernel_ns(work, work_.capture_kernels)));
  }
  if (shape.copied_pages > 0 && work_.page_bytes > 0) {
    const double ns =
        2 * static_cast<double>(shape.copied_pages) * work_.page_bytes / move_bytes_per_ns_ + small_fixed_ns_;
    out->add(layer_part("copy_tails", PartKind::kMove, false, ns));
  }
  if (shape.compressions.empty()) return;
  KernelWork score;
  double ranked = 0, moved = 0;
  uint32_t score_turns = 0;
  for (const CompressionShape& one : shape.compressions) {
    ranked += one.ranked;
    score = sum(score, times(work_.score, double{1} * one.ranked * turns(one)));
    score_turns = std::max(score_turns, turns(one));
    score = sum(score, times(work_.score_pair, static_cast<double>(one.tokens) * one.ranked / 2));
    if (work_.moves) moved += retained(one) + (work_.moves_all ? one.held - one.ranked : 0);
  }
  const bool after = work_.after_layers;
  if (work_.score_kernels > 0)
    out->add(
        layer_part("score", PartKind::kScore, after, kernel_ns(score, work_.score_kernels * score_turns)));
  if (work_.selects) {
    const KernelWork select{.bytes = ranked * kv_heads_ * kSelectBytes};
    out->add(layer_part("select", PartKind::kSelect, after, kernel_ns(select, kSelectKernels)));
  }
  if (moved > 0) {
    const double ns = 2 * moved * work_.kv_entry_bytes / move_bytes_per_ns_ + small_fixed_ns_;
    out->add(layer_part("move_entries", PartKind::kMove, after, ns));
  }
  out->add({"bookkeeping", PartKind::kBookkeeping, PartPlace::kAfter,
            static_cast<uint32_t>(shape.compressions.size()), ticks_from_ns(work_.bookkeeping_ns),
            Evidence::kRoofline});
}

StepCost CompressionCost::step(const StepShape& shape) {
  StepCost cost = below().step(shape);
  Parts parts;
  add_parts(shape, &parts);
  for (size_t i = 0; i < parts.count; ++i) {
    const StepPart& part = parts.part[i];
    const Ticks ticks = part.times * part.each;
    cost.device += ticks;
    cost.by_evidence[static_cast<size_t>(part.evidence)] += ticks;
    cost.compression[static_cast<size_t>(compression_part(part.kind))] += ticks;
  }
  return cost;
}

StepRange CompressionCost::range(const StepShape& shape) {
  StepRange range = below().range(shape);
  const Ticks more = step(shape).device - below().step(shape).device;
  range.low += more, range.high += more;
  return range;
}

std::vector<StepPart> CompressionCost::ops(const StepShape& shape) {
  std::vector<StepPart> all = below().ops(shape);
  if (all.empty()) return all;  // the model does not know its parts
  Parts parts;
  add_parts(shape, &parts);
  const auto last = std::find_if(all.rbegin(), all.rend(),
                                 [](const StepPart& part) { return part.kind == PartKind::kAttention; });
  auto at = last == all.rend() ? all.end() : last.base();
  for (size_t i = 0; i < parts.count; ++i) {
    if (parts.part[i].place == PartPlace::kLayer) {
      at = all.insert(at, parts.part[i]) + 1;
    } else {
      all.push_back(parts.part[i]);
    }
  }
  return all;
}

}  // namespace kvtwin
