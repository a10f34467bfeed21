// KV entries converted between packed and bf16 pools: the bytes of the definitions, and their decoded
// numbers, to the bit; data outside the spans is unchanged.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "kernels/bench/decode_problem.cuh"
#include "kernels/common/kv_block.cuh"
#include "kernels/common/small_floats.h"
#include "kernels/packed/packed_page.h"
#include "kernels/quant/convert_entries.h"
#include "kernels/quant/pack.h"
#include "tests/support/gpu_main.h"

namespace kvtwin::test {
namespace {

using Bits = std::vector<uint16_t>;
constexpr uint32_t kHeads = 3, kDequantizedPage = 16;
constexpr uint16_t kPoison = 0x7fc1;  // a NaN
constexpr uint8_t kStale = 0xa5;

__nv_bfloat16* device(const DeviceArray<uint16_t>& a) { return reinterpret_cast<__nv_bfloat16*>(a.get()); }

// Ordinary numbers, groups without spread, tiny ones, ties, zeros of both signs, and numbers beyond fp16.
Bits awkward_bits(std::mt19937_64* random, size_t count) {
  std::normal_distribution<float> normal;
  Bits out(count);
  for (size_t i = 0; i < count; i += 32) {
    const auto kind = (*random)() % 8;
    for (size_t j = i; j < std::min(count, i + 32); ++j) {
      float x = normal(*random);
      if (kind == 0) x = 0.75f;
      if (kind == 1) x *= 1e-6f;
      if (kind == 2) x = static_cast<float>(static_cast<int>((*random)() % 61)) * 0.25f;
      if (kind == 3) x = (*random)() % 3 == 0 ? -0.f : 0.f;
      if (kind == 4) x *= 60000;
      if (kind == 5) x = 1000 + 4 * x;
      out[j] = kernels::to_bf16(x);
    }
  }
  return out;
}

// KV entries of kHeads heads, by the definition: [KV entry][head][side][dim].
struct Plain {
  uint32_t dim = 0;
  Bits bits;

  size_t at(uint32_t kv_entry, uint32_t head, uint32_t side) const {
    return ((size_t{kv_entry} * kHeads + head) * 2 + side) * dim;
  }
  std::vector<float> row(uint32_t kv_entry, uint32_t head, uint32_t side) const {
    std::vector<float> out(dim);
    for (uint32_t c = 0; c < dim; ++c) out[c] = kernels::from_bf16(bits[at(kv_entry, head, side) + c]);
    return out;
  }
  // The same as a pool of bf16 pages.
  Bits pool(uint32_t page) const {
    const KvBlockShape block{page, dim};
    Bits out(bits.size());
    for (uint32_t kv_entry = 0; kv_entry < bits.size() / (size_t{2} * dim * kHeads); ++kv_entry) {
      for (uint32_t head = 0; head < kHeads; ++head) {
        for (uint32_t side = 0; side < 2; ++side) {
          const size_t base =
              (size_t{kv_entry / page} * kHeads + head) * block.numbers() + side * size_t{page} * dim;
          for (uint32_t c = 0; c < dim; ++c)
            out[base + block.at(kv_entry % page, c)] = bits[at(kv_entry, head, side) + c];
        }
      }
    }
    return out;
  }
};

struct Case {
  Format format;
  PageShape shape;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const Format format : {Format::kFp8, Format::kInt4, Format::kInt2, Format::kFp4}) {
    for (const uint32_t page : {16u, 32u, 128u, 5u}) {
      for (const uint32_t dim : {16u, 32u, 64u, 128u}) {
        for (const uint32_t group : {32u, 64u, 128u}) {
          const PageShape shape{page, dim, group};
          const bool grouped = format == Format::kInt4 || format == Format::kInt2;
          if ((grouped || group == 32) && page_shape_is_possible(shape, format))
            out.push_back({format, shape});
        }
      }
    }
  }
  return out;
}

// The data of one case: KV entries in both forms, and spans between them in random order.
struct Problem {
  Case what;
  uint32_t dequantized_entries = 0, packed_entries = 0;
  Plain plain;
  std::vector<KvEntrySpan> spans;  // dequantized -> packed

