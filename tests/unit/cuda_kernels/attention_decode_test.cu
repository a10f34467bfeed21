// The decode kernel compared with double precision, around every edge of pages, blocks, warps and CTAs.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstring>

#include "kernels/attention/decode_plan.cuh"
#include "kernels/attention/decode_splits.h"
#include "kernels/bench/decode_problem.cuh"
#include "tests/support/gpu_main.h"

namespace kvtwin::test {
namespace {

// bf16 has 8 bits: results are rounded to 2^-9, and so are the weights before they multiply V.
constexpr double kTolerance = 8e-3;

void run(DecodeProblem* p) {
  KVT_CUDA(plan_attention_decode(p->shape, p->args, nullptr));
  KVT_CUDA(attention_decode(p->shape, p->args, nullptr));
  KVT_CUDA(cudaDeviceSynchronize());
}

std::vector<uint32_t> repeated(const std::vector<uint32_t>& tokens, uint32_t times) {
  std::vector<uint32_t> out;
  for (const uint32_t t : tokens) out.insert(out.end(), times, t);
  return out;
}

TEST_CASE("G-3 decode equals softmax in double precision: every page size, head size and group") {
  const std::vector<uint32_t> edges = {1, 15, 16, 17, 0, 31, 33, 64, 127, 129, 1000, 4097};
  for (const uint32_t page : {1u, 16u, 32u, 64u, 128u}) {
    for (const uint32_t dim : {64u, 128u}) {
      for (const uint32_t group : {1u, 3u, 4u, 5u, 8u}) {
        CAPTURE(page);
        CAPTURE(dim);
        CAPTURE(group);
        DecodeProblem p({dim, group, page, 1, 0, 132}, edges, page * 1000 + dim + group);
        run(&p);
        CHECK(p.error() < kTolerance);
      }
    }
  }
}

TEST_CASE("decode: any number of CTAs gives the same bits, and a second launch finds its counters clean") {
  const std::vector<uint32_t> tokens = {2000, 3, 0, 0, 777, 16, 48, 5000, 1};
  for (const uint32_t ctas : {1u, 2u, 3u, 7u, 31u, 132u, 264u}) {
    CAPTURE(ctas);
    DecodeProblem p({128, 4, 16, 1, 0, ctas}, tokens, ctas);
    run(&p);
    CHECK(p.error() < kTolerance);
    const auto first = p.out.read();
    // Parts of the previous launch must not be used for parts that have not arrived yet.
    const size_t counters = device::parts_offset(p.shape.sequences);
    for (int again = 0; again < 3; ++again) {
      KVT_CUDA(cudaMemset(p.workspace.get() + counters, 0xff, p.workspace.bytes() - counters));
      KVT_CUDA(cudaMemset(p.out.get(), 0xff, p.out.bytes()));
      KVT_CUDA(attention_decode(p.shape, p.args, nullptr));
      const auto second = p.out.read();
      CHECK(std::memcmp(first.data(), second.data(), first.size() * 2) == 0);
    }
  }
}

TEST_CASE("decode: padding changes no bit of other rows, and its own output is zero") {
  for (const uint32_t padding : {1u, 8u, 31u, 56u, 40'000u}) {
    CAPTURE(padding);
    std::vector<uint32_t> tokens = {2000, 3, 0, 777, 16, 0, 0, 5000, 1};
    const size_t real = tokens.size();
    tokens.resize(real + padding);
    DecodeProblem p({128, 4, 16, 1, 0, 132}, tokens, padding);
    run(&p);
    CHECK(p.error() < kTolerance);
    const auto padded = p.out.read();
    p.shape.sequences = static_cast<uint32_t>(real);
    KVT_CUDA(cudaMemset(p.out.get(), 0xff, p.out.bytes()));
    KVT_CUDA(cudaMemset(p.workspace.get(), 0, p.workspace.bytes()));
    run(&p);
    const size_t numbers = real * p.shape.group * p.shape.head_dim;
    CHECK(std::memcmp(padded.data(), p.out.read().data(), numbers * 2) == 0);
    for (size_t i = numbers; i < padded.size(); ++i) REQUIRE(static_cast<float>(padded[i]) == 0);
  }
}

TEST_CASE("decode: no sequence has tokens") {
  DecodeProblem p({128, 4, 16, 1, 0, 132}, std::vector<uint32_t>(70, 0), 1);
  run(&p);
  for (const __nv_bfloat16 value : p.out.read()) REQUIRE(static_cast<float>(value) == 0);
}

TEST_CASE("decode: pages of several heads, each in its column") {
  for (const uint32_t heads : {2u, 4u, 8u}) {
    DecodeProblem p({128, 4, 16, heads, 0, 132}, repeated({100, 1, 640, 17}, heads), heads);
    run(&p);
    CHECK(p.error() < kTolerance);
  }
}

TEST_CASE(
    "G-3 decode over lists of entries equals softmax in double precision: gaps in pages, dropped KV "
    "entries") {
  const std::vector<uint32_t> edges = {1, 15, 16, 17, 0, 31, 33, 64, 127, 129, 1000, 4097};
  for (const uint32_t page : {1u, 16u, 32u, 128u}) {
    for (const uint32_t dim : {64u, 128u}) {
      for (const uint32_t group : {1u, 4u, 8u}) {
        CAPTURE(page);
        CAPTURE(dim);
        CAPTURE(group);
        DecodeProblem p({dim, group, page, 1, 0, 132, true}, edges, page * 1000 + dim + group);
        run(&p);
        CHECK(p.error() < kTolerance);
      }
    }
  }
  for (const uint32_t heads : {2u, 8u}) {
    DecodeProblem p({128, 4, 16, heads, 0, 7, true}, repeated({100, 1, 640, 17, 3000}, heads), heads);
    run(&p);
    CHECK(p.error() < kTolerance);
  }
}

TEST_CASE("decode: a list of the KV entries that pages hold gives the same bits") {
  const std::vector<uint32_t> tokens = {2000, 3, 0, 16, 777, 48, 1, 31, 33};
  for (const uint32_t page : {16u, 32u, 64u}) {
    for (const uint32_t dim : {64u, 128u}) {
      for (const uint32_t group : {1u, 4u, 8u}) {
        for (const uint32_t heads : {1u, 2u}) {
          CAPTURE(page);
          CAPTURE(dim);
          CAPTURE(group);
          CAPTURE(heads);
          DecodeProblem p({dim, group, page, heads, 0, heads == 1 ? 132u : 7u}, repeated(tokens, heads),
                          page + dim + group);
          run(&p);
          const std::vector<__nv_bfloat16> by_pages = p.out.read();
          std::vector<DecodeSequence> rows = p.table.read();
          const std::vector<uint32_t> pages = p.pages.read();
          std::vector<uint32_t> kv_entries;
          for (uint32_t i = 0; i < rows.size(); ++i) {
            const uint32_t of_pages = rows[i].table;
            rows[i].table = static_cast<uint32_t>(kv_entries.size());
            for (uint32_t t = 0; t < rows[i].tokens; ++t)
              kv_entries.push_back(pages[of_pages + t / page] * page + t % page);
          }
          const DeviceArray<uint32_t> lists(kv_entries);
          const DeviceArray<DecodeSequence> table(rows);
          p.args.pages = lists.get(), p.args.table = table.get();
          p.shape.listed = true;
          KVT_CUDA(cudaMemset(p.out.get(), 0xff, p.out.bytes()));
          run(&p);
          const std::vector<__nv_bfloat16> by_entries = p.out.read();
          CHECK(std::memcmp(by_pages.data(), by_entries.data(), by_pages.size() * 2) == 0);
          CHECK(p.error() < kTolerance);
        }
      }
    }
  }
}

TEST_CASE("decode: one token; no tokens; more sequences than blocks of threads") {
  for (const std::vector<uint32_t>& tokens :
       {std::vector<uint32_t>{1}, std::vector<uint32_t>{0}, std::vector<uint32_t>(3000, 5),
        std::vector<uint32_t>(2500, 0)}) {
    DecodeProblem p({128, 4, 16, 1, 0, 132}, tokens, tokens.size());
    run(&p);
    CHECK(p.error() < kTolerance);
  }
}

TEST_CASE("decode: one sequence over all CTAs, and random ragged ones") {
  DecodeProblem long_one({128, 4, 16, 1, 0, 132}, {40000}, 5);
  run(&long_one);
  CHECK(long_one.error() < kTolerance);
  std::mt19937 random(7);
  for (int round = 0; round < 12; ++round) {
    std::vector<uint32_t> tokens(1 + random() % 40);
    for (uint32_t& t : tokens) t = random() % (random() % 4 == 0 ? 6000 : 200);
    DecodeProblem p({128, 4, random() % 2 ? 16u : 64u, 1, 0, 1 + static_cast<uint32_t>(random() % 140)},
                    tokens, static_cast<uint64_t>(round));
    run(&p);
    CHECK(p.error() < kTolerance);
  }
}

TEST_CASE("decode: any division into splits, one CTA each") {
  std::mt19937 random(17);
  for (int round = 0; round < 24; ++round) {
    std::vector<uint32_t> tokens(1 + random() % 40);
    for (uint32_t& n : tokens) n = random() % 4 == 0 ? 0 : random() % (random() % 4 == 0 ? 6000 : 300);
    std::vector<DecodeSplit> pieces;
    for (uint32_t i = 0; i < tokens.size(); ++i) {
      uint32_t begin = 0;
      do {
        const uint32_t most = round % 3 == 0 ? 1 : 64;
        const uint32_t end = std::min(tokens[i], begin + 16 * static_cast<uint32_t>(1 + random() % most));
        pieces.push_back({i, begin, end});
        begin = end;
      } while (begin < tokens[i]);
    }
    const uint32_t dim = round % 2 == 0 ? 128 : 64, group = round % 5 == 0 ? 8 : 4;
    DecodeProblem p({dim, group, 16u << round % 3, 1, 0, static_cast<uint32_t>(pieces.size())}, tokens,
                    static_cast<uint64_t>(round));
    const DeviceArray<DecodeSplit> list(pieces);
    const DeviceArray<char> plan(std::vector<char>(decode_splits_bytes(p.shape), 0x5a));
    p.args.plan = plan.get();
    KVT_CUDA(plan_decode_splits(p.shape, p.args, list.get(), nullptr));
    for (int again = 0; again < 2; ++again) {
      KVT_CUDA(cudaMemset(p.out.get(), 0xff, p.out.bytes()));
      KVT_CUDA(attention_decode_splits(p.shape, p.args, nullptr));
      CAPTURE(round);
      CHECK(p.error() < kTolerance);
    }
  }
}

TEST_CASE("decode: impossible shapes are refused") {
  DecodeProblem p({128, 4, 16, 1, 0, 132}, {5}, 1);
  for (const auto& [dim, group, page] :
       {std::tuple{96u, 4u, 16u}, {128u, 0u, 16u}, {128u, 9u, 16u}, {128u, 4u, 8u}, {128u, 4u, 0u}}) {
    DecodeShape shape = p.shape;
    shape.head_dim = dim, shape.group = group, shape.page_tokens = page;
    CHECK(attention_decode(shape, p.args, nullptr) == cudaErrorInvalidValue);
  }
}

}  // namespace
}  // namespace kvtwin::test

int main(int argc, char** argv) { return kvtwin::testing::run_on_gpu(argc, argv, kvtwin::test::gpus()); }
