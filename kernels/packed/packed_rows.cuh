// The formats of the byte layouts of docs/design/methods/triaxialkv.md#bytes (pack.h) for a consumer warp;
// technique: packed_math.cuh.
//
// Tensor cores contract pairs along the shared dimension, but a byte holds neighbours along the other one. So
// one byte permutation combines words of two KV entries (or channels) before the masks. Channels and KV
// entries may be permuted freely: a lane uses what its own word holds, and the other operand follows. With g
// = lane / 4 and t = lane % 4:
//
// int4 keys: word t of a group of 32 channels, rows g and g + 8; its four fields are channel pairs (0, 4),
// (1, 5), (2, 6) and (3, 7) of the eight from 8 t on.
//
// Values: of 32 channels lane g has 4 g to 4 g + 3 (half a word of int4, a byte of int2, a word of fp8): two
// tiles, so that `channel` is 32 (tile / 2) + 4 g + 2 (tile % 2) + half.
//
// int2 keys: of 32 KV entries lane g has the four of byte b = g / 2 + 4 (g % 2): two tiles, KV entry 4 b + 2
// tile + half.
//
// int2 takes 5 integer instructions per 16 x 16 tile and side, and two loads from shared memory per tile,
// which bound it.

#ifndef KVTWIN_KERNELS_PACKED_PACKED_ROWS_CUH_
#define KVTWIN_KERNELS_PACKED_PACKED_ROWS_CUH_

#include "kernels/packed/packed_rows_int2.cuh"
#include "kernels/packed/packed_rows_int4.cuh"

namespace kvtwin::device {

// One byte per channel, no scales.
template <int kDim>
struct RowsFp8 {
  static constexpr int kTokens = 32, kTiles = 2, kTilesPerAdd = 2;
  static constexpr bool kParityCounts = false;
  static constexpr uint32_t kSlot = kTokens * kDim;

  static __host__ __device__ constexpr float key_factor(int, int) { return 1; }
  static __host__ __device__ constexpr float value_factor(int, int) { return 1; }
  static __host__ __device__ constexpr uint32_t key_bytes(uint32_t tokens) { return tokens * kDim; }
  static __host__ __device__ constexpr uint32_t value_bytes(uint32_t tokens) { return tokens * kDim; }
  static __device__ __forceinline__ uint32_t pack(float low, float high) { return pack_fp16(low, high); }
  static __device__ __forceinline__ uint32_t token(int mt, int half, uint32_t lane) {
    return 16 * mt + 8 * half + lane / 4;
  }

