#include "models/cost_tables/import_vidur.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include "models/cost_tables/cost_tables.h"
#include "models/files/csv.h"

namespace kvtwin {
namespace {

constexpr double kMsMax = 1e6;  // a quarter of an hour for one kernel: certainly no kernel time
constexpr size_t kAbsent = SIZE_MAX;

// A time in the table is the median, which one slow launch does not change.
constexpr std::string_view kStatistics = "time_stats.", kMedian = ".median";
std::string median(const std::string& operation) {
  return std::string(kStatistics) + operation + std::string(kMedian);
}

// Columns of a file by name.
class Columns {
 public:
  explicit Columns(const CsvFile& file) : header_(file.header()) {}

  // kAbsent if there is none; records the first missing name.
  size_t need(const std::string& name) {
    const size_t at = may(name);
    if (at == kAbsent && missing_.empty()) missing_ = name;
    return at;
  }
  size_t may(const std::string& name) {
    const auto found = std::find(header_.begin(), header_.end(), name);
    if (found != header_.end()) read_.insert(name);
    return found == header_.end() ? kAbsent : static_cast<size_t>(found - header_.begin());
  }
  Result<void> check(const std::string& path, const char* kind) const {
    if (missing_.empty()) return {};
    return make_error(
        path + ":1", fmt::format("there is no column \"{}\"", missing_),
        fmt::format("this is not the {} of Vidur's profiling, or of a version that is not known", kind));
  }

  // Operations with a median that was not asked for, as "file: operation".
  void add_unread(const std::string& file, std::vector<std::string>* out) const {
    for (const std::string& name : header_) {
      if (!name.starts_with(kStatistics) || !name.ends_with(kMedian) || read_.contains(name)) continue;
      const size_t length = name.size() - kStatistics.size() - kMedian.size();
      out->push_back(file + ": " + name.substr(kStatistics.size(), length));
    }
  }

 private:
  const std::vector<std::string>& header_;
  std::set<std::string> read_;
  std::string missing_;
};

// Reads every row with `read`, which returns nothing: a row records its own errors.
template <typename Read>
Result<void> each_row(CsvFile* file, Read read) {
  CsvRow row;
  for (Result<bool> more = file->next(&row);; more = file->next(&row)) {
    if (!more) return tl::unexpected<Error>(more.error());
    if (!*more) return {};
    read(&row);
  }
}

double us(CsvRow* row, size_t column) { return 1e3 * row->real(column, 0, kMsMax); }

// Our name, Vidur's name.
constexpr std::pair<const char*, const char*> kVidurDenseNames[] = {
    {"embedding", "emb"},
    {"layernorm", "input_layernorm"},
    {"qkv_proj", "attn_pre_proj"},
    {"rotary_emb", "attn_rope"},
    {"o_proj", "attn_post_proj"},
    {"gate_up_proj", "mlp_up_proj"},
    {"act_fn", "mlp_act"},
    {"down_proj", "mlp_down_proj"},
    {"final_layernorm", "post_attention_layernorm"}};

// The columns that identify a model's rows.
struct Geometry {
  std::vector<std::pair<size_t, uint32_t>> wanted;  // (column, value)
  size_t vocabulary = kAbsent;                      // its column, and the model's entries; it may be padded
  uint32_t vocab = 0;
  std::set<std::string> others;  // values in rows of other models, for the message

