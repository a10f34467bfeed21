// Page selection on the device compared with page_score.h and select.h: scores within rounding; selections,
// moves and reads exactly, given the scores.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <tuple>

#include "kernels/bench/decode_problem.cuh"
#include "kernels/common/small_floats.h"
#include "kernels/select/page_choice.h"
#include "kernels/select/select.h"
#include "tests/support/gpu_main.h"

namespace kvtwin::test {
namespace {

using kernels::PagePooling;
using Bits = std::vector<uint16_t>;

constexpr PagePooling kPoolings[] = {PagePooling::kMeanS, PagePooling::kMaxS,  PagePooling::kMeanQk,
                                     PagePooling::kMaxQk, PagePooling::kMeanQ, PagePooling::kMaxQ};
constexpr uint32_t kPoison = 0xdeadbeef;

// Numbers in [-2, 2).
Bits random_bits(std::mt19937_64* random, size_t count) {
  Bits out(count);
  for (size_t i = 0; i < count; i += 4) {
    const uint64_t bits = (*random)();
    for (size_t k = i; k < std::min(count, i + 4); ++k)
      out[k] = kernels::to_bf16(static_cast<float>(static_cast<int16_t>(bits >> (k - i) * 16)) / 16384);
  }
  return out;
}
std::vector<float> widened(const Bits& bits) {
  std::vector<float> out;
  for (const uint16_t x : bits) out.push_back(kernels::from_bf16(x));
  return out;
}
__nv_bfloat16* device(const DeviceArray<uint16_t>& a) { return reinterpret_cast<__nv_bfloat16*>(a.get()); }

// Rows of several lengths and kinds; owners, slots and states are numbered in no order.
struct ChoiceProblem {
  ChoiceShape shape;
  std::vector<ChoiceRow> rows;
  std::vector<uint32_t> lists, held;
  Bits summaries, q, before;
  DeviceArray<uint16_t> summaries_on, q_on, before_on;
  DeviceArray<ChoiceRow> rows_on;
  DeviceArray<uint32_t> lists_on, held_on, tables;
  DeviceArray<float> scores;
  DeviceArray<RecallMove> moves_before, moves_after;
  DeviceArray<ChoiceCounts> counts;
  DeviceArray<uint8_t> now;
  std::mt19937_64 random;

  ChoiceProblem(ChoiceShape given, const std::vector<uint32_t>& candidates, uint64_t seed)
      : shape(given), random(seed) {
    const auto count = static_cast<uint32_t>(candidates.size());
    const uint32_t most = *std::max_element(candidates.begin(), candidates.end()), owners = most + 50;
    shape.score_stride = (most + 7) / 4 * 4, shape.first_host = 5;
    std::vector<uint32_t> states(count + 2);
    std::iota(states.begin(), states.end(), 0);
    std::shuffle(states.begin(), states.end(), random);
    held.assign(states.size() * shape.kv_heads * shape.chosen, kPoison);
    for (uint32_t r = 0; r < count; ++r) {
      ChoiceRow row{count - 1 - r, states[r], candidates[r]};
      row.owners = list_of(candidates[r], owners, shape.first_host);
      row.slots = list_of(shape.chosen, 2 * shape.chosen + 3, 0);
      row.table_stride = shape.chosen + 2, row.table = r * shape.kv_heads * row.table_stride + 1;
      row.held = static_cast<Held>(r % 5), row.no_more = r % 10 == 9 ? 1 : 0;
      rows.push_back(row);
      for (uint32_t h = 0; h < shape.kv_heads; ++h) fill_held(row, h);
    }
    summaries = random_summaries(owners + shape.first_host);
    q = random_bits(&random, size_t{count} * width()), before = random_bits(&random, states.size() * width());
    for (uint32_t r = 0; r < count; r += 2) resemble(rows[r]);
    upload();
  }
  size_t width() const { return size_t{shape.kv_heads} * shape.group * shape.head_dim; }
  ChoiceArgs args() const {
    return {rows_on.get(),     static_cast<uint32_t>(rows.size()),
            lists_on.get(),    device(summaries_on),
            device(q_on),      device(before_on),
            held_on.get(),     scores.get(),
            tables.get(),      moves_before.get(),
            moves_after.get(), counts.get(),
            nullptr,           now.get()};
  }
  // A step: heads that choose for it, and then the others, which are scored by the stored queries.
  void choose(ChoiceArgs given, bool scores = true) const {
    KVT_CUDA(compare_queries(shape, given, nullptr));
    std::vector<QueryRetained> stored;
    for (const ChoiceRow& row : rows) stored.push_back({row.row, row.state});
    const DeviceArray<QueryRetained> list(stored);
    KVT_CUDA(keep_queries(list.get(), given.count, static_cast<uint32_t>(width()), given.q, given.q_before,
                          nullptr));
    for (const ChoosesFor step : {ChoosesFor::kThisStep, ChoosesFor::kNextStep}) {
      given.step = step;
      if (scores) KVT_CUDA(score_pages(shape, given, nullptr));
      KVT_CUDA(choose_pages(shape, given, nullptr));
    }
    KVT_CUDA(cudaDeviceSynchronize());
  }
  // A KV head's queries of the row, and of the previous one.
  std::vector<float> queries(const Bits& of, uint32_t row, uint32_t head) const {
    const size_t numbers = size_t{shape.group} * shape.head_dim, at = row * width() + head * numbers;
    return widened(
        {of.begin() + static_cast<ptrdiff_t>(at), of.begin() + static_cast<ptrdiff_t>(at + numbers)});
  }
  size_t held_at(const ChoiceRow& row, uint32_t head) const {
    return (size_t{row.state} * shape.kv_heads + head) * shape.chosen;
  }

