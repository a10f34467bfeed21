// The bound on short sequences computed by hand, and compared with an exhaustive search.

#include "engine/metrics/prefix_bound.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "engine/base/prng.h"

using namespace kvtwin;

namespace {

constexpr uint32_t kPage = 16;

struct Sequence {
  explicit Sequence(uint32_t pages) {
    config.pages_gpu = pages;
    config.page_tokens = config.unit_tokens = kPage;
  }
  // Adds a request whose prompt is the first `pages` pages of `space` and one token. It arrives, is computed
  // and ends before the next.
  void request(uint64_t space, uint32_t pages) { requests.push_back({space, pages}); }
  uint64_t bound() const {
    PrefixBound out({config});
    uint32_t id = 0;
    for (const auto& [space, pages] : requests) {
      const std::vector<UnitRun> identity{{space, 0, pages}};
      RequestReady ready;
      ready.request = RequestId{id++};
      ready.prompt_tokens = pages * kPage + 1;
      ready.output_tokens = 1;
      ready.identity = identity;
      out.saw_event({}, {}, ready);
      PlanEntry entry{};
      entry.request = ready.request;
      entry.first = true;
      const std::vector<PlanEntry> entries{entry};
      LaunchStep step{};
      step.entries = entries;
      out.saw_command({}, step);
      out.saw_command({}, TokensEmitted{{}, ready.request, 1});
      out.saw_command({}, FinishRequest{{}, ready.request, 1, false});
    }
    return out.reused_tokens() / kPage;
  }
  // The most hits over all choices of victims. `held`: the pages of each space's prefix that are cached.
  uint64_t best(std::vector<uint32_t> held, size_t at = 0) const {
    if (at == requests.size()) return 0;
    const auto [space, pages] = requests[at];
    const uint64_t found = std::min(held[space], pages);
    held[space] = std::max(held[space], pages);
    uint32_t sum = 0;
    for (const uint32_t one : held) sum += one;
    return found + drop(held, sum, space, pages, 0, at + 1);
  }

  CoreConfig config;
  std::vector<std::pair<uint64_t, uint32_t>> requests;

 private:
  // Tries all ways to evict down to the size of the pool; the request's own pages stay.
  uint64_t drop(std::vector<uint32_t> held, uint32_t sum, uint64_t running, uint32_t pages, size_t space,
                size_t next) const {
    if (sum <= config.pages_gpu) return best(std::move(held), next);
    if (space == held.size()) return 0;  // too few pages were evicted
    uint64_t most = 0;
    const uint32_t least = space == running ? pages : 0;
    for (;;) {
      most = std::max(most, drop(held, sum, running, pages, space + 1, next));
      if (held[space] <= least || sum <= config.pages_gpu) break;
      --held[space];
      --sum;
    }
    return std::max(most, sum <= config.pages_gpu ? best(held, next) : 0);
  }
};

}  // namespace

TEST_CASE("prefix bound: with room for all, every computed prefix is found") {
  Sequence sequence(100);
  sequence.request(0, 4);
  sequence.request(1, 4);
  sequence.request(0, 6);
  sequence.request(1, 2);
  CHECK(sequence.bound() == 4 + 2);
}

TEST_CASE("prefix bound: the prefix needed last is evicted first, from its tail") {
  Sequence sequence(6);
  sequence.request(0, 3);
  sequence.request(1, 3);
  sequence.request(2, 2);  // evicts two of eight pages: the tail of 1, which is needed last (LRU: of 0)
  sequence.request(0, 3);  // all hits
  sequence.request(1, 3);  // one page of it is left, and 2 is not needed again
  CHECK(sequence.bound() == 3 + 1);
  CHECK(sequence.bound() == sequence.best({0, 0, 0}));
}

TEST_CASE("prefix bound: it equals the best found by search, for sequences of six requests") {
  Prng prng(7);
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    const auto pages = static_cast<uint32_t>(prng.range(3, 7));
    Sequence sequence(pages);
    for (int i = 0; i < 6; ++i)
      sequence.request(prng.range(0, 2), static_cast<uint32_t>(prng.range(1, std::min(pages, 4u))));
    CHECK(sequence.bound() == sequence.best({0, 0, 0}));
  }
}
