// Partial results of a sequence, and their merge: first across the warps of a CTA, then across CTAs.

#ifndef KVTWIN_KERNELS_ATTENTION_ATTENTION_DECODE_MERGE_CUH_
#define KVTWIN_KERNELS_ATTENTION_ATTENTION_DECODE_MERGE_CUH_

#include "kernels/attention/decode_plan.cuh"
#include "kernels/common/cuda_primitives.cuh"

namespace kvtwin::device {

// What a table lists: pages of a multiple of 16 tokens, pages of one token, or KV entries.
enum class Tables : uint8_t { kPages, kSingle, kListed };

// Shared memory of a CTA: [ring of each warp][two partials of each warp][their owners][barriers].
template <int kDimension, int kHeadSlots, Tables kTablesOf>
struct DecodeGeometry {
  static constexpr Tables kTables = kTablesOf;
  static constexpr int kDim = kDimension, kHeads = kHeadSlots;
  // Pages of one token are not swizzled: their rows are copied one by one, with padding instead.
  static constexpr bool kApart = kTables == Tables::kSingle;
  static constexpr int kRow = 2 * kDim + (kApart ? 16 : 0);
  static constexpr int kHalf = 16 * kRow;
  static constexpr int kStage = 2 * kHalf;
  static constexpr int kStages = (kDim == 128 ? 3 : 6) - (kApart || kHeads == 8 ? 1 : 0);
  static constexpr int kRing = kStages * kStage;
  static constexpr int kPartFloats = kHeads * (kDim + 2);  // out[kHeads][kDim], max[kHeads], sum[kHeads]
  static constexpr int kRetained = kDecodeWarps * kRing;
  static constexpr int kWarps = kDecodeWarps;
  static constexpr int kOwners = kRetained + 2 * kDecodeWarps * kPartFloats * 4;
  static constexpr int kBarriers = kOwners + 2 * kDecodeWarps * 16;
  static constexpr int kShared = kBarriers + kDecodeWarps * kStages * 8;
  static_assert(kShared <= 227 * 1024);

  // Address of partial `slot` of a CTA's 2 * kWarps in shared memory.
  static __device__ __forceinline__ uint32_t part_at(uint32_t slot) {
    return kRetained + slot * kPartFloats * 4;
  }
  // Channel of accumulator row `row` (0 to 15) of tile `tile`.
  static __device__ __forceinline__ uint32_t channel(uint32_t tile, uint32_t row) { return 16 * tile + row; }

  // Offset of chunk `number` of stage row `row`, whose entry is in slot `slot` of its page.
  static __device__ __forceinline__ uint32_t chunk(uint32_t row, uint32_t slot, uint32_t number) {
    return row * kRow + (kApart ? number : number ^ (slot & 7)) * 16;
  }
};

// Partial result of one sequence, by lane: out[mt][i] is channel mt * 16 + lane / 4 + 8 * (i / 2) of head
// lane % 4 * 2 + i % 2; max and sum are those of that head, sum over this lane's tokens only.
template <int kDim>
struct Partial {
  float out[kDim / 16][4] = {};
  float max[2] = {-1e30f, -1e30f};  // finite, so that differences are not NaN
  float sum[2] = {};

  __device__ __forceinline__ void raise(float a, float b) {
#pragma unroll
    for (int by = 4; by < 32; by *= 2) {
      a = fmaxf(a, __shfl_xor_sync(kAllLanes, a, by));
      b = fmaxf(b, __shfl_xor_sync(kAllLanes, b, by));
    }
    if (!__any_sync(kAllLanes, a > max[0] || b > max[1])) return;
    const float higher[2] = {fmaxf(max[0], a), fmaxf(max[1], b)};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float by = exp2_fast(max[h] - higher[h]);
      max[h] = higher[h];
      sum[h] *= by;
#pragma unroll
      for (int mt = 0; mt < kDim / 16; ++mt) out[mt][h] *= by, out[mt][h + 2] *= by;
    }
  }
  __device__ __forceinline__ void add_up_sums() {
#pragma unroll
    for (int by = 4; by < 32; by *= 2) {
      sum[0] += __shfl_xor_sync(kAllLanes, sum[0], by);
      sum[1] += __shfl_xor_sync(kAllLanes, sum[1], by);
    }
  }
};