 private:
  uint32_t list_of(uint32_t count, uint32_t below, uint32_t from) {
    std::vector<uint32_t> all(below);
    std::iota(all.begin(), all.end(), from);
    std::shuffle(all.begin(), all.end(), random);
    const auto at = static_cast<uint32_t>(lists.size());
    lists.insert(lists.end(), all.begin(), all.begin() + count);
    return at;
  }
  // Fills slots with some of the pages that can be selected, and sometimes one that no longer can.
  void fill_held(const ChoiceRow& row, uint32_t head) {
    std::vector<uint32_t> pages(row.candidates + 2);
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), random);
    std::copy_n(pages.begin(), shape.chosen, held.begin() + static_cast<ptrdiff_t>(held_at(row, head)));
  }
  Bits random_summaries(uint32_t owners) {
    const size_t dim = shape.head_dim;
    Bits out = random_bits(&random, size_t{owners} * shape.kv_heads * 2 * dim);
    for (size_t at = 0; at < out.size(); at += 2 * dim) {
      for (size_t i = at; i < at + dim; ++i) {
        if (kernels::from_bf16(out[i]) < kernels::from_bf16(out[i + dim])) std::swap(out[i], out[i + dim]);
      }
    }
    return out;
  }
  // Makes the query similar to the previous one, so that few heads turn.
  void resemble(const ChoiceRow& row) {
    for (size_t i = 0; i < width(); ++i) {
      const float was = kernels::from_bf16(before[row.state * width() + i]);
      uint16_t& now = q[row.row * width() + i];
      now = kernels::to_bf16(was + 0.4f * kernels::from_bf16(now));
    }
  }
  void upload() {
    const size_t moves = rows.size() * shape.kv_heads * shape.chosen;
    summaries_on = DeviceArray<uint16_t>(summaries), q_on = DeviceArray<uint16_t>(q);
    before_on = DeviceArray<uint16_t>(before), rows_on = DeviceArray<ChoiceRow>(rows);
    lists_on = DeviceArray<uint32_t>(lists), held_on = DeviceArray<uint32_t>(held);
    tables = DeviceArray<uint32_t>(
        std::vector<uint32_t>(rows.size() * shape.kv_heads * (shape.chosen + 2) + 1, kPoison));
    scores = DeviceArray<float>(
        std::vector<float>(rows.size() * shape.kv_heads * shape.score_rows() * shape.score_stride, NAN));
    moves_before = DeviceArray<RecallMove>(std::vector<RecallMove>(moves, {kPoison, kPoison, kPoison}));
    moves_after = DeviceArray<RecallMove>(std::vector<RecallMove>(moves, {kPoison, kPoison, kPoison}));
    counts = DeviceArray<ChoiceCounts>(std::vector<ChoiceCounts>(1));
    now = DeviceArray<uint8_t>(std::vector<uint8_t>(rows.size() * shape.kv_heads, 7));
  }
};

float scale_of(uint32_t dim) { return 1 / std::sqrt(static_cast<float>(dim)); }

