// Kernels of ShadowKV and InfiniGen compared with their definitions: rebuilt keys and projected rows within
// rounding; choices exactly, given the scores; recalled tokens byte by byte.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/bench/decode_problem.cuh"
#include "kernels/cache_ops/rebuild_keys.h"
#include "kernels/cache_ops/rope_append.h"
#include "kernels/common/kv_block.cuh"
#include "kernels/common/small_floats.h"
#include "kernels/dense/low_rank.h"
#include "kernels/dense/rms_norm.h"
#include "kernels/select/page_score.h"
#include "kernels/select/partial_choice.h"
#include "kernels/select/recall_tokens.h"
#include "kernels/select/select.h"
#include "tests/support/gpu_main.h"

namespace kvtwin::test {
namespace {

using Bits = std::vector<uint16_t>;
using kernels::PagePooling;

float number(std::mt19937_64* random) {
  return static_cast<float>(static_cast<int16_t>((*random)())) / 16384;
}
std::vector<float> numbers(size_t count, std::mt19937_64* random) {
  std::vector<float> out(count);
  for (float& x : out) x = number(random);
  return out;
}
// Rounds `values` to bf16.
Bits rounded(std::vector<float>* values) {
  Bits out;
  for (float& x : *values) out.push_back(kernels::to_bf16(x)), x = kernels::from_bf16(out.back());
  return out;
}
__nv_bfloat16* device(const DeviceArray<uint16_t>& a) { return reinterpret_cast<__nv_bfloat16*>(a.get()); }
std::vector<float> inverse_of(uint32_t dim) {
  std::vector<float> out;
  for (uint32_t i = 0; i < dim / 2; ++i)
    out.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(dim)));
  return out;
}
std::vector<uint32_t> shuffled(uint32_t count, std::mt19937_64* random) {
  std::vector<uint32_t> out(count);
  std::iota(out.begin(), out.end(), 0);
  std::shuffle(out.begin(), out.end(), *random);
  return out;
}

void check_rebuilt(uint32_t dim, uint32_t heads, uint32_t tokens, uint32_t rank, uint32_t chosen,
                   uint64_t seed) {
  CAPTURE(dim);
  CAPTURE(tokens);
  CAPTURE(rank);
  constexpr uint32_t kStates = 3, kRows = 2, kCandidates = 20, kPages = 64;
  std::mt19937_64 random(seed);
  const uint32_t width = heads * dim;
  std::vector<float> coordinates = numbers(size_t{kPages} * tokens * rank, &random);
  std::vector<float> directions = numbers(size_t{kStates} * rank * width, &random);
  const DeviceArray<uint16_t> coordinates_on(rounded(&coordinates)), directions_on(rounded(&directions));
  const std::vector<uint32_t> factors = shuffled(kPages, &random), slots = shuffled(kPages, &random);
  std::vector<uint32_t> lists = factors, held(kStates * heads * chosen);
  lists.insert(lists.end(), slots.begin(), slots.end());
  for (size_t i = 0; i < held.size(); i += chosen) {
    const std::vector<uint32_t> all = shuffled(kCandidates, &random);
    std::copy_n(all.begin(), chosen, held.begin() + static_cast<ptrdiff_t>(i));
  }
  const std::vector<RebuildRow> rows = {{2, 0, kPages, 3}, {0, kCandidates, kPages + chosen, 1}};
  const DeviceArray<RebuildRow> rows_on(rows);
  const DeviceArray<uint32_t> lists_on(lists), held_on(held);
  const std::vector<float> inverse = inverse_of(dim);
  const DeviceArray<float> inverse_on(inverse);
  const KvBlockShape block{tokens, dim};
  const DeviceArray<uint16_t> pool(Bits(size_t{kPages} * heads * block.numbers(), 0x7fc1));
  RebuildArgs args{rows_on.get(),        kRows, lists_on.get(), held_on.get(), device(coordinates_on),
                   device(directions_on)};
  args.inv_freq = inverse_on.get(), args.rope_scale = 1.25f, args.pool = device(pool), args.rank = rank;
  args.chosen = chosen, args.kv_heads = heads, args.page_tokens = tokens, args.head_dim = dim;
  KVT_CUDA(rebuild_keys(args, nullptr));
  const Bits got = pool.read();
  size_t written = 0;
  float worst = 0, largest = 0;
  std::vector<float> key(dim);
  for (const RebuildRow& row : rows) {
    for (uint32_t h = 0; h < heads; ++h) {
      for (uint32_t i = 0; i < chosen; ++i) {
        const uint32_t candidate = held[(row.state * heads + h) * chosen + i];
        const size_t at = (size_t{lists[row.slots + i]} * heads + h) * block.numbers();
        for (uint32_t t = 0; t < tokens; ++t) {
          const float* const own =
              coordinates.data() + (size_t{lists[row.factors + candidate]} * tokens + t) * rank;
          kernels::rebuild_ref(own, directions.data() + size_t{row.state} * rank * width, rank, width,
                               h * dim, dim, key.data());
          kernels::rope_ref({inverse, 1.25f}, (row.first_page + candidate) * tokens + t, 1, dim, key.data());
          for (uint32_t c = 0; c < dim; ++c) {
            const float found = kernels::from_bf16(got[at + block.at(t, c)]);
            const float off = std::fabs(found - key[c]);
            worst = off <= worst ? worst : off, largest = std::max(largest, std::fabs(key[c]));
            ++written;
          }
        }
      }
    }
  }
  CHECK(worst <= largest / 128);
  // Values, and all other pages, stay as they are.
  CHECK(static_cast<size_t>(std::count(got.begin(), got.end(), 0x7fc1)) == got.size() - written);
}

