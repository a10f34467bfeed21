// The persistent prefill kernel (attention_prefill.h); its tiles of work are those of prefill_plan.cuh. One
// CTA per SM: one producer warp (prefill_producer.cuh), two consumer warpgroups (prefill_consumer.cuh).

#include <algorithm>

#include "kernels/attention/attention_prefill.h"
#include "kernels/attention/prefill_consumer.cuh"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kThreads = 384;
constexpr uint32_t kConsumerWarps = 8;

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel(const __grid_constant__ PrefillShape shape, const __grid_constant__ PrefillArgs args,
                   const __grid_constant__ PrefillMaps maps) {
  using Geometry = PrefillGeometry<kDim>;
  extern __shared__ char unaligned[];
  char* const memory = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  const uint32_t shared = shared_address(memory);
  auto* const job = reinterpret_cast<PrefillJob*>(memory + Geometry::kJob);
  auto* const plan = static_cast<PrefillPlan*>(args.plan);
  if (threadIdx.x == 0) {
    for (const uint32_t full : {Geometry::kQueryFull, Geometry::kTail}) barrier_init(shared + full, 1);
    barrier_init(shared + Geometry::kQueryEmpty, kConsumerWarps * 32);  // every lane arrives (release_job)
    for (uint32_t i = 0; i < Geometry::kStages; ++i) {
      barrier_init(shared + Geometry::kKeysFull + 8 * i, 1);
      barrier_init(shared + Geometry::kValuesFull + 8 * i, 1);
      barrier_init(shared + Geometry::kKeysEmpty + 8 * i, kConsumerWarps);
      barrier_init(shared + Geometry::kValuesEmpty + 8 * i, kConsumerWarps);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    give_registers<40>();
    if (threadIdx.x >= 32) return;
    PrefillProducer<kDim>(shape, args, maps, shared).run(plan, job);
    if (threadIdx.x == 0) leave(plan);
  } else {
    take_registers<232>();
    PrefillConsumer<kDim>(shape, args, shared).run(job);
  }
}

cudaError_t encode_maps(const PrefillShape& shape, const PrefillArgs& args, PrefillMaps* maps) {
  const uint32_t halves = shape.head_dim / 64, heads = shape.kv_heads * shape.group;
  const uint64_t row = uint64_t{shape.head_dim} * 2, q_row = uint64_t{shape.q_stride} * 2;
  const TensorAxis q[] = {
      {64, 0, 64}, {heads, row, shape.group}, {shape.rows, q_row, tile_tokens(shape)}, {halves, 128, 1}};
  if (const cudaError_t error = encode_bf16_map(args.q, q, 4, true, &maps->q)) return error;
  if (args.k != nullptr) {
    const uint64_t kv_row = uint64_t{shape.kv_stride} * 2;
    const TensorAxis kv[] = {
        {64, 0, 64}, {shape.rows, kv_row, kPrefillTileKeys}, {shape.kv_heads, row, 1}, {halves, 128, 1}};
    if (const cudaError_t error = encode_bf16_map(args.k, kv, 4, true, &maps->k)) return error;
    if (const cudaError_t error = encode_bf16_map(args.v, kv, 4, true, &maps->v)) return error;
  }
  if (shape.pool_blocks == 0) return cudaSuccess;
  maps->page_box = std::min(shape.page_tokens & -shape.page_tokens, kPrefillTileKeys);
  const uint64_t eights = uint64_t{shape.pool_blocks} * 2 * shape.page_tokens / 8;
  const TensorAxis pool[] = {
      {64, 0, 64}, {8, row, 8}, {halves, 128, halves}, {eights, 8 * row, maps->page_box / 8}};
  return encode_bf16_map(args.pool, pool, 4, false, &maps->pool);
}

template <int kDim>
cudaError_t launch(const PrefillShape& shape, const PrefillArgs& args, cudaStream_t stream) {
  constexpr uint32_t kShared = PrefillGeometry<kDim>::kShared;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(prefill_kernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (allowed != cudaSuccess) return allowed;
  PrefillMaps maps{};
  maps.page_box = kPrefillTileKeys;
  if (const cudaError_t error = encode_maps(shape, args, &maps)) return error;
  prefill_kernel<kDim><<<shape.ctas, kThreads, kShared, stream>>>(shape, args, maps);
  return cudaGetLastError();
}

bool supported(const PrefillShape& s, const PrefillArgs& args) {
  const uint32_t row = s.kv_heads * s.head_dim;
  const bool sizes = (s.head_dim == 64 || s.head_dim == 128) && s.group >= 1 && s.group <= kPrefillGroupMax &&
                     s.kv_heads >= 1 && s.heads_per_page >= 1 && s.ctas >= 1;
  const bool pages = s.page_tokens > 0 && s.page_tokens % 16 == 0 &&
                     uint64_t{s.pool_blocks} * 2 * s.page_tokens < uint64_t{1} << 31;
  const bool q = s.q_stride >= row * s.group && s.q_stride % 8 == 0;
  const bool kv = (args.k == nullptr) == (args.v == nullptr) &&
                  (args.k == nullptr ? s.pool_blocks > 0 : s.kv_stride >= row && s.kv_stride % 8 == 0);
  return sizes && pages && q && kv && args.scale > 0;
}

}  // namespace

cudaError_t attention_prefill(const PrefillShape& shape, const PrefillArgs& args, cudaStream_t stream) {
  if (shape.sequences == 0 || shape.rows == 0) return cudaSuccess;
  if (!supported(shape, args)) return cudaErrorInvalidValue;
  return shape.head_dim == 128 ? launch<128>(shape, args, stream) : launch<64>(shape, args, stream);
}

}  // namespace kvtwin
