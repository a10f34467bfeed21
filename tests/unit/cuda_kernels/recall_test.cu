// Page copies between the host and the GPU compared with kernels/cache_ops/host_page.h, whose rows have the
// GPU's bytes: every requested byte, and no other.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstring>
#include <numeric>

#include "kernels/bench/decode_problem.cuh"
#include "kernels/cache_ops/copied_recall.h"
#include "kernels/common/kv_block.cuh"
#include "kernels/common/small_floats.h"
#include "tests/support/gpu_main.h"

namespace kvtwin::test {
namespace {

using Bits = std::vector<uint16_t>;
using kernels::HostPageLayout;

constexpr uint16_t kPoison = 0x7fc1;  // a NaN

class PinnedBits {
 public:
  explicit PinnedBits(const Bits& values) : count_(values.size()) {
    KVT_CUDA(cudaMallocHost(&data_, count_ * 2));
    std::memcpy(data_, values.data(), count_ * 2);
  }
  PinnedBits(const PinnedBits&) = delete;
  ~PinnedBits() { cudaFreeHost(data_); }
  __nv_bfloat16* get() const { return reinterpret_cast<__nv_bfloat16*>(data_); }

 private:
  uint16_t* data_ = nullptr;
  size_t count_ = 0;
};

// Pages of plain fp32 numbers, and both sides of the copy as bytes.
struct RecallProblem {
  HostPool host;
  uint32_t pages;
  std::vector<float> keys, values;  // [pages][kv_heads][page_tokens][head_dim]
  Bits gpu;                         // [pages][kv_heads][keys, values][page_tokens][head_dim], swizzled
  Bits out;                         // host pages by the definition, with a gap after each

  RecallProblem(HostPool shape, uint32_t count, uint64_t seed) : host(shape), pages(count) {
    host.page_stride = host.page_numbers() + 64;
    std::mt19937_64 random(seed);
    for (std::vector<float>* side : {&keys, &values}) {
      side->resize(host.page_numbers() / 2 * pages);
      for (float& x : *side) x = kernels::from_bf16(static_cast<uint16_t>(random() % 0x7f00));
    }
    gpu.resize(host.page_numbers() * pages);
    out.assign(host.page_stride * pages, kPoison);
    const kernels::KvPages kv{keys.data(),      values.data(), host.page_numbers() / 2,
                              host.page_tokens, host.kv_heads, host.head_dim};
    std::vector<float> numbers(host.page_numbers());
    for (uint32_t p = 0; p < pages; ++p) {
      const kernels::HostPage page{numbers.data(), host.layout, host.page_tokens, host.kv_heads,
                                   host.head_dim};
      kernels::offload_page_ref(kv, p, page);
      for (uint32_t row = 0; row < host.kv_heads * 2 * host.page_tokens; ++row) place_row(p, row, kv, page);
    }
  }
  size_t block_numbers() const { return host.head_numbers(); }

 private:
  // Places one row of a GPU page, ordered by head, then keys and values, then token; swizzled, on both sides.
  void place_row(uint32_t p, uint32_t row, const kernels::KvPages& kv, const kernels::HostPage& page) {
    const uint32_t t = row % host.page_tokens, part = row / host.page_tokens % 2,
                   h = row / host.page_tokens / 2;
    const KvBlockShape block{host.page_tokens, host.head_dim};
    const float* const on_gpu = (part == 0 ? kv.keys : kv.values) + kv.at(p, h, t);
    const float* const on_host = page.at(h, part, t);
    for (uint32_t c = 0; c < host.head_dim; ++c) {
      const uint32_t to = block.at(t, c) - t * host.head_dim;
      gpu[p * host.page_numbers() + size_t{row} * host.head_dim + to] = kernels::to_bf16(on_gpu[c]);
      out[p * host.page_stride + static_cast<size_t>(on_host - page.data) + to] =
          kernels::to_bf16(on_host[c]);
    }
  }
};

std::vector<HostPool> shapes() {
  std::vector<HostPool> out;
  for (const HostPageLayout layout : {HostPageLayout::kHnd, HostPageLayout::kNhd}) {
    for (const uint32_t page : {1u, 2u, 16u, 31u, 32u, 33u, 128u}) {
      for (const uint32_t heads : {1u, 8u}) {
        for (const uint32_t dim : {24u, 64u, 128u}) out.push_back({nullptr, 0, layout, page, heads, dim});
      }
    }
  }
  return out;
}

// `count` moves between random pages and heads, into random blocks, none twice.
std::vector<RecallMove> random_moves(const RecallProblem& p, uint32_t count, std::mt19937_64* random) {
  std::vector<uint32_t> blocks(size_t{p.pages} * p.host.kv_heads);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), *random);
  std::vector<RecallMove> out;
  for (uint32_t i = 0; i < std::min<size_t>(count, blocks.size()); ++i)
    out.push_back({static_cast<uint32_t>((*random)() % p.pages),
                   static_cast<uint32_t>((*random)() % p.host.kv_heads), blocks[i]});
  return out;
}

