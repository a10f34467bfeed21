// The formats of the fast layout (pack_fast.h) for a consumer warp; technique: packed_math.cuh.
//
// A stage holds a block's codes, then the record's scales and zeros: 4,608 bytes at head size 128. A block is
// an int2 record or half an int4 record; the 512 bytes of scales of an int4 record are read twice, the second
// time from L2. Instructions per 128 KV entries at head size 128: int4 1,100, int2 1,080. Of these 640 and
// 576 are masks and shifts, which take 330 and 297 cycles at 62 lanes per cycle, and 144 are mma (216
// cycles); reading takes 860 and 456 cycles.

#ifndef KVTWIN_KERNELS_PACKED_PACKED_FAST_CUH_
#define KVTWIN_KERNELS_PACKED_PACKED_FAST_CUH_

#include "kernels/packed/packed_math.cuh"

namespace kvtwin::device {

// Expands a word of codes to A operands: one tile (int4) or two (int2).
template <int kBits, typename Use>
__device__ __forceinline__ void each_tile(uint32_t word, const Use& use) {
  const uint32_t high = word >> 8;
  if constexpr (kBits == 4) {
    use(0, word & 0x000f000f, word & 0x00f000f0, high & 0x000f000f, high & 0x00f000f0);
  } else {
    use(0, word & 0x00030003, word & 0x000c000c, word & 0x00300030, word & 0x00c000c0);
    use(1, high & 0x00030003, high & 0x000c000c, high & 0x00300030, high & 0x00c000c0);
  }
}

template <int kDim, int kBits>
struct FastFormat {
  static constexpr bool kRecords = true;
  static constexpr int kTokens = kBits == 2 ? 128 : 64, kTiles = kTokens / 16, kTilesPerAdd = kTiles;
  static constexpr bool kParityCounts = false;
  static constexpr int kColumns = kDim / 16;  // tiles along channels
  static constexpr int kTilesPerWord = kBits == 4 ? 1 : 2;
  static constexpr uint32_t kCodes = kTokens * kDim * kBits / 8;
  static constexpr uint32_t kRecordCodes = kRecordTokens * kDim * kBits / 8;
  static constexpr uint32_t kKeyPairs = 4 * kDim,
                            kValuePairs = 4 * kRecordTokens;  // bytes of scales and zeros
  static constexpr uint32_t kBlocksPerRecord = kRecordTokens / kTokens;
  static constexpr uint32_t kSlot = kCodes + (kKeyPairs > kValuePairs ? kKeyPairs : kValuePairs);

  static __host__ __device__ constexpr float key_factor(int, int half) {
    return half == 0 ? 1 : kBits == 4 ? 0.0625f : 0.25f;
  }
  static __host__ __device__ constexpr float value_factor(int, int half) {
    return kCodeUnit / (kBits == 4 ? kUp8 : kUp12) * key_factor(0, half);
  }
  static __device__ __forceinline__ uint32_t pack(float low, float high) { return pack_fp16(low, high); }
  static __device__ __forceinline__ uint32_t token(int mt, int half, uint32_t lane) {
    return 16 * mt + 8 * half + lane / 4;
  }

  static __device__ __forceinline__ void load_query(const uint32_t* row, bool is_head, uint32_t lane,
                                                    uint32_t (&q)[kDim / 8 + 2]) {
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) q[i] = is_head ? fp16_from_bf16(__ldg(row + 4 * i + lane % 4)) : 0;
  }

