// The packed decode kernel compared with double precision over the decoded numbers: every layout, format and
// mix of formats, around every edge of pages, groups, records, blocks, warps and CTAs.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "kernels/attention/decode_plan.cuh"
#include "kernels/bench/packed_problem.cuh"
#include "tests/support/gpu_main.h"

namespace kvtwin::test {
namespace {

// The result is rounded to bf16 (2^-9), queries times scales and weights times scales to fp16 (2^-12).
constexpr double kTolerance = 6e-3;

void run(PackedProblem* p) {
  KVT_CUDA(plan_packed_decode(p->shape, p->args, nullptr));
  KVT_CUDA(packed_decode(p->shape, p->args, nullptr));
  KVT_CUDA(cudaDeviceSynchronize());
}

double worst_seen = 0;
void check(PackedProblem* p) {
  run(p);
  const double error = p->error();
  worst_seen = std::max(worst_seen, error);
  CHECK(error < kTolerance);
}

PackedDecodeShape rows(uint32_t dim, uint32_t group, uint32_t scale_group, uint32_t page2, uint32_t page4,
                       uint32_t page8) {
  return {PackedLayout::kRows, dim, group, scale_group, {page2, page4, page8}, 1, 0, 132};
}

// Each format alone around its edges, then mixes.
std::vector<PartTokens> edges(const std::vector<uint32_t>& lengths) {
  std::vector<PartTokens> out;
  for (uint32_t part = 0; part < kPackedParts; ++part) {
    for (const uint32_t n : lengths) {
      out.push_back({});
      out.back()[part] = n;
    }
  }
  for (const PartTokens mix : {PartTokens{128, 1, 0},
                               {256, 130, 15},
                               {0, 64, 33},
                               {384, 0, 7},
                               {1, 1, 1},
                               {0, 0, 0},
                               {1024, 512, 100},
                               {128, 127, 0}}) {
    out.push_back(mix);
  }
  return out;
}

TEST_CASE("Q-2 row layouts: every group of scales, head size, page and group of heads") {
  uint64_t seed = 1;
  for (const uint32_t scale_group : {32u, 64u, 128u}) {
    for (const uint32_t dim : {64u, 128u}) {
      for (const uint32_t page : {16u, 32u, 64u, 128u}) {
        const uint32_t group = std::array{4u, 1u, 8u, 3u, 5u}[seed % 5];
        CAPTURE(scale_group);
        CAPTURE(dim);
        CAPTURE(page);
        CAPTURE(group);
        PackedProblem p(rows(dim, group, scale_group, std::max(page, scale_group), page, page),
                        edges({1, 15, 16, 17, 31, 32, 33, 64, 65, 127, 129, 400}), ++seed);
        check(&p);
      }
    }
  }
}

// The parts that a layout has.
std::vector<PartTokens> of_layout(PackedLayout layout, std::vector<PartTokens> tokens) {
  for (PartTokens& each : tokens) {
    if (layout == PackedLayout::kFp4) each = {0, 0, each[0] + each[1] + each[2]};
    if (layout == PackedLayout::kKivi) each[1] = 0;
  }
  return tokens;
}
PackedDecodeShape narrow(PackedLayout layout, uint32_t dim, uint32_t group, uint32_t scale_group,
                         uint32_t page) {
  return {layout, dim, group, scale_group, {std::max(page, scale_group), 128, page}, 1, 0, 132};
}

TEST_CASE("Q-2 fp4 and KIVI: every head size, page, group of scales and group of heads") {
  uint64_t seed = 50;
  for (const PackedLayout layout : {PackedLayout::kFp4, PackedLayout::kKivi}) {
    for (const uint32_t scale_group : {32u, 64u, 128u}) {
      for (const uint32_t dim : {64u, 128u}) {
        for (const uint32_t page : {16u, 32u, 64u, 128u}) {
          const uint32_t group = std::array{4u, 1u, 8u, 3u, 5u}[seed % 5];
          CAPTURE(static_cast<int>(layout));
          CAPTURE(scale_group);
          CAPTURE(dim);
          CAPTURE(page);
          CAPTURE(group);
          PackedProblem p(narrow(layout, dim, group, scale_group, page),
                          of_layout(layout, edges({1, 15, 16, 17, 31, 33, 64, 65, 127, 129, 400})), ++seed);
          check(&p);
        }
      }
    }
  }
}

TEST_CASE(
    "fp4 and KIVI: ragged mixes, pages of several heads, dropped KV entries, any number of CTAs, any size") {
  std::mt19937 random(70);
  for (int round = 0; round < 16; ++round) {
    const PackedLayout layout = round % 2 == 0 ? PackedLayout::kFp4 : PackedLayout::kKivi;
    PackedDecodeShape shape = narrow(layout, 128, 4, 32, round % 4 < 2 ? 32 : 16);
    shape.heads_per_page = round % 3 == 0 ? 8 : 1, shape.ctas = 1 + random() % 140;
    std::vector<PartTokens> tokens;
    for (uint32_t i = 0; i < 1 + random() % 12; ++i) {
      PartTokens each{};
      for (uint32_t& n : each) n = random() % 3 == 0 ? 0 : random() % (random() % 4 == 0 ? 2000 : 200);
      tokens.insert(tokens.end(), shape.heads_per_page, each);
    }
    const float size = std::array{1.f, 1e-3f, 30.f, 1e-6f, 200.f, 0.02f, 1.f, 5.f}[round / 2];
    CAPTURE(round);
    PackedProblem p(shape, of_layout(layout, tokens), static_cast<uint64_t>(round), size, round > 11 ? 3 : 0);
    check(&p);
    const auto first = p.out.read();
    KVT_CUDA(packed_decode(p.shape, p.args, nullptr));
    const auto second = p.out.read();
    CHECK(std::memcmp(first.data(), second.data(), first.size() * 2) == 0);
  }
}

TEST_CASE(
    "packed decode: any number of CTAs gives the same bits, and a second launch finds its counters clean") {
  const std::vector<PartTokens> tokens = {{1280, 700, 3}, {3, 0, 0},   {0, 0, 0},
                                          {0, 0, 0},      {0, 777, 0}, {2560, 40, 0}};
  for (const uint32_t ctas : {1u, 2u, 3u, 7u, 31u, 132u, 264u}) {
    CAPTURE(ctas);
    PackedDecodeShape shape = rows(128, 4, 32, 32, 32, 32);
    shape.ctas = ctas;
    PackedProblem p(shape, tokens, ctas);
    check(&p);
    const auto first = p.out.read();
    // Parts of the previous launch must not be used for parts that have not arrived yet.
    const size_t counters = device::parts_offset(p.shape.sequences);
    for (int again = 0; again < 2; ++again) {
      KVT_CUDA(cudaMemset(p.workspace.get() + counters, 0xff, p.workspace.bytes() - counters));
      KVT_CUDA(cudaMemset(p.out.get(), 0xff, p.out.bytes()));
      KVT_CUDA(packed_decode(p.shape, p.args, nullptr));
      const auto second = p.out.read();
      CHECK(std::memcmp(first.data(), second.data(), first.size() * 2) == 0);
    }
  }
}

TEST_CASE("packed decode: pages of several heads, each in its column") {
  for (const uint32_t heads : {2u, 8u}) {
    std::vector<PartTokens> tokens;
    for (const PartTokens& each : {PartTokens{128, 70, 5}, {0, 1, 0}, {256, 256, 17}}) {
      tokens.insert(tokens.end(), heads, each);
    }
    PackedDecodeShape shape = rows(128, 4, 32, 64, 32, 16);
    shape.heads_per_page = heads;
    PackedProblem p(shape, tokens, heads);
    check(&p);
  }
}

TEST_CASE("packed decode: one KV entry; no KV entries; more sequences than threads of the plan") {
  for (const std::vector<PartTokens>& tokens :
       {std::vector<PartTokens>{{0, 1, 0}}, std::vector<PartTokens>{{0, 0, 0}},
        std::vector<PartTokens>(1500, {0, 5, 1}), std::vector<PartTokens>(2500, {0, 0, 0}),
        std::vector<PartTokens>{{0, 0, 1}, {0, 0, 0}, {1, 0, 0}}}) {
    PackedProblem p(rows(64, 2, 32, 32, 16, 16), tokens, tokens.size());
    check(&p);
  }
}

TEST_CASE("packed decode: one sequence over all CTAs, and random ragged mixes") {
  PackedProblem long_rows(rows(128, 4, 32, 32, 32, 32), {{12800, 6000, 100}}, 6);
  check(&long_rows);
  std::mt19937 random(7);
  for (int round = 0; round < 12; ++round) {
    std::vector<PartTokens> tokens(1 + random() % 20);
    for (PartTokens& each : tokens) {
      for (uint32_t& n : each) n = random() % 3 == 0 ? 0 : random() % (random() % 4 == 0 ? 2000 : 200);
    }
    PackedDecodeShape shape = rows(128, 4, 32, 32, 32, 32);
    shape.ctas = 1 + random() % 140;
    PackedProblem p(shape, tokens, static_cast<uint64_t>(round));
    check(&p);
  }
}

TEST_CASE(
    "packed decode: dropped KV entries are not read, in any format; with all dropped the result is zero") {
  for (const uint32_t dropped_tokens : {1u, 4u, 7u, 8u}) {
    CAPTURE(dropped_tokens);
    for (PackedDecodeShape shape : {rows(128, 4, 32, 32, 16, 16), rows(64, 8, 32, 32, 32, 32),
                                    rows(128, 3, 128, 128, 128, 128), rows(64, 4, 64, 128, 64, 128)}) {
      shape.heads_per_page = dropped_tokens == 4 ? 2 : 1;
      std::vector<PartTokens> tokens;
      for (const PartTokens& each : edges({1, 40, 64, 129, 700}))
        tokens.insert(tokens.end(), shape.heads_per_page, each);
      PackedProblem p(shape, tokens, dropped_tokens, 1, dropped_tokens);
      check(&p);
    }
  }
}

TEST_CASE("packed decode: values of any size, although weights times scales are computed in fp16") {
  for (const float size : {1e-3f, 1.f, 30.f, 200.f}) {
    CAPTURE(size);
    PackedProblem p(rows(128, 4, 32, 32, 32, 32), edges({1, 64, 200, 1000}), 3, size);
    check(&p);
  }
}

TEST_CASE("packed decode: impossible shapes are refused") {
  PackedProblem p(rows(128, 4, 32, 32, 32, 32), {{0, 5, 0}}, 1);
  const auto refused = [&](auto change) {
    PackedDecodeShape shape = p.shape;
    change(&shape);
    CHECK(plan_packed_decode(shape, p.args, nullptr) == cudaErrorInvalidValue);
    CHECK(packed_decode(shape, p.args, nullptr) == cudaErrorInvalidValue);
  };
  refused([](PackedDecodeShape* s) { s->head_dim = 96; });
  refused([](PackedDecodeShape* s) { s->group = 0; });
  refused([](PackedDecodeShape* s) { s->group = 9; });
  refused([](PackedDecodeShape* s) { s->scale_group = 16; });
  refused([](PackedDecodeShape* s) { s->page_tokens[kPartInt2] = 16; });
  refused([](PackedDecodeShape* s) { s->page_tokens[kPartInt4] = 48; });
  refused([](PackedDecodeShape* s) { s->page_tokens[kPartHighPrecision] = 0; });
  refused([](PackedDecodeShape* s) { s->ctas = 0; });
}

}  // namespace
}  // namespace kvtwin::test

int main(int argc, char** argv) {
  const int result = kvtwin::testing::run_on_gpu(argc, argv, kvtwin::test::gpus());
  if (result != 77) std::printf("largest error %.2e of a row's largest value\n", kvtwin::test::worst_seen);
  return result;
}