  // q[2 kt], q[2 kt + 1]: channels 64 (kt / 4) + 16 t + 4 (kt % 4) and the next three.
  static __device__ __forceinline__ void load_query(const uint32_t* row, bool is_head, uint32_t lane,
                                                    uint32_t (&q)[kDim / 8 + 2]) {
#pragma unroll
    for (int kt = 0; kt < kDim / 16; ++kt) {
      const uint2 none = {0, 0};
      const uint32_t channel = 64 * (kt / 4) + lane % 4 * 16 + 4 * (kt % 4);
      const uint2 w = is_head ? __ldg(reinterpret_cast<const uint2*>(row + channel / 2)) : none;
      q[2 * kt] = fp16_from_bf16(w.x), q[2 * kt + 1] = fp16_from_bf16(w.y);
    }
  }
  static __device__ __forceinline__ float scores(uint32_t at, uint32_t lane, uint32_t (&q)[kDim / 8 + 2],
                                                 float scale2, float (&s)[kTiles][4], float (&add)[1][2]) {
#pragma unroll
    for (int mt = 0; mt < kTiles; ++mt) {
#pragma unroll
      for (int i = 0; i < kDim / 64; ++i) {
        const uint32_t from = at + (16 * mt + lane / 4) * kDim + 64 * i + lane % 4 * 16;
        const uint4 low = load_words4(from), high = load_words4(from + 8 * kDim);
        const uint32_t a[4] = {low.x, low.y, low.z, low.w}, b[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          multiply_add_fp16(s[mt], fp16_from_e4m3(a[w]), fp16_from_e4m3(b[w]), fp16_from_e4m3(a[w] >> 16),
                            fp16_from_e4m3(b[w] >> 16), q[8 * i + 2 * w], q[8 * i + 2 * w + 1]);
        }
      }
    }
    add[0][0] = add[0][1] = 0;
    return scale2;
  }
  static __device__ __forceinline__ float reserve(uint32_t, uint32_t, uint32_t) { return 0; }
  static __device__ __forceinline__ void clear(uint32_t at, uint32_t lane, uint32_t, uint32_t valid) {
    for (uint32_t i = valid * kDim / 4 + lane; i < kSlot / 4; i += 32) store_word(at + 4 * i, 0);
  }
  static __device__ __forceinline__ void values(uint32_t at, uint32_t lane, uint32_t,
                                                const uint32_t (&p)[2 * kTiles], PackedPartial<kDim>* part) {
#pragma unroll
    for (int mt = 0; mt < kTiles; ++mt) {
      const uint32_t p0 = transpose(p[2 * mt]), p1 = transpose(p[2 * mt + 1]);
      multiply_add_fp16(part->more, 0, kFp16One, 0, kFp16One, p0, p1);
      const uint32_t row = at + (16 * mt + lane % 4 * 2) * kDim + lane / 4 * 4;
#pragma unroll
      for (int block = 0; block < kDim / 32; ++block) {
        const uint32_t w0 = load_word(row + 32 * block), w1 = load_word(row + kDim + 32 * block);
        const uint32_t w2 = load_word(row + 8 * kDim + 32 * block),
                       w3 = load_word(row + 9 * kDim + 32 * block);
        // Bytes 0 and 1 of both KV entries, by channel; then bytes 2 and 3.
        const uint32_t a = __byte_perm(w0, w1, 0x5140), b = __byte_perm(w2, w3, 0x5140);
        const uint32_t c = __byte_perm(w0, w1, 0x7362), d = __byte_perm(w2, w3, 0x7362);
        multiply_add_fp16(part->out[2 * block], fp16_from_e4m3(a), fp16_from_e4m3(a >> 16), fp16_from_e4m3(b),
                          fp16_from_e4m3(b >> 16), p0, p1);
        multiply_add_fp16(part->out[2 * block + 1], fp16_from_e4m3(c), fp16_from_e4m3(c >> 16),
                          fp16_from_e4m3(d), fp16_from_e4m3(d >> 16), p0, p1);
      }
    }
  }
};

template <int kDimension, int kScaleGroupOf>
struct RowsFamily {
  static constexpr int kDim = kDimension;
  static constexpr PackedLayout kLayout = PackedLayout::kRows;
  static constexpr uint32_t kScaleGroup = kScaleGroupOf;
  static constexpr uint32_t kParts = 7;  // bit mask of the parts in use
  using Int2 = RowsInt2<kDim, kScaleGroupOf>;
  using Int4 = RowsInt4<kDim, kScaleGroupOf>;
  using Wide = RowsFp8<kDim>;
  static constexpr uint32_t kSlot = Int4::kSlot > Int2::kSlot ? Int4::kSlot : Int2::kSlot;
  static_assert(kSlot >= Wide::kSlot);

  static __device__ __forceinline__ uint32_t channel(uint32_t tile, uint32_t row) {
    return tile / 2 * 32 + row % 8 * 4 + tile % 2 * 2 + row / 8;
  }
  // Row `group` of `more` has the zeros of that group of channels.
  static __device__ __forceinline__ float zero_of(const float (&more)[4], int tile, int head, uint32_t lane) {
    return __shfl_sync(kAllLanes, more[head], tile * 16 / kScaleGroupOf * 4 + lane % 4);
  }
};

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_PACKED_PACKED_ROWS_CUH_
