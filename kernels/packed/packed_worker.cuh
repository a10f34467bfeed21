// The consumer warps of the packed decode kernel: each processes the blocks of its split.
//
// As in attention_decode_kernel.cuh each warp works alone on its ring of stages, and warps synchronise only
// at the end. Stages alternate between the keys of a block and its values, so a stage is released as soon as
// the keys have been multiplied. Producer warps start the copies (packed_reader.cuh). Parts of several
// formats follow one another in the same accumulators; between formats only the powers of two that codes
// leave in them change.

#ifndef KVTWIN_KERNELS_PACKED_PACKED_WORKER_CUH_
#define KVTWIN_KERNELS_PACKED_PACKED_WORKER_CUH_

#include "kernels/packed/packed_math.cuh"
#include "kernels/packed/packed_reader.cuh"

namespace kvtwin::device {

template <class Geometry>
class PackedWorker {
  using Family = typename Geometry::Family;
  using Int2 = typename Family::Int2;
  using Int4 = typename Family::Int4;
  using Wide = typename Family::Wide;
  static constexpr int kDim = Geometry::kDim;
  static constexpr bool kHasInt2 = Family::kParts >> kPartInt2 & 1,
                        kHasInt4 = Family::kParts >> kPartInt4 & 1;

 public:
  __device__ PackedWorker(const PackedDecodeShape& shape, const PackedDecodeArgs& args, uint32_t ring,
                          uint32_t full, uint32_t empty)
      : shape_(shape), args_(args), ring_(ring), full_(full), empty_(empty), lane_(threadIdx.x % 32) {}

  __device__ void work(const PackedSplit& split, Merger<Geometry>& merger) {
    here_.start(split);
    uint32_t begin = split.begin;
    bool inside = split.first > split.begin;
    open_part();
    for (;;) {
      if (here_.tokens == 0) {
        consume_nothing();
      } else if (kHasInt2 && here_.part == kPartInt2) {
        attend<Int2>();
      } else if (kHasInt4 && here_.part == kPartInt4) {
        attend<Int4>();
      } else {
        attend<Wide>();
      }
      here_.position += here_.cost();
      const bool more = here_.position < split.end;
      if (++here_.block < here_.blocks && more) continue;
      close_part();
      const uint32_t sequence = here_.sequence, position = here_.position;
      const Owner owner = owner_of(begin);
      const bool goes_on = here_.block < here_.blocks || here_.open(args_.table, sequence, here_.part + 1);
      if (!more || !goes_on) {
        Partial<kDim> found = part_.result();
        merger.take(owner, inside, !goes_on, &found);
      }
      if (!more) return;
      if (!goes_on) {
        here_.open(args_.table, sequence + 1, 0);
        begin = position, inside = false;
        part_ = {};
      }
      here_.position = position;
      open_part();
    }
  }

 private:
  __device__ __forceinline__ Owner owner_of(uint32_t begin) const {
    const PackedSequence s = load_sequence(args_.table + here_.sequence);
    const uint32_t last = s.tokens[2] > 0   ? here_.rules().cost(2)
                          : s.tokens[1] > 0 ? here_.rules().cost(1)
                          : s.tokens[0] > 0 ? here_.rules().cost(0)
                                            : kCostOfNothing;
    return {here_.sequence, s.q_row, begin, begin + here_.rules().cost(s) - last + 1};
  }

  // Waits for the next stage to be full and returns its shared address.
  __device__ __forceinline__ uint32_t wait() const {
    barrier_wait(full_ + 8 * slot_, parity_);
    return ring_ + slot_ * Geometry::kSlot;
  }
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (lane_ == 0) barrier_arrive(empty_ + 8 * slot_);
    if (++slot_ == Geometry::kSlots) slot_ = 0, parity_ ^= 1;
  }
  __device__ void consume_nothing() {
    wait(), release();
    wait(), release();
  }