// Loads and stores of four or two channels of a partial: "near" in shared memory, "far" in L2, for partials
// of other SMs.
__device__ __forceinline__ void load_near(const float* at, float (&out)[4]) {
  const float4 value = *reinterpret_cast<const float4*>(at);
  out[0] = value.x, out[1] = value.y, out[2] = value.z, out[3] = value.w;
}
__device__ __forceinline__ void load_near(const float* at, float (&out)[2]) {
  const float2 value = *reinterpret_cast<const float2*>(at);
  out[0] = value.x, out[1] = value.y;
}
__device__ __forceinline__ void load_far(const float* at, float (&out)[4]) {
  const float4 value = __ldcg(reinterpret_cast<const float4*>(at));
  out[0] = value.x, out[1] = value.y, out[2] = value.z, out[3] = value.w;
}
__device__ __forceinline__ void load_far(const float* at, float (&out)[2]) {
  const float2 value = __ldcg(reinterpret_cast<const float2*>(at));
  out[0] = value.x, out[1] = value.y;
}
__device__ __forceinline__ void store_far(float* at, const float (&value)[4]) {
  __stcg(reinterpret_cast<float4*>(at), make_float4(value[0], value[1], value[2], value[3]));
}
__device__ __forceinline__ void store_far(float* at, const float (&value)[2]) {
  __stcg(reinterpret_cast<float2*>(at), make_float2(value[0], value[1]));
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int by = 1; by < 32; by *= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, by));
  return x;
}
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int by = 1; by < 32; by *= 2) x += __shfl_xor_sync(kAllLanes, x, by);
  return x;
}

// A sequence of which a CTA has a partial, and its range in the list of all blocks.
struct Owner {
  uint32_t sequence, q_row, begin, end;
};

// Destination of merged results.
struct MergeTarget {
  __nv_bfloat16* out;
  void* workspace;
  uint32_t sequences;
  uint32_t group;  // query heads in use
};

template <class Geometry>
class Merger {
  static constexpr int kDim = Geometry::kDim, kHeads = Geometry::kHeads, kWarps = Geometry::kWarps;
  static constexpr uint32_t kNobody = UINT32_MAX;
  static constexpr int kPer = kDim / 32;  // channels per lane
  static constexpr uint32_t kBatch = 8;   // partials in flight