// Checks that the scores of score_pages, pooled by choose_pages, equal the definition.
void check_scores(const ChoiceProblem& p, const std::vector<float>& pooled) {
  const std::vector<float> summaries = widened(p.summaries);
  const size_t dim = p.shape.head_dim, rows = p.shape.score_rows();
  for (uint32_t r = 0; r < p.rows.size(); ++r) {
    const ChoiceRow& row = p.rows[r];
    for (uint32_t h = 0; h < p.shape.kv_heads; ++h) {
      std::vector<kernels::PageVectors> pages;
      for (uint32_t i = 0; i < row.candidates; ++i) {
        const size_t owner = p.lists[row.owners + i];
        const float* const high = summaries.data() + (owner * p.shape.kv_heads + h) * 2 * dim;
        pages.push_back({high, high + dim});
      }
      std::vector<float> want(row.candidates);
      kernels::score_pages_ref(p.shape.pooling, p.shape.scale, p.queries(p.q, row.row, h).data(),
                               p.shape.group, p.shape.head_dim, pages, want.data());
      const float* const got = pooled.data() + (r * p.shape.kv_heads + h) * rows * p.shape.score_stride;
      float largest = 1e-6f, off = 0;
      for (uint32_t i = 0; i < row.candidates; ++i) {
        largest = std::max(largest, std::fabs(want[i]));
        off = std::fabs(got[i] - want[i]) <= off ? off : std::fabs(got[i] - want[i]);  // NaN is retained
      }
      CHECK(off <= 2e-5f * largest);
    }
  }
}

using Move = std::tuple<uint32_t, uint32_t, uint32_t>;
std::vector<Move> sorted(const std::vector<RecallMove>& moves, uint32_t count) {
  std::vector<Move> out;
  for (uint32_t i = 0; i < count; ++i) out.emplace_back(moves[i].block, moves[i].page, moves[i].head);
  std::sort(out.begin(), out.end());
  return out;
}

// The expected result of choose_pages for the pooled scores.
struct ExpectedChoice {
  std::vector<uint32_t> held, tables;
  std::vector<Move> before, after;
  ChoiceCounts counts;
  std::vector<kernels::HeadRecall> forced_outcome;

  // `forced_outcome` as in ChoiceArgs; empty: none. `pooled` is from before the forcing.
  ExpectedChoice(const ChoiceProblem& p, const std::vector<float>& pooled,
                 const std::vector<kernels::HeadRecall>& forcing = {})
      : held(p.held), tables(p.tables.read()), forced_outcome(forcing) {
    std::fill(tables.begin(), tables.end(), kPoison);
    for (uint32_t r = 0; r < p.rows.size(); ++r) {
      for (uint32_t h = 0; h < p.shape.kv_heads; ++h)
        add(p, p.rows[r], h,
            pooled.data() + (r * p.shape.kv_heads + h) * p.shape.score_rows() * p.shape.score_stride,
            forced_outcome.empty() || p.rows[r].held == Held::kNothing
                ? nullptr
                : &forced_outcome[r * p.shape.kv_heads + h]);
    }
    std::sort(before.begin(), before.end()), std::sort(after.begin(), after.end());
  }

