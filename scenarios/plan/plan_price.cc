#include "scenarios/plan/plan_price.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <set>

#include "scenarios/app/results.h"

namespace kvtwin {

Result<GivenPrice> parse_price(std::string_view text) {
  const std::string where = fmt::format("--price={}", text);
  const size_t equals = text.rfind('=');
  if (equals == std::string_view::npos || equals == 0)
    return make_error(where, "is not NODE=USD_PER_GPU_HOUR", "as in --price=h200-x8=2.40");
  const std::string_view number = text.substr(equals + 1);
  GivenPrice out{std::string(text.substr(0, equals)), 0};
  const auto [end, failed] =
      std::from_chars(number.data(), number.data() + number.size(), out.usd_per_gpu_hour);
  if (failed != std::errc{} || end != number.data() + number.size() || !std::isfinite(out.usd_per_gpu_hour))
    return make_error(where, fmt::format("\"{}\" is not a number", number),
                      "USD per GPU and hour, as in 2.40");
  if (out.usd_per_gpu_hour < 0)
    return make_error(where, fmt::format("the price is {}", number), "0 or more USD per GPU and hour");
  return out;
}

void price(const Composed& composed, const std::vector<GivenPrice>& given, Candidate* candidate) {
  candidate->price_known = candidate->price_given = true;
  for (const EngineKind& kind : composed.kinds) {
    GpuPrice one = price_of(kind);
    const auto own = std::find_if(given.begin(), given.end(),
                                  [&](const GivenPrice& price) { return price.node == kind.node.name; });
    if (own != given.end()) one = {own->usd_per_gpu_hour, true, false};
    const uint32_t gpus = kind.engines * kind.gpus_each;
    const uint32_t engines_per_node = std::max(1u, kind.node_gpus / std::max(1u, kind.gpus_each));
    const uint32_t nodes = (kind.engines + engines_per_node - 1) / engines_per_node;
    const uint32_t rented = std::max(gpus, nodes * kind.node_gpus);
    candidate->gpus += gpus;
    candidate->nodes += nodes;
    candidate->gpus_of_nodes += rented;
    candidate->node_names.push_back(kind.node.name);
    candidate->price_known = candidate->price_known && one.known;
    candidate->price_assumed = candidate->price_assumed || one.assumed;
    candidate->price_given = candidate->price_given && own != given.end();
    candidate->usd_per_hour += one.usd_per_hour * gpus;
    candidate->usd_per_hour_of_nodes += one.usd_per_hour * rented;
  }
}

void take_price(const Candidate& candidate, std::map<std::string, double>* figures) {
  if (!candidate.price_known) return;
  const auto figure = [&](const char* name) {
    const auto found = figures->find(name);
    return found == figures->end() ? 0.0 : found->second;
  };
  const double spent = candidate.usd_per_hour * figure("elapsed_s") / 3600;
  const double output = figure("output_tokens"), prompt = figure("prompt_tokens");
  (*figures)["usd_per_hour"] = candidate.usd_per_hour;
  if (output > 0) (*figures)["usd_per_million_output_tokens"] = 1e6 * spent / output;
  if (output + prompt > 0) (*figures)["usd_per_million_tokens"] = 1e6 * spent / (output + prompt);
}

Result<void> check_prices(const std::vector<GivenPrice>& given, const std::vector<Candidate>& candidates) {
  std::set<std::string> known;
  for (const Candidate& candidate : candidates)
    known.insert(candidate.node_names.begin(), candidate.node_names.end());
  for (size_t i = 0; i < given.size(); ++i) {
    const GivenPrice& one = given[i];
    const std::string where = fmt::format("--price={}={}", one.node, one.usd_per_gpu_hour);
    if (!known.contains(one.node))
      return make_error(where, fmt::format("no candidate runs on \"{}\"", one.node),
                        fmt::format("one of: {}", fmt::join(known, ", ")));
    if (std::any_of(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(i),
                    [&](const GivenPrice& before) { return before.node == one.node; }))
      return make_error(where, fmt::format("{} has a price already", one.node), "one price for each node");
  }
  return {};
}

}  // namespace kvtwin
