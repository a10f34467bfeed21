#include "models/cost_tables/measured_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <map>
#include <system_error>
#include <utility>

#include "engine/base/check.h"
#include "models/cost_tables/operation_cost.h"
#include "models/files/textproto.h"
#include "traces/proto/model.pb.h"

namespace kvtwin {
namespace {

constexpr double kUsMax = 1e9;  // a quarter of an hour: certainly no step
constexpr uint32_t kFormatVersion = 1;

const MeasuredTable* find(const std::vector<MeasuredTable>& tables, std::string_view operation,
                          std::string_view shape) {
  for (const MeasuredTable& one : tables) {
    if (one.operation == operation && one.shape == shape) return &one;
  }
  return nullptr;
}

Error of_table(const std::string& where, const v1::MeasuredTable& in, const std::string& what,
               const std::string& right) {
  return {where, fmt::format("table {} of {}: {}", in.operation(), in.shape(), what), right};
}

Result<MeasuredTable> table_from(const v1::MeasuredTable& in, const std::string& where) {
  const int n = in.rows_size();
  const auto problem = [&](const std::string& what, const std::string& right) {
    return tl::unexpected<Error>(of_table(where, in, what, right));
  };
  if (in.operation().empty() || n == 0) return problem("is empty", "an operation and at least one size");
  if (in.us_size() != n || in.us_p10_size() != n || in.us_p90_size() != n ||
      (in.context_size() != 0 && in.context_size() != n)) {
    return problem(fmt::format("has {} rows, {} contexts and {}, {}, {} times", n, in.context_size(),
                               in.us_size(), in.us_p10_size(), in.us_p90_size()),
                   "lists of equal length");
  }
  MeasuredTable out{in.operation(), in.shape(), {}, {}, {}};
  for (int i = 0; i < n; ++i) {
    const Measured one{in.us(i), in.us_p10(i), in.us_p90(i)};
    if (!(one.p10 >= 0 && one.p10 <= one.us && one.us <= one.p90 && one.p90 <= kUsMax))
      return problem(fmt::format("time {} is {} us, {} to {}", i, one.us, one.p10, one.p90),
                     "0 or more, the median between the percentiles");
    const uint32_t context = in.context_size() > 0 ? in.context(i) : 0;
    if (i > 0) {
      const uint32_t before = in.context_size() > 0 ? in.context(i - 1) : 0;
      if (std::pair(in.rows(i - 1), before) >= std::pair(in.rows(i), context))
        return problem(fmt::format("size {} is {}, {} and does not ascend", i, in.rows(i), context),
                       "sizes that ascend");
    }
    out.rows.push_back(in.rows(i));
    if (in.context_size() > 0) out.context.push_back(context);
    out.at.push_back(one);
  }
  return out;
}

template <typename List, typename Text>
void add_list(const char* name, const List& list, const Text& text, std::string* out) {
  *out += fmt::format("  {}: [", name);
  for (size_t i = 0; i < list.size(); ++i) *out += (i > 0 ? ", " : "") + text(list[i]);
  *out += "]\n";
}

void add_table(const char* field, const MeasuredTable& table, std::string* out) {
  *out += fmt::format("{} {{ operation: {} shape: {}\n", field, textproto_quoted(table.operation),
                      textproto_quoted(table.shape));
  const auto count = [](uint32_t value) { return std::to_string(value); };
  add_list("rows", table.rows, count, out);
  if (!table.context.empty()) add_list("context", table.context, count, out);
  const auto us = [](double value) { return fmt::format("{:.3f}", value); };
  add_list(
      "us", table.at, [&](const Measured& one) { return us(one.us); }, out);
  add_list(
      "us_p10", table.at, [&](const Measured& one) { return us(one.p10); }, out);
  add_list(
      "us_p90", table.at, [&](const Measured& one) { return us(one.p90); }, out);
  *out += "}\n";
}

Result<MeasuredOperations> operations_from(const v1::MeasuredOperations& in, const std::string& where) {
  MeasuredOperations out{{}, in.steps(), in.error_median(), in.error_p90(), in.model()};
  const auto fraction = [](double value) { return value >= 0 && value <= 100; };
  if (!fraction(in.error_median()) || !fraction(in.error_p90()))
    return make_error(where,
                      fmt::format("operations: errors of {} and {}", in.error_median(), in.error_p90()),
                      "0 to 100, of 1");
  for (const v1::MeasuredOperation& one : in.price()) {
    if (!is_family(one.of()))
      return make_error(where, fmt::format("operations: \"{}\" is not a family of operations", one.of()),
                        "delete the file's operations; kvtwin calibrate device --operations=FILE measures "
                        "them again");
    const bool twice = std::any_of(out.prices.begin(), out.prices.end(),
                                   [&](const MeasuredOperations::Price& had) { return had.of == one.of(); });
    if (twice) return make_error(where, fmt::format("operations: {} is there twice", one.of()), "one price");
    if (!(one.ns() >= 0 && one.ns() <= kUsMax * 1e3))
      return make_error(where, fmt::format("operations: {} is {} ns", one.of(), one.ns()), "a time");
    out.prices.push_back({one.of(), one.ns()});
  }
  return out;
}

template <typename Tables>
Result<void> take_tables(const Tables& in, const std::string& where, std::vector<MeasuredTable>* out) {
  for (const v1::MeasuredTable& one : in) {
    Result<MeasuredTable> table = table_from(one, where);
    if (!table) return tl::unexpected<Error>(table.error());
    if (find(*out, table->operation, table->shape) != nullptr)
      return tl::unexpected<Error>(of_table(where, one, "is there twice", "one table of each"));
    out->push_back(std::move(*table));
  }
  return {};
}

Result<MeasuredKv> format_from(const v1::MeasuredKv& in, const std::string& where) {
  if (in.version() != kFormatVersion)
    return make_error(where, fmt::format("format {}: tables of version {}", in.name(), in.version()),
                      fmt::format("version {} is read: measure again with kvtwin calibrate device --formats",
                                  kFormatVersion));
  MeasuredKv out{in.name(), in.page_tokens(), in.group(), {}};
  if (Result<void> ok = take_tables(in.table(), where, &out.tables); !ok)
    return tl::unexpected<Error>(ok.error());
  return out;
}

}  // namespace

Measured measured_of(std::vector<double> us) {
  KVT_CHECK(!us.empty());
  std::sort(us.begin(), us.end());
  const auto rank = [&](double p) {
    const auto place = static_cast<size_t>(std::ceil(p * static_cast<double>(us.size())));
    return us[std::clamp<size_t>(place, 1, us.size()) - 1];
  };
  return {rank(0.5), rank(0.1), rank(0.9)};
}

const MeasuredTable* MeasuredDevice::table(std::string_view operation, std::string_view shape) const {
  return find(tables, operation, shape);
}

const MeasuredTable* MeasuredKv::table(std::string_view operation, std::string_view shape) const {
  return find(tables, operation, shape);
}

const MeasuredKv* MeasuredDevice::format(std::string_view name) const {
  for (const MeasuredKv& one : formats) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

const MeasuredFigure* MeasuredDevice::figure(std::string_view name) const {
  for (const MeasuredFigure& one : figures) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

namespace {

// One copy of pages of so many bytes: what it takes however few they are, and for each byte.
struct CopyLine {
  double overhead_ns = 0, ns_per_byte = 0;
};

// Many pages give the rate, few of them what a copy costs apart from it.
std::optional<CopyLine> line_of(const MeasuredTable& table, double page_bytes) {
  if (table.rows.size() < 2) return {};
  const double pages = table.rows.back() - table.rows.front();
  const double each = 1e3 * (table.at.back().us - table.at.front().us) / pages;
  if (!(each > 0)) return {};
  return CopyLine{std::max(0.0, 1e3 * table.at.front().us - table.rows.front() * each), each / page_bytes};
}

std::map<double, CopyLine> lines_of(const MeasuredDevice& device, std::string_view operation) {
  std::map<double, CopyLine> out;
  for (const MeasuredTable& table : device.tables) {
    uint64_t bytes = 0;
    const char* const end = table.shape.data() + table.shape.size();
    if (table.operation != operation || std::from_chars(table.shape.data(), end, bytes).ptr != end ||
        bytes == 0)
      continue;
    if (const auto line = line_of(table, static_cast<double>(bytes))) out[static_cast<double>(bytes)] = *line;
  }
  return out;
}

// Between two measured sizes by the logarithm of the bytes; beyond them, as at the nearest one. REQUIRES: not
// empty.
CopyLine line_at(const std::map<double, CopyLine>& lines, double bytes) {
  const auto above = lines.lower_bound(bytes);
  if (above == lines.end()) return lines.rbegin()->second;
  if (above == lines.begin() || above->first == bytes) return above->second;
  const auto below = std::prev(above);
  const double at = std::log(bytes / below->first) / std::log(above->first / below->first);
  const auto between = [at](double low, double high) { return low + at * (high - low); };
  return {between(below->second.overhead_ns, above->second.overhead_ns),
          between(below->second.ns_per_byte, above->second.ns_per_byte)};
}

}  // namespace

std::optional<CopyRates> copy_rates(const MeasuredDevice& device, uint64_t page_bytes) {
  CopyRates out;
  const struct {
    const char *concurrent, *alone;
    double *overhead, *rate;
  } directions[] = {{"copy in during steps", "copy in", &out.in_overhead_ns, &out.in_bytes_per_s},
                    {"copy out during steps", "copy out", &out.out_overhead_ns, &out.out_bytes_per_s}};
  const auto bytes = static_cast<double>(page_bytes);
  out.exact = true;
  for (const auto& direction : directions) {
    std::map<double, CopyLine> lines = lines_of(device, direction.concurrent);
    if (lines.empty()) lines = lines_of(device, direction.alone);
    if (lines.empty()) return {};
    out.exact = out.exact && lines.contains(bytes);
    const CopyLine line = line_at(lines, bytes);
    *direction.overhead = line.overhead_ns, *direction.rate = 1e9 / line.ns_per_byte;
  }
  const MeasuredFigure* const in = device.figure("in beside out");
  const MeasuredFigure* const back = device.figure("out beside in");
  if (in != nullptr && back != nullptr) out.both_bytes_per_s = 1e9 * (in->value + back->value);
  return out;
}

Result<MeasuredDevice> load_measured_device(const std::string& path) {
  const Result<std::string> text = read_text_file(path);
  if (!text) return tl::unexpected<Error>(text.error());
  return parse_measured_device(*text, path);
}

Result<MeasuredDevice> parse_measured_device(std::string_view text, const std::string& where) {
  v1::MeasuredDevice in;
  if (auto r = parse_textproto(text, where, &in); !r) return tl::unexpected<Error>(r.error());
  MeasuredDevice out;
  out.gpu = in.gpu(), out.driver = in.driver(), out.cuda = in.cuda(), out.build = in.build();
  out.date = in.date(), out.model = in.model(), out.page_tokens = in.page_tokens();
  out.sm_count = in.sm_count(), out.sm_mhz_min = in.sm_mhz_min(), out.sm_mhz_max = in.sm_mhz_max();
  out.memory_mhz = in.memory_mhz();
  if (out.sm_count < 1 || out.sm_count > 100'000)
    return make_error(where, fmt::format("sm_count is {}", out.sm_count), "1 to 100,000 is right");
  if (Result<void> ok = take_tables(in.table(), where, &out.tables); !ok)
    return tl::unexpected<Error>(ok.error());
  for (const v1::MeasuredKv& one : in.format()) {
    Result<MeasuredKv> format = format_from(one, where);
    if (!format) return tl::unexpected<Error>(format.error());
    if (out.format(format->name) != nullptr)
      return make_error(where, fmt::format("format {} is there twice", one.name()), "one of each");
    out.formats.push_back(std::move(*format));
  }
  for (const v1::MeasuredFigure& one : in.figure()) {
    if (!std::isfinite(one.value()) || !std::isfinite(one.p10()) || !std::isfinite(one.p90()))
      return make_error(where, fmt::format("figure {} is {}", one.name(), one.value()), "a finite number");
    out.figures.push_back({one.name(), one.unit(), one.value(), one.p10(), one.p90()});
  }
  for (const v1::HeldOutStep& one : in.held_out()) {
    if (!(one.measured_us() > 0 && one.measured_us() <= kUsMax && one.predicted_us() >= 0 &&
          one.predicted_us() <= kUsMax))
      return make_error(
          where,
          fmt::format("held_out {}: {} us beside {}", one.step(), one.measured_us(), one.predicted_us()),
          "times of a step");
    out.held_out.push_back({one.step(), one.measured_us(), one.predicted_us()});
  }
  if (in.has_operations()) {
    Result<MeasuredOperations> operations = operations_from(in.operations(), where);
    if (!operations) return tl::unexpected<Error>(operations.error());
    out.operations = std::move(*operations);
  }
  return out;
}

std::vector<std::string> profile_files(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code failed;
  for (std::filesystem::directory_iterator at(folder, failed), end; !failed && at != end;
       at.increment(failed)) {
    if (at->path().extension() == ".textproto") files.push_back(at->path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string measured_device_textproto(const MeasuredDevice& device) {
  std::string out =
      "# proto-file: traces/proto/model.proto\n# proto-message: kvtwin.v1.MeasuredDevice\n"
      "# Written by kvtwin calibrate device.\n";
  out += fmt::format("gpu: {}\ndriver: {}\ncuda: {}\nsm_count: {}\n", textproto_quoted(device.gpu),
                     textproto_quoted(device.driver), textproto_quoted(device.cuda), device.sm_count);
  out += fmt::format("sm_mhz_min: {}\nsm_mhz_max: {}\nmemory_mhz: {}\n", device.sm_mhz_min, device.sm_mhz_max,
                     device.memory_mhz);
  out += fmt::format("build: {}\ndate: {}\nmodel: {}\npage_tokens: {}\n", textproto_quoted(device.build),
                     textproto_quoted(device.date), textproto_quoted(device.model), device.page_tokens);
  for (const MeasuredTable& table : device.tables) add_table("table", table, &out);
  for (const MeasuredKv& one : device.formats) {
    out += fmt::format("format {{ name: {} version: {} page_tokens: {} group: {}\n",
                       textproto_quoted(one.name), kFormatVersion, one.page_tokens, one.group);
    for (const MeasuredTable& table : one.tables) add_table("  table", table, &out);
    out += "}\n";
  }
  for (const MeasuredFigure& one : device.figures)
    out += fmt::format("figure {{ name: {} unit: {} value: {:.4f} p10: {:.4f} p90: {:.4f} }}\n",
                       textproto_quoted(one.name), textproto_quoted(one.unit), one.value, one.p10, one.p90);
  for (const HeldOutStep& one : device.held_out)
    out += fmt::format("held_out {{ step: {} measured_us: {:.3f} predicted_us: {:.3f} }}\n",
                       textproto_quoted(one.step), one.measured_us, one.predicted_us);
  if (!device.operations) return out;
  const MeasuredOperations& all = *device.operations;
  out += fmt::format("operations {{ steps: {} error_median: {:.5f} error_p90: {:.5f}\n", all.steps,
                     all.error_median, all.error_p90);
  if (!all.model.empty()) out += fmt::format("  model: {}\n", textproto_quoted(all.model));
  for (const MeasuredOperations::Price& one : all.prices)
    out += fmt::format("  price {{ of: {} ns: {:.6g} }}\n", textproto_quoted(one.of), one.ns);
  out += "}\n";
  return out;
}

}  // namespace kvtwin
