// The PTX instructions that the kernels use, one function each. sm_90 and later.

#ifndef KVTWIN_KERNELS_COMMON_CUDA_PRIMITIVES_CUH_
#define KVTWIN_KERNELS_COMMON_CUDA_PRIMITIVES_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace kvtwin::device {

constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// ---- mbarriers; `bar` is the shared address of one, 8 bytes

__device__ __forceinline__ void barrier_init(uint32_t bar, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
// Makes the initialisation visible to completions of asynchronous copies.
__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void barrier_arrive_expecting(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n"
      "again:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@!done bra again;\n\t}" ::"r"(bar),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ bool barrier_test(uint32_t bar, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n\t.reg .pred done;\n\t"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n\t"
      "selp.u32 %0, 1, 0, done;\n\t}"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done != 0;
}

// ---- copies

// Bulk copy of `bytes` (a multiple of 16) from global to shared memory; completes on `bar`. L2 evict-first:
// for data that is read once.
__device__ __forceinline__ void copy_bulk_once(uint32_t target, const void* source, uint32_t bytes,
                                               uint32_t bar) {
  uint64_t first_out;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first_out));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;" ::"r"(target),
      "l"(source), "r"(bytes), "r"(bar), "l"(first_out)
      : "memory");
}
// The same with the default L2 policy: for data that is read again soon.
__device__ __forceinline__ void copy_bulk(uint32_t target, const void* source, uint32_t bytes, uint32_t bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
      "l"(source), "r"(bytes), "r"(bar)
      : "memory");
}
// Copies a box of a 4-D tensor (kernels/common/tensor_map.h). `map` is a kernel parameter.
__device__ __forceinline__ void copy_box(uint32_t target, const void* map, uint32_t bar, uint32_t x,
                                         uint32_t y, uint32_t z, uint32_t w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
      "%5, "
      "%6}], [%2];" ::"r"(target),
      "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}
// Orders earlier generic-proxy writes to shared memory before later asynchronous copies to it.
__device__ __forceinline__ void fence_before_bulk() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Release and acquire fence at device scope.
__device__ __forceinline__ void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// ---- 8 x 8 matrices of 16-bit numbers

struct Fragment4 {
  uint32_t r[4];
};
__device__ __forceinline__ Fragment4 load_matrices(uint32_t row) {
  Fragment4 f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3])
               : "r"(row)
               : "memory");
  return f;
}
__device__ __forceinline__ Fragment4 load_matrices_transposed(uint32_t row) {
  Fragment4 f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3])
               : "r"(row)
               : "memory");
  return f;
}
__device__ __forceinline__ uint32_t transpose(uint32_t matrix) {
  uint32_t out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(matrix));
  return out;
}
// sum[16 x 8] += a[16 x 16] b[16 x 8], bf16 in, fp32 sums.
__device__ __forceinline__ void multiply_add(float (&sum)[4], const Fragment4& a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
}

// sum[16 x 8] += a[16 x 16] b[16 x 8], fp16 in, fp32 sums. Subnormal inputs keep their value.
__device__ __forceinline__ void multiply_add_fp16(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                                  uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// ---- loads from shared memory by address

__device__ __forceinline__ uint32_t load_u16(uint32_t at) {
  uint16_t out;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(out) : "r"(at) : "memory");
  return out;
}
__device__ __forceinline__ uint32_t load_word(uint32_t at) {
  uint32_t out;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(out) : "r"(at) : "memory");
  return out;
}
__device__ __forceinline__ uint2 load_words2(uint32_t at) {
  uint2 out;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(out.x), "=r"(out.y) : "r"(at) : "memory");
  return out;
}
__device__ __forceinline__ uint4 load_words4(uint32_t at) {
  uint4 out;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
               : "r"(at)
               : "memory");
  return out;
}
__device__ __forceinline__ void store_word(uint32_t at, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}
__device__ __forceinline__ void store_u16(uint32_t at, uint16_t value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(value) : "memory");
}

// ---- numbers

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

// Pairs of fp16. A product is rounded once; a conversion from fp32 rounds to nearest.
__device__ __forceinline__ uint32_t multiply_fp16(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
__device__ __forceinline__ uint32_t pack_fp16(float low, float high) {
  uint32_t out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
__device__ __forceinline__ float fp16_low(uint32_t pair) {
  return __half2float(__ushort_as_half(static_cast<uint16_t>(pair)));
}
__device__ __forceinline__ float fp16_high(uint32_t pair) { return fp16_low(pair >> 16); }
// Exact for values that fp16 represents.
__device__ __forceinline__ uint32_t fp16_from_bf16(uint32_t pair) {
  return pack_fp16(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
// The two E4M3 in the low half of `bytes`.
__device__ __forceinline__ uint32_t fp16_from_e4m3(uint32_t bytes) {
  uint32_t out;
  asm("{\n\t.reg .b16 pair, rest;\n\tmov.b32 {pair, rest}, %1;\n\tcvt.rn.f16x2.e4m3x2 %0, pair;\n\t}"
      : "=r"(out)
      : "r"(bytes));
  return out;
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_COMMON_CUDA_PRIMITIVES_CUH_
