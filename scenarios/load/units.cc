#include "scenarios/load/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <vector>

namespace kvtwin {
namespace {

using Wide = unsigned __int128;

// One unit as a fraction of the base unit.
struct UnitName {
  std::string_view name;
  uint64_t times, over;
};

constexpr uint64_t kKibi = 1024, kMebi = kKibi << 10, kGibi = kMebi << 10, kTebi = kGibi << 10;
constexpr uint64_t kKilo = 1000, kMega = kKilo * 1000, kGiga = kMega * 1000, kTera = kGiga * 1000;
constexpr uint64_t kMinute = 60, kHour = 3600, kDay = 86400;

const std::vector<UnitName>& table(BaseUnit base) {
  static const std::vector<UnitName> kCounts = {
      {"k", kKilo, 1}, {"M", kMega, 1}, {"Ki", kKibi, 1}, {"Mi", kMebi, 1}};
  static const std::vector<UnitName> kNumbers = {{"%", 1, 100}};
  static const std::vector<UnitName> kBytes = {{"B", 1, 1},       {"kB", kKilo, 1},  {"MB", kMega, 1},
                                               {"GB", kGiga, 1},  {"TB", kTera, 1},  {"KiB", kKibi, 1},
                                               {"MiB", kMebi, 1}, {"GiB", kGibi, 1}, {"TiB", kTebi, 1}};
  static const std::vector<UnitName> kNanoseconds = {{"ns", 1, 1},
                                                     {"us", kKilo, 1},
                                                     {"ms", kMega, 1},
                                                     {"s", kGiga, 1},
                                                     {"min", kMinute * kGiga, 1},
                                                     {"h", kHour * kGiga, 1}};
  static const std::vector<UnitName> kSeconds = {{"ns", 1, kGiga}, {"us", 1, kMega},    {"ms", 1, kKilo},
                                                 {"s", 1, 1},      {"min", kMinute, 1}, {"h", kHour, 1},
                                                 {"d", kDay, 1}};
  static const std::vector<UnitName> kRates = {{"/s", 1, 1}, {"/min", 1, kMinute}, {"/h", 1, kHour}};
  switch (base) {
    case BaseUnit::kCount:
      return kCounts;
    case BaseUnit::kNumber:
      return kNumbers;
    case BaseUnit::kBytes:
      return kBytes;
    case BaseUnit::kNanoseconds:
      return kNanoseconds;
    case BaseUnit::kSeconds:
      return kSeconds;
    case BaseUnit::kPerSecond:
      return kRates;
  }
  return kCounts;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// A decimal number, digit by digit, so that 500e9 and 1.1GB are exact.
struct Decimal {
  bool negative = false, plain = true;  // plain: digits only
  Wide digits = 0;
  int exponent = 0;  // the value is digits * 10^exponent
  size_t length = 0;
};

constexpr Wide kDigitsMax = Wide{1} << 90;
constexpr int kExponentMax = 400;

size_t exponent_end(std::string_view text, size_t at) {
  if (at >= text.size() || (text[at] != 'e' && text[at] != 'E')) return at;
  size_t end = at + 1;
  if (end < text.size() && (text[end] == '+' || text[end] == '-')) ++end;
  if (end >= text.size() || !is_digit(text[end])) return at;
  while (end < text.size() && is_digit(text[end])) ++end;
  return end;
}

// The number that `text` begins with; nullopt if it begins with none, or has too many digits.
std::optional<Decimal> leading_number(std::string_view text) {
  Decimal out;
  size_t at = 0;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) out.negative = text[at++] == '-';
  const size_t begin = at;
  bool fraction = false;
  for (; at < text.size(); ++at) {
    if (text[at] == '.' && !fraction) {
      fraction = true;
    } else if (is_digit(text[at])) {
      if (out.digits > kDigitsMax) return std::nullopt;
      out.digits = out.digits * 10 + static_cast<Wide>(text[at] - '0');
      out.exponent -= fraction ? 1 : 0;
    } else if (text[at] != ',' || fraction) {
      break;
    }
  }
  if (at == begin || (at == begin + 1 && !is_digit(text[begin]))) return std::nullopt;
  const size_t end = exponent_end(text, at);
  if (end > at) {
    const size_t sign = text[at + 1] == '+' ? 1 : 0;
    int exponent = 0;
    const auto [stop, failed] = std::from_chars(text.data() + at + 1 + sign, text.data() + end, exponent);
    if (failed != std::errc{} || std::abs(exponent) > kExponentMax) return std::nullopt;
    out.exponent += exponent;
  }
  out.plain = !fraction && end == at;
  out.length = end;
  return out;
}

// "80,000" is a number, "16,32" and "5000,8000" are lists.
bool commas_group_thousands(std::string_view text) {
  size_t digits = 0;
  bool grouped = false;
  for (const char c : text) {
    if (c == ',') {
      if (digits == 0 || digits > 3 || (grouped && digits != 3)) return false;
      grouped = true, digits = 0;
    } else if (is_digit(c)) {
      ++digits;
    } else if (digits > 0) {
      break;
    }
  }
  return !grouped || digits == 3;
}

Result<std::string> whole_text(const Decimal& number, const UnitName& unit, bool round) {
  Wide value = number.digits * unit.times, over = unit.over;
  for (int e = 0; e < number.exponent && value > 0; ++e) {
    if (value > kDigitsMax) return make_error("", "is too large");
    value *= 10;
  }
  for (int e = 0; e > number.exponent && value > 0; --e) {
    if (over > kDigitsMax) break;
    over *= 10;
  }
  if (value % over != 0 && !round) return make_error("", "is not a whole number");
  const Wide result = (value + over / 2) / over;
  if (result > Wide{UINT64_MAX}) return make_error("", "is too large");
  return fmt::format("{}{}", number.negative ? "-" : "", static_cast<uint64_t>(result));
}

}  // namespace

BaseUnit base_unit(std::string_view field, bool whole) {
  if (field.ends_with("_bytes")) return BaseUnit::kBytes;
  if (field.ends_with("_ns")) return BaseUnit::kNanoseconds;
  if (field.ends_with("_per_s")) return BaseUnit::kPerSecond;
  if (field.ends_with("_s")) return BaseUnit::kSeconds;
  return whole ? BaseUnit::kCount : BaseUnit::kNumber;
}

std::string units_of(BaseUnit base) {
  std::string out;
  for (const UnitName& unit : table(base)) out += (out.empty() ? "" : ", ") + std::string(unit.name);
  return out;
}

Result<std::string> without_unit(std::string_view text, BaseUnit base, bool whole) {
  if (!commas_group_thousands(text))
    return make_error("", "has commas that do not group thousands",
                      "one number; a list of them is for kvtwin sweep --vary");
  const std::optional<Decimal> number = leading_number(text);
  if (!number || text.substr(number->length).starts_with('x')) return std::string(text);
  const std::string_view name = text.substr(number->length);
  if (name.empty() && (number->plain || !whole)) return std::string(text);
  const std::vector<UnitName>& known = table(base);
  const auto unit =
      std::find_if(known.begin(), known.end(), [&](const UnitName& one) { return one.name == name; });
  if (!name.empty() && unit == known.end())
    return make_error("", fmt::format("has no unit \"{}\"", name), "the units are " + units_of(base));
  const UnitName chosen = name.empty() ? UnitName{"", 1, 1} : *unit;
  if (whole) return whole_text(*number, chosen, base != BaseUnit::kCount && !name.empty());
  std::string digits(text.substr(0, number->length));
  std::erase(digits, ',');
  double value = 0;
  const char* const first = digits.data() + (digits[0] == '+' ? 1 : 0);
  if (std::from_chars(first, digits.data() + digits.size(), value).ec != std::errc{})
    return make_error("", "is too large");
  return fmt::format("{}", value * static_cast<double>(chosen.times) / static_cast<double>(chosen.over));
}

Result<double> seconds_of(std::string_view text) {
  const Result<std::string> plain = without_unit(text, BaseUnit::kSeconds, false);
  if (!plain) return tl::unexpected<Error>(plain.error());
  double value = 0;
  const char* const end = plain->data() + plain->size();
  const auto [stop, failed] = std::from_chars(plain->data(), end, value);
  if (failed == std::errc{} && stop == end && std::isfinite(value)) return value;
  return make_error("", fmt::format("\"{}\" is not a time", text), "as in 12.5, 12.5s or 3min");
}

}  // namespace kvtwin
