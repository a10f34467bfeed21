#include "models/cost_tables/cost_tables.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <tuple>

#include "models/files/csv.h"
#include "models/files/textproto.h"

namespace kvtwin {
namespace {

constexpr double kTableUsMax = 1e9;  // a quarter of an hour for one kernel: certainly no kernel time
constexpr const char* kDenseNames[kDenseOps] = {"embedding",  "layernorm", "qkv_proj",
                                                "rotary_emb", "o_proj",    "gate_up_proj",
                                                "act_fn",     "down_proj", "final_layernorm"};

// `0, 16-2048 x2` -> 0, 16, 32, ... 2048. Returns nothing if the text does not have this syntax.
std::optional<std::vector<uint32_t>> parse_axis(const std::string& text) {
  std::vector<uint32_t> out;
  std::string item;
  const auto add = [&](double value) { out.push_back(static_cast<uint32_t>(std::lround(value))); };
  for (size_t from = 0; from <= text.size();) {
    const size_t comma = std::min(text.find(',', from), text.size());
    item = text.substr(from, comma - from);
    from = comma + 1;
    double low = 0, high = 0, factor = 0;
    char end = 0;
    if (std::sscanf(item.c_str(), " %lf - %lf x%lf %c", &low, &high, &factor, &end) == 3) {
      if (!(low >= 1 && low <= high && high <= 1e9 && factor >= 1.01 && factor <= 1e6)) return std::nullopt;
      for (double v = low; v < high; v *= factor) add(v);
      add(high);
    } else if (std::sscanf(item.c_str(), " %lf %c", &low, &end) == 1 && low >= 0 && low <= 1e9) {
      add(low);
    } else {
      return std::nullopt;
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

uint32_t yaml_count(const YAML::Node& node) { return node ? node.as<uint32_t>(0) : 0; }

// Reads the profile's meta.yaml; returns the chunks that it declares, or nothing.
using DeclaredChunks = std::optional<std::vector<uint32_t>>;
Result<DeclaredChunks> read_meta(const std::string& path, CostTables* tables, bool* no_head, bool* no_mixed) {
  const Result<std::string> text = read_text_file(path, size_t{1} << 20);
  if (!text) return tl::unexpected<Error>(text.error());
  DeclaredChunks chunks;
  try {
    const YAML::Node meta = YAML::Load(*text);
    if (!meta.IsMap())
      return make_error(path, "is no YAML map", "give the meta.yaml of an LLMServingSim profile");
    tables->gpu = meta["gpu"].as<std::string>("");
    tables->model = meta["model"].as<std::string>("");
    tables->tp_degrees = meta["tp_degrees"].as<std::vector<uint32_t>>(std::vector<uint32_t>{});
    if (const YAML::Node effective = meta["engine_effective"]; effective && effective.IsMap()) {
      if (const YAML::Node layer = effective["hf_overrides"]; layer && layer.IsMap()) {
        tables->query_heads = yaml_count(layer["num_attention_heads"]);
        tables->kv_heads = yaml_count(layer["num_key_value_heads"]);
        tables->intermediate = yaml_count(layer["intermediate_size"]);
        tables->vocab = yaml_count(layer["vocab_size"]);
      }
    }
    tables->unread = meta["unread"].as<std::vector<std::string>>(std::vector<std::string>{});
    for (const std::string& what :
         meta["not_measured"].as<std::vector<std::string>>(std::vector<std::string>{})) {
      if (what != "output_head" && what != "mixed") {
        return make_error(path, fmt::format("not_measured names \"{}\"", what.substr(0, 40)),
                          "output_head and mixed may be left out");
      }
      (what == "mixed" ? *no_mixed : *no_head) = true;
    }
    const YAML::Node axes = meta["attention_grid"];
    if (!axes || !axes.IsMap() || !axes["chunks"]) return chunks;
    const std::string declared = axes["chunks"].as<std::string>("");
    chunks = parse_axis(declared);
    if (!chunks) {
      return make_error(path, fmt::format("attention_grid.chunks is \"{}\"", declared.substr(0, 40)),
                        "numbers and ranges like 0, 16-2048 x2 are right");
    }
  } catch (const YAML::Exception& e) {
    return make_error(fmt::format("{}:{}:{}", path, e.mark.line + 1, e.mark.column + 1), e.msg);
  }
  return chunks;
}

void append(Curve* curve, uint32_t at, double us) {
  if (!curve->at.empty() && curve->at.back() == at) {
    curve->us.back() = us;  // measured again: the later row counts
  } else {
    curve->at.push_back(at), curve->us.push_back(us);
  }
}

void sort_curve(std::vector<std::pair<uint32_t, double>>& points, Curve* curve) {
  std::stable_sort(points.begin(), points.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [at, us] : points) append(curve, at, us);
}

// Reads `name, count, us` rows into the curves of `wanted`, and into `optional` if there are any. Other names
// are added to `unread`.
Result<void> read_curves(const std::string& path, const char* count_column,
                         const std::vector<std::pair<std::string, Curve*>>& wanted,
                         const std::pair<std::string, Curve*>& optional, std::vector<std::string>* unread) {
  Result<CsvFile> file = CsvFile::open(path, {"layer", count_column, "time_us"});
  if (!file) return tl::unexpected<Error>(file.error());
  std::map<std::string, std::vector<std::pair<uint32_t, double>>, std::less<>> points;
  CsvRow row;
  for (Result<bool> more = file->next(&row);; more = file->next(&row)) {
    if (!more) return tl::unexpected<Error>(more.error());
    if (!*more) break;
    const uint32_t at = row.count(1);
    if (at == 0) row.fail(1, "counts start at 1");
    points[std::string(row.text(0).substr(0, 64))].emplace_back(at, row.real(2, 0, kTableUsMax));
  }
  for (const auto& [name, curve] : wanted) {
    const auto it = points.find(name);
    if (it == points.end())
      return make_error(path, fmt::format("no row of layer \"{}\"", name), "profile all layers");
    sort_curve(it->second, curve);
    points.erase(it);
  }
  for (auto& [name, rows] : points) {
    if (name == optional.first) {
      sort_curve(rows, optional.second);
    } else {
      unread->push_back(name);
    }
  }
  return {};
}

struct AttentionRow {
  uint32_t chunk, chunk_context, decodes, decode_context;
  double us;
};

Result<std::vector<AttentionRow>> read_attention_rows(const std::string& path) {
  Result<CsvFile> file =
      CsvFile::open(path, {"prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"});
  if (!file) return tl::unexpected<Error>(file.error());
  std::vector<AttentionRow> rows;
  CsvRow row;
  for (Result<bool> more = file->next(&row);; more = file->next(&row)) {
    if (!more) return tl::unexpected<Error>(more.error());
    if (!*more) break;
    rows.push_back({row.count(0), row.count(1), row.count(2), row.count(3), row.real(4, 0, kTableUsMax)});
  }
  return rows;
}

// Where a profile was refined after its declared grid, the finer chunks and the two ends are the axis: the
// two grids were measured at different contexts, and alternating between them would zigzag.
std::vector<uint32_t> chunk_axis(const std::vector<AttentionRow>& rows, const DeclaredChunks& declared) {
  std::vector<uint32_t> all, finer;
  for (const AttentionRow& row : rows) {
    if (row.chunk != 0 && (all.empty() || all.back() != row.chunk)) all.push_back(row.chunk);
  }
  if (!declared || all.empty()) return all;
  for (const uint32_t chunk : all) {
    if (!std::binary_search(declared->begin(), declared->end(), chunk)) finer.push_back(chunk);
  }
  if (finer.empty()) return all;
  if (finer.front() != all.front()) finer.insert(finer.begin(), all.front());
  if (finer.back() != all.back()) finer.push_back(all.back());
  return finer;
}

// The rows of one (chunk, decodes), which are adjacent in `rows`.
std::span<const AttentionRow> slice(const std::vector<AttentionRow>& rows, uint32_t chunk, uint32_t decodes) {
  const auto key = [](const AttentionRow& r) { return std::pair(r.chunk, r.decodes); };
  const auto low = std::lower_bound(rows.begin(), rows.end(), std::pair(chunk, decodes),
                                    [&](const AttentionRow& r, const auto& k) { return key(r) < k; });
  auto high = low;
  while (high != rows.end() && key(*high) == std::pair(chunk, decodes)) ++high;
  return {low, high};
}

ContextCurves curves_of(std::span<const AttentionRow> rows) {
  ContextCurves out;
  for (const AttentionRow& row : rows) {
    if (out.chunk_context.empty() || out.chunk_context.back() != row.chunk_context) {
      out.chunk_context.push_back(row.chunk_context), out.by_context.emplace_back();
    }
    append(&out.by_context.back(), row.decode_context, row.us);
  }
  return out;
}

Result<void> read_attention(const std::string& path, const DeclaredChunks& declared, bool no_mixed,
                            AttentionGrid* g) {
  Result<std::vector<AttentionRow>> read = read_attention_rows(path);
  if (!read) return tl::unexpected<Error>(read.error());
  std::vector<AttentionRow>& rows = *read;
  std::stable_sort(rows.begin(), rows.end(), [](const AttentionRow& a, const AttentionRow& b) {
    return std::tie(a.chunk, a.decodes, a.chunk_context, a.decode_context) <
           std::tie(b.chunk, b.decodes, b.chunk_context, b.decode_context);
  });
  std::vector<uint32_t> counts;  // decode counts of all rows
  for (const AttentionRow& row : rows) {
    if (row.decodes != 0) counts.push_back(row.decodes);
    if (row.chunk != 0 || row.decodes == 0 || row.chunk_context != 0) continue;
    if (g->decodes.empty() || g->decodes.back() != row.decodes)
      g->decodes.push_back(row.decodes), g->pure.emplace_back();
    append(&g->pure.back(), row.decode_context, row.us);
  }
  if (g->decodes.empty()) return make_error(path, "no row 0,0,N,K: decodes alone were not measured");
  g->chunk = chunk_axis(rows, declared);
  if (g->chunk.empty()) return make_error(path, "no row C,K,0,0: prefill chunks were not measured");
  for (const uint32_t chunk : g->chunk) {
    Curve& curve = g->prefill.emplace_back();
    for (const AttentionRow& row : slice(rows, chunk, 0)) append(&curve, row.chunk_context, row.us);
    if (curve.at.empty())
      return make_error(path, fmt::format("no row {},K,0,0", chunk), "measure every chunk alone too");
  }
  if (no_mixed) return {};
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  for (const uint32_t n : counts) {
    const bool everywhere =
        std::all_of(g->chunk.begin(), g->chunk.end(), [&](uint32_t c) { return !slice(rows, c, n).empty(); });
    if (everywhere) g->decodes_mixed.push_back(n);
  }
  if (g->decodes_mixed.empty())
    return make_error(path, "no decode count was measured beside every prefill chunk");
  for (const uint32_t chunk : g->chunk) {
    for (const uint32_t n : g->decodes_mixed) g->mixed.push_back(curves_of(slice(rows, chunk, n)));
  }
  return {};
}

// The skew rows of the fit: contexts and imbalance as in serving batches.
constexpr uint32_t kSkewLongestMin = 1024, kSkewLongestMax = 4096, kSkewChunkContextMax = 2048;
constexpr double kSkewRatio = 4.0;

Result<void> read_skew(const std::string& path, CostTables* tables) {
  Result<CsvFile> file =
      CsvFile::open(path, {"regime", "n", "nb", "ratio", "skew", "pc", "kp", "kvs", "kv_big", "kv_mean",
                           "t_mean_us", "t_max_us", "t_skew_us", "alpha"});
  if (!file) return tl::unexpected<Error>(file.error());
  struct Sums {
    double product = 0, square = 0;
  };
  std::map<std::pair<uint32_t, uint32_t>, Sums> sums;  // by (chunk, decodes); chunk 0: pure
  CsvRow row;
  for (Result<bool> more = file->next(&row);; more = file->next(&row)) {
    if (!more) return tl::unexpected<Error>(more.error());
    if (!*more) break;
    const bool mixed = row.text(0) == "mixed";
    if (!mixed && row.text(0) != "pure") row.fail(0, "pure or mixed is right");
    const uint32_t n = row.count(1), chunk = row.count(5), context = row.count(6), longest = row.count(8);
    const double skew = row.real(4, 0, 1e9);
    // These three columns are sums over the repetitions, so only their ratios are meaningful.
    const double mean = row.real(10, 0, kTableUsMax), most = row.real(11, 0, kTableUsMax),
                 real = row.real(12, 0, kTableUsMax);
    if (longest < kSkewLongestMin || longest > kSkewLongestMax || skew != kSkewRatio) continue;
    if (mixed && context > kSkewChunkContextMax) continue;
    Sums& s = sums[{mixed ? chunk : 0, n}];
    s.product += (real - mean) * (most - mean);
    s.square += (most - mean) * (most - mean);
  }
  for (const auto& [key, s] : sums) {
    const SkewPoint point{key.second, s.square > 0 ? std::max(0.0, s.product / s.square) : 0.0};
    if (key.first == 0) {
      tables->skew_pure.push_back(point);
      continue;
    }
    if (tables->skew_chunk.empty() || tables->skew_chunk.back() != key.first) {
      tables->skew_chunk.push_back(key.first), tables->skew_mixed.emplace_back();
    }
    tables->skew_mixed.back().push_back(point);
  }
  return {};
}

}  // namespace

const char* name_of(DenseOp op) { return kDenseNames[static_cast<size_t>(op)]; }

Result<CostTables> load_cost_tables(const std::string& folder, uint32_t tp) {
  CostTables tables;
  tables.where = folder;
  bool no_head = false, no_mixed = false;
  const Result<DeclaredChunks> chunks = read_meta(folder + "/meta.yaml", &tables, &no_head, &no_mixed);
  if (!chunks) return tl::unexpected<Error>(chunks.error());
  const std::string dir = fmt::format("{}/tp{}", folder, tp);
  std::error_code error;
  if (!std::filesystem::is_directory(dir, error)) {
    return make_error(
        folder, fmt::format("has no measurements for tensor parallelism {}", tp),
        fmt::format("profile it, or leave the profile out to use the roofline (expected {})", dir));
  }
  std::vector<std::pair<std::string, Curve*>> dense;
  for (size_t i = 0; i < kDenseOps; ++i) dense.emplace_back(kDenseNames[i], &tables.dense[i]);
  Result<void> done =
      read_curves(dir + "/dense.csv", "tokens", dense, {"qk_norm", &tables.qk_norm}, &tables.unread);
  if (done && !no_head) {
    done = read_curves(dir + "/per_sequence.csv", "sequences",
                       {{"lm_head", &tables.lm_head}, {"sampler", &tables.sampler}}, {}, &tables.unread);
  }
  if (done) done = read_attention(dir + "/attention.csv", *chunks, no_mixed, &tables.attention);
  if (done && std::filesystem::exists(dir + "/skew.csv", error)) done = read_skew(dir + "/skew.csv", &tables);
  if (!done) return tl::unexpected<Error>(done.error());
  return tables;
}

}  // namespace kvtwin