  Problem(const Case& given, uint64_t seed) : what(given) {
    std::mt19937_64 random(seed);
    const uint32_t page = what.shape.page_tokens;
    packed_entries = page * (3 + 300 / page),
    dequantized_entries = 2 * packed_entries / kDequantizedPage * kDequantizedPage + 64;
    plain.dim = what.shape.head_dim;
    plain.bits = awkward_bits(&random, size_t{dequantized_entries} * kHeads * 2 * plain.dim);
    // int2 keys are in groups; other formats have any counts.
    const uint32_t step = what.format == Format::kInt2 ? what.shape.group : 1;
    uint32_t from = 3;
    for (uint32_t to = 0; to + step <= packed_entries;) {
      uint32_t count = step * (1 + static_cast<uint32_t>(random() % 5));
      count = std::min(count, (to / page + 1) * page - to);
      const auto drawn = static_cast<uint32_t>(random() % 8);
      const uint32_t sides = drawn == 0 ? kKeySide : drawn == 1 ? kValueSide : kBothSides;
      if (drawn != 2) spans.push_back({from, to, count, sides});
      from += count + drawn % 3, to += count;
    }
    std::shuffle(spans.begin(), spans.end(), random);
    KVT_CUDA(from < dequantized_entries ? cudaSuccess : cudaErrorInvalidValue);
  }
  ConvertArgs args(const DeviceArray<KvEntrySpan>& on_device) const {
    return {on_device.get(), static_cast<uint32_t>(spans.size()), what.format, what.shape, kHeads,
            kDequantizedPage};
  }
  size_t page_size() const { return page_bytes(what.format, what.shape); }
  std::vector<uint8_t> by_definition() const {
    std::vector<uint8_t> out(packed_entries / what.shape.page_tokens * kHeads * page_size(), kStale);
    for (const KvEntrySpan& span : spans) {
      for (uint32_t head = 0; head < kHeads; ++head) pack_span(span, head, &out);
    }
    return out;
  }
  void pack_span(const KvEntrySpan& span, uint32_t head, std::vector<uint8_t>* out) const {
    const uint32_t page = what.shape.page_tokens, dim = what.shape.head_dim, group = what.shape.group;
    const std::span<uint8_t> block =
        std::span(*out).subspan((size_t{span.target / page} * kHeads + head) * page_size(), page_size());
    const size_t values_at = kernels::key_part_bytes(what.format, what.shape);
    for (uint32_t i = 0; i < span.count; ++i) {
      const uint32_t slot = span.target % page + i, each = token_bytes(what.format, what.shape);
      const std::vector<float> k = plain.row(span.source + i, head, 0),
                               v = plain.row(span.source + i, head, 1);
      if (what.format != Format::kInt2) {
        std::vector<uint8_t> whole(page_size());
        kernels::pack_kv_entry(what.format, what.shape, slot, k, v, whole);
        for (const uint32_t side : {0u, 1u}) {
          const size_t at = side * values_at + slot * each;
          if ((span.sides >> side & 1) != 0) std::copy_n(whole.begin() + at, each, block.begin() + at);
        }
        continue;
      }
      if ((span.sides & kValueSide) != 0)
        kernels::pack_token(v, 2, what.shape, block.subspan(values_at + slot * each, each));
      if ((span.sides & kKeySide) == 0 || i % group != 0) continue;
      std::vector<float> keys;
      for (uint32_t t = 0; t < group; ++t) {
        const std::vector<float> row = plain.row(span.source + i + t, head, 0);
        keys.insert(keys.end(), row.begin(), row.end());
      }
      const size_t bytes = key_group_bytes(2, what.shape);
      kernels::pack_key_group({keys.data(), size_t{group} * dim}, 2, what.shape,
                              block.subspan(slot / group * bytes, bytes));
    }
  }
  // The spans read back to their sources; the rest stays poison.
  Bits unpacked_by_definition(const std::vector<uint8_t>& packed) const {
    const uint32_t page = what.shape.page_tokens, dim = what.shape.head_dim;
    Plain out{dim, Bits(plain.bits.size(), kPoison)};
    std::vector<float> k(size_t{page} * dim), v(k.size());
    for (const KvEntrySpan& span : spans) {
      for (uint32_t head = 0; head < kHeads; ++head) {
        const size_t block = (size_t{span.target / page} * kHeads + head) * page_size();
        kernels::unpack_page(what.format, what.shape, std::span(packed).subspan(block, page_size()), page, k,
                             v);
        for (uint32_t i = 0; i < span.count; ++i) {
          for (const uint32_t side : {0u, 1u}) {
            if ((span.sides >> side & 1) == 0) continue;
            const std::vector<float>& all = side == 0 ? k : v;
            for (uint32_t c = 0; c < dim; ++c) {
              out.bits[out.at(span.source + i, head, side) + c] =
                  kernels::to_bf16(all[size_t{span.target % page + i} * dim + c]);
            }
          }
        }
      }
    }
    return out.pool(kDequantizedPage);
  }
};

TEST_CASE(
    "Q-1 pack_entries and unpack_entries: the definitions' bytes and numbers, and no change outside the "
    "spans") {
  for (const Case& what : cases()) {
    CAPTURE(format_name(what.format));
    CAPTURE(what.shape.page_tokens);
    CAPTURE(what.shape.head_dim);
    CAPTURE(what.shape.group);
    const Problem p(what, what.shape.page_tokens + what.shape.head_dim + what.shape.group);
    const DeviceArray<KvEntrySpan> spans(p.spans);
    const DeviceArray<uint16_t> dequantized(p.plain.pool(kDequantizedPage));
    const std::vector<uint8_t> want = p.by_definition();
    const DeviceArray<uint8_t> packed(std::vector<uint8_t>(want.size(), kStale));
    KVT_CUDA(pack_entries(p.args(spans), device(dequantized), packed.get(), nullptr));
    const std::vector<uint8_t> got = packed.read();
    CHECK(got == want);
    std::vector<KvEntrySpan> back = p.spans;
    for (KvEntrySpan& span : back) std::swap(span.source, span.target);
    const DeviceArray<KvEntrySpan> back_spans(back);
    const DeviceArray<uint16_t> read(Bits(p.plain.bits.size(), kPoison));
    KVT_CUDA(unpack_entries(p.args(back_spans), packed.get(), device(read), nullptr));
    CHECK(read.read() == p.unpacked_by_definition(want));
  }
}

TEST_CASE("copy_entries: KV entries are copied as spans specify, one side or both") {
  for (const uint32_t dim : {16u, 64u, 128u}) {
    CAPTURE(dim);
    std::mt19937_64 random(dim);
    const uint32_t kv_entries = 160;
    Plain source{dim, awkward_bits(&random, size_t{kv_entries} * kHeads * 2 * dim)};
    Plain want{dim, Bits(source.bits.size(), kPoison)};
    const std::vector<KvEntrySpan> spans = {
        {5, 40, 30, kBothSides}, {90, 3, 17, kKeySide}, {100, 3, 9, kValueSide}};
    for (const KvEntrySpan& span : spans) {
      for (uint32_t i = 0; i < span.count; ++i) {
        for (uint32_t head = 0; head < kHeads; ++head) {
          for (const uint32_t side : {0u, 1u}) {
            if ((span.sides >> side & 1) == 0) continue;
            std::copy_n(source.bits.begin() + static_cast<ptrdiff_t>(source.at(span.source + i, head, side)),
                        dim,
                        want.bits.begin() + static_cast<ptrdiff_t>(want.at(span.target + i, head, side)));
          }
        }
      }
    }
    const DeviceArray<KvEntrySpan> on_device(spans);
    const DeviceArray<uint16_t> from(source.pool(kDequantizedPage)), to(Bits(source.bits.size(), kPoison));
    ConvertArgs args;
    args.spans = on_device.get(), args.count = static_cast<uint32_t>(spans.size());
    args.shape.head_dim = dim, args.kv_heads = kHeads, args.dequantized_page_tokens = kDequantizedPage;
    KVT_CUDA(copy_entries(args, device(from), device(to), nullptr));
    CHECK(to.read() == want.pool(kDequantizedPage));
  }
}

TEST_CASE("pack_entries: unsupported shapes are refused") {
  ConvertArgs args;
  args.kv_heads = 1, args.count = 1;
  for (const PageShape& shape : {PageShape{32, 96, 32}, PageShape{32, 64, 20}, PageShape{16, 64, 32}}) {
    args.shape = shape, args.format = Format::kInt2;
    CHECK(pack_entries(args, nullptr, nullptr, nullptr) == cudaErrorInvalidValue);
  }
  args.shape = {32, 64, 32}, args.format = Format::kBf16;
  CHECK(unpack_entries(args, nullptr, nullptr, nullptr) == cudaErrorInvalidValue);
}

}  // namespace
}  // namespace kvtwin::test

int main(int argc, char** argv) { return kvtwin::testing::run_on_gpu(argc, argv, kvtwin::test::gpus()); }