  template <typename T>
  __device__ __forceinline__ T by_part(const T (&of)[kPackedParts]) const {
    return here_.part == 0 ? of[0] : here_.part == 1 ? of[1] : of[2];
  }
  // Masks KV entries from `valid` on: their logits become -infinity.
  template <class Format>
  __device__ __forceinline__ void cut(uint32_t at, uint32_t valid, float (&s)[Format::kTiles][4],
                                      float (&add)[Format::kTiles / Format::kTilesPerAdd][2]) {
    Format::clear(at, lane_, here_.block, valid);
    fence_before_bulk();
    __syncwarp();
#pragma unroll
    for (int mt = 0; mt < Format::kTiles; ++mt) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (Format::token(mt, i / 2, lane_) >= valid) s[mt][i] = -INFINITY;
      }
    }
#pragma unroll
    for (int a = 0; a < Format::kTiles / Format::kTilesPerAdd;
         ++a) {  // a group of keys without valid entries
      if (a * Format::kTilesPerAdd * 16u >= valid) add[a][0] = add[a][1] = 0;
    }
  }
  // Masks KV entries that are not live. `live`: address of the masks of the block's pages.
  template <class Format>
  __device__ __forceinline__ void hide_dropped(uint32_t live, float (&s)[Format::kTiles][4]) const {
    const uint32_t page = by_part(shape_.page_tokens), first = here_.block * Format::kTokens;
    const uint32_t shift = 31 - __clz(page);
#pragma unroll
    for (int mt = 0; mt < Format::kTiles; ++mt) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t token = first + Format::token(mt, half, lane_), bit = token & (page - 1);
        const uint32_t word = load_word(live + 16 * ((token >> shift) - (first >> shift)) + bit / 32 * 4);
        if ((word >> bit % 32 & 1) == 0) s[mt][2 * half] = s[mt][2 * half + 1] = -INFINITY;
      }
    }
  }

  template <class Format>
  __device__ __forceinline__ void attend() {
    constexpr int kAdds = Format::kTiles / Format::kTilesPerAdd;
    float s[Format::kTiles][4] = {}, add[kAdds][2];
    const float factor = Format::scores(wait(), lane_, q_, args_.scale * kLog2E, s, add);
    release();
    const uint32_t at = wait(), valid = here_.tokens - here_.block * Format::kTokens;
    if (valid < Format::kTokens) cut<Format>(at, valid, s, add);
    if constexpr (Geometry::kMasked) {
      if (by_part(args_.live) != nullptr) hide_dropped<Format>(at + Geometry::kLive, s);
    }
    uint32_t p[2 * Format::kTiles];
    softmax_tile<Format>(s, add, factor, Format::reserve(at, lane_, here_.block), &part_, p);
    Format::values(at, lane_, here_.block, p, &part_);
    release();
  }

  template <class Format>
  __device__ __forceinline__ void scale_out(bool up) {
#pragma unroll
    for (int mt = 0; mt < kDim / 16; ++mt) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float by = Format::value_factor(mt % 2, i / 2);
        part_.out[mt][i] *= up ? by : 1 / by;
      }
    }
  }
  template <class Format>
  __device__ __forceinline__ void load_query() {
    const uint32_t head = lane_ / 4;
    const bool is_head = head < shape_.group;
    const size_t row = size_t{here_.q_row} + (is_head ? head : 0);
    Format::load_query(reinterpret_cast<const uint32_t*>(args_.q) + row * (kDim / 2), is_head, lane_, q_);
    scale_out<Format>(false);
  }
  __device__ void open_part() {
    if (kHasInt2 && here_.part == kPartInt2) {
      load_query<Int2>();
    } else if (kHasInt4 && here_.part == kPartInt4) {
      load_query<Int4>();
    } else {
      load_query<Wide>();
    }
  }
  // Applies the powers of two and the zeros of values to the accumulators.
  __device__ void close_part() {
    if (kHasInt2 && here_.part == kPartInt2) {
      scale_out<Int2>(true);
    } else if (kHasInt4 && here_.part == kPartInt4) {
      scale_out<Int4>(true);
    } else {
      scale_out<Wide>(true);
    }
#pragma unroll
    for (int mt = 0; mt < kDim / 16; ++mt) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float zero = Family::zero_of(part_.more, mt, h, lane_);
        part_.out[mt][h] += zero, part_.out[mt][h + 2] += zero;
      }
    }
    part_.more[0] = part_.more[1] = 0;
  }

  const PackedDecodeShape& shape_;
  const PackedDecodeArgs& args_;
  const uint32_t ring_, full_, empty_, lane_;
  PackedPlace<Family> here_;
  PackedPartial<kDim> part_;
  uint32_t q_[kDim / 8 + 2];
  uint32_t slot_ = 0, parity_ = 0;
};

