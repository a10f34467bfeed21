#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/quant/triaxial_allocate.h"
#include "kernels/quant/triaxial_calibrate.h"
#include "tests/unit/kernels/random_rows.h"

using namespace kvtwin;
using namespace kvtwin::kernels;
using kvtwin::testing::random_rows;

namespace {

TagTable random_table(Prng& prng, uint32_t tags) {
  TagTable table;
  for (uint32_t i = 0; i < tags; ++i) {
    auto& entry = table.tags[prng.range(0, 55)];
    entry.count = prng.range(0, 500);
    entry.four_bits = static_cast<double>(prng.range(0, 100)) / 1000;
    entry.two_bits = static_cast<double>(prng.range(0, 1000)) / 1000;
  }
  return table;
}

uint64_t bits_used(const TagTable& table, uint64_t four) {
  uint64_t bits = 0;
  for (uint32_t k = 0; k < 56; ++k) bits += table.tags[k].count * (((four >> k) & 1) != 0 ? 4 : 2);
  return bits;
}
uint64_t bits_allowed(const TagTable& table, uint32_t bits_milli) {
  uint64_t count = 0;
  for (const auto& entry : table.tags) count += entry.count;
  return 2 * count + count * (bits_milli - 2000) / 1000;
}

double loss_of(const TagTable& table, uint64_t four) {
  double loss = 0;
  for (uint32_t k = 0; k < 56; ++k) {
    if (table.tags[k].count > 0)
      loss += ((four >> k) & 1) != 0 ? table.tags[k].four_bits : table.tags[k].two_bits;
  }
  return loss;
}

double brute_force(const TagTable& table, uint32_t bits_milli) {
  std::vector<uint32_t> present;
  for (uint32_t k = 0; k < 56; ++k) {
    if (table.tags[k].count > 0) present.push_back(k);
  }
  double best = INFINITY;
  for (uint32_t mask = 0; mask < (1u << present.size()); ++mask) {
    uint64_t four = 0;
    for (size_t i = 0; i < present.size(); ++i) {
      if ((mask >> i) & 1) four |= uint64_t{1} << present[i];
    }
    if (bits_used(table, four) <= bits_allowed(table, bits_milli))
      best = std::min(best, loss_of(table, four));
  }
  return best;
}

}  // namespace

TEST_CASE("allocation: branch and bound equals brute force, for up to 12 tags") {
  uint32_t greedy_worse = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    const TagTable table = random_table(prng, static_cast<uint32_t>(prng.range(0, 12)));
    const auto bits_milli = static_cast<uint32_t>(prng.range(2000, 4000));
    const TagBits exact = allocate_exact(table, bits_milli), greedy = allocate_greedy(table, bits_milli);
    CHECK(exact.loss == doctest::Approx(brute_force(table, bits_milli)).epsilon(1e-12));
    CHECK(exact.loss == doctest::Approx(loss_of(table, exact.four_bit_tags)));
    CHECK(bits_used(table, exact.four_bit_tags) <= bits_allowed(table, bits_milli));
    CHECK(bits_used(table, greedy.four_bit_tags) <= bits_allowed(table, bits_milli));
    CHECK(greedy.loss >= exact.loss - 1e-12);
    greedy_worse += greedy.loss > exact.loss + 1e-9;
    // The greedy rule leaves no upgrade that still fits.
    for (uint32_t k = 0; k < 56; ++k) {
      const auto& entry = table.tags[k];
      if (((greedy.four_bit_tags >> k) & 1) != 0 || entry.two_bits <= entry.four_bits) continue;
      CHECK(bits_used(table, greedy.four_bit_tags | uint64_t{1} << k) > bits_allowed(table, bits_milli));
    }
  }
  CHECK(greedy_worse > 5);  // otherwise the greedy rule would suffice
}

TEST_CASE("allocation: greedy is not optimal, on a crafted instance") {
  TagTable table;
  table.tags[3] = {51, 0.60, 0};  // best per bit, but then no other tag fits
  table.tags[4] = {50, 0.55, 0};
  table.tags[5] = {50, 0.55, 0};
  table.tags[6] = {49, 0.00, 0};
  const uint32_t bits = 3000;  // 200 bits above two per entry: 100 tokens' upgrades
  CHECK(allocate_greedy(table, bits).loss == doctest::Approx(1.10));
  CHECK(allocate_exact(table, bits).loss == doctest::Approx(0.60));
}

