#include "traces/replay/replay_options.h"

#include <fmt/format.h>

#include <utility>

namespace kvtwin {
namespace {

Result<void> check_ratio(Ratio ratio, const char* name, bool zero_allowed) {
  constexpr int64_t kMax = 1'000'000'000;
  const int64_t least = zero_allowed ? 0 : 1;
  if (ratio.den >= 1 && ratio.den <= kMax && ratio.num >= least && ratio.num <= kMax) return {};
  return make_error(name, fmt::format("is {}/{}", ratio.num, ratio.den),
                    fmt::format("a ratio of integers from {} (below: from 1) to {}", least, kMax));
}

}  // namespace

Result<void> validate(const ReplayOptions& options) {
  if (options.page_tokens == 0 || options.page_tokens > 65536) {
    return make_error("page_tokens", fmt::format("is {}", options.page_tokens), "1 to 65536");
  }
  const std::pair<Ratio, const char*> scales[] = {{options.arrival_scale, "arrival_scale"},
                                                  {options.tool_scale, "tool_scale"},
                                                  {options.think_scale, "think_scale"},
                                                  {options.delay_scale, "delay_scale"}};
  for (const auto& [ratio, name] : scales) {
    if (auto ok = check_ratio(ratio, name, true); !ok) return ok;
  }
  if (options.arrivals == ArrivalMode::kPoisson) {
    if (auto ok = check_ratio(options.arrivals_per_s, "arrivals_per_s", false); !ok) return ok;
  }
  if (options.arrivals == ArrivalMode::kFixedPopulation && options.population == 0) {
    return make_error("population", "is 0", "at least one session at a time");
  }
  if (options.replicas == 0 || options.replicas > 1u << 20) {
    return make_error("replicas", fmt::format("is {}", options.replicas), "1 to 1048576");
  }
  if (options.think_cap < Duration{0}) {
    return make_error("think_cap", fmt::format("is {} ns", options.think_cap.ns),
                      "0 or more; leave it out for no cap");
  }
  constexpr int64_t kHour = 3'600'000'000'000;
  if (options.retries_max > 16)
    return make_error("retries_max", fmt::format("is {}", options.retries_max), "0 to 16");
  if (options.retry_backoff.ns < 0 || options.retry_backoff.ns > kHour) {
    return make_error("retry_backoff", fmt::format("is {} ns", options.retry_backoff.ns), "0 to one hour");
  }
  return {};
}

}  // namespace kvtwin
