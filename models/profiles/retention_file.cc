// Imports RetentionProfile from .npz, and reads and writes it as textproto.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "models/files/npz.h"
#include "models/files/textproto.h"
#include "models/profiles/retention_profile.h"
#include "traces/proto/profile.pb.h"

namespace kvtwin {
namespace {

constexpr uint64_t kSampledMax = 1 << 16;  // of layers, heads and samples

Result<NpyArray> array(const NpzMembers& members, const std::string& name, const std::string& where,
                       size_t dimensions) {
  const auto found = members.find(name);
  if (found == members.end()) {
    std::string known;
    for (const auto& [other, bytes] : members) known += (known.empty() ? "" : ", ") + other;
    return make_error(where, fmt::format("has no array {}", name),
                      "it has: " + (known.empty() ? "none" : known));
  }
  Result<NpyArray> out = parse_npy(found->second, where + ":" + name);
  if (out && out->shape.size() != dimensions) {
    return make_error(where + ":" + name, fmt::format("has {} dimensions", out->shape.size()),
                      fmt::format("{} are right", dimensions));
  }
  return out;
}

// Converts values to integers of [0, 2^32).
Result<std::vector<uint32_t>> counts(std::span<const double> values, const std::string& where) {
  std::vector<uint32_t> out;
  for (const double value : values) {
    if (!(value >= 0 && value < 0x1p32))
      return make_error(where, fmt::format("has the value {}", value), "a count");
    out.push_back(static_cast<uint32_t>(value));
  }
  return out;
}

Result<void> check_fractions(std::span<const double> values, const std::string& where) {
  for (const double value : values) {
    if (!(value >= 0 && value <= 1))
      return make_error(where, fmt::format("has the value {}", value), "fractions are 0 to 1");
  }
  return {};
}

// Means and deviations over the samples of `rows`, [samples][heads].
void moments(const std::vector<double>& rows, size_t heads, std::vector<double>* mu,
             std::vector<double>* sigma) {
  const size_t samples = rows.size() / heads;
  mu->assign(heads, 0);
  sigma->assign(heads, 0);
  for (size_t i = 0; i < rows.size(); ++i) (*mu)[i % heads] += rows[i];
  for (double& x : *mu) x /= static_cast<double>(samples);
  for (size_t i = 0; i < rows.size(); ++i) {
    const double difference = rows[i] - (*mu)[i % heads];
    (*sigma)[i % heads] += difference * difference;
  }
  for (double& x : *sigma) x = std::sqrt(x / static_cast<double>(samples));
}

void read_meta(const NpzMembers& members, RetentionProfile* profile) {
  const auto found = members.find("meta");
  if (found == members.end()) return;
  const Result<NpyArray> bytes = parse_npy(found->second, "");
  if (!bytes) return;
  std::string text;
  for (const double byte : bytes->values) text += static_cast<char>(static_cast<unsigned char>(byte));
  const nlohmann::json meta = nlohmann::json::parse(text, nullptr, false);
  const auto field = [&](const char* name) {
    return meta.is_object() && meta.contains(name) && meta[name].is_string() ? meta[name].get<std::string>()
                                                                             : std::string();
  };
  profile->model = field("model_name"), profile->scorer = field("scorer"), profile->level = field("level");
}

Result<void> read_samples(const NpzMembers& members, const std::string& where, RetentionProfile* profile) {
  const auto ratio = array(members, "raw_ratio", where, 4);
  if (!ratio) return tl::unexpected(ratio.error());
  const std::vector<uint64_t>& shape = ratio->shape;
  const std::string at = where + ":raw_ratio";
  if (shape[0] != 1) return make_error(at, fmt::format("holds {} target ratios", shape[0]), "one is right");
  for (size_t i = 1; i < 4; ++i) {
    if (shape[i] < 1 || shape[i] > kSampledMax)
      return make_error(at, fmt::format("has the shape {} x {} x {}", shape[1], shape[2], shape[3]),
                        fmt::format("samples, layers and heads are 1 to {}", kSampledMax));
  }
  if (auto good = check_fractions(ratio->values, at); !good) return good;
  profile->layers = static_cast<uint32_t>(shape[2]), profile->kv_heads = static_cast<uint32_t>(shape[3]);
  profile->samples = ratio->values;
  const auto meta = array(members, "sample_meta", where, 2);
  if (!meta) return tl::unexpected(meta.error());
  if (meta->shape[0] != shape[1] || meta->shape[1] != 4)
    return make_error(where + ":sample_meta",
                      fmt::format("has the shape {} x {}", meta->shape[0], meta->shape[1]),
                      fmt::format("{} x 4 is right", shape[1]));
  const auto numbers = counts(meta->values, where + ":sample_meta");
  if (!numbers) return tl::unexpected(numbers.error());
  for (size_t s = 0; s < shape[1]; ++s) profile->context_tokens.push_back((*numbers)[4 * s]);
  profile->sink_tokens = (*numbers)[1], profile->window_tokens = (*numbers)[3];
  return {};
}

Result<void> check_profile(const RetentionProfile& p, const std::string& where) {
  if (p.layers < 1 || p.layers > kSampledMax || p.kv_heads < 1 || p.kv_heads > kSampledMax)
    return make_error(where, fmt::format("has {} layers of {} heads", p.layers, p.kv_heads),
                      fmt::format("1 to {} are right", kSampledMax));
  if (!(p.base_ratio > 0 && p.base_ratio <= 1))
    return make_error(where, fmt::format("base_ratio is {}", p.base_ratio), "more than 0, at most 1");
  if (p.layer_ids.size() != p.layers)
    return make_error(where, fmt::format("names {} layers", p.layer_ids.size()),
                      fmt::format("{} are right", p.layers));
  const struct {
    const char* name;
    const std::vector<double>& table;
    double most;
  } tables[] = {{"mu", p.mu, 1},
                {"sigma", p.sigma, 1},
                {"fraction_mu", p.fraction_mu, 1e9},
                {"fraction_sigma", p.fraction_sigma, 1e9}};
  for (const auto& [name, table, most] : tables) {
    if (table.size() != size_t{p.layers} * p.kv_heads)
      return make_error(where, fmt::format("{} has {} entries", name, table.size()),
                        fmt::format("{} are right", uint64_t{p.layers} * p.kv_heads));
    for (const double x : table) {
      if (!(x >= 0 && x <= most)) return make_error(where, fmt::format("{} has the value {}", name, x));
    }
  }
  return {};
}

}  // namespace

void complete_tables(RetentionProfile* profile) {
  const size_t heads = profile->heads();
  moments(profile->samples, heads, &profile->mu, &profile->sigma);
  std::vector<double> fractions = profile->samples;
  for (size_t first = 0; first < fractions.size(); first += heads) {
    double sum = 0;
    for (size_t i = 0; i < heads; ++i) sum += fractions[first + i];
    // A context that retains nothing has no relative fractions; it counts as one in which all heads are
    // equal.
    for (size_t i = 0; i < heads; ++i)
      fractions[first + i] = sum > 0 ? fractions[first + i] * static_cast<double>(heads) / sum : 1;
  }
  moments(fractions, heads, &profile->fraction_mu, &profile->fraction_sigma);
}

Result<RetentionProfile> import_retention_npz(std::string_view bytes, const std::string& where) {
  const Result<NpzMembers> members = unpack_npz(bytes, where);
  if (!members) return tl::unexpected(members.error());
  RetentionProfile profile;
  profile.source = where;
  if (auto good = read_samples(*members, where, &profile); !good) return tl::unexpected(good.error());
  const auto base = array(*members, "base_ratios", where, 1);
  if (!base) return tl::unexpected(base.error());
  if (base->values.size() != 1)
    return make_error(where + ":base_ratios", fmt::format("has {} entries", base->values.size()),
                      "one is right");
  profile.base_ratio = std::round(base->values[0] * 1e6) / 1e6;  // 0.3 is 0.30000001 in fp32
  const auto ids = array(*members, "static_layer_ids", where, 1);
  if (!ids) return tl::unexpected(ids.error());
  auto layer_ids = counts(ids->values, where + ":static_layer_ids");
  if (!layer_ids) return tl::unexpected(layer_ids.error());
  profile.layer_ids = std::move(*layer_ids);
  read_meta(*members, &profile);
  complete_tables(&profile);
  if (auto good = check_profile(profile, where); !good) return tl::unexpected(good.error());
  return profile;
}

Result<RetentionProfile> import_retention_npz_file(const std::string& path) {
  const Result<std::string> bytes = read_text_file(path);
  if (!bytes) return tl::unexpected(bytes.error());
  Result<RetentionProfile> profile = import_retention_npz(*bytes, path);
  if (profile) {
    const std::filesystem::path file(path);
    profile->source = file.filename().string();
    profile->name = file.stem().string();
  }
  return profile;
}

Result<RetentionProfile> parse_retention_profile(std::string_view text, const std::string& where) {
  v1::RetentionProfile in;
  if (auto good = parse_textproto(text, where, &in); !good) return tl::unexpected(good.error());
  RetentionProfile p;
  p.name = in.name(), p.model = in.model(), p.scorer = in.scorer(), p.level = in.level();
  p.source = in.source(), p.base_ratio = in.base_ratio(), p.layers = in.layers();
  p.kv_heads = in.kv_heads(), p.window_tokens = in.window_tokens(), p.sink_tokens = in.sink_tokens();
  p.layer_ids.assign(in.layer_ids().begin(), in.layer_ids().end());
  p.context_tokens.assign(in.context_tokens().begin(), in.context_tokens().end());
  p.mu.assign(in.mu().begin(), in.mu().end());
  p.sigma.assign(in.sigma().begin(), in.sigma().end());
  p.fraction_mu.assign(in.fraction_mu().begin(), in.fraction_mu().end());
  p.fraction_sigma.assign(in.fraction_sigma().begin(), in.fraction_sigma().end());
  p.samples.assign(in.retained().begin(), in.retained().end());
  if (auto good = check_profile(p, where); !good) return tl::unexpected(good.error());
  if (!p.samples.empty() && p.samples.size() != p.context_tokens.size() * p.heads())
    return make_error(where, fmt::format("retained has {} entries", p.samples.size()),
                      fmt::format("{} of {} contexts are right, or none", p.context_tokens.size() * p.heads(),
                                  p.context_tokens.size()));
  if (auto good = check_fractions(p.samples, where + ":kept"); !good) return tl::unexpected(good.error());
  return p;
}

std::string retention_textproto(const RetentionProfile& p, double alpha, bool samples) {
  v1::RetentionProfile out;
  out.set_name(p.name), out.set_model(p.model), out.set_scorer(p.scorer), out.set_level(p.level);
  out.set_source(p.source), out.set_base_ratio(p.base_ratio), out.set_layers(p.layers);
  out.set_kv_heads(p.kv_heads), out.set_window_tokens(p.window_tokens), out.set_sink_tokens(p.sink_tokens);
  out.set_samples(static_cast<uint32_t>(p.context_tokens.size()));
  for (const uint32_t id : p.layer_ids) out.add_layer_ids(id);
  for (const uint32_t tokens : p.context_tokens) out.add_context_tokens(tokens);
  for (const double x : p.mu) out.add_mu(x);
  for (const double x : p.sigma) out.add_sigma(x);
  for (const double x : p.fraction_mu) out.add_fraction_mu(x);
  for (const double x : p.fraction_sigma) out.add_fraction_sigma(x);
  for (const double x : samples ? p.samples : std::vector<double>{}) out.add_retained(x);
  out.set_alpha(alpha);
  for (const uint64_t x : to_q32(budgets(p.mu, p.sigma, alpha))) out.add_budget_q32(x);
  return textproto_file(out);
}

}  // namespace kvtwin
