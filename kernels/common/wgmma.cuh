// wgmma: products of a warpgroup (four warps), 64 rows at a time, sums in registers, B from shared memory in
// 128-byte swizzle. sm_90a.
//
// A shared tile is [halves of a row][rows][64] of bf16: rows of 128 bytes, with 16-byte chunk c stored as
// chunk c ^ (row & 7), aligned to 1024 bytes. As a K x N operand, a tile has N along its rows (keys:
// `k_major`) or along its columns (values: `n_major`). PTX ISA, "Asynchronous warpgroup level matrix
// instructions".

#ifndef KVTWIN_KERNELS_COMMON_WGMMA_CUH_
#define KVTWIN_KERNELS_COMMON_WGMMA_CUH_

#include <cstdint>

namespace kvtwin::device {

// ---- descriptors: address and strides in units of 16 bytes; adding to a descriptor moves the address
//
// `eight`: bytes between groups of eight rows. `half`: bytes between column halves of 64.

constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;

__device__ __forceinline__ uint64_t k_major(uint32_t shared, uint32_t eight) {
  return kSwizzle128 | uint64_t{eight >> 4} << 32 | uint64_t{1} << 16 | (shared & 0x3ffff) >> 4;
}
__device__ __forceinline__ uint64_t n_major(uint32_t shared, uint32_t eight, uint32_t half) {
  return kSwizzle128 | uint64_t{eight >> 4} << 32 | uint64_t{half >> 4} << 16 | (shared & 0x3ffff) >> 4;
}

// ---- order

// Required before the first product that uses registers written by other instructions.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving accesses to `x` across this point, because products run asynchronously.
template <int kCount>
__device__ __forceinline__ void hold(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void hold(uint32_t (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

// ---- products: sum[64 x N] (+)= A[64 x 16] B[16 x N]
//
// Thread t of the warpgroup holds rows 16 * (t / 32) + t % 32 / 4 and that + 8: sum[4 j + 0, 1] are columns
// 8 j + 2 (t % 4) + 0, 1 of the first, sum[4 j + 2, 3] of the second.

#define KVT_4(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3])
#define KVT_16(x, i) KVT_4(x, i), KVT_4(x, i + 4), KVT_4(x, i + 8), KVT_4(x, i + 12)

// A from shared memory, both operands with k along their rows. add = 0 overwrites the sum.
__device__ __forceinline__ void wgmma_shared(float (&sum)[64], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, p, 1, 1, 0, 0;\n\t}"
      : KVT_16(sum, 0), KVT_16(sum, 16), KVT_16(sum, 32), KVT_16(sum, 48)
      : "l"(a), "l"(b), "r"(add));
}
// A from registers (layout of mma.m16n8k16, 16 rows per warp), B with n along its rows.
__device__ __forceinline__ void wgmma_registers(float (&sum)[64], const uint32_t* a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
      : KVT_16(sum, 0), KVT_16(sum, 16), KVT_16(sum, 32), KVT_16(sum, 48)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_registers(float (&sum)[32], const uint32_t* a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
      : KVT_16(sum, 0), KVT_16(sum, 16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef KVT_16
#undef KVT_4

// ---- register allocation and named barriers

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
// Named barrier of `threads` threads (0 is __syncthreads').
__device__ __forceinline__ void named_sync(uint32_t name, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(uint32_t name, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_COMMON_WGMMA_CUH_