 private:
  void add(const ChoiceProblem& p, const ChoiceRow& row, uint32_t h, const float* pooled,
           const kernels::HeadRecall* forcing) {
    std::vector<float> scores(pooled, pooled + row.candidates);
    std::vector<uint32_t> slots(held.begin() + static_cast<ptrdiff_t>(p.held_at(row, h)),
                                held.begin() + static_cast<ptrdiff_t>(p.held_at(row, h) + p.shape.chosen));
    if (row.held == Held::kFirst) std::iota(slots.begin(), slots.end(), 0);
    if (forcing != nullptr && row.held != Held::kInPlace)
      kernels::force_missing_ref(scores, 0, slots, forcing->missing);
    const kernels::RowSet chosen = kernels::select_rows(scores, {}, p.shape.chosen);
    uint32_t* const table = tables.data() + row.table + h * row.table_stride;
    if (row.held == Held::kInPlace) {
      for (uint32_t i = 0; i < chosen.size(); ++i) table[i] = p.lists[row.owners + chosen[i]];
      return;
    }
    bool turned = true;
    if (forcing != nullptr) {
      turned = forcing->before != 0, counts.turned += forcing->turned;
    } else if (row.held == Held::kTrusted) {
      const float cosine = kernels::group_cosine_ref(p.queries(p.q, row.row, h).data(),
                                                     p.queries(p.before, row.state, h).data(), p.shape.group,
                                                     p.shape.head_dim);
      turned = p.shape.tau > -1 && double{cosine} < p.shape.tau;
      counts.turned += turned;
    }
    std::vector<uint32_t> reads = slots;
    std::vector<kernels::SlotChange> changes;
    if (row.held == Held::kNothing) {
      for (uint32_t i = 0; i < chosen.size(); ++i) changes.push_back({i, slots[i] = chosen[i]});
    } else {
      changes = kernels::replace_slots_ref(chosen, scores, 0, slots);
    }
    const auto missing = static_cast<uint32_t>(changes.size());
    (turned ? counts.before : counts.after) += missing;
    const bool skipped = !turned && row.no_more != 0;
    if (!turned && !skipped) counts.moves_after += missing;
    for (const kernels::SlotChange& change : changes) {
      if (skipped) continue;
      (turned ? before : after)
          .emplace_back(p.lists[row.slots + change.slot] * p.shape.kv_heads + h,
                        p.lists[row.owners + change.page] - p.shape.first_host, h);
    }
    std::copy(slots.begin(), slots.end(), held.begin() + static_cast<ptrdiff_t>(p.held_at(row, h)));
    if (turned) reads = slots;
    std::vector<std::pair<uint32_t, uint32_t>> order;
    for (uint32_t i = 0; i < reads.size(); ++i) order.emplace_back(reads[i], p.lists[row.slots + i]);
    std::sort(order.begin(), order.end());
    for (uint32_t i = 0; i < order.size(); ++i) table[i] = order[i].second;
  }
};

void check_choice(const ChoiceProblem& p, const std::vector<float>& pooled,
                  const std::vector<kernels::HeadRecall>& forced_outcome = {}) {
  const ExpectedChoice want(p, pooled, forced_outcome);
  const ChoiceCounts counts = p.counts.read()[0];
  CHECK(counts.before == want.counts.before);
  CHECK(counts.after == want.counts.after);
  CHECK(counts.moves_after == want.counts.moves_after);
  CHECK(counts.turned == want.counts.turned);
  CHECK(p.held_on.read() == want.held);
  CHECK(p.tables.read() == want.tables);
  CHECK(sorted(p.moves_before.read(), counts.before) == want.before);
  CHECK(sorted(p.moves_after.read(), counts.moves_after) == want.after);
}

// One step of each pooling; `more`: candidates of each row beyond the selected ones.
void choose_and_check(uint32_t dim, uint32_t heads, uint32_t group, uint32_t chosen,
                      const std::vector<uint32_t>& more, uint64_t* seed) {
  CAPTURE(dim);
  CAPTURE(heads);
  CAPTURE(group);
  CAPTURE(chosen);
  for (const PagePooling pooling : kPoolings) {
    CAPTURE(static_cast<int>(pooling));
    ChoiceShape shape{dim, heads, group, chosen, pooling, scale_of(dim), 0.75};
    if (*seed % 7 == 0) shape.tau = -1;
    if (*seed % 7 == 1) shape.tau = 1.5;
    std::vector<uint32_t> candidates;
    for (const uint32_t m : more) candidates.push_back(chosen + m);
    const ChoiceProblem p(shape, candidates, (*seed)++);
    p.choose(p.args());
    const std::vector<float> pooled = p.scores.read();
    check_scores(p, pooled);
    check_choice(p, pooled);
  }
}

TEST_CASE(
    "F-2 score_pages and choose_pages: scores, sets, slots, moves and read tables equal the definitions") {
  uint64_t seed = 1;
  for (const uint32_t dim : {64u, 128u}) {
    for (const auto& [heads, group] : {std::pair{1u, 1u}, {2u, 3u}, {8u, 4u}, {1u, 8u}, {3u, 2u}, {4u, 5u}}) {
      for (const uint32_t chosen : {1u, 2u, 33u, 300u}) {
        choose_and_check(dim, heads, group, chosen, {0, 1, 5, 70, 700, 0, 3, 64, 1, 200}, &seed);
      }
    }
  }
}

