#include "models/cost_tables.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>

#include "models/csv.h"
#include "models/textproto.h"

namespace kvtwin {
namespace {

constexpr double kUsMax = 1e9;  // a quarter of an hour for one kernel: certainly no kernel time
constexpr size_t kGridCellsMax = size_t{1} << 24;
constexpr const char* kDenseNames[kDenseOps] = {"embedding",  "layernorm", "qkv_proj",
                                                "rotary_emb", "o_proj",    "gate_up_proj",
                                                "act_fn",     "down_proj", "final_layernorm"};

// The axes that meta.yaml declares, e.g. `0, 16-2048 x2`. Absent: all values of the file.
struct DeclaredGrid {
  std::optional<std::vector<uint32_t>> chunks, decodes, contexts;
};

// `0, 16-2048 x2` -> 0, 16, 32, ... 2048. Nothing where the text is not of that form.
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

Result<DeclaredGrid> read_meta(const std::string& path, CostTables* tables) {
  const Result<std::string> text = read_text_file(path, size_t{1} << 20);
  if (!text) return tl::unexpected<Mistake>(text.error());
  DeclaredGrid grid;
  try {
    const YAML::Node meta = YAML::Load(*text);
    if (!meta.IsMap())
      return mistake(path, "is no YAML map", "give the meta.yaml of an LLMServingSim profile");
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
    const YAML::Node axes = meta["attention_grid"];
    if (!axes || !axes.IsMap()) return grid;
    for (const auto& [key, axis] :
         {std::pair{"chunks", &grid.chunks}, {"n_decode", &grid.decodes}, {"kv", &grid.contexts}}) {
      const std::string declared = axes[key].as<std::string>("");
      *axis = parse_axis(declared);
      if (!*axis) {
        return mistake(path, fmt::format("attention_grid.{} is \"{}\"", key, declared.substr(0, 40)),
                       "numbers and ranges like 0, 16-2048 x2 are right");
      }
    }
  } catch (const YAML::Exception& e) {
    return mistake(fmt::format("{}:{}:{}", path, e.mark.line + 1, e.mark.column + 1), e.msg);
  }
  return grid;
}

void sort_curve(std::vector<std::pair<uint32_t, double>>& points, Curve* curve) {
  std::stable_sort(points.begin(), points.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [at, us] : points) {
    if (!curve->at.empty() && curve->at.back() == at) {
      curve->us.back() = us;  // measured again: the later row counts
      continue;
    }
    curve->at.push_back(at), curve->us.push_back(us);
  }
}

// Reads `name, count, us` rows into the curves of `wanted`; rows of other names are ignored.
Result<void> read_curves(const std::string& path, const char* count_column,
                         const std::vector<std::pair<std::string, Curve*>>& wanted) {
  Result<CsvFile> file = CsvFile::open(path, {"layer", count_column, "time_us"});
  if (!file) return tl::unexpected<Mistake>(file.error());
  std::map<std::string, std::vector<std::pair<uint32_t, double>>, std::less<>> points;
  CsvRow row;
  for (Result<bool> more = file->next(&row);; more = file->next(&row)) {
    if (!more) return tl::unexpected<Mistake>(more.error());
    if (!*more) break;
    const uint32_t at = row.count(1);
    if (at == 0) row.fail(1, "counts start at 1");
    points[std::string(row.text(0).substr(0, 64))].emplace_back(at, row.real(2, 0, kUsMax));
  }
  for (const auto& [name, curve] : wanted) {
    const auto it = points.find(name);
    if (it == points.end())
      return mistake(path, fmt::format("no row of layer \"{}\"", name), "profile all layers");
    sort_curve(it->second, curve);
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
  if (!file) return tl::unexpected<Mistake>(file.error());
  std::vector<AttentionRow> rows;
  CsvRow row;
  for (Result<bool> more = file->next(&row);; more = file->next(&row)) {
    if (!more) return tl::unexpected<Mistake>(more.error());
    if (!*more) break;
    rows.push_back({row.count(0), row.count(1), row.count(2), row.count(3), row.real(4, 0, kUsMax)});
  }
  return rows;
}

// The values of one axis: the declared ones that occur, or all that occur.
std::vector<uint32_t> axis_of(const std::vector<AttentionRow>& rows, uint32_t AttentionRow::*field,
                              uint32_t low, const std::optional<std::vector<uint32_t>>& declared) {
  std::vector<uint32_t> out;
  for (const AttentionRow& row : rows) {
    const uint32_t value = row.*field;
    if (value < low) continue;
    if (declared && !std::binary_search(declared->begin(), declared->end(), value)) continue;
    out.push_back(value);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

constexpr size_t kNotOnAxis = std::numeric_limits<size_t>::max();
size_t index_on(const std::vector<uint32_t>& axis, uint32_t value) {
  const auto it = std::lower_bound(axis.begin(), axis.end(), value);
  return it == axis.end() || *it != value ? kNotOnAxis : static_cast<size_t>(it - axis.begin());
}

// Puts every row that lies on the grid into its cell; cells without a row stay NaN.
void fill_cells(const std::vector<AttentionRow>& rows, AttentionGrid* g) {
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  const size_t contexts = g->decode_context.size(), columns = g->decodes.size();
  g->pure.assign(columns * contexts, unknown);
  g->prefill.assign(g->chunk.size() * g->chunk_context.size(), unknown);
  g->mixed.assign(g->prefill.size() * columns * contexts, unknown);
  for (const AttentionRow& row : rows) {
    const size_t n = index_on(g->decodes, row.decodes), d = index_on(g->decode_context, row.decode_context);
    const size_t c = index_on(g->chunk, row.chunk), k = index_on(g->chunk_context, row.chunk_context);
    const bool decodes = n != kNotOnAxis && d != kNotOnAxis, prefills = c != kNotOnAxis && k != kNotOnAxis;
    if (row.chunk == 0 && decodes) g->pure[n * contexts + d] = row.us;
    if (row.decodes == 0 && prefills) g->prefill[c * g->chunk_context.size() + k] = row.us;
    if (decodes && prefills)
      g->mixed[((c * g->chunk_context.size() + k) * columns + n) * contexts + d] = row.us;
  }
}

// Keeps those decode counts of `mixed` that were measured beside every chunk: large batches of decodes
// are usually measured alone.
void keep_full_columns(AttentionGrid* g) {
  const size_t contexts = g->decode_context.size(), columns = g->decodes.size(), chunks = g->prefill.size();
  std::vector<size_t> kept;
  for (size_t n = 0; n < columns; ++n) {
    bool full = true;
    for (size_t c = 0; c < chunks && full; ++c) {
      for (size_t d = 0; d < contexts; ++d)
        full = full && !std::isnan(g->mixed[(c * columns + n) * contexts + d]);
    }
    if (full) kept.push_back(n), g->decodes_mixed.push_back(g->decodes[n]);
  }
  std::vector<double> packed;
  packed.reserve(chunks * kept.size() * contexts);
  for (size_t c = 0; c < chunks; ++c) {
    for (const size_t n : kept) {
      const auto from = g->mixed.begin() + static_cast<ptrdiff_t>((c * columns + n) * contexts);
      packed.insert(packed.end(), from, from + static_cast<ptrdiff_t>(contexts));
    }
  }
  g->mixed = std::move(packed);
}

Result<void> read_attention(const std::string& path, const DeclaredGrid& declared, AttentionGrid* g) {
  const Result<std::vector<AttentionRow>> rows = read_attention_rows(path);
  if (!rows) return tl::unexpected<Mistake>(rows.error());
  g->chunk = axis_of(*rows, &AttentionRow::chunk, 1, declared.chunks);
  g->chunk_context = axis_of(*rows, &AttentionRow::chunk_context, 0, declared.contexts);
  g->decodes = axis_of(*rows, &AttentionRow::decodes, 1, declared.decodes);
  g->decode_context = axis_of(*rows, &AttentionRow::decode_context, 1, declared.contexts);
  const size_t sizes[] = {g->chunk.size(), g->chunk_context.size(), g->decodes.size(),
                          g->decode_context.size()};
  double cells = 1;
  for (const size_t size : sizes) cells *= static_cast<double>(size);
  if (cells < 1 || cells > static_cast<double>(kGridCellsMax)) {
    return mistake(path, fmt::format("spans a grid of {} cells", cells), "1 to 16 million cells are right");
  }
  fill_cells(*rows, g);
  const size_t contexts = g->decode_context.size();
  for (size_t i = 0; i < g->pure.size(); ++i) {
    if (!std::isnan(g->pure[i])) continue;
    return mistake(path,
                   fmt::format("no row 0,0,{},{}", g->decodes[i / contexts], g->decode_context[i % contexts]),
                   "the grid of decodes must be complete");
  }
  for (size_t i = 0; i < g->prefill.size(); ++i) {
    const size_t row = g->chunk_context.size();
    if (!std::isnan(g->prefill[i])) continue;
    return mistake(path, fmt::format("no row {},{},0,0", g->chunk[i / row], g->chunk_context[i % row]),
                   "the grid of prefill chunks must be complete");
  }
  keep_full_columns(g);
  if (g->decodes_mixed.empty())
    return mistake(path, "no decode count was measured beside every prefill chunk");
  return {};
}

// Which skew rows enter the fit: contexts and imbalance as serving batches have them.
constexpr uint32_t kSkewLongestMin = 1024, kSkewLongestMax = 4096, kSkewChunkContextMax = 2048;
constexpr double kSkewRatio = 4.0;

Result<void> read_skew(const std::string& path, CostTables* tables) {
  Result<CsvFile> file =
      CsvFile::open(path, {"regime", "n", "nb", "ratio", "skew", "pc", "kp", "kvs", "kv_big", "kv_mean",
                           "t_mean_us", "t_max_us", "t_skew_us", "alpha"});
  if (!file) return tl::unexpected<Mistake>(file.error());
  struct Sums {
    double product = 0, square = 0;
  };
  std::map<std::pair<uint32_t, uint32_t>, Sums> sums;  // by (chunk, decodes); chunk 0: pure
  CsvRow row;
  for (Result<bool> more = file->next(&row);; more = file->next(&row)) {
    if (!more) return tl::unexpected<Mistake>(more.error());
    if (!*more) break;
    const bool mixed = row.text(0) == "mixed";
    if (!mixed && row.text(0) != "pure") row.fail(0, "pure or mixed is right");
    const uint32_t n = row.count(1), chunk = row.count(5), context = row.count(6), longest = row.count(8);
    const double skew = row.real(4, 0, 1e9);
    // These three columns are sums over the repetitions, so only their ratios mean anything.
    const double mean = row.real(10, 0, kUsMax), most = row.real(11, 0, kUsMax),
                 real = row.real(12, 0, kUsMax);
    if (longest < kSkewLongestMin || longest > kSkewLongestMax || skew != kSkewRatio) continue;
    if (mixed && context > kSkewChunkContextMax) continue;
    Sums& s = sums[{mixed ? chunk : 0, n}];
    s.product += (real - mean) * (most - mean);
    s.square += (most - mean) * (most - mean);
  }
  tables->skew_mixed.resize(tables->attention.chunk.size());
  for (const auto& [key, s] : sums) {
    const SkewPoint point{key.second, s.square > 0 ? std::max(0.0, s.product / s.square) : 0.0};
    if (key.first == 0) {
      tables->skew_pure.push_back(point);
    } else if (const size_t c = index_on(tables->attention.chunk, key.first); c != kNotOnAxis) {
      tables->skew_mixed[c].push_back(point);
    }
  }
  return {};
}

}  // namespace

const char* name_of(DenseOp op) { return kDenseNames[static_cast<size_t>(op)]; }

Result<CostTables> load_cost_tables(const std::string& folder, uint32_t tp) {
  CostTables tables;
  tables.where = folder;
  const Result<DeclaredGrid> grid = read_meta(folder + "/meta.yaml", &tables);
  if (!grid) return tl::unexpected<Mistake>(grid.error());
  const std::string dir = fmt::format("{}/tp{}", folder, tp);
  std::error_code error;
  if (!std::filesystem::is_directory(dir, error)) {
    return mistake(
        folder, fmt::format("has no measurements for tensor parallelism {}", tp),
        fmt::format("profile it, or leave the profile out to use the roofline (expected {})", dir));
  }
  std::vector<std::pair<std::string, Curve*>> dense;
  for (size_t i = 0; i < kDenseOps; ++i) dense.emplace_back(kDenseNames[i], &tables.dense[i]);
  Result<void> done = read_curves(dir + "/dense.csv", "tokens", dense);
  if (done) {
    done = read_curves(dir + "/per_sequence.csv", "sequences",
                       {{"lm_head", &tables.lm_head}, {"sampler", &tables.sampler}});
  }
  if (done) done = read_attention(dir + "/attention.csv", *grid, &tables.attention);
  if (done && std::filesystem::exists(dir + "/skew.csv", error)) done = read_skew(dir + "/skew.csv", &tables);
  if (!done) return tl::unexpected<Mistake>(done.error());
  return tables;
}

}  // namespace kvtwin
