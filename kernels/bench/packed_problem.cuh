// Inputs of a packed decode step on the device that expose errors: pages in random order, NaN patterns
// wherever there is no KV entry, random numbers from a seed, and the expected result in double precision from
// the values that the definitions (packed_page.h) unpack.

#ifndef KVTWIN_KERNELS_BENCH_PACKED_PROBLEM_CUH_
#define KVTWIN_KERNELS_BENCH_PACKED_PROBLEM_CUH_

#include <array>
#include <cstring>
#include <span>

#include "kernels/bench/decode_problem.cuh"
#include "kernels/packed/packed_decode.h"
#include "kernels/packed/packed_page.h"

namespace kvtwin::test {

using PartTokens = std::array<uint32_t, kPackedParts>;

inline Format format_of(const PackedDecodeShape& s, uint32_t part) {
  if (part == kPartInt2) return Format::kInt2;
  if (part == kPartInt4) return Format::kInt4;
  if (s.layout == PackedLayout::kFp4) return Format::kFp4;
  return s.layout == PackedLayout::kRows ? Format::kFp8 : Format::kBf16;
}

// One page of one head: its bytes, of which the first `kv_entries` KV entries are valid, and these entries
// unpacked.
struct PackedProblemPage {
  std::vector<uint8_t> bytes;
  std::vector<float> k, v;
};

inline PackedProblemPage make_bf16_page(uint32_t tokens, uint32_t d, uint32_t kv_entries,
                                        std::span<const float> k, std::span<const float> v) {
  PackedProblemPage page{std::vector<uint8_t>(size_t{4} * tokens * d, 0xff), {}, {}};
  for (uint32_t row = 0; row < 2 * tokens; ++row) {
    for (uint32_t c = 0; c < d; ++c) {
      const uint32_t t = row % tokens;
      const __nv_bfloat16 value = __float2bfloat16((row < tokens ? k : v)[size_t{t} * d + c]);
      (row < tokens ? page.k : page.v).push_back(__bfloat162float(value));
      const size_t at = (size_t{row} * d + ((c / 8) ^ (t & 7)) * 8 + c % 8) * 2;
      if (t < kv_entries) std::memcpy(page.bytes.data() + at, &value, 2);
    }
  }
  return page;
}

inline PackedProblemPage make_row_page(Format format, const PageShape& shape, uint32_t kv_entries,
                                       std::span<const float> k, std::span<const float> v) {
  using namespace kernels;
  PackedProblemPage page{std::vector<uint8_t>(page_bytes(format, shape)), std::vector<float>(k.size()),
                         std::vector<float>(v.size())};
  pack_page(format, shape, k, v, page.bytes);
  unpack_page(format, shape, page.bytes, shape.page_tokens, page.k, page.v);
  const size_t keys = key_part_bytes(format, shape), row = token_bytes(format, shape);
  const size_t groups = (kv_entries + shape.group - 1) / shape.group;
  const size_t keys_used = format == Format::kInt2 ? groups * key_group_bytes(2, shape) : kv_entries * row;
  std::memset(page.bytes.data() + keys_used, 0xff, keys - keys_used);
  std::memset(page.bytes.data() + keys + kv_entries * row, 0xff, (shape.page_tokens - kv_entries) * row);
  return page;
}

inline PackedProblemPage make_page(const PackedDecodeShape& s, uint32_t part, uint32_t kv_entries,
                                   std::span<const float> k, std::span<const float> v) {
  const Format format = format_of(s, part);
  const PageShape shape{s.page_tokens[part], s.head_dim, s.scale_group};
  if (format == Format::kBf16) return make_bf16_page(shape.page_tokens, s.head_dim, kv_entries, k, v);
  return make_row_page(format, shape, kv_entries, k, v);
}

struct PackedProblem {
  PackedDecodeShape shape;
  PackedDecodeArgs args;
  std::vector<double> expected;  // [rows][head_dim]
  std::array<DeviceArray<uint8_t>, kPackedParts> pools;
  std::array<DeviceArray<uint32_t>, kPackedParts> live;
  DeviceArray<__nv_bfloat16> q, out;
  DeviceArray<uint32_t> pages;
  DeviceArray<PackedSequence> table;
  DeviceArray<char> plan, workspace;

