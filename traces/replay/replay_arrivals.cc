#include "traces/replay/replay_arrivals.h"

#include <algorithm>
#include <bit>

#include "engine/base/prng.h"

namespace kvtwin {
namespace {

constexpr uint64_t kGapField = 1;  // of draws; ReplayClient has the others

}  // namespace

uint64_t exponential_q32(uint64_t word) {
  // log2 by squaring: m in [1, 2) as Q31; each squaring that reaches 2 is a one in the next binary place.
  const auto whole = static_cast<uint32_t>(63 - std::countl_zero(word));
  uint64_t m = whole >= 31 ? word >> (whole - 31) : word << (31 - whole);
  uint64_t fraction = 0;
  for (int bit = 31; bit >= 0; --bit) {
    m = (m * m) >> 31;
    if (m >> 32) {
      m >>= 1;
      fraction |= uint64_t{1} << bit;
    }
  }
  const uint64_t log2_q32 = (uint64_t{whole} << 32) | fraction;
  constexpr uint64_t kLn2Q32 = 2977044472;  // ln 2 x 2^32
  const unsigned __int128 product = static_cast<unsigned __int128>((uint64_t{64} << 32) - log2_q32) * kLn2Q32;
  return static_cast<uint64_t>(product >> 32);
}

ArrivalSchedule::ArrivalSchedule(const ReplayTable& table, const ReplayOptions& options) {
  const auto sessions = static_cast<uint32_t>(table.sessions.size());
  instances_ = sessions * options.replicas;
  const bool fixed = options.arrivals == ArrivalMode::kFixedPopulation;
  waiting_ = fixed ? std::min(options.population, instances_) : instances_;
  arrivals_.reserve(instances_);
  int64_t at = 0;
  for (uint32_t instance = 0; instance < waiting_; ++instance) {
    if (options.arrivals == ArrivalMode::kRecorded) {
      at = scaled(table.sessions[instance % sessions].arrival_ns, options.arrival_scale);
    } else if (options.arrivals == ArrivalMode::kPoisson) {
      const uint64_t word = draw({options.seed, kGapField, instance / sessions, instance % sessions}) | 1;
      const unsigned __int128 mean_q32 = static_cast<unsigned __int128>(exponential_q32(word)) *
                                         static_cast<uint64_t>(options.arrivals_per_s.den) * 1'000'000'000u;
      const unsigned __int128 gap = mean_q32 / static_cast<uint64_t>(options.arrivals_per_s.num) >> 32;
      at = later(at, static_cast<int64_t>(std::min<unsigned __int128>(gap, kReplayTimeMax)));
    }
    arrivals_.push_back({at, instance});
  }
  std::stable_sort(arrivals_.begin(), arrivals_.end(),
                   [](const Arrival& a, const Arrival& b) { return a.at < b.at; });
}

void ArrivalSchedule::session_ended(Instant now) {
  if (waiting_ < instances_) arrivals_.push_back({now.ns, waiting_++});
}

}  // namespace kvtwin
