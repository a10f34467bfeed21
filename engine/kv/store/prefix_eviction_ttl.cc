// tool_ttl: the prefixes of a session that waits for a tool stay for a time to live, and then go by age.
// After Continuum (arXiv 2511.02230), whose order of sessions in the queue is not here.

#include <algorithm>
#include <map>
#include <vector>

#include "engine/kv/store/prefix_eviction.h"

namespace kvtwin {
namespace {

// The newest pauses of one tool: enough for a distribution, few enough to follow a tool that changes.
constexpr size_t kPausesMax = 128;
// A tool with fewer pauses is judged by those of all tools.
constexpr size_t kPausesMin = 8;
// A day. It keeps products of counts and times within 64 bits.
constexpr int64_t kPauseMax = int64_t{86'400} * 1'000'000'000;

// The time to live t maximises
//   P(the pause ends within t) x refill - t,
// where P is the distribution of the tool's pauses so far and refill is the time of computing the whole cache
// again: a prefix of a fraction f of the cache saves f x refill if its session is back in time, and takes f
// of the cache for t. f cancels, so one time serves all prefixes. Only the ends of known pauses, and 0, can
// be the best t. The paper adds the delay of queueing again to the benefit, and assumes exponential pauses
// for a tool that it does not know; here such a tool may take up to one refill, beyond which waiting cannot
// pay.
class TimeToLive final : public PrefixEviction {
 public:
  explicit TimeToLive(Duration refill) : refill_(std::min(refill.ns, kPauseMax)) {}

  bool needs_sessions() const override { return true; }
  uint64_t rank(const PrefixUse& use) const override { return rank_by_need(use); }

  Duration patience(const SessionPause& pause) const override {
    const auto of_tool = pauses_.find(pause.tool);
    const bool known = of_tool != pauses_.end() && of_tool->second.newest.size() >= kPausesMin;
    return {best(known ? of_tool->second.newest : all_.newest)};
  }
  void resumed(const SessionPause& pause, Duration lasted) override {
    const int64_t ns = std::clamp<int64_t>(lasted.ns, 0, kPauseMax);
    pauses_[pause.tool].add(ns);
    all_.add(ns);
  }

 private:
  struct Pauses {
    std::vector<int64_t> newest;  // ns; in order of arrival until full, then a ring
    size_t next = 0;

    void add(int64_t ns) {
      if (newest.size() < kPausesMax) {
        newest.push_back(ns);
      } else {
        newest[next] = ns;
        next = (next + 1) % kPausesMax;
      }
    }
  };

  int64_t best(std::vector<int64_t> pauses) const {
    if (pauses.size() < kPausesMin) return refill_;
    std::sort(pauses.begin(), pauses.end());
    const auto count = static_cast<int64_t>(pauses.size());
    int64_t best = 0, gain_of_best = 0;  // gains are multiplied by `count`
    for (int64_t i = 0; i < count; ++i) {
      const int64_t pause = pauses[static_cast<size_t>(i)];
      const int64_t gain = (i + 1) * refill_ - count * pause;
      if (gain > gain_of_best) best = pause, gain_of_best = gain;
    }
    return best;
  }

  const int64_t refill_;
  std::map<uint32_t, Pauses> pauses_;  // by tool
  Pauses all_;
};

}  // namespace

std::unique_ptr<PrefixEviction> make_tool_ttl_eviction(const EvictionSpec& spec) {
  return std::make_unique<TimeToLive>(spec.refill);
}

}  // namespace kvtwin