  // tokens[i]: tokens of sequence i, by part. heads_per_page sequences share tables and must have equal
  // lengths. value_size: magnitude of values. dropped_in_8: this many of eight KV entries are not live (0: no
  // masks).
  PackedProblem(PackedDecodeShape wanted, const std::vector<PartTokens>& tokens, uint64_t seed,
                float value_size = 1, uint32_t dropped_in_8 = 0)
      : shape(wanted), random_(seed), value_size_(value_size), dropped_in_8_(dropped_in_8) {
    shape.sequences = static_cast<uint32_t>(tokens.size());
    const uint32_t d = shape.head_dim;
    std::vector<__nv_bfloat16> queries(tokens.size() * shape.group * d);
    for (auto& value : queries) value = __float2bfloat16(2 * draw());
    expected.assign(queries.size(), 0);
    std::vector<uint32_t> numbers;
    std::vector<PackedSequence> rows = number_pages(tokens, &numbers);
    std::array<std::vector<uint8_t>, kPackedParts> bytes;
    for (uint32_t part = 0; part < kPackedParts; ++part) {
      bytes[part].assign((free_[part] * shape.heads_per_page) * page_size(part), 0xff);
      live_[part].assign(free_[part] * shape.heads_per_page * 4, 0);
    }
    for (const PackedSequence& row : rows) {
      std::vector<float> k, v;
      for (uint32_t part = 0; part < kPackedParts; ++part) {
        write_part(row, part, numbers, &bytes[part], &k, &v);
      }
      solve(row, k, v, queries);
    }
    for (uint32_t part = 0; part < kPackedParts; ++part) {
      pools[part] = DeviceArray<uint8_t>(bytes[part]);
      live[part] = DeviceArray<uint32_t>(live_[part]);
    }
    q = DeviceArray<__nv_bfloat16>(queries);
    out = DeviceArray<__nv_bfloat16>(std::vector<__nv_bfloat16>(queries.size(), __float2bfloat16(NAN)));
    pages = DeviceArray<uint32_t>(numbers);
    table = DeviceArray<PackedSequence>(rows);
    plan = DeviceArray<char>(std::vector<char>(packed_plan_bytes(shape), 0x5a));
    workspace = DeviceArray<char>(std::vector<char>(packed_workspace_bytes(shape), 0));
    args.pages = pages.get(), args.table = table.get(), args.q = q.get(), args.out = out.get();
    args.scale = 1.f / std::sqrt(static_cast<float>(d));
    args.plan = plan.get(), args.workspace = workspace.get();
    for (uint32_t part = 0; part < kPackedParts; ++part) {
      args.pool[part] = pools[part].get();
      args.live[part] = dropped_in_8 > 0 ? live[part].get() : nullptr;
    }
  }

  double error() const { return largest_error(out, expected, shape.head_dim); }

 private:
  size_t page_size(uint32_t part) const { return packed_page_bytes(shape, static_cast<PackedPart>(part)); }
  float draw() {  // approximately normal
    float sum = 0;
    const uint64_t bits = random_();
    for (int i = 0; i < 4; ++i) sum += static_cast<float>(bits >> (16 * i) & 0xffff) / 65536;
    return (sum - 2) * 1.7320508f;
  }

