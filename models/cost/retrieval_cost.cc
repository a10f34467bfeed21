#include "models/cost/retrieval_cost.h"

#include <algorithm>

#include "models/cost/partwise_cost.h"
#include "models/cost/roofline_figures.h"

namespace kvtwin {
namespace {

constexpr double kStreamHopNs = 3600;
constexpr double kKernelReadFraction = 0.92;

// Bytes of a stored number of K or V, scales included.
double stored_bytes(const LlmSpec& llm) { return llm.kv.bytes(1.0); }

// The fraction of one page in one layer that retrieves: its summaries are bf16 whatever its format.
double layer_summary_fraction(const RetrievalGeometry& geometry, double stored) {
  return geometry.scored_columns > 0
             ? 0
             : kBf16Bytes / stored * geometry.summary_vectors / (2.0 * geometry.page_tokens);
}

}  // namespace

RetrievalCost::RetrievalCost(const LlmSpec& llm, const DeviceSpec& device, const NodeSpec& node, uint32_t tp,
                             const RetrievalGeometry& geometry)
    : geometry_(geometry),
      kv_heads_(llm.kv_heads_per_gpu(tp)),
      query_heads_(static_cast<double>(llm.query_heads) / tp),
      head_dim_(llm.head_dim),
      hidden_(llm.hidden),
      stored_bytes_(stored_bytes(llm)) {
  constexpr double per_ns = 1e-9;
  bytes_per_ns_ = device.hbm_bytes_per_s.value * per_ns * device.read_fraction.value;
  flop_per_ns_ = device.bf16_flop_per_s.value * per_ns * device.gemm_fraction.value;
  vector_flop_per_ns_ = device.bf16_flop_per_s.value * per_ns * kVectorFraction;
  small_fixed_ns_ = device.small_fixed_ns.value;
  gemm_fixed_ns_ = device.gemm_fixed_ns.value;
  in_bytes_per_ns_ = std::min(node.pcie_bytes_per_s.value, node.host_memory_bytes_per_s.value) * per_ns;
  copy_in_ns_ = node.copy_overhead_h2d_ns.value;
  copy_out_ns_ = node.copy_overhead_d2h_ns.value;
  row_bytes_ = node.copy_row_bytes.value;
  sync_ns_ = node.host_sync_ns.value;
}

double RetrievalCost::kernel_ns(double bytes, double flop) const {
  return std::max(bytes / bytes_per_ns_, flop / vector_flop_per_ns_) + small_fixed_ns_;
}

Ticks RetrievalCost::score(uint64_t count) const {
  if (measured_) return 0;
  const auto tokens = static_cast<double>(count);
  if (geometry_.scored_columns > 0) {
    const double values = tokens * kv_heads_ * head_dim_ * geometry_.scored_columns;
    return ticks_from_ns(kernel_ns(values * kBf16Bytes, 2 * values * query_heads_ / kv_heads_));
  }
  const double pages = tokens / geometry_.page_tokens;
  const double values = pages * geometry_.summary_vectors * kv_heads_ * head_dim_;
  const double bytes = values * kBf16Bytes + pages * query_heads_ * kFp32Bytes;
  return ticks_from_ns(kernel_ns(bytes, 2 * values * query_heads_ / kv_heads_));
}

Ticks RetrievalCost::top_k(uint64_t tokens) const {
  if (measured_) return 0;
  const double items =
      static_cast<double>(tokens) / (geometry_.scored_columns > 0 ? 1 : geometry_.page_tokens);
  // Softmax reads and writes the scores of all query heads, pooling reads them, top-k reads one per KV head.
  const double values = items * (3 * query_heads_ + 2 * kv_heads_);
  return ticks_from_ns(kernel_ns(values * kFp32Bytes, 0) + 2 * small_fixed_ns_);
}

Ticks RetrievalCost::cosine(uint32_t requests) const {
  if (measured_) return 0;
  const double values = 2.0 * requests * query_heads_ * head_dim_;
  return ticks_from_ns(kernel_ns(values * kBf16Bytes, 3 * values) + sync_ns_);
}

Ticks RetrievalCost::sync() const { return measured_ ? 0 : ticks_from_ns(sync_ns_); }

Ticks RetrievalCost::reproject(uint32_t requests) const {
  if (measured_) return 0;
  const double weights = hidden_ * geometry_.scored_columns * query_heads_ * head_dim_;
  return ticks_from_ns(std::max(weights * kBf16Bytes / bytes_per_ns_, 2 * weights * requests / flop_per_ns_) +
                       gemm_fixed_ns_);
}

Ticks RetrievalCost::reconstruct(uint64_t count, uint32_t requests) const {
  if (measured_) return 0;
  const auto tokens = static_cast<double>(count);
  const double width = kv_heads_ * head_dim_, rank = geometry_.rank;
  // Each head chooses its own tokens: rows of U are read once per head, SV once per request, and keys are
  // written once.
  const double bytes = kBf16Bytes * (tokens * kv_heads_ * rank + requests * rank * width + tokens * width);
  const double product =
      std::max(bytes / bytes_per_ns_, 2 * tokens * rank * width / flop_per_ns_) + gemm_fixed_ns_;
  const double rotation = kernel_ns(2 * kBf16Bytes * tokens * width, 0);
  return ticks_from_ns(product + rotation);
}

RetrievalPrice RetrievalCost::recall(bool now) const {
  const double parts = geometry_.values_only ? 1 : 2;
  const double bytes = parts * stored_bytes_ * geometry_.page_tokens * head_dim_;
  if (measured_)
    return {0, ticks_from_us(now ? measured_->page_now_us : measured_->page_next_us),
            static_cast<uint64_t>(bytes)};
  if (geometry_.by_kernel)
    return {ticks_from_ns(kStreamHopNs + small_fixed_ns_),
            ticks_from_ns(bytes / (in_bytes_per_ns_ * kKernelReadFraction)), static_cast<uint64_t>(bytes)};
  const double piece = geometry_.piece_bytes > 0 ? std::min<double>(geometry_.piece_bytes, bytes) : bytes;
  const double requests = geometry_.copy_each_piece ? bytes / piece : 1;
  // A contiguous page is not a strided copy, nor are blocks that are copied one by one.
  const double rows = piece < bytes && !geometry_.copy_each_piece ? 1 + row_bytes_ / piece : 1;
  const double ns = requests * copy_in_ns_ + bytes / in_bytes_per_ns_ * rows;
  return {ticks_from_ns(kStreamHopNs), ticks_from_ns(ns), static_cast<uint64_t>(bytes)};
}

Ticks RetrievalCost::concurrent(uint32_t pages, bool launched) const {
  if (!measured_ || pages == 0) return 0;
  return ticks_from_us((measured_->concurrent_page_us + (launched ? measured_->page_launched_us : 0)) *
                       pages);
}

RetrievalPrice RetrievalCost::convert(uint32_t tasks) const {
  if (measured_) return {};
  const double bytes = stored_bytes_ * 2 * geometry_.page_tokens * head_dim_;
  const double each = 2 * bytes / bytes_per_ns_;  // read from staging, written to its slot
  // With two buffers all conversions but that of the last pair overlap with the copies (PCIe is far slower).
  // With one, each pair is copied and converted before the copy of the next one starts.
  if (geometry_.staging_buffers == 2) {
    return {ticks_from_ns(kStreamHopNs + small_fixed_ns_), ticks_from_ns(each / std::max(1u, tasks)), 0};
  }
  const double per_task = 2 * kStreamHopNs + small_fixed_ns_;
  return {ticks_from_ns(per_task * std::max(1u, tasks)), ticks_from_ns(each), 0};
}

RetrievalPrice RetrievalCost::summarise() const {
  if (measured_) return {};
  // Keys as they are produced: pages are packed afterwards.
  const double bytes = kBf16Bytes * geometry_.page_tokens * kv_heads_ * head_dim_;
  return {ticks_from_ns(small_fixed_ns_), ticks_from_ns(bytes / bytes_per_ns_), 0};
}

RetrievalPrice RetrievalCost::offload() const {
  double bytes = 2 * stored_bytes_ * geometry_.page_tokens * kv_heads_ * head_dim_;
  if (geometry_.keeps_prefixes) bytes *= 1 + layer_summary_fraction(geometry_, stored_bytes_);
  if (measured_) return {0, 0, static_cast<uint64_t>(bytes)};
  // Converted to the host's layout on the device, then one contiguous copy.
  const double ns = copy_out_ns_ + bytes / in_bytes_per_ns_ + 2 * bytes / bytes_per_ns_ + small_fixed_ns_;
  return {ticks_from_ns(kStreamHopNs), ticks_from_ns(ns), static_cast<uint64_t>(bytes)};
}

double summary_fraction(const LlmSpec& llm, const RetrievalGeometry& geometry, uint32_t layers_dense) {
  return layer_summary_fraction(geometry, stored_bytes(llm)) * (llm.layers - layers_dense) / llm.layers;
}

double resident_fraction(const LlmSpec& llm, const RetrievalGeometry& geometry, uint32_t layers_dense) {
  const double page = 2.0 * geometry.page_tokens * llm.kv_heads * llm.head_dim;  // values of one layer
  double retained = geometry.summary_vectors * static_cast<double>(llm.kv_heads) * llm.head_dim;
  if (geometry.scored_columns > 0) retained = page / 2 * geometry.scored_columns;
  retained += static_cast<double>(geometry.rank) * geometry.page_tokens;
  const double dense = static_cast<double>(layers_dense) / llm.layers;
  return std::min(1.0, dense + (1 - dense) * kBf16Bytes / stored_bytes(llm) * retained / page);
}

}  // namespace kvtwin