TEST_CASE("F-2 score_pages and choose_pages, few: the same, small enough for racecheck") {
  uint64_t seed = 1000;
  choose_and_check(64, 2, 3, 2, {0, 5, 70}, &seed);
  choose_and_check(128, 8, 4, 33, {1, 0, 40}, &seed);
}

TEST_CASE("F-2 choose_pages: equal scores, infinities, NaN, all equal, and as many as possible") {
  for (const uint32_t chosen : {1u, 7u, 32u, kChosenMax}) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
      CAPTURE(chosen);
      CAPTURE(seed);
      ChoiceShape shape{64, 2, 2, chosen, PagePooling::kMaxQk, 1, 0.75};
      ChoiceProblem p(shape, {chosen, chosen + 1, chosen + 77, 3 * chosen + 500, chosen + 9}, seed);
      std::vector<float> given = p.scores.read();
      const float values[] = {0, -0.0f, 1, -1, INFINITY, -INFINITY, NAN, 1e-40f};
      for (float& x : given) x = seed == 0 ? 1 : values[p.random() % (seed < 6 ? 3 : 8)];
      p.scores = DeviceArray<float>(given);
      p.choose(p.args(), false);
      // Pooled here as the kernel does it: a maximum that ignores NaN.
      for (size_t at = 0; at < given.size(); at += 2 * p.shape.score_stride) {
        for (size_t i = at; i < at + p.shape.score_stride; ++i)
          given[i] = std::fmax(given[i], given[i + p.shape.score_stride]);
      }
      const std::vector<float> pooled = p.scores.read();
      for (uint32_t r = 0; r < p.rows.size() * 2; ++r) {
        for (uint32_t i = 0; i < p.rows[r / 2].candidates; ++i) {
          const size_t at = r * 2 * p.shape.score_stride + i;
          if (std::isnan(given[at]) ? !std::isnan(pooled[at]) : pooled[at] != given[at]) FAIL_CHECK(at);
        }
      }
      check_choice(p, pooled);
    }
  }
}

TEST_CASE("choose_pages: the forced number of pages, before or after attention, whichever heads turned") {
  uint64_t seed = 100;
  for (const auto& [heads, group] : {std::pair{1u, 1u}, {8u, 4u}, {3u, 2u}}) {
    for (const uint32_t chosen : {1u, 2u, 33u, 300u, kChosenMax}) {
      CAPTURE(heads);
      CAPTURE(chosen);
      const ChoiceShape shape{64, heads, group, chosen, PagePooling::kMeanS, scale_of(64), 0.75};
      std::vector<uint32_t> candidates;
      for (const uint32_t more : {2u, 2 * chosen, 5u, 70u, 700u, 0u, 3u, 64u, 1u, 200u})
        candidates.push_back(chosen + more);
      const ChoiceProblem natural(shape, candidates, ++seed), p(shape, candidates, seed);
      natural.choose(natural.args());
      std::mt19937_64 random(seed);
      std::vector<kernels::HeadRecall> forced_outcome;
      for (const ChoiceRow& row : p.rows) {
        for (uint32_t h = 0; h < heads; ++h) {
          const uint32_t most = std::min(chosen, row.candidates - chosen);
          const bool before = random() % 2 == 0;
          forced_outcome.push_back({static_cast<uint32_t>(random() % (most + 1)),
                                    before ? uint8_t{1} : uint8_t{0},
                                    before && random() % 2 == 0 ? uint8_t{1} : uint8_t{0}});
        }
      }
      const DeviceArray<kernels::HeadRecall> forced_on(forced_outcome);
      ChoiceArgs args = p.args();
      args.forced_outcome = forced_on.get();
      p.choose(args);
      check_choice(p, natural.scores.read(), forced_outcome);
    }
  }
}