  // Tables of all sequences, and page numbers in random order; some pages are unused.
  std::vector<PackedSequence> number_pages(const std::vector<PartTokens>& tokens,
                                           std::vector<uint32_t>* numbers) {
    std::vector<PackedSequence> rows;
    std::array<std::vector<uint32_t>, kPackedParts> free;
    const auto pages_of = [&](uint32_t i, uint32_t part) {
      return (tokens[i][part] + shape.page_tokens[part] - 1) / shape.page_tokens[part];
    };
    for (uint32_t part = 0; part < kPackedParts; ++part) {
      uint32_t count = 3;
      for (uint32_t i = 0; i < tokens.size(); i += shape.heads_per_page) count += pages_of(i, part);
      for (uint32_t p = 0; p < count; ++p) free[part].push_back(p);
      std::shuffle(free[part].begin(), free[part].end(), random_);
      free_[part] = count;
    }
    for (uint32_t i = 0; i < tokens.size(); ++i) {
      PackedSequence row{i * shape.group, i % shape.heads_per_page, {}, {}};
      if (row.column > 0) std::copy_n(rows.back().table, kPackedParts, row.table);
      for (uint32_t part = 0; part < kPackedParts; ++part) {
        row.tokens[part] = tokens[i][part];
        if (row.column > 0) continue;
        row.table[part] = static_cast<uint32_t>(numbers->size());
        for (uint32_t p = 0; p < pages_of(i, part); ++p) {
          numbers->push_back(free[part].back());
          free[part].pop_back();
        }
      }
      rows.push_back(row);
    }
    return rows;
  }

  void write_part(const PackedSequence& row, uint32_t part, const std::vector<uint32_t>& numbers,
                  std::vector<uint8_t>* pool, std::vector<float>* k, std::vector<float>* v) {
    const uint32_t page = shape.page_tokens[part], d = shape.head_dim;
    for (uint32_t from = 0; from < row.tokens[part]; from += page) {
      const uint32_t kv_entries = std::min(page, row.tokens[part] - from);
      std::vector<float> keys(size_t{page} * d), values(keys.size());
      for (size_t i = 0; i < keys.size(); ++i) {
        keys[i] = draw() + static_cast<float>(i % d % 7) / 2 - 1;
        values[i] = value_size_ * (draw() + static_cast<float>(i % d % 5) / 2 - 1);
      }
      const PackedProblemPage made = make_page(shape, part, kv_entries, keys, values);
      const size_t number = numbers[row.table[part] + from / page];
      std::copy(made.bytes.begin(), made.bytes.end(),
                pool->begin() +
                    static_cast<ptrdiff_t>((number * shape.heads_per_page + row.column) * page_size(part)));
      for (uint32_t t = 0; t < kv_entries; ++t) {
        if (dropped_in_8_ > 0 && random_() % 8 < dropped_in_8_) continue;
        live_[part][(number * shape.heads_per_page + row.column) * 4 + t / 32] |= 1u << t % 32;
        k->insert(k->end(), made.k.begin() + t * d, made.k.begin() + (t + 1) * d);
        v->insert(v->end(), made.v.begin() + t * d, made.v.begin() + (t + 1) * d);
      }
    }
  }

  void solve(const PackedSequence& row, const std::vector<float>& k, const std::vector<float>& v,
             const std::vector<__nv_bfloat16>& queries) {
    const uint32_t d = shape.head_dim;
    const size_t kv_entries = k.size() / d;
    std::vector<double> weight(kv_entries);
    for (uint32_t j = 0; j < shape.group && kv_entries > 0; ++j) {
      const size_t query = size_t{row.q_row + j} * d;
      for (size_t t = 0; t < kv_entries; ++t) {
        double sum = 0;
        for (uint32_t c = 0; c < d; ++c) {
          sum +=
              static_cast<double>(__bfloat162float(queries[query + c])) * static_cast<double>(k[t * d + c]);
        }
        weight[t] = sum / std::sqrt(static_cast<double>(d));
      }
      const double most = *std::max_element(weight.begin(), weight.end());
      double sum = 0;
      for (double& w : weight) sum += w = std::exp(w - most);
      for (size_t t = 0; t < kv_entries; ++t) {
        for (uint32_t c = 0; c < d; ++c)
          expected[query + c] += weight[t] / sum * static_cast<double>(v[t * d + c]);
      }
    }
  }

  std::mt19937_64 random_;
  float value_size_;
  uint32_t dropped_in_8_;
  std::array<std::vector<uint32_t>, kPackedParts> live_;
  std::array<size_t, kPackedParts> free_{};  // pages of each pool
};

}  // namespace kvtwin::test

#endif  // KVTWIN_KERNELS_BENCH_PACKED_PROBLEM_CUH_