  static __device__ __forceinline__ void load_codes(uint32_t at, uint32_t (&word)[1]) {
    word[0] = load_word(at);
  }
  static __device__ __forceinline__ void load_codes(uint32_t at, uint32_t (&word)[2]) {
    const uint2 two = load_words2(at);
    word[0] = two.x, word[1] = two.y;
  }
  static __device__ __forceinline__ float scores(uint32_t at, uint32_t lane, uint32_t (&q)[kDim / 8 + 2],
                                                 float scale2, float (&s)[kTiles][4], float (&add)[1][2]) {
    // Two tiles of channels at a time: more scaled queries do not fit in registers.
    constexpr int kChunk = 2, kWords = kChunk / kTilesPerWord;
    float zeros[4] = {};
#pragma unroll
    for (int chunk = 0; chunk < kColumns / kChunk; ++chunk) {
      const uint32_t pairs = at + kCodes + chunk * kChunk * 32 + lane % 4 * 4;
      uint32_t scaled[2 * kChunk];
#pragma unroll
      for (int i = 0; i < 2 * kChunk; ++i) {
        scaled[i] = multiply_fp16(q[2 * kChunk * chunk + i], load_word(pairs + 16 * i));
        if (kBits == 2 && i % 2 == 1) scaled[i] = multiply_fp16(scaled[i], kFp16Sixteenth);
      }
#pragma unroll
      for (int i = 0; i < 2 * kChunk; i += 2) {
        const uint32_t low = load_word(pairs + 2 * kDim + 16 * i),
                       high = load_word(pairs + 2 * kDim + 16 * i + 16);
        multiply_add_fp16(zeros, low, low, high, high, q[2 * kChunk * chunk + i],
                          q[2 * kChunk * chunk + i + 1]);
      }
#pragma unroll
      for (int mt = 0; mt < kTiles; ++mt) {
        const int first = (mt * kColumns + chunk * kChunk) / kTilesPerWord;  // index among this lane's words
        uint32_t word[kWords];
        load_codes(at + (first / 4 * 32 + lane) * 16 + first % 4 * 4, word);
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          each_tile<kBits>(word[i], [&](int j, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
            const int kt = i * kTilesPerWord + j;
            multiply_add_fp16(s[mt], a0, a1, a2, a3, scaled[2 * kt], scaled[2 * kt + 1]);
          });
        }
      }
    }
    add[0][0] = zeros[0] * scale2, add[0][1] = zeros[1] * scale2;
    return scale2 * kCodeUnit;
  }

  // Address of the value scales of block `block`; the zeros are 2 * kRecordTokens bytes further.
  static __device__ __forceinline__ uint32_t value_pairs(uint32_t at, uint32_t block) {
    return at + kCodes + block % kBlocksPerRecord * (2 * kTokens);
  }
  static __device__ __forceinline__ float reserve(uint32_t at, uint32_t lane, uint32_t block) {
    uint32_t most = load_word(value_pairs(at, block) + 4 * lane), any = most;
    if constexpr (kTokens == 128) {
      const uint32_t other = load_word(value_pairs(at, block) + 128 + 4 * lane);
      any |= other, most = max_fp16(most, other);
    }
    return has_large_scale(any) ? reserve_of(most, kBits == 4 ? 7 : 3) : 0;
  }
  // Clears the scales of KV entries from `valid` on, which are undefined.
  static __device__ __forceinline__ void clear(uint32_t at, uint32_t lane, uint32_t block, uint32_t valid) {
    for (uint32_t t = valid + lane; t < kTokens; t += 32) {
      store_u16(value_pairs(at, block) + 2 * t, 0);
      store_u16(value_pairs(at, block) + 2 * t + 2 * kRecordTokens, 0);
    }
  }

  static __device__ __forceinline__ void values(uint32_t at, uint32_t lane, uint32_t block,
                                                const uint32_t (&p)[2 * kTiles], PackedPartial<kDim>* part) {
    uint32_t scaled[2 * kTiles];
    const uint32_t pairs = value_pairs(at, block) + lane % 4 * 4;
#pragma unroll
    for (int mt = 0; mt < kTiles; ++mt) {
      const uint32_t p0 = transpose(p[2 * mt]), p1 = transpose(p[2 * mt + 1]);
      const uint32_t zeros = pairs + 2 * kRecordTokens + 32 * mt;
      multiply_add_fp16(part->more, load_word(zeros), kFp16One, load_word(zeros + 16), kFp16One, p0, p1);
      // Codes of int2's columns from 8 on carry a factor of 16.
      const uint32_t up0 = multiply_fp16(p0, kBits == 4 ? kFp16Up8 : kFp16Up12),
                     up1 = multiply_fp16(p1, kFp16Up8);
      scaled[2 * mt] = multiply_fp16(up0, load_word(pairs + 32 * mt));
      scaled[2 * mt + 1] = multiply_fp16(up1, load_word(pairs + 32 * mt + 16));
    }
#pragma unroll
    for (int v = 0; v < static_cast<int>(kCodes / 512); ++v) {
      const uint4 words = load_words4(at + v * 512 + lane * 16);
      const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        each_tile<kBits>(word[i], [&](int j, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
          const int tile = (4 * v + i) * kTilesPerWord + j, mt = tile / kColumns;
          multiply_add_fp16(part->out[tile % kColumns], a0, a1, a2, a3, scaled[2 * mt], scaled[2 * mt + 1]);
        });
      }
    }
  }
};