// `skipped`: numbers at the beginning of a block that stay as they are.
Bits expected(const RecallProblem& p, const std::vector<RecallMove>& moves, size_t skipped = 0) {
  Bits out(p.gpu.size(), kPoison);
  for (const RecallMove& move : moves) {
    const size_t from = (size_t{move.page} * p.host.kv_heads + move.head) * p.block_numbers() + skipped;
    std::copy_n(p.gpu.begin() + static_cast<ptrdiff_t>(from), p.block_numbers() - skipped,
                out.begin() + static_cast<ptrdiff_t>(move.block * p.block_numbers() + skipped));
  }
  return out;
}

__nv_bfloat16* device(const DeviceArray<uint16_t>& a) { return reinterpret_cast<__nv_bfloat16*>(a.get()); }

TEST_CASE("F-4 recall_pages and copy_recalled: every requested byte, and no other") {
  std::mt19937_64 random(5);
  for (const HostPool& shape : shapes()) {
    CAPTURE(shape.page_tokens);
    CAPTURE(shape.kv_heads);
    CAPTURE(shape.head_dim);
    CAPTURE(static_cast<int>(shape.layout));
    RecallProblem p(shape, 24, random());
    const PinnedBits pinned(p.out);
    p.host.pages = pinned.get();
    for (const uint32_t count : {0u, 1u, 5u, 150u}) {
      const std::vector<RecallMove> moves = random_moves(p, count, &random);
      const DeviceArray<RecallMove> list(moves);
      const DeviceArray<uint32_t> many(std::vector<uint32_t>{static_cast<uint32_t>(moves.size())});
      const Bits want = expected(p, moves);
      for (const uint32_t ctas : {1u, 3u, 4u}) {
        const DeviceArray<uint16_t> pool(Bits(p.gpu.size(), kPoison));
        KVT_CUDA(recall_pages({p.host, device(pool), list.get(), many.get(), ctas}, nullptr));
        CHECK(pool.read() == want);
        const DeviceArray<uint16_t> values(Bits(p.gpu.size(), kPoison));
        RecallArgs args{p.host, device(values), list.get(), many.get(), ctas};
        args.values_only = true;
        KVT_CUDA(recall_pages(args, nullptr));
        CHECK(values.read() == expected(p, moves, p.block_numbers() / 2));
        const DeviceArray<uint16_t> spread(Bits(p.gpu.size(), kPoison));
        KVT_CUDA(recall_pages({p.host, device(spread), list.get(), many.get(), 17 * ctas, true}, nullptr));
        CHECK(spread.read() == want);
        const DeviceArray<uint16_t> burst(Bits(p.gpu.size(), kPoison));
        KVT_CUDA(
            recall_pages({p.host, device(burst), list.get(), many.get(), 17 * ctas, true, 3000}, nullptr));
        CHECK(burst.read() == want);
      }
      for (const HostCopy copy : {HostCopy::kStrided, HostCopy::kEachPiece}) {
        const DeviceArray<uint16_t> pool(Bits(p.gpu.size(), kPoison));
        cudaStream_t stream;  // batched copies need a stream other than the default
        KVT_CUDA(cudaStreamCreate(&stream));
        KVT_CUDA(copy_recalled(p.host, copy, device(pool), moves, stream));
        KVT_CUDA(cudaStreamSynchronize(stream));
        KVT_CUDA(cudaStreamDestroy(stream));
        CHECK(pool.read() == want);
      }
    }
  }
}

// Blocks of heads as pages in NHD.
Bits as_nhd(const RecallProblem& p, const Bits& blocks) {
  const HostPool& host = p.host;
  const uint32_t rows = 2 * host.page_tokens, heads = host.kv_heads;
  Bits out(blocks.size());
  for (size_t row = 0; row < blocks.size() / host.head_dim; ++row) {
    const size_t page = row / rows / heads, head = row / rows % heads, to = page * rows + row % rows;
    std::copy_n(blocks.begin() + static_cast<ptrdiff_t>(row * host.head_dim), host.head_dim,
                out.begin() + static_cast<ptrdiff_t>((to * heads + head) * host.head_dim));
  }
  return out;
}

// Streams, events and staging buffers, which hold other bytes before each recall.
struct Streams {
  StreamedRecall recall;
  DeviceArray<uint16_t> staging;

