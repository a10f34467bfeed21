#include "engine/recorder/recorder_retention.h"

namespace kvtwin {

BudgetSpec recorded_budget(const v1::RecordedBudget& in) {
  BudgetSpec out;
  out.sinks = in.sinks();
  out.window = in.window();
  out.chunk_tokens = in.chunk_tokens();
  out.interval = in.interval();
  out.ratio = in.ratio();
  out.kv_entries = in.kv_entries();
  out.sinks_free = in.sinks_free();
  out.pyramid_beta = in.pyramid_beta();
  out.mu.assign(in.mu().begin(), in.mu().end());
  out.sigma.assign(in.sigma().begin(), in.sigma().end());
  out.alpha = in.alpha();
  out.relative = in.relative();
  if (in.has_inflation()) out.inflation = in.inflation();
  out.decode_reserve = in.decode_reserve();
  out.keeps_all.assign(in.keeps_all().begin(), in.keeps_all().end());
  out.retained_min = in.retained_min();
  out.uniform_depth = in.uniform_depth();
  return out;
}

void record_budget(const BudgetSpec& in, v1::RecordedBudget* out) {
  out->set_sinks(in.sinks);
  out->set_window(in.window);
  out->set_chunk_tokens(in.chunk_tokens);
  out->set_interval(in.interval);
  out->set_ratio(in.ratio);
  out->set_kv_entries(in.kv_entries);
  out->set_sinks_free(in.sinks_free);
  out->set_pyramid_beta(in.pyramid_beta);
  out->mutable_mu()->Add(in.mu.begin(), in.mu.end());
  out->mutable_sigma()->Add(in.sigma.begin(), in.sigma.end());
  out->set_alpha(in.alpha);
  out->set_relative(in.relative);
  if (in.inflation.has_value()) out->set_inflation(*in.inflation);
  out->set_decode_reserve(in.decode_reserve);
  for (const bool all : in.keeps_all) out->add_keeps_all(all);
  out->set_retained_min(in.retained_min);
  out->set_uniform_depth(in.uniform_depth);
}

// validate_layout_spec() reports values out of range.
LayoutSpec recorded_layout(const v1::RecordedLayout& in) {
  return {.layers = in.layers(),
          .kv_heads = in.kv_heads(),
          .heads_per_group = in.heads_per_group(),
          .clustering = in.clustering() == 1   ? Clustering::kPerLayer
                        : in.clustering() == 2 ? Clustering::kAcrossLayers
                                               : Clustering::kAdjacent};
}

void record_layout(const LayoutSpec& in, v1::RecordedLayout* out) {
  out->set_layers(in.layers);
  out->set_kv_heads(in.kv_heads);
  out->set_heads_per_group(in.heads_per_group);
  out->set_clustering(static_cast<uint32_t>(in.clustering));
}

}  // namespace kvtwin
