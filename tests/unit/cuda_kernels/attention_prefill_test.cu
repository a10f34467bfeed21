// The prefill kernel compared with double precision, around every edge of pages, tiles, chunks and histories.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstring>

#include "kernels/bench/prefill_problem.cuh"
#include "tests/support/gpu_main.h"

namespace kvtwin::test {
namespace {

// As in attention_decode_test.cu: results and weights are rounded to 2^-9.
constexpr double kTolerance = 8e-3;

PrefillShape shape_of(uint32_t dim, uint32_t group, uint32_t kv_heads, uint32_t page, uint32_t per_page) {
  PrefillShape shape;
  shape.head_dim = dim, shape.group = group, shape.kv_heads = kv_heads;
  shape.page_tokens = page, shape.heads_per_page = per_page;
  return shape;
}

void run(PrefillProblem* p) {
  KVT_CUDA(plan_attention_prefill(p->shape, p->args, nullptr));
  KVT_CUDA(attention_prefill(p->shape, p->args, nullptr));
  KVT_CUDA(cudaDeviceSynchronize());
}

const std::vector<PrefillRequest> kEdges = {{1, 0},    {2, 15},   {16, 16},   {31, 17}, {32, 127},
                                            {33, 128}, {127, 1},  {128, 129}, {129, 0}, {0, 50},
                                            {5, 1000}, {200, 77}, {300, 300}, {1, 511}, {64, 64}};

TEST_CASE(
    "G-3 prefill equals softmax in double precision: page and head sizes, groups, chunk outside or in "
    "pages") {
  for (const uint32_t page : {16u, 48u, 128u}) {
    for (const uint32_t dim : {64u, 128u}) {
      for (const uint32_t group : {1u, 3u, 4u, 8u}) {
        for (const bool in_pages : {false, true}) {
          CAPTURE(page);
          CAPTURE(dim);
          CAPTURE(group);
          CAPTURE(in_pages);
          PrefillProblem p(shape_of(dim, group, 2, page, group % 2 ? 1 : 2), kEdges, in_pages,
                           page * 1000 + dim + group);
          run(&p);
          CHECK(p.error(7) < kTolerance);
        }
      }
    }
  }
}

TEST_CASE("prefill: heads that retained different histories, and every token of them") {
  PrefillProblem p(shape_of(128, 4, 8, 16, 1), {{150, 700}, {3, 90}, {129, 5}}, false, 11);
  run(&p);
  CHECK(p.error() < kTolerance);
}

TEST_CASE("prefill: any number of CTAs gives the same bits, in repeated launches") {
  std::vector<__nv_bfloat16> first;
  for (const uint32_t ctas : {132u, 1u, 2u, 7u, 131u, 264u}) {
    CAPTURE(ctas);
    PrefillProblem p(shape_of(128, 4, 2, 32, 2), {{700, 900}, {1, 3}, {333, 0}}, false, 3);
    p.shape.ctas = ctas;
    for (int again = 0; again < 3; ++again) {
      p.poison();
      if (again == 0) KVT_CUDA(plan_attention_prefill(p.shape, p.args, nullptr));
      KVT_CUDA(attention_prefill(p.shape, p.args, nullptr));
      const auto got = p.out.read();
      if (first.empty()) {
        CHECK(p.error(5) < kTolerance);
        first = got;
      }
      CHECK(std::memcmp(first.data(), got.data(), first.size() * 2) == 0);
    }
  }
}

TEST_CASE("prefill: one token; no requests; chunks without rows; many short requests") {
  for (const std::vector<PrefillRequest>& requests :
       {std::vector<PrefillRequest>{{1, 0}}, std::vector<PrefillRequest>{},
        std::vector<PrefillRequest>(5, {0, 9}), std::vector<PrefillRequest>(700, {3, 20})}) {
    PrefillProblem p(shape_of(128, 4, 2, 16, 1), requests, false, requests.size());
    run(&p);
    CHECK(p.error() < kTolerance);
  }
}

TEST_CASE("prefill: long ones, several sections of the plan, and random ragged batches") {
  PrefillProblem long_one(shape_of(128, 4, 2, 16, 2), {{9000, 3000}, {100, 30000}}, false, 5);
  run(&long_one);
  CHECK(long_one.error(1501) < kTolerance);
  PrefillProblem paged(shape_of(128, 8, 1, 16, 1), {{300, 90000}, {100, 70000}, {2000, 0}}, true, 6);
  run(&paged);
  CHECK(paged.error(97) < kTolerance);
  std::mt19937 random(7);
  for (int round = 0; round < 10; ++round) {
    std::vector<PrefillRequest> requests(1 + random() % 12);
    for (PrefillRequest& c : requests) {
      c = {static_cast<uint32_t>(random() % 400),
           static_cast<uint32_t>(random() % (random() % 3 ? 300 : 3000))};
    }
    PrefillProblem p(
        shape_of(random() % 2 ? 64 : 128, 1 + random() % 8, 1 + random() % 4, 16u << random() % 5, 1),
        requests, random() % 2, static_cast<uint64_t>(round));
    run(&p);
    CHECK(p.error(11) < kTolerance);
  }
}

TEST_CASE("prefill: impossible shapes are refused") {
  PrefillProblem p(shape_of(128, 4, 2, 16, 1), {{5, 5}}, false, 1);
  const auto refused = [&](auto change) {
    PrefillShape shape = p.shape;
    change(&shape);
    return attention_prefill(shape, p.args, nullptr) == cudaErrorInvalidValue;
  };
  CHECK(refused([](PrefillShape* s) { s->head_dim = 96; }));
  CHECK(refused([](PrefillShape* s) { s->group = 0; }));
  CHECK(refused([](PrefillShape* s) { s->group = 9; }));
  CHECK(refused([](PrefillShape* s) { s->page_tokens = 1; }));
  CHECK(refused([](PrefillShape* s) { s->page_tokens = 0; }));
  CHECK(refused([](PrefillShape* s) { s->q_stride = 100; }));
  CHECK(refused([](PrefillShape* s) { s->kv_stride += 1; }));
  p.args.scale = 0;
  CHECK(attention_prefill(p.shape, p.args, nullptr) == cudaErrorInvalidValue);
}

}  // namespace
}  // namespace kvtwin::test

int main(int argc, char** argv) { return kvtwin::testing::run_on_gpu(argc, argv, kvtwin::test::gpus()); }