TEST_CASE("choose_pages: pages that stay are neither chosen nor part of a softmax") {
  for (const PagePooling pooling : kPoolings) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(static_cast<int>(pooling));
      CAPTURE(seed);
      const uint32_t chosen = seed == 1 ? 1 : 33, stay = 1 + static_cast<uint32_t>(seed % 3) * 7;
      const ChoiceShape shape{64, 2, 3, chosen, pooling, scale_of(64), 0.75};
      const ChoiceProblem p(shape, {chosen + stay, chosen + stay + 5, chosen + 400, chosen + stay + 1}, seed);
      std::vector<uint32_t> stays(p.before.size() / p.width() * shape.kv_heads * stay);
      std::mt19937_64 random(seed);
      for (const ChoiceRow& row : p.rows) {
        for (uint32_t h = 0; h < shape.kv_heads; ++h) {
          std::vector<uint32_t> all(row.candidates);
          std::iota(all.begin(), all.end(), 0);
          std::shuffle(all.begin(), all.end(), random);
          std::copy_n(all.begin(), stay,
                      stays.begin() + static_cast<ptrdiff_t>((row.state * shape.kv_heads + h) * stay));
        }
      }
      const DeviceArray<uint32_t> stays_on(stays);
      ChoiceArgs args = p.args();
      args.stays = stays_on.get(), args.stay = stay, args.now = nullptr;
      KVT_CUDA(score_pages(p.shape, args, nullptr));
      KVT_CUDA(choose_pages(p.shape, args, nullptr));
      const std::vector<float> pooled = p.scores.read();
      const std::vector<float> summaries = widened(p.summaries);
      for (uint32_t r = 0; r < p.rows.size(); ++r) {
        for (uint32_t h = 0; h < shape.kv_heads; ++h) {
          const size_t at = (r * shape.kv_heads + h) * p.shape.score_rows() * p.shape.score_stride;
          const auto first =
              stays.begin() + static_cast<ptrdiff_t>((p.rows[r].state * shape.kv_heads + h) * stay);
          const std::vector<uint32_t> own(first, first + stay);
          std::vector<kernels::PageVectors> pages;
          std::vector<float> got;
          for (uint32_t i = 0; i < p.rows[r].candidates; ++i) {
            if (std::find(own.begin(), own.end(), i) != own.end()) {
              CHECK(pooled[at + i] == -INFINITY);
              continue;
            }
            const size_t owner = p.lists[p.rows[r].owners + i];
            const float* const high = summaries.data() + (owner * shape.kv_heads + h) * 2 * shape.head_dim;
            pages.push_back({high, high + shape.head_dim}), got.push_back(pooled[at + i]);
          }
          std::vector<float> want(pages.size());
          kernels::score_pages_ref(pooling, shape.scale, p.queries(p.q, p.rows[r].row, h).data(), shape.group,
                                   shape.head_dim, pages, want.data());
          float largest = 1e-6f, off = 0;
          for (size_t i = 0; i < want.size(); ++i) {
            largest = std::max(largest, std::fabs(want[i]));
            off = std::fabs(got[i] - want[i]) <= off ? off : std::fabs(got[i] - want[i]);
          }
          CHECK(off <= 2e-5f * largest);
        }
      }
      // All heads choose now, whatever their queries.
      const std::vector<uint32_t> held = p.held_on.read();
      for (uint32_t r = 0; r < p.rows.size(); ++r) {
        for (uint32_t h = 0; h < shape.kv_heads && p.rows[r].held != Held::kInPlace; ++h) {
          const size_t at = (r * shape.kv_heads + h) * p.shape.score_rows() * p.shape.score_stride;
          const std::vector<float> scores(pooled.begin() + static_cast<ptrdiff_t>(at),
                                          pooled.begin() + static_cast<ptrdiff_t>(at + p.rows[r].candidates));
          const auto first = held.begin() + static_cast<ptrdiff_t>(p.held_at(p.rows[r], h));
          std::vector<uint32_t> slots(first, first + chosen);
          std::sort(slots.begin(), slots.end());
          CHECK(slots == kernels::select_rows(scores, {}, chosen));
        }
      }
    }
  }
}

TEST_CASE("keep_queries stores the listed rows and no other") {
  std::mt19937_64 random(3);
  const Bits q = random_bits(&random, 5 * 256);
  const DeviceArray<uint16_t> from(q), to(Bits(4 * 256, 7));
  const DeviceArray<QueryRetained> rows(std::vector<QueryRetained>{{4, 0}, {1, 3}});
  KVT_CUDA(keep_queries(rows.get(), 2, 256, device(from), device(to), nullptr));
  Bits want(4 * 256, 7);
  std::copy_n(q.begin() + 4 * 256, 256, want.begin());
  std::copy_n(q.begin() + 256, 256, want.begin() + 3 * 256);
  CHECK(to.read() == want);
}

}  // namespace
}  // namespace kvtwin::test

int main(int argc, char** argv) { return kvtwin::testing::run_on_gpu(argc, argv, kvtwin::test::gpus()); }
