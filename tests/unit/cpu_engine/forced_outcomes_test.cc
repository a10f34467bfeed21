// Outcomes forced on an engine: sums distributed over heads, retained rows, and counts of met demands.

#include <doctest/doctest.h>

#include <algorithm>

#include "engine/base/prng.h"
#include "engine/common/forced_outcome.h"

using namespace kvtwin;
using namespace kvtwin::cpu;

namespace {

struct Sums {
  uint64_t before = 0, behind = 0, turned = 0;
};

Sums sums_of(const std::vector<kernels::HeadRecall>& heads) {
  Sums out;
  for (const kernels::HeadRecall& head : heads) {
    (head.before != 0 ? out.before : out.behind) += head.missing;
    out.turned += head.turned;
    CHECK(head.turned <= head.before);
  }
  return out;
}

// Heads as a backend may have them, and their sums.
struct Drawn {
  std::vector<ForcedRow> rows;
  std::vector<kernels::HeadRecall> heads;
  LayerRecall sums;
  bool exact = true;  // rows have spare room, or all have the same
};

Drawn draw_heads(Prng* prng, uint32_t kv_heads, bool follows) {
  Drawn out;
  const auto count = static_cast<uint32_t>(prng->range(1, 9));
  const bool alike = prng->chance(1, 2), all = prng->chance(1, 4), full = prng->chance(1, 4);
  const auto most = static_cast<uint32_t>(prng->range(0, 40));
  out.exact = alike || !full;
  for (uint32_t r = 0; r < count; ++r) {
    const bool trusts = follows && (all || prng->chance(2, 3));
    out.rows.push_back({trusts, alike ? most : static_cast<uint32_t>(prng->range(0, 40))});
    for (uint32_t h = 0; h < kv_heads; ++h) {
      const bool turned = trusts && prng->chance(1, 3);
      const auto missing = full ? out.rows[r].most : static_cast<uint32_t>(prng->range(0, out.rows[r].most));
      out.heads.push_back(
          {missing, !trusts || turned ? uint8_t{1} : uint8_t{0}, turned ? uint8_t{1} : uint8_t{0}});
      (out.heads.back().before != 0 ? out.sums.blocking : out.sums.background) += missing;
      out.sums.corrected += turned ? 1 : 0;
    }
  }
  return out;
}

}  // namespace

TEST_CASE("forced recalls: the heads' numbers sum to the forced total, and no head misses more than it can") {
  uint64_t met = 0, drawn = 0;
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    const auto kv_heads = static_cast<uint32_t>(prng.range(1, 8));
    const bool follows = prng.chance(3, 4);
    const Drawn given = draw_heads(&prng, kv_heads, follows);
    std::vector<kernels::HeadRecall> dealt(given.heads.size());
    deal_recall(given.sums, given.rows, kv_heads, follows, dealt);
    for (size_t u = 0; u < dealt.size(); ++u) CHECK(dealt[u].missing <= given.rows[u / kv_heads].most);
    const Sums sums = sums_of(dealt);
    CHECK(sums.turned == given.sums.corrected);
    CHECK(sums.before <= given.sums.blocking);
    CHECK(sums.behind <= given.sums.background);
    const bool all = sums.before == given.sums.blocking && sums.behind == given.sums.background;
    if (given.exact) CHECK(all);
    drawn += given.exact ? 0 : 1, met += !given.exact && all ? 1 : 0;
  }
  // Rows that can miss different numbers of pages, and do miss all of them, are a knapsack problem.
  MESSAGE(met << " of " << drawn << " knapsacks met");
  CHECK(met * 10 >= drawn * 9);
}

