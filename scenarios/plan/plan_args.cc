// The arguments of a plan.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <utility>

#include "models/files/csv.h"
#include "models/files/textproto.h"
#include "scenarios/plan/plan.h"
#include "scenarios/plan/plan_price.h"

namespace kvtwin {
namespace {

Result<double> number(std::string_view text, const std::string& where) {
  double value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed == std::errc{} && end == text.data() + text.size() && std::isfinite(value)) return value;
  return make_error(where, fmt::format("\"{}\" is not a number", text), "as in replay.population=1..1000");
}

// The sets of kvtwin evaluate that retain every KV entry, and their precision.
constexpr std::pair<const char*, const char*> kEvaluated[] = {
    {"full", "bf16"}, {"fp8", "fp8"}, {"int4", "int4"}, {"kivi", "kivi_int2"}, {"triaxial", "triaxial"}};

}  // namespace

Result<LoadAxis> parse_load(std::string_view text) {
  const std::string where = fmt::format("--load={}", text);
  const size_t equals = text.find('='), dots = text.find("..");
  if (equals == std::string_view::npos || equals == 0 || dots == std::string_view::npos || dots < equals)
    return make_error(where, "is not FIELD=LOW..HIGH", "as in --load=replay.population=1..1000");
  const Result<double> low = number(text.substr(equals + 1, dots - equals - 1), where);
  const Result<double> high = number(text.substr(dots + 2), where);
  if (!low) return tl::unexpected<Error>(low.error());
  if (!high) return tl::unexpected<Error>(high.error());
  if (*low <= 0 || *high < *low)
    return make_error(where, fmt::format("the load is from {} to {}", *low, *high),
                      "give an ascending range above 0");
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
    return make_error(where, "is not FIELD=VALUE:PERCENT", "as in --loss=policies.precision=int4:0.4");
  const Result<double> percent = number(text.substr(colon + 1), where);
  if (!percent) return tl::unexpected<Error>(percent.error());
  return KnownLoss{std::string(text.substr(0, equals)),
                   std::string(text.substr(equals + 1, colon - equals - 1)), *percent};
}

Result<std::vector<KnownLoss>> read_losses(const std::string& text, const std::string& path) {
  CsvFile file = CsvFile::of_text(path, text);
  const auto column = [&](const char* name) {
    return static_cast<size_t>(std::find(file.header().begin(), file.header().end(), name) -
                               file.header().begin());
  };
  const size_t policy = column("policy"), budget = column("budget"), task = column("task"),
               accuracy = column("accuracy");
  if (std::max({policy, budget, task, accuracy}) == file.header().size())
    return make_error(path + ":1", "has no columns policy, budget, task and accuracy",
                      "give the quality.csv of kvtwin evaluate --out");
  std::map<std::string, std::map<std::string, double>>
      right;  // fraction of correct answers by format and task
  CsvRow row;
  for (Result<bool> more = file.next(&row);; more = file.next(&row)) {
    if (!more) return tl::unexpected<Error>(more.error());
    if (!*more) break;
    if (row.text(budget) != "0" || row.text(accuracy).empty()) continue;
    for (const auto& [evaluated, precision] : kEvaluated) {
      if (row.text(policy) == evaluated)
        right[precision][std::string(row.text(task))] = row.real(accuracy, 0, 1);
    }
  }
  std::vector<KnownLoss> out;
  const std::map<std::string, double>& full = right["bf16"];
  for (const auto& [precision, tasks] : right) {
    double points = 0;
    size_t both = 0;
    for (const auto& [name, fraction] : tasks) {
      const auto at = full.find(name);
      if (at == full.end()) continue;
      points += 100 * (at->second - fraction);
      ++both;
    }
    if (both > 0) out.push_back({"policies.precision", precision, points / static_cast<double>(both)});
  }
  if (out.size() < 2)
    return make_error(path, "has no format that ran one of the tasks of full KV",
                      "kvtwin evaluate with full and int4, kivi or triaxial");
  return out;
}

Result<PlanSpec> plan_spec(const PlanWords& words) {
  PlanSpec spec;
  spec.sweep.scenario = words.scenario;
  spec.sweep.sets = words.sets;
  Result<std::vector<Axis>> axes = parse_axes(words.vary);
  if (!axes) return tl::unexpected<Error>(axes.error());
  spec.sweep.axes = std::move(*axes);
  Result<LoadAxis> load = parse_load(words.load);
  if (!load) return tl::unexpected<Error>(load.error());
  spec.load = std::move(*load);
  Result<std::vector<Slo>> slos = parse_slos(words.slos);
  if (!slos) return tl::unexpected<Error>(slos.error());
  spec.slos = std::move(*slos);
  for (const std::string& text : words.losses) {
    Result<KnownLoss> loss = parse_loss(text);
    if (!loss) return tl::unexpected<Error>(loss.error());
    spec.losses.push_back(std::move(*loss));
  }
  for (const std::string& text : words.prices) {
    Result<GivenPrice> price = parse_price(text);
    if (!price) return tl::unexpected<Error>(price.error());
    spec.prices.push_back(std::move(*price));
  }
  if (!words.quality.empty()) {
    const Result<std::string> text = read_text_file(words.quality);
    if (!text) return tl::unexpected<Error>(text.error());
    Result<std::vector<KnownLoss>> losses = read_losses(*text, words.quality);
    if (!losses) return tl::unexpected<Error>(losses.error());
    for (KnownLoss& loss : *losses) spec.losses.push_back(std::move(loss));
  }
  if (words.seeds == 0) return make_error("--seeds", "is 0", "1 at least");
  spec.need = words.need;
  spec.seeds = words.seeds;
  spec.allow_roofline = words.allow_roofline;
  return spec;
}

std::string plan_command(const PlanWords& words) {
  std::string out = "kvtwin plan " + words.scenario;
  const auto add = [&](const char* option, const std::vector<std::string>& values) {
    for (const std::string& value : values) out += fmt::format(" '--{}={}'", option, value);
  };
  add("slo", words.slos);
  out += fmt::format(" --load={} --need={}", words.load, words.need);
  add("vary", words.vary);
  add("set", words.sets);
  add("loss", words.losses);
  add("price", words.prices);
  if (!words.quality.empty()) add("quality", {words.quality});
  if (words.seeds != PlanWords().seeds) out += fmt::format(" --seeds={}", words.seeds);
  return out + (words.allow_roofline ? " --allow-roofline" : "");
}

}  // namespace kvtwin