  bool is_ours(CsvRow* row, const std::vector<std::string>& header) {
    bool ours = true;
    std::string text;
    for (const auto& [column, value] : wanted) {
      const uint32_t here = row->count(column);
      ours = ours && here == value;
      fmt::format_to(std::back_inserter(text), "{}{} {}", text.empty() ? "" : ", ", header[column], here);
    }
    if (vocabulary != kAbsent) {
      const uint32_t here = row->count(vocabulary);
      ours = ours && here >= vocab && here - vocab <= kVocabularyPadding;
      fmt::format_to(std::back_inserter(text), ", {} {}", header[vocabulary], here);
    }
    constexpr size_t kNamed = 4;
    if (!ours && others.size() < kNamed) others.insert(text);
    return ours;
  }
  Error none(const std::string& path, const LlmSpec& llm, const std::vector<std::string>& header) const {
    std::string text;
    for (const auto& [column, value] : wanted)
      fmt::format_to(std::back_inserter(text), "{}{} {}", text.empty() ? "" : ", ", header[column], value);
    if (vocabulary != kAbsent)
      fmt::format_to(std::back_inserter(text), ", {} {} to {}", header[vocabulary], vocab,
                     vocab + kVocabularyPadding);
    return {path, fmt::format("has no row of {} ({})", llm.name, text),
            others.empty()
                ? "it has no rows at all"
                : fmt::format("it has: {}; take --model of one of these", fmt::join(others, "; "))};
  }
};

// By tensor parallelism: rows of dense.csv, in an order that gives equal bytes for equal inputs.
using DenseRows = std::map<uint32_t, std::map<std::pair<std::string, uint32_t>, double>>;

Result<DenseRows> read_mlp(const NamedText& in, const LlmSpec& llm, std::vector<std::string>* unread) {
  CsvFile file = CsvFile::of_text(in.path, in.text);
  Columns columns(file);
  const size_t tokens = columns.need("num_tokens"), workers = columns.need("num_tensor_parallel_workers");
  Geometry geometry{{{columns.need("n_head"), llm.query_heads},
                     {columns.need("n_kv_head"), llm.kv_heads},
                     {columns.need("n_embd"), llm.hidden},
                     {columns.need("n_expanded_embd"), llm.intermediate}},
                    columns.need("vocab_size"),
                    llm.vocab,
                    {}};
  // Our layer, and Vidur's operations whose times it sums.
  std::vector<std::pair<const char*, std::vector<size_t>>> layers;
  const size_t add = columns.need(median("add"));
  for (const auto& [ours, theirs] : kVidurDenseNames) {
    layers.push_back({ours, {columns.need(median(theirs))}});
    if (std::string_view(theirs).ends_with("layernorm")) layers.back().second.push_back(add);
  }
  if (auto ok = columns.check(in.path, "mlp.csv"); !ok) return tl::unexpected<Error>(ok.error());
  columns.add_unread("mlp.csv", unread);
  std::map<uint32_t, DenseRows> by_vocabulary;
  const Result<void> read = each_row(&file, [&](CsvRow* row) {
    if (!geometry.is_ours(row, file.header())) return;
    DenseRows& out = by_vocabulary[row->count(geometry.vocabulary)];
    const uint32_t at = row->count(tokens), tp = row->count(workers);
    if (at == 0) row->fail(tokens, "counts start at 1");
    if (tp == 0) row->fail(workers, "one at least");
    for (const auto& [layer, parts] : layers) {
      double sum = 0;
      for (const size_t part : parts) sum += us(row, part);
      out[tp][{layer, at}] = sum;
    }
  });
  if (!read) return tl::unexpected<Error>(read.error());
  if (by_vocabulary.empty()) return tl::unexpected<Error>(geometry.none(in.path, llm, file.header()));
  return std::move(by_vocabulary.begin()->second);  // the least padded
}

// (chunk, its context, decodes, their context) -> us.
using AttentionRows =
    std::map<uint32_t, std::map<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>, double>>;

Result<AttentionRows> read_attention(const NamedText& in, const LlmSpec& llm,
                                     std::vector<std::string>* unread) {
  CsvFile file = CsvFile::of_text(in.path, in.text);
  Columns columns(file);
  const size_t batch = columns.need("batch_size"), chunk = columns.need("prefill_chunk_size"),
               context = columns.need("kv_cache_size"), prefill = columns.need("is_prefill"),
               workers = columns.need("num_tensor_parallel_workers"),
               prefill_ms = columns.need(median("attn_prefill")),
               decode_ms = columns.need(median("attn_decode"));
  Geometry geometry{{{columns.need("n_q_head"), llm.query_heads},
                     {columns.need("n_kv_head"), llm.kv_heads},
                     {columns.need("n_embd"), llm.hidden}},
                    kAbsent,
                    0,
                    {}};
  if (auto ok = columns.check(in.path, "attention.csv"); !ok) return tl::unexpected<Error>(ok.error());
  std::vector<size_t> concurrent;
  for (const char* name : {"attn_input_reshape", "attn_output_reshape", "attn_kv_cache_save"}) {
    if (const size_t at = columns.may(median(name)); at != kAbsent) concurrent.push_back(at);
  }
  columns.add_unread("attention.csv", unread);
  AttentionRows out;
  const Result<void> read = each_row(&file, [&](CsvRow* row) {
    if (!geometry.is_ours(row, file.header())) return;
    const bool is_prefill = row->text(prefill) == "True";
    if (!is_prefill && row->text(prefill) != "False") row->fail(prefill, "True or False is right");
    const uint32_t requests = row->count(batch), tp = row->count(workers);
    if (tp == 0) row->fail(workers, "one at least");
    if (requests == 0 || (is_prefill && requests != 1))
      row->fail(batch, "one at least, and one of a prefill chunk");
    const uint32_t tokens = row->count(chunk);
    if (is_prefill != (tokens > 0)) row->fail(chunk, "tokens of a chunk, and 0 of decodes");
    double sum = us(row, is_prefill ? prefill_ms : decode_ms);
    // Vidur leaves the columns of other operations empty.
    for (const size_t part : concurrent) sum += row->text(part).empty() ? 0 : us(row, part);
    const uint32_t cached = row->count(context);
    out[tp][is_prefill ? std::tuple{tokens, cached, 0u, 0u} : std::tuple{0u, 0u, requests, cached}] = sum;
  });
  if (!read) return tl::unexpected<Error>(read.error());
  if (out.empty()) return tl::unexpected<Error>(geometry.none(in.path, llm, file.header()));
  return out;
}

std::string plain(const std::string& text) {
  std::string out;
  for (const char c : text.substr(0, 80)) out += c >= ' ' && c <= '~' && c != '"' && c != '\\' ? c : '?';
  return out;
}

std::string meta_yaml(const LlmSpec& llm, const std::string& gpu, const std::vector<uint32_t>& degrees,
                      const std::vector<std::string>& unread) {
  std::string rest;
  for (const std::string& one : unread) rest += fmt::format("{}\"{}\"", rest.empty() ? "" : ", ", plain(one));
  if (!rest.empty()) rest = "unread: [" + rest + "]\n";
  return rest +
         fmt::format(
             "# Made by kvtwin import --format=vidur.\n"
             "gpu: \"{}\"\nmodel: \"{}\"\ntp_degrees: [{}]\nnot_measured: [output_head, mixed]\n"
             "engine_effective:\n  hf_overrides:\n    intermediate_size: {}\n    num_attention_heads: {}\n"
             "    num_key_value_heads: {}\n    vocab_size: {}\n",
             plain(gpu), plain(llm.name), fmt::join(degrees, ", "), llm.intermediate, llm.query_heads,
             llm.kv_heads, llm.vocab);
}

}  // namespace

Result<ProfileFolder> import_vidur(const NamedText& mlp, const NamedText& attention, const LlmSpec& llm,
                                   const std::string& gpu) {
  if (llm.moe_layers() > 0)
    return make_error(mlp.path, fmt::format("Vidur profiles no experts, and {} has them", llm.name),
                      "leave the profile out to use the roofline");
  std::vector<std::string> unread;
  const Result<DenseRows> dense = read_mlp(mlp, llm, &unread);
  if (!dense) return tl::unexpected<Error>(dense.error());
  const Result<AttentionRows> attended = read_attention(attention, llm, &unread);
  if (!attended) return tl::unexpected<Error>(attended.error());
  ProfileFolder out;
  std::vector<uint32_t> degrees;
  for (const auto& [tp, rows] : *dense) {
    const auto concurrent = attended->find(tp);
    if (concurrent == attended->end()) continue;
    degrees.push_back(tp);
    std::string text = "layer,tokens,time_us\n";
    for (const auto& [key, time] : rows)
      fmt::format_to(std::back_inserter(text), "{},{},{:.6g}\n", key.first, key.second, time);
    out.emplace_back(fmt::format("tp{}/dense.csv", tp), std::move(text));
    text = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n";
    for (const auto& [key, time] : concurrent->second) {
      const auto& [chunk, context, decodes, decode_context] = key;
      fmt::format_to(std::back_inserter(text), "{},{},{},{},{:.6g}\n", chunk, context, decodes,
                     decode_context, time);
    }
    out.emplace_back(fmt::format("tp{}/attention.csv", tp), std::move(text));
  }
  if (degrees.empty())
    return make_error(attention.path, "has no tensor parallelism that mlp.csv has too",
                      "take files of one profiling");
  out.emplace_back("meta.yaml", meta_yaml(llm, gpu, degrees, unread));
  return out;
}

}  // namespace kvtwin