 public:
  __device__ Merger(const MergeTarget& target, const DecodePlan& plan, char* shared)
      : target_(target),
        plan_(plan),
        shared_(shared),
        owners_(reinterpret_cast<Owner*>(shared + Geometry::kOwners)),
        warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32) {}

  __device__ void forget() {
    if (lane_ < 2) owners_[2 * warp_ + lane_].sequence = kNobody;
    __syncwarp();
  }

  // Takes a warp's partial of a sequence that its split enters in the middle (`inside`) or follows to its
  // `end`. A complete result is written out. Incomplete ones are stored; a split has at most two, its first
  // and its last.
  __device__ void take(const Owner& owner, bool inside, bool end, Partial<kDim>* part) {
    part->add_up_sums();
    if (!inside && end) return write_whole(owner.q_row, *part);
    const uint32_t at = 2 * warp_ + (inside ? 0 : 1);
    if (lane_ == 0) owners_[at] = owner;
    store(*part, reinterpret_cast<float*>(shared_ + Geometry::part_at(at)));
  }

  // Called after all warps have finished. A task is one head of a sequence with stored partials; warps share
  // the tasks.
  __device__ void merge() {
    const uint32_t mine = lane_ < 2 * kWarps ? owners_[lane_].sequence : kNobody;
    const uint32_t same = __match_any_sync(kAllLanes, mine);
    uint32_t leaders =
        __ballot_sync(kAllLanes, mine != kNobody && __ffs(same) == static_cast<int>(lane_) + 1);
    for (uint32_t task = 0; leaders != 0; leaders &= leaders - 1) {
      const uint32_t leader = __ffs(leaders) - 1;
      const uint32_t slots = __shfl_sync(kAllLanes, same, leader);
      for (uint32_t head = 0; head < target_.group; ++head, ++task) {
        if (task % kWarps != warp_) continue;
        Sum sum;
        sum.add_near(lane_, head, slots, shared_);
        finish(owners_[leader], head, &sum);
      }
    }
  }

 private:
  // A merged head: channels lane * kPer and following, by lane.
  struct Sum {
    float out[kPer] = {};
    float max = -1e30f;
    float sum = 0;

    // Adds the partials of this CTA in `slots`.
    __device__ void add_near(uint32_t lane, uint32_t head, uint32_t slots, const char* shared) {
      const bool in = (slots >> lane & 1) != 0;
      const auto part = [&](uint32_t slot) {
        return reinterpret_cast<const float*>(shared + Geometry::part_at(slot));
      };
      const float* const own = part(in ? lane : 0) + kHeads * kDim + head;
      const float theirs = in ? *own : -1e30f;
      max = warp_max(theirs);
      const float weight = in ? exp2_fast(theirs - max) : 0;
      sum = warp_sum(in ? own[kHeads] * weight : 0);
      for (; slots != 0; slots &= slots - 1) {
        const uint32_t slot = __ffs(slots) - 1;
        const float by = __shfl_sync(kAllLanes, weight, slot);
        float value[kPer];
        load_near(part(slot) + head * kDim + lane * kPer, value);
#pragma unroll
        for (int c = 0; c < kPer; ++c) out[c] += by * value[c];
      }
    }

    // Adds the partials of `count` CTAs. The first CTA left the sequence in the middle, the others entered it
    // there. All maxima are loaded first, so that no load depends on another.
    __device__ void add_far(uint32_t lane, uint32_t head, uint32_t count, const float* parts) {
      constexpr uint32_t kStep = 2 * Geometry::kPartFloats;
      for (uint32_t base = 0; base < count; base += 32) {
        const uint32_t here = min(32u, count - base);
        const auto part = [&](uint32_t i) {
          return parts + (base + i) * kStep + (base + i == 0 ? Geometry::kPartFloats : 0);
        };
        const float* const own = part(min(lane, here - 1)) + kHeads * kDim + head;
        const float theirs = lane < here ? __ldcg(own) : -1e30f;
        const float their_sum = lane < here ? __ldcg(own + kHeads) : 0;
        const float higher = fmaxf(max, warp_max(theirs));
        const float weight = exp2_fast(theirs - higher), old = exp2_fast(max - higher);
        max = higher;
        sum = sum * old + warp_sum(their_sum * weight);
#pragma unroll
        for (int c = 0; c < kPer; ++c) out[c] *= old;
        for (uint32_t i = 0; i < here; i += kBatch) {
          float value[kBatch][kPer];  // all loads issue before the first use
#pragma unroll
          for (uint32_t k = 0; k < kBatch; ++k) {
            load_far(part(min(i + k, here - 1)) + head * kDim + lane * kPer, value[k]);
          }
#pragma unroll
          for (uint32_t k = 0; k < kBatch; ++k) {
            const float by = __shfl_sync(kAllLanes, weight, min(i + k, here - 1));
#pragma unroll
            for (int c = 0; c < kPer; ++c) out[c] += i + k < here ? by * value[k][c] : 0;
          }
        }
      }
    }
  };

  // A CTA's partial of the sequence that it entered (0) or left (1) in the middle.
  __device__ float* workspace_part(uint32_t cta, uint32_t which) const {
    char* const parts = static_cast<char*>(target_.workspace) + parts_offset(target_.sequences);
    return reinterpret_cast<float*>(parts) + (size_t{cta} * 2 + which) * Geometry::kPartFloats;
  }

  // Channel of accumulator i / 2 of this lane, row half i % 2.
  __device__ uint32_t channel(int i) const { return Geometry::channel(i / 2, i % 2 * 8 + lane_ / 4); }

  __device__ void store(const Partial<kDim>& part, float* to) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t head = lane_ % 4 * 2 + h;
      if (head >= kHeads) continue;
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i) to[head * kDim + channel(i)] = part.out[i / 2][i % 2 * 2 + h];
      if (lane_ < 4) {
        to[kHeads * kDim + head] = part.max[h];
        to[kHeads * (kDim + 1) + head] = part.sum[h];
      }
    }
  }
  __device__ void write_whole(uint32_t q_row, const Partial<kDim>& part) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t head = lane_ % 4 * 2 + h;
      if (head >= target_.group) continue;
      const float by = part.sum[h] > 0 ? 1 / part.sum[h] : 0;
      __nv_bfloat16* const out = target_.out + size_t{q_row + head} * kDim;
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i)
        out[channel(i)] = __float2bfloat16(part.out[i / 2][i % 2 * 2 + h] * by);
    }
  }

  // Finishes one head of this CTA: writes it if no other CTA has a partial; otherwise stores it, and the last
  // CTA to arrive merges all.
  __device__ void finish(const Owner& owner, uint32_t head, Sum* sum) {
    const uint32_t first = plan_.cta_of(owner.begin), last = plan_.cta_of(owner.end - 1);
    if (first == last) return write(owner.q_row, head, *sum);
    float* const part = workspace_part(blockIdx.x, blockIdx.x == first ? 1 : 0);
    store_far(part + head * kDim + lane_ * kPer, sum->out);
    if (lane_ == 0) {
      __stcg(part + kHeads * kDim + head, sum->max);
      __stcg(part + kHeads * (kDim + 1) + head, sum->sum);
    }
    fence_device();
    __syncwarp();
    uint32_t before = 0;
    if (lane_ == 0) {  // the counter wraps to 0 for the next launch
      auto* const arrived = static_cast<uint32_t*>(target_.workspace);
      before = atomicInc(arrived + owner.sequence * kDecodeGroupMax + head, last - first);
    }
    if (__shfl_sync(kAllLanes, before, 0) != last - first) return;
    fence_device();
    Sum all;
    all.add_far(lane_, head, last - first + 1, workspace_part(first, 0));
    write(owner.q_row, head, all);
  }
  __device__ void write(uint32_t q_row, uint32_t head, const Sum& sum) const {
    const float by = sum.sum > 0 ? 1 / sum.sum : 0;
    __nv_bfloat16* const out = target_.out + size_t{q_row + head} * kDim + lane_ * kPer;
#pragma unroll
    for (int c = 0; c < kPer; ++c) out[c] = __float2bfloat16(sum.out[c] * by);
  }

  const MergeTarget target_;
  const DecodePlan& plan_;
  char* const shared_;
  Owner* const owners_;
  const uint32_t warp_, lane_;
};

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_ATTENTION_ATTENTION_DECODE_MERGE_CUH_