  Streams(const HostPool& host, uint32_t staged_max, uint32_t buffers)
      : staging(Bits(2 * staged_max * host.head_numbers(), 0x1234)) {
    recall.host = host, recall.staged_max = staged_max, recall.buffers = buffers;
    for (uint32_t i = 0; i < 2; ++i) {
      recall.staging[i] = device(staging) + i * staged_max * host.head_numbers();
      KVT_CUDA(cudaStreamCreateWithFlags(&recall.streams[i], cudaStreamNonBlocking));
    }
    KVT_CUDA(cudaEventCreate(&recall.begun));
    KVT_CUDA(cudaEventCreate(&recall.ended));
  }
  Streams(const Streams&) = delete;
  ~Streams() {
    for (const cudaStream_t stream : recall.streams) cudaStreamDestroy(stream);
    cudaEventDestroy(recall.begun), cudaEventDestroy(recall.ended);
  }
};

TEST_CASE(
    "F-4 stream_recalled: one or two buffers, and either layout on the GPU, give every byte and no other") {
  std::mt19937_64 random(9);
  for (const HostPool& shape : shapes()) {
    if (shape.layout != HostPageLayout::kHnd) continue;
    CAPTURE(shape.page_tokens);
    CAPTURE(shape.kv_heads);
    CAPTURE(shape.head_dim);
    RecallProblem p(shape, 24, random());
    const PinnedBits pinned(p.out);
    p.host.pages = pinned.get();
    for (uint32_t row = 0; row < 12; ++row) {
      const std::vector<RecallMove> moves = random_moves(p, row == 0 ? 0 : 150, &random);
      std::vector<uint32_t> heads;
      for (auto left = static_cast<uint32_t>(moves.size()); left > 0; left -= heads.back())
        heads.push_back(1 + static_cast<uint32_t>(random() % std::min(left, 40u)));
      RecallMove* list = nullptr;
      KVT_CUDA(cudaMallocHost(&list, (moves.size() + 1) * sizeof *list));
      std::copy(moves.begin(), moves.end(), list);
      constexpr uint32_t kStaged[] = {1, 7, 64};
      Streams streams(p.host, kStaged[row % 3], 1 + row / 3 % 2);
      const DeviceArray<uint16_t> pool(Bits(p.gpu.size(), kPoison));
      streams.recall.pool = device(pool);
      streams.recall.pool_layout = row < 6 ? HostPageLayout::kHnd : HostPageLayout::kNhd;
      // Its streams do not wait for the default one, on which arrays are filled.
      KVT_CUDA(cudaDeviceSynchronize());
      KVT_CUDA(stream_recalled(streams.recall, list, heads));
      KVT_CUDA(cudaStreamSynchronize(streams.recall.streams[0]));
      const Bits want = expected(p, moves);
      CHECK(pool.read() == (row < 6 ? want : as_nhd(p, want)));
      KVT_CUDA(cudaFreeHost(list));
    }
  }
}

TEST_CASE("F-4 staged and copied pages come back unchanged") {
  std::mt19937_64 random(6);
  for (const HostPool& shape : shapes()) {
    CAPTURE(shape.page_tokens);
    CAPTURE(shape.kv_heads);
    CAPTURE(shape.head_dim);
    CAPTURE(static_cast<int>(shape.layout));
    RecallProblem p(shape, 7, random());
    const std::vector<uint32_t> pages = {3, 0, 6, 5};
    const DeviceArray<uint16_t> pool(p.gpu);
    const DeviceArray<uint16_t> staging(Bits((pages.size() + 1) * p.host.page_numbers(), kPoison));
    const DeviceArray<uint32_t> list(pages);
    KVT_CUDA(stage_pages({device(pool), list.get(), device(staging), p.host, 4}, nullptr));
    const Bits got = staging.read();
    Bits want(got.size(), kPoison);
    for (size_t i = 0; i < pages.size(); ++i)
      std::copy_n(p.out.begin() + static_cast<ptrdiff_t>(pages[i] * p.host.page_stride),
                  p.host.page_numbers(), want.begin() + static_cast<ptrdiff_t>(i * p.host.page_numbers()));
    CHECK(got == want);
  }
}

TEST_CASE("recall refuses unsupported shapes") {
  HostPool host;
  host.head_dim = 12;
  CHECK(recall_pages({host, nullptr, nullptr, nullptr, 4}, nullptr) == cudaErrorInvalidValue);
  host.head_dim = 128;
  CHECK(recall_pages({host, nullptr, nullptr, nullptr, 0}, nullptr) == cudaErrorInvalidValue);
  CHECK(copy_recalled(host, HostCopy::kKernel, nullptr, {}, nullptr) == cudaErrorInvalidValue);
  StreamedRecall streamed{.host = host, .staged_max = 1};
  CHECK(stream_recalled(streamed, nullptr, {}) == cudaSuccess);
  streamed.host.layout = HostPageLayout::kNhd;
  CHECK(stream_recalled(streamed, nullptr, {}) == cudaErrorInvalidValue);
}

}  // namespace
}  // namespace kvtwin::test

int main(int argc, char** argv) { return kvtwin::testing::run_on_gpu(argc, argv, kvtwin::test::gpus()); }
