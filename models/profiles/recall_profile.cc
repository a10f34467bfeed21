#include "models/profiles/recall_profile.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/check.h"
#include "models/files/textproto.h"
#include "traces/proto/profile.pb.h"

namespace kvtwin {
namespace {

constexpr uint64_t kDimensionMax = 1 << 16;

Result<void> check_table(const std::string& where, const char* name, const std::vector<double>& table,
                         uint64_t size, double low, double high) {
  if (table.size() != size)
    return make_error(where, fmt::format("{} has {} entries", name, table.size()),
                      fmt::format("{} are right", size));
  for (const double x : table) {
    if (!(x >= low && x <= high))
      return make_error(where, fmt::format("{} has the value {}", name, x),
                        fmt::format("from {} to {}", low, high));
  }
  return {};
}

Result<void> check(const RecallProfile& p, const std::string& where) {
  if (p.layers < 1 || p.layers > kDimensionMax || p.kv_heads < 1 || p.kv_heads > kDimensionMax)
    return make_error(where, fmt::format("has {} layers of {} heads", p.layers, p.kv_heads),
                      fmt::format("1 to {} are right", kDimensionMax));
  if (p.tau.empty() || !std::is_sorted(p.tau.begin(), p.tau.end()))
    return make_error(where, "tau does not ascend", "at least one value, in ascending order");
  const uint64_t heads = uint64_t{p.layers} * p.kv_heads;
  // A cosine is at most 1, except for rounding.
  const struct {
    const char* name;
    const std::vector<double>& table;
    uint64_t size;
    double low, high;
  } tables[] = {{"similarity", p.similarity, heads, -1.001, 1.001},
                {"similarity_deviation", p.similarity_deviation, heads, 0, 1.001},
                {"tau", p.tau, p.tau.size(), -2, 2},
                {"correction_rate", p.correction_rate, p.layers * p.tau.size(), 0, 1},
                {"miss_rate", p.miss_rate, p.layers, 0, 1},
                {"miss_by_step", p.miss_by_step, p.miss_by_step.size(), 0, 1}};
  for (const auto& [name, table, size, low, high] : tables) {
    if (Result<void> ok = check_table(where, name, table, size, low, high); !ok) return ok;
  }
  return {};
}

}  // namespace

double RecallProfile::corrections(uint32_t layer, double value) const {
  KVT_CHECK(layer < layers && !tau.empty());
  const double* const rates = correction_rate.data() + uint64_t{layer} * tau.size();
  if (value < tau.front()) return 0;
  if (value > tau.back()) return 1;
  const auto above = static_cast<size_t>(std::lower_bound(tau.begin(), tau.end(), value) - tau.begin());
  if (tau[above] == value) return rates[above];
  const double part = (value - tau[above - 1]) / (tau[above] - tau[above - 1]);
  return rates[above - 1] + part * (rates[above] - rates[above - 1]);
}

Result<RecallProfile> parse_recall_profile(std::string_view text, const std::string& where) {
  v1::RecallProfile in;
  if (auto good = parse_textproto(text, where, &in); !good) return tl::unexpected(good.error());
  RecallProfile p;
  p.name = in.name(), p.model = in.model(), p.method = in.method(), p.source = in.source();
  p.layers = in.layers(), p.kv_heads = in.kv_heads();
  p.page_tokens = in.page_tokens(), p.selectable_pages = in.selectable_pages();
  p.contexts = in.contexts(), p.steps = in.steps();
  p.similarity.assign(in.similarity().begin(), in.similarity().end());
  p.similarity_deviation.assign(in.similarity_deviation().begin(), in.similarity_deviation().end());
  p.tau.assign(in.tau().begin(), in.tau().end());
  p.correction_rate.assign(in.correction_rate().begin(), in.correction_rate().end());
  p.miss_rate.assign(in.miss_rate().begin(), in.miss_rate().end());
  p.miss_by_step.assign(in.miss_by_step().begin(), in.miss_by_step().end());
  if (auto good = check(p, where); !good) return tl::unexpected(good.error());
  return p;
}

std::string recall_textproto(const RecallProfile& p) {
  v1::RecallProfile out;
  out.set_name(p.name), out.set_model(p.model), out.set_method(p.method), out.set_source(p.source);
  out.set_layers(p.layers), out.set_kv_heads(p.kv_heads);
  out.set_page_tokens(p.page_tokens), out.set_selectable_pages(p.selectable_pages);
  out.set_contexts(p.contexts), out.set_steps(p.steps);
  for (const double x : p.similarity) out.add_similarity(x);
  for (const double x : p.similarity_deviation) out.add_similarity_deviation(x);
  for (const double x : p.tau) out.add_tau(x);
  for (const double x : p.correction_rate) out.add_correction_rate(x);
  for (const double x : p.miss_rate) out.add_miss_rate(x);
  for (const double x : p.miss_by_step) out.add_miss_by_step(x);
  return textproto_file(out);
}

}  // namespace kvtwin
