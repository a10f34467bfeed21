#include "scenarios/sweep/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace kvtwin {
namespace {

constexpr double kWholeMax = 9007199254740992.0;  // 2^53: larger doubles skip whole numbers

struct Number {
  double value = 0;
  bool whole = false;
};

std::optional<Number> number(std::string_view text) {
  double value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  const bool plain = text.find_first_of(".eE") == std::string_view::npos;
  return Number{value, plain && std::abs(value) <= kWholeMax};
}

// The unit that follows a number: GB of 100GB.
std::string_view unit_after(std::string_view text) {
  const size_t last = text.find_last_of("0123456789.");
  return last == std::string_view::npos ? std::string_view() : text.substr(last + 1);
}

std::string written(double value, bool whole) {
  return whole ? fmt::format("{:.0f}", value) : fmt::format("{:.12g}", value);
}

// Whether `text` is a number, with or without a unit.
bool starts_with_number(std::string_view text) {
  return number(text.substr(0, text.size() - unit_after(text).size())).has_value();
}

// "1-8", which other tools take for 1 to 8.
bool looks_like_dashed_range(std::string_view text, size_t dash) {
  if (dash == std::string_view::npos || dash == 0) return false;
  const std::optional<Number> low = number(text.substr(0, dash)), high = number(text.substr(dash + 1));
  return low && high && low->whole && high->whole && low->value < high->value;
}

Result<void> split_list(std::string_view field, std::string_view list, Axis* axis) {
  const std::string_view all = list;
  while (true) {
    const size_t comma = list.find(',');
    const std::string_view value = list.substr(0, comma);
    if (value.empty())
      return make_error(fmt::format("--vary={}", field), fmt::format("\"{}\" has an empty value", all),
                        "separate values by single commas");
    axis->values.emplace_back(value);
    if (comma == std::string_view::npos) return {};
    list.remove_prefix(comma + 1);
  }
}

// `step` starts with * or +.
Result<void> take_steps(const std::string& where, std::string_view step, Axis* axis) {
  const std::optional<Number> by = number(step.substr(1));
  const bool times = step[0] == '*';
  if (!by || (times ? by->value <= 1 || axis->low <= 0 : by->value <= 0))
    return make_error(where, fmt::format("cannot step by \"{}\"", step),
                      times ? "*F needs F > 1 and a range above 0" : "+D needs D > 0");
  const bool whole = axis->whole && by->whole;
  // Each value is computed from the first one, so that rounding errors do not accumulate.
  for (size_t i = 0;; ++i) {
    const auto n = static_cast<double>(i);
    const double value = times ? axis->low * std::pow(by->value, n) : axis->low + by->value * n;
    if (value > axis->high * (1 + 1e-12)) break;
    if (i == kAxisValuesMax)
      return make_error(where, fmt::format("has more than {} values", kAxisValuesMax), "take larger steps");
    axis->values.push_back(written(value, whole) + axis->unit);
  }
  return {};
}

Result<void> take_range(const std::string& where, std::string_view text, size_t dots, Axis* axis) {
  std::string_view rest = text.substr(dots + 2), step;
  // Start after the first character: a leading sign, or the sign of an exponent, is not a step.
  const size_t at = rest.find_first_of("*+", 1);
  if (at != std::string_view::npos && rest[at - 1] != 'e' && rest[at - 1] != 'E') {
    step = rest.substr(at);
    rest = rest.substr(0, at);
  }
  std::string_view first = text.substr(0, dots);
  const std::string_view unit = unit_after(rest), unit_low = unit_after(first);
  if (unit_low != unit)
    return make_error(where, fmt::format("\"{}\" has one unit at its start and another at its end", text),
                      "the same unit at both ends, as in 100GB..400GB*2");
  axis->unit = unit;
  first.remove_suffix(unit.size());
  rest.remove_suffix(unit.size());
  const std::optional<Number> low = number(first), high = number(rest);
  if (!low || !high)
    return make_error(where, fmt::format("\"{}\" is not a range of numbers", text),
                      "as in 1..8, 1..8*2 or 1..8+1");
  if (low->value > high->value)
    return make_error(where, fmt::format("the range {} ends before it starts", text),
                      "give the smaller one first");
  axis->low = low->value;
  axis->high = high->value;
  axis->whole = low->whole && high->whole;
  if (step.empty()) return {};
  if (step.size() > 1) return take_steps(where, step, axis);
  if (step != "*" || axis->low <= 0)
    return make_error(where, fmt::format("\"{}\" is not a scale for {}", step, text),
                      "* alone needs a range above 0");
  axis->logarithmic = true;
  return {};
}

}  // namespace

std::string Axis::at(double fraction) const {
  if (!sampled()) {
    const auto index = static_cast<size_t>(fraction * static_cast<double>(values.size()));
    return values[std::min(index, values.size() - 1)];
  }
  // Each number of a whole range gets an interval of equal width.
  const double end = whole ? high + 1 : high;
  const double value = logarithmic ? low * std::pow(end / low, fraction) : low + (end - low) * fraction;
  return written(whole ? std::min(std::floor(value), high) : value, whole) + unit;
}

Result<Axis> parse_axis(std::string_view vary) {
  const size_t equals = vary.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == vary.size())
    return make_error("--vary", fmt::format("\"{}\" is not FIELD=VALUES", vary),
                      "as in --vary=limits.requests_max=16..256*2");
  Axis axis;
  axis.field = vary.substr(0, equals);
  const std::string_view text = vary.substr(equals + 1);
  const std::string where = fmt::format("--vary={}", axis.field);
  const size_t dots = text.find("..");
  // Dots in a comma-separated list belong to a name or a path.
  const bool range = dots != std::string_view::npos && text.find(',') == std::string_view::npos &&
                     starts_with_number(text.substr(0, dots));
  if (const size_t dash = text.find('-'); looks_like_dashed_range(text, dash))
    return make_error(where, fmt::format("\"{}\" is no range", text),
                      fmt::format("{0}..{1}+1 is every value, {0}..{1}*2 doubles", text.substr(0, dash),
                                  text.substr(dash + 1)));
  Result<void> ok = range ? take_range(where, text, dots, &axis) : split_list(axis.field, text, &axis);
  if (!ok) return tl::unexpected<Error>(ok.error());
  for (size_t i = 0; i < axis.values.size(); ++i) {
    if (std::find(axis.values.begin(), axis.values.begin() + static_cast<std::ptrdiff_t>(i),
                  axis.values[i]) != axis.values.begin() + static_cast<std::ptrdiff_t>(i))
      return make_error(where, fmt::format("{} is there twice", axis.values[i]), "each value once");
  }
  return axis;
}

Result<std::vector<Axis>> parse_axes(const std::vector<std::string>& vary) {
  std::vector<Axis> axes;
  for (const std::string& one : vary) {
    Result<Axis> axis = parse_axis(one);
    if (!axis) return tl::unexpected<Error>(axis.error());
    for (const Axis& before : axes) {
      if (before.field == axis->field)
        return make_error("--vary", fmt::format("{} is given twice", axis->field),
                          "give its values in one list");
    }
    axes.push_back(std::move(*axis));
  }
  return axes;
}

}  // namespace kvtwin