// The consumer warp of this producer lane, if it has one.
template <class Geometry>
__device__ __forceinline__ uint32_t copied_warp() {
  return min(threadIdx.x % 32, Geometry::kCopied - 1u) +
         (threadIdx.x / 32 - Geometry::kWarps) * Geometry::kCopied;
}

template <class Geometry>
__device__ void copy_for_all(const PackedDecodeShape& shape, const PackedDecodeArgs& args,
                             const PackedSplit& split, uint32_t shared) {
  const uint32_t warp = copied_warp<Geometry>();
  const uint32_t full = shared + Geometry::kBarriers + warp * Geometry::kSlots * 16;
  PackedReader<Geometry> reader(shape, args, shared + warp * Geometry::kRing, full,
                                full + Geometry::kSlots * 8);
  bool going = threadIdx.x % 32 < Geometry::kCopied && split.first < split.end;
  if (going) reader.start(split);
  while (__any_sync(kAllLanes, going)) {
    bool filled = false;
    if (going) {
      filled = reader.fill();
      going = !reader.done();
    }
    if (!__any_sync(kAllLanes, filled)) __nanosleep(32);
  }
}

template <class Geometry>
__global__ void __launch_bounds__((Geometry::kWarps + kCopyWarps) * 32, 1)
    packed_kernel(const __grid_constant__ PackedDecodeShape shape,
                  const __grid_constant__ PackedDecodeArgs args) {
  extern __shared__ __align__(128) char shared[];
  const uint32_t warp = threadIdx.x / 32;
  const bool copies = warp >= Geometry::kWarps;
  auto* const planned = static_cast<DecodePlan*>(args.plan);
  const uint32_t worker = copies ? copied_warp<Geometry>() : warp;
  const PackedSplit split = packed_fractions_of(planned)[blockIdx.x * Geometry::kWarps + worker];
  const DecodePlan plan = *planned;
  const uint32_t base = shared_address(shared);
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < 2 * Geometry::kWarps * Geometry::kSlots; ++i) {
      barrier_init(base + Geometry::kBarriers + 8 * i, 1);
    }
    barrier_init_done();
  }
  __syncthreads();
  Merger<Geometry> merger({args.out, args.workspace, shape.sequences, shape.group}, plan, shared);
  if (copies) {
    copy_for_all<Geometry>(shape, args, split, base);
  } else {
    merger.forget();
    if (split.first < split.end) {
      const uint32_t full = base + Geometry::kBarriers + warp * Geometry::kSlots * 16;
      PackedWorker<Geometry> work(shape, args, base + warp * Geometry::kRing, full,
                                  full + Geometry::kSlots * 8);
      work.work(split, merger);
    }
  }
  __syncthreads();
  merger.merge();
}

template <class Geometry>
cudaError_t launch_packed(const PackedDecodeShape& shape, const PackedDecodeArgs& args, cudaStream_t stream) {
  static const cudaError_t allowed = cudaFuncSetAttribute(
      packed_kernel<Geometry>, cudaFuncAttributeMaxDynamicSharedMemorySize, Geometry::kShared);
  if (allowed != cudaSuccess) return allowed;
  packed_kernel<Geometry>
      <<<shape.ctas, (Geometry::kWarps + kCopyWarps) * 32, Geometry::kShared, stream>>>(shape, args);
  return cudaGetLastError();
}
template <class Family>
cudaError_t launch_family(const PackedDecodeShape& shape, const PackedDecodeArgs& args, cudaStream_t stream) {
  if (args.live[0] != nullptr || args.live[1] != nullptr || args.live[2] != nullptr) {
    return launch_packed<PackedGeometry<Family, 8, true>>(shape, args, stream);
  }
  return shape.group <= 4 ? launch_packed<PackedGeometry<Family, 4, false>>(shape, args, stream)
                          : launch_packed<PackedGeometry<Family, 8, false>>(shape, args, stream);
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_PACKED_PACKED_WORKER_CUH_