// bf16 rows, swizzled as in attention_decode.h: KV entries that do not fill a record yet.
template <int kDim>
struct Bf16Format {
  static constexpr bool kRecords = false;
  static constexpr int kTokens = 16, kTiles = 1, kTilesPerAdd = 1;
  static constexpr bool kParityCounts = false;
  static constexpr uint32_t kSlot = 32 * kDim;

  static __host__ __device__ constexpr float key_factor(int, int) { return 1; }
  static __host__ __device__ constexpr float value_factor(int, int) { return 1; }
  static __device__ __forceinline__ uint32_t pack(float low, float high) { return pack_bf16(low, high); }
  static __host__ __device__ constexpr uint32_t key_bytes(uint32_t tokens) { return tokens * 2 * kDim; }
  static __host__ __device__ constexpr uint32_t value_bytes(uint32_t tokens) { return tokens * 2 * kDim; }
  static __device__ __forceinline__ uint32_t token(int, int half, uint32_t lane) {
    return 8 * half + lane / 4;
  }
  static __device__ __forceinline__ uint32_t chunk(uint32_t row, uint32_t number) {
    return row * 2 * kDim + (number ^ (row & 7)) * 16;
  }

  static __device__ __forceinline__ void load_query(const uint32_t* row, bool is_head, uint32_t lane,
                                                    uint32_t (&q)[kDim / 8 + 2]) {
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) q[i] = is_head ? __ldg(row + 4 * i + lane % 4) : 0;
  }
  static __device__ __forceinline__ float scores(uint32_t at, uint32_t lane, uint32_t (&q)[kDim / 8 + 2],
                                                 float scale2, float (&s)[1][4], float (&add)[1][2]) {
#pragma unroll
    for (int kt = 0; kt < kDim / 16; ++kt) {
      multiply_add(s[0], load_matrices(at + chunk(lane % 16, 2 * kt + lane / 16)), q[2 * kt], q[2 * kt + 1]);
    }
    add[0][0] = add[0][1] = 0;
    return scale2;
  }
  static __device__ __forceinline__ float reserve(uint32_t, uint32_t, uint32_t) { return 0; }
  static __device__ __forceinline__ void clear(uint32_t at, uint32_t lane, uint32_t, uint32_t valid) {
    for (uint32_t i = valid * kDim / 2 + lane; i < 8 * kDim; i += 32) store_word(at + 4 * i, 0);
  }
  static __device__ __forceinline__ void values(uint32_t at, uint32_t lane, uint32_t, const uint32_t (&p)[2],
                                                PackedPartial<kDim>* part) {
    constexpr uint32_t kBf16One = 0x3f803f80;
    const uint32_t p0 = transpose(p[0]), p1 = transpose(p[1]);
    multiply_add(part->more, Fragment4{{0, kBf16One, 0, kBf16One}}, p0, p1);
    const uint32_t row = lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int mt = 0; mt < kDim / 16; ++mt) {
      multiply_add(part->out[mt], load_matrices_transposed(at + chunk(row, 2 * mt + lane / 8 % 2)), p0, p1);
    }
  }
};

template <int kDimension>
struct FastFamily {
  static constexpr int kDim = kDimension;
  static constexpr PackedLayout kLayout = PackedLayout::kFast;
  static constexpr uint32_t kScaleGroup = 128;
  static constexpr uint32_t kParts = 7;
  using Int2 = FastFormat<kDim, 2>;
  using Int4 = FastFormat<kDim, 4>;
  using Wide = Bf16Format<kDim>;
  static constexpr uint32_t kSlot = Int2::kSlot > Int4::kSlot ? Int2::kSlot : Int4::kSlot;
  static_assert(kSlot >= Wide::kSlot);

  static __device__ __forceinline__ uint32_t channel(uint32_t tile, uint32_t row) { return 16 * tile + row; }
  // All rows of `more` have the same zeros.
  static __device__ __forceinline__ float zero_of(const float (&more)[4], int, int head, uint32_t) {
    return more[head];
  }
};

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_PACKED_PACKED_FAST_CUH_