TEST_CASE("allocation: all 56 tags at once, monotone in B") {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Prng prng(seed + 77);
    const TagTable table = random_table(prng, 200);
    double before = INFINITY;
    for (uint32_t bits = 2000; bits <= 4000; bits += 50) {
      const TagBits exact = allocate_exact(table, bits);
      CHECK(exact.loss <= before + 1e-12);
      before = exact.loss;
    }
    CHECK(allocate_exact(table, 4000).loss <= loss_of(table, ~uint64_t{0}) + 1e-12);
  }
}

TEST_CASE("allocation: absent tags get 4 bits, tags without gain 2") {
  TagTable table;
  table.tags[1] = {10, 0.5, 0.1};
  table.tags[2] = {10, 0.1, 0.1};
  table.tags[9] = {100, 0.5, 0.1};
  const TagBits all = allocate_exact(table, 4000);
  CHECK(((all.four_bit_tags >> 1) & 1) == 1);
  CHECK(((all.four_bit_tags >> 2) & 1) == 0);
  CHECK(((all.four_bit_tags >> 40) & 1) == 1);
}

TEST_CASE("calibration: D of a tag equals hand-made rounding, and other tags stay exact") {
  constexpr uint32_t kKvEntries = 80, kRows = 6, kHead = 32;
  const auto q = random_rows(1, kRows * 4 * kHead), k = random_rows(2, kKvEntries * 2 * kHead);
  auto v = random_rows(3, kKvEntries * 2 * kHead);
  std::vector<uint8_t> tags(kKvEntries);
  for (uint32_t p = 0; p < kKvEntries; ++p) tags[p] = p % 2 == 0 ? 47 : p < 40 ? 5 : 12;
  const AttentionCapture capture{q, k, v, tags, kRows, kKvEntries, 4, 2, kHead, kKvEntries - kRows, 32};
  const TagLosses losses = measure_tag_losses(capture);
  CHECK(losses[47].count == 40);
  CHECK(losses[5].count == 20);
  CHECK(losses[0].count == 0);
  CHECK(losses[0].two_bits == 0);
  for (const uint32_t tag : {47u, 5u, 12u}) {
    CHECK(losses[tag].four_bits > 0);
    // Fewer than 32 KV entries never fill an int2 group: both are int4.
    if (tag == 47) CHECK(losses[tag].two_bits > 4 * losses[tag].four_bits);
    if (tag != 47) CHECK(losses[tag].two_bits == losses[tag].four_bits);
  }
  // Values that int4 and int2 both hold exactly, and keys without influence: no loss.
  const std::vector<float> zero(k.size(), 0.0f);
  for (size_t i = 0; i < v.size(); ++i) v[i] = i % 2 == 0 ? 15.0f : 0.0f;
  const AttentionCapture exact{q, zero, v, tags, kRows, kKvEntries, 4, 2, kHead, kKvEntries - kRows, 32};
  const TagLosses none = measure_tag_losses(exact);
  CHECK(none[47].two_bits == 0);
  CHECK(none[47].four_bits == 0);
}

TEST_CASE("calibration: mean over the requests that have the tag, sum over layers, median of instructions") {
  std::vector<std::vector<TagLosses>> losses(2, std::vector<TagLosses>(3));
  const uint32_t inst = 42, obs = 47;
  for (size_t layer = 0; layer < 2; ++layer) {
    for (size_t request = 0; request < 3; ++request) {
      losses[layer][request][inst].count = 100 + 10 * static_cast<uint32_t>(request);
      if (request == 0) continue;
      losses[layer][request][obs] = {7, 2.0 * static_cast<double>(request), 1.0};
    }
  }
  const TagTable table = combine_tag_losses(losses);
  CHECK(table.tags[inst].count == 110);
  CHECK(table.tags[obs].count == 14);
  CHECK(table.tags[obs].two_bits == doctest::Approx(2 * (2.0 + 4.0) / 2));
  CHECK(table.tags[obs].four_bits == doctest::Approx(2.0));
}
