// What --load and --loss say.

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "scenarios/plan/plan.h"

namespace kvtwin {
namespace {

Result<double> number(std::string_view text, const std::string& where) {
  double value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed == std::errc{} && end == text.data() + text.size() && std::isfinite(value)) return value;
  return mistake(where, fmt::format("\"{}\" is no number", text), "as in replay.population=1..1000");
}

}  // namespace

Result<LoadAxis> parse_load(std::string_view text) {
  const std::string where = fmt::format("--load={}", text);
  const size_t equals = text.find('='), dots = text.find("..");
  if (equals == std::string_view::npos || equals == 0 || dots == std::string_view::npos || dots < equals)
    return mistake(where, "is no FIELD=LOW..HIGH", "as in --load=replay.population=1..1000");
  const Result<double> low = number(text.substr(equals + 1, dots - equals - 1), where);
  const Result<double> high = number(text.substr(dots + 2), where);
  if (!low) return tl::unexpected<Mistake>(low.error());
  if (!high) return tl::unexpected<Mistake>(high.error());
  if (*low <= 0 || *high < *low)
    return mistake(where, fmt::format("the load goes from {} to {}", *low, *high), "up, and from above 0");
  const bool whole = text.substr(equals).find_first_of("eE") == std::string_view::npos &&
                     std::floor(*low) == *low && std::floor(*high) == *high &&
                     text.substr(equals + 1, dots - equals - 1).find('.') == std::string_view::npos &&
                     text.substr(dots + 2).find('.') == std::string_view::npos;
  return LoadAxis{std::string(text.substr(0, equals)), *low, *high, whole};
}

Result<KnownLoss> parse_loss(std::string_view text) {
  const std::string where = fmt::format("--loss={}", text);
  const size_t equals = text.find('='), colon = text.rfind(':');
  if (equals == std::string_view::npos || equals == 0 || colon == std::string_view::npos || colon < equals)
    return mistake(where, "is no FIELD=VALUE:PERCENT", "as in --loss=policies.precision=int4:0.4");
  const Result<double> percent = number(text.substr(colon + 1), where);
  if (!percent) return tl::unexpected<Mistake>(percent.error());
  return KnownLoss{std::string(text.substr(0, equals)),
                   std::string(text.substr(equals + 1, colon - equals - 1)), *percent};
}

}  // namespace kvtwin