TEST_CASE("rebuild_keys: coordinates times directions, rotated, into the slots of the chosen pages") {
  uint64_t seed = 1;
  for (const uint32_t dim : {64u, 128u}) {
    for (const uint32_t heads : {1u, 8u}) {
      for (const uint32_t tokens : {16u, 32u}) {
        for (const uint32_t rank : {16u, 48u, 160u}) check_rebuilt(dim, heads, tokens, rank, 7, seed++);
      }
    }
  }
}

TEST_CASE("project_rows: queries normed and rotated first, keys as they are") {
  std::mt19937_64 random(4);
  for (const uint32_t dim : {64u, 128u}) {
    for (const bool query : {false, true}) {
      CAPTURE(dim);
      CAPTURE(query);
      constexpr uint32_t kHeads = 2, kColumns = 19, kStates = 3;
      const uint32_t group = query ? 3 : 1, heads = kHeads * group;
      std::vector<float> x = numbers(size_t{5} * heads * dim, &random), norm = numbers(dim, &random);
      const DeviceArray<uint16_t> x_on(rounded(&x)), norm_on(rounded(&norm));
      const std::vector<float> directions = numbers(size_t{kStates} * kHeads * kColumns * dim, &random);
      const std::vector<ProjectedRow> rows = {{4, 1, 77, 2}, {0, 2, 31'000, 0}, {3, 0, 5, 4}};
      const DeviceArray<ProjectedRow> rows_on(rows);
      const std::vector<float> inverse = inverse_of(dim);
      const DeviceArray<float> directions_on(directions), inverse_on(inverse);
      const DeviceArray<float> out(std::vector<float>(size_t{5} * heads * kColumns, 9));
      ProjectArgs args{rows_on.get(), 3, device(x_on), directions_on.get(), out.get()};
      args.heads = heads, args.kv_heads = kHeads, args.head_dim = dim, args.columns = kColumns;
      if (query) args.norm = device(norm_on), args.norm_eps = 1e-5f, args.inv_freq = inverse_on.get();
      args.rope_scale = 1.5f;
      KVT_CUDA(project_rows(args, nullptr));
      std::vector<float> want(size_t{5} * heads * kColumns, 9);
      for (const ProjectedRow& row : rows) {
        for (uint32_t h = 0; h < heads; ++h) {
          const auto first = x.begin() + static_cast<ptrdiff_t>((size_t{row.row} * heads + h) * dim);
          std::vector<float> one(first, first + dim);
          if (query) kernels::rms_norm_ref(one.data(), norm.data(), 1e-5f, 1, dim, one.data());
          if (query) kernels::rope_ref({inverse, 1.5f}, row.position, 1, dim, one.data());
          kernels::project_ref(one.data(),
                               directions.data() + (size_t{row.state} * kHeads + h / group) * kColumns * dim,
                               kColumns, dim, want.data() + (size_t{row.target} * heads + h) * kColumns);
        }
      }
      const std::vector<float> got = out.read();
      float worst = 0, largest = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        const float off = std::fabs(got[i] - want[i]);
        worst = off <= worst ? worst : off, largest = std::max(largest, std::fabs(want[i]));
      }
      // Angles of far positions are rounded to fp32.
      CHECK(worst <= (query ? 1e-3f : 1e-5f) * largest);
    }
  }
}

// Decodes of several lengths whose pages are numbered in no order.
struct TokenProblem {
  static constexpr uint32_t kHeads = 2, kTokens = 16, kPages = 120, kFirstHost = 9;
  uint32_t group, columns, slots;  // pages that chosen tokens fill
  std::vector<TokenRow> rows;
  std::vector<uint32_t> lists;
  std::vector<float> queries, partial;
  DeviceArray<TokenRow> rows_on;
  DeviceArray<uint32_t> lists_on, near, chosen, counts;
  DeviceArray<float> queries_on, partial_on, scores;
  DeviceArray<QueryRow> reads;
  uint32_t stride = 0;

  TokenProblem(uint32_t heads, uint32_t numbers_of_head, uint32_t pages, std::mt19937_64* random)
      : group(heads), columns(numbers_of_head), slots(pages) {
    const auto list = [&](uint32_t count, uint32_t first) {
      const auto at = static_cast<uint32_t>(lists.size());
      const std::vector<uint32_t> all = shuffled(kPages, random);
      for (uint32_t i = 0; i < count; ++i) lists.push_back(first + all[i]);
      return at;
    };
    for (const uint32_t more : {0u, 1u, 50u}) {
      TokenRow row;
      row.first = 2 * kTokens, row.candidates = (slots + more) * kTokens;
      row.partial = list(2 + slots + more, 0), row.host_copies = list(2 + slots + more, kFirstHost);
      row.slots = list(slots, 0), row.before = 32, row.after = 19;
      rows.push_back(row), stride = row.candidates + 3;
    }
    queries = numbers(rows.size() * kHeads * group * columns, random);
    partial = numbers(size_t{kPages} * kTokens * kHeads * columns, random);
    const size_t units = rows.size() * kHeads;
    rows_on = DeviceArray<TokenRow>(rows), lists_on = DeviceArray<uint32_t>(lists);
    queries_on = DeviceArray<float>(queries), partial_on = DeviceArray<float>(partial);
    near = DeviceArray<uint32_t>(std::vector<uint32_t>(rows.size(), 0));
    counts = DeviceArray<uint32_t>(std::vector<uint32_t>(rows.size(), 0));
    chosen = DeviceArray<uint32_t>(std::vector<uint32_t>(units * slots * kTokens, 0));
    scores = DeviceArray<float>(std::vector<float>(units * group * stride, NAN));
    reads = DeviceArray<QueryRow>(std::vector<QueryRow>(units, {7, 8, 0, 1, 1}));
  }
  TokenChoiceArgs args(PagePooling pooling, float margin) const {
    TokenChoiceArgs out;
    out.rows = rows_on.get(), out.count = static_cast<uint32_t>(rows.size()), out.lists = lists_on.get();
    out.queries = queries_on.get(), out.partial = partial_on.get(), out.scores = scores.get();
    out.near = near.get(), out.chosen = chosen.get(), out.numbers = counts.get(), out.reads = reads.get();
    out.kv_heads = kHeads, out.group = group, out.columns = columns, out.page_tokens = kTokens;
    out.most = slots * kTokens, out.score_stride = stride, out.pooling = pooling, out.scale = 0.3f;
    out.margin = margin;
    return out;
  }
  const float* key(const TokenRow& row, uint32_t head, uint32_t candidate) const {
    const uint32_t position = row.first + candidate;
    const size_t token = size_t{lists[row.partial + position / kTokens]} * kTokens + position % kTokens;
    return partial.data() + (token * kHeads + head) * columns;
  }
};

// Scores of every query head, and the pooled ones, within rounding; numbers and tokens exactly.
void check_tokens(uint32_t group, PagePooling pooling, float margin, std::mt19937_64* random) {
  CAPTURE(group);
  CAPTURE(static_cast<int>(pooling));
  CAPTURE(margin);
  const TokenProblem p(group, 13, 5, random);
  const TokenChoiceArgs args = p.args(pooling, margin);
  KVT_CUDA(score_tokens(args, nullptr));
  const std::vector<float> scores = p.scores.read();
  KVT_CUDA(choose_tokens(args, nullptr));
  const std::vector<float> pooled = p.scores.read();
  const std::vector<uint32_t> counts = p.counts.read(), chosen = p.chosen.read();
  const std::vector<QueryRow> reads = p.reads.read();
  for (uint32_t r = 0; r < p.rows.size(); ++r) {
    const TokenRow& row = p.rows[r];
    uint64_t near = 0;
    for (uint32_t u = 0; u < TokenProblem::kHeads * group; ++u) {
      const size_t at = (size_t{r} * TokenProblem::kHeads * group + u) * p.stride;
      float top = -INFINITY;
      for (uint32_t t = 0; t < row.candidates; ++t) {
        const float* const q = p.queries.data() + (size_t{r} * TokenProblem::kHeads * group + u) * p.columns;
        const float* const k = p.key(row, u / group, t);
        float want = 0;
        for (uint32_t c = 0; c < p.columns; ++c) want += q[c] * k[c];
        CHECK(std::fabs(scores[at + t] - want) <= 1e-4f);
        top = std::max(top, scores[at + t] * 0.3f);
      }
      for (uint32_t t = 0; t < row.candidates; ++t) near += scores[at + t] * 0.3f > top - margin;
    }
    const auto count =
        static_cast<uint32_t>(std::clamp<uint64_t>(near / (TokenProblem::kHeads * group), 1, args.most));
    CHECK(counts[r] == count);
    for (uint32_t h = 0; h < TokenProblem::kHeads; ++h) {
      const size_t unit = size_t{r} * TokenProblem::kHeads + h, at = unit * group * p.stride;
      std::vector<kernels::PageVectors> keys;
      for (uint32_t t = 0; t < row.candidates; ++t) keys.push_back({p.key(row, h, t), p.key(row, h, t)});
      std::vector<float> want(row.candidates);
      kernels::score_pages_ref(pooling, 1, p.queries.data() + unit * group * p.columns, group, p.columns,
                               keys, want.data());
      const std::vector<float> own(pooled.begin() + static_cast<ptrdiff_t>(at),
                                   pooled.begin() + static_cast<ptrdiff_t>(at + row.candidates));
      for (uint32_t t = 0; t < row.candidates; ++t) CHECK(std::fabs(own[t] - want[t]) <= 1e-4f);
      const auto first = chosen.begin() + static_cast<ptrdiff_t>(unit * args.most);
      CHECK(std::vector<uint32_t>(first, first + count) == kernels::select_rows(own, {}, count));
      const QueryRow& read = reads[unit];
      CHECK(read.row == 7);
      CHECK(read.kv_entries == 32 + count + 19);
      CHECK(read.sinks == 32 + count);
      CHECK(read.gap == args.most - count);
    }
  }
}

TEST_CASE("score_tokens, choose_tokens: as many of the best tokens as are near the best one in the mean") {
  std::mt19937_64 random(8);
  for (const uint32_t group : {1u, 4u, 8u}) {
    for (const PagePooling pooling : {PagePooling::kMeanS, PagePooling::kMaxS, PagePooling::kMeanQk,
                                      PagePooling::kMaxQk, PagePooling::kMeanQ, PagePooling::kMaxQ}) {
      for (const float margin : {0.001f, 0.5f, 100.0f}) check_tokens(group, pooling, margin, &random);
    }
  }
}

TEST_CASE("F-4 recall_tokens: every byte of the chosen tokens, in order, and no other") {
  std::mt19937_64 random(12);
  for (const uint32_t dim : {64u, 128u}) {
    for (const bool poison : {false, true}) {
      CAPTURE(dim);
      const TokenProblem p(2, 13, 5, &random);
      TokenChoiceArgs choice = p.args(PagePooling::kMeanQk, 0.5f);
      KVT_CUDA(score_tokens(choice, nullptr));
      KVT_CUDA(choose_tokens(choice, nullptr));
      HostPool host{nullptr, 0, kernels::HostPageLayout::kHnd, TokenProblem::kTokens, TokenProblem::kHeads,
                    dim};
      host.page_stride = host.page_numbers() + 64;
      Bits on_host(host.page_stride * TokenProblem::kPages);
      for (uint16_t& x : on_host) x = static_cast<uint16_t>(random() % 0x7f00);
      uint16_t* pinned = nullptr;
      KVT_CUDA(cudaMallocHost(&pinned, on_host.size() * 2));
      std::memcpy(pinned, on_host.data(), on_host.size() * 2);
      host.pages = reinterpret_cast<__nv_bfloat16*>(pinned);
      const DeviceArray<uint16_t> pool(Bits(TokenProblem::kPages * host.page_numbers(), 0x1234));
      KVT_CUDA(recall_tokens({host, device(pool), choice, TokenProblem::kFirstHost, poison}, nullptr));
      const Bits got = pool.read();
      // Rows of different requests may share slots here: the last row's are compared.
      const uint32_t r = static_cast<uint32_t>(p.rows.size()) - 1;
      const TokenRow& row = p.rows[r];
      const std::vector<uint32_t> counts = p.counts.read(), chosen = p.chosen.read();
      const KvBlockShape block{TokenProblem::kTokens, dim};
      for (uint32_t h = 0; h < TokenProblem::kHeads; ++h) {
        for (uint32_t i = 0; i < choice.most; ++i) {
          const uint32_t slot_page = p.lists[row.slots + i / TokenProblem::kTokens];
          bool shared = false;
          for (uint32_t other = 0; other < r; ++other) {
            for (uint32_t k = 0; k < p.slots; ++k)
              shared = shared || p.lists[p.rows[other].slots + k] == slot_page;
          }
          if (shared) continue;
          const uint32_t position = row.first + chosen[(r * TokenProblem::kHeads + h) * choice.most + i];
          const size_t page =
              p.lists[row.host_copies + position / TokenProblem::kTokens] - TokenProblem::kFirstHost;
          const size_t from = page * host.page_stride + h * host.head_numbers();
          const size_t to = (size_t{slot_page} * TokenProblem::kHeads + h) * block.numbers();
          for (uint32_t side = 0; side < 2; ++side) {
            const size_t half = size_t{side} * TokenProblem::kTokens * dim;
            for (uint32_t c = 0; c < dim; ++c) {
              const uint16_t want = i < counts[r]
                                        ? on_host[from + half + block.at(position % TokenProblem::kTokens, c)]
                                    : poison ? uint16_t{0x7fc0}
                                             : uint16_t{0x1234};
              if (got[to + half + block.at(i % TokenProblem::kTokens, c)] != want) FAIL_CHECK(i);
            }
          }
        }
      }
      KVT_CUDA(cudaFreeHost(pinned));
    }
  }
}

}  // namespace
}  // namespace kvtwin::test

int main(int argc, char** argv) { return kvtwin::testing::run_on_gpu(argc, argv, kvtwin::test::gpus()); }