TEST_CASE("forced recalls: they are distributed evenly, and met even if the model has no first step") {
  const std::vector<ForcedRow> trusting(3, {true, 20}), fresh = {{false, 20}, {false, 20}};
  std::vector<kernels::HeadRecall> heads(12);
  deal_recall({.blocking = 7, .background = 31, .corrected = 3, .heads = 12, .chosen = 0}, trusting, 4, true,
              heads);
  for (const kernels::HeadRecall& head : heads) {
    CHECK(head.before == head.turned);
    CHECK(head.missing >= (head.before != 0 ? 2 : 3));
    CHECK(head.missing <= (head.before != 0 ? 3 : 4));
  }
  for (size_t row = 0; row < 3; ++row) {
    const auto first = heads.begin() + static_cast<ptrdiff_t>(4 * row);
    CHECK(std::count_if(first, first + 4, [](const auto& head) { return head.turned != 0; }) == 1);
  }
  // No head trusts its state: all recalls precede attention, unless the sums differ.
  std::vector<kernels::HeadRecall> two(4);
  deal_recall({.blocking = 9}, fresh, 2, true, two);
  CHECK(sums_of(two).before == 9);
  CHECK(sums_of(two).turned == 0);
  deal_recall({.blocking = 4, .background = 12, .corrected = 1}, fresh, 2, true, two);
  CHECK(sums_of(two).before == 4);
  CHECK(sums_of(two).behind == 12);
  CHECK(sums_of(two).turned == 1);
  // Without speculation no recall follows attention.
  deal_recall({.blocking = 9}, trusting, 4, false, heads);
  CHECK(sums_of(heads).before == 9);
  CHECK(sums_of(heads).behind == 0);
  deal_recall({}, {}, 4, true, {});
}

TEST_CASE("forced rows") {
  const std::vector<uint64_t> live = {0b1011, 1};
  const std::vector<uint32_t> positions = {0, 2, 3, 64, 200}, forced = {1};
  CHECK(forced_outcome_rows(live, positions, forced, 4) == std::vector<uint32_t>{0, 1, 2, 3});
  CHECK(forced_outcome_rows(live, positions, {}, 3) == std::vector<uint32_t>{0, 2, 3});
  CHECK(forced_outcome_rows(live, positions, forced, 3).empty());  // the policy expects other rows
}

namespace {

// Follows forced outcomes, or its own, by `obeys`.
class ForcibleFake final : public ForcibleSource {
 public:
  explicit ForcibleFake(bool obeys) : obeys_(obeys) {}
  void force_outcomes(const DataOutcomes* given) override { given_ = given; }
  void step(const LaunchStep&, uint32_t, DataOutcomes* values) override {
    values->clear();
    values->recalls = {{1, 2, 3, 8, 8}};
    values->retained_counts = {7, 8};
    if (given_ != nullptr && obeys_ && !given_->recalls.empty()) values->recalls = given_->recalls;
    const CompressionOutcome* const retained = forced_retained(given_, RequestId{4});
    if (retained != nullptr && obeys_)
      values->retained_counts.assign(retained->counts.begin(), retained->counts.end());
    values->retained = {{RequestId{4}, values->retained_counts, {}}};
    ++steps;
  }
  void notify(const Command&) override { ++commands; }
  uint32_t steps = 0, commands = 0;
  bool nothing_forced() const { return given_ == nullptr; }

 private:
  const bool obeys_;
  const DataOutcomes* given_ = nullptr;
};

class ScriptedOutcomes final : public OutcomeSource {
 public:
  void step(const LaunchStep&, uint32_t, DataOutcomes* values) override {
    values->clear();
    values->recalls = {{5, 0, 0, 0, 0}};
    values->retained_counts = {9, 9};
    values->retained = {{RequestId{4}, values->retained_counts, {}}};
    ++asked;
  }
  void notify(const Command&) override { ++commands; }
  uint32_t asked = 0, commands = 0;
};

}  // namespace

TEST_CASE("forced source: asks once per step, forwards the outcomes, and counts those that were met") {
  for (const bool obeys : {true, false}) {
    CAPTURE(obeys);
    ScriptedOutcomes message;
    ForcibleFake engine(obeys);
    ForcedOutcomes source(&message, &engine);
    LaunchStep launch;
    DataOutcomes values;
    source.step(launch, 0, &values);
    source.prepare(launch, 1);
    CHECK(message.asked == 2);
    CHECK(engine.steps == 1);
    source.step(launch, 1, &values);
    CHECK(message.asked == 2);
    CHECK(engine.steps == 2);
    CHECK(engine.nothing_forced());
    CHECK(values.recalls[0].blocking == (obeys ? 5 : 1));
    CHECK(values.retained[0].counts[1] == (obeys ? 9 : 8));
    CHECK(source.retained().forced_outcome == 2);
    CHECK(source.retained().met == (obeys ? 2 : 0));
    CHECK(source.recalls().forced_outcome == 2);
    CHECK(source.recalls().met == (obeys ? 2 : 0));
    source.notify(DropRequestState{});
    CHECK(message.commands == 1);
    CHECK(engine.commands == 1);
  }
}
