// Loops that use the widest vector registers of the machine and give the same bits on every machine.
//
// A loop over Lanes is a struct with a function template run<kWidth>(), where kWidth is the floats of one
// register; widest() calls the instance for this machine. (Vector types wider than the registers are not an
// alternative: GCC spills them.) Loops that compilers vectorise themselves are marked KVTWIN_WIDE: compiled
// for several widths, of which the loader picks one.
//
// No result depends on the width: there is one accumulator per lane, the compiler may not fuse a * b + c
// (-ffp-contract=off), and lanes are summed in one fixed order.

#ifndef KVTWIN_KERNELS_COMMON_WIDE_H_
#define KVTWIN_KERNELS_COMMON_WIDE_H_

#include <cstdint>
#include <cstring>

// A macro, because an attribute cannot depend on a constant. Sanitizers start after the loader has picked a
// version, so they use the default width.
#if defined(__x86_64__) && defined(__OPTIMIZE__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define KVTWIN_WIDE [[gnu::target_clones("avx512f", "avx2", "default")]]
#define KVTWIN_WIDEST 1
#else
#define KVTWIN_WIDE
#define KVTWIN_WIDEST 0
#endif

namespace kvtwin::kernels {

constexpr uint32_t kLanes = 16;

// A register of kWidth numbers. GCC ignores the attribute in an alias template.
template <typename Number, uint32_t kWidth>
struct RegisterOf {
  typedef Number Type __attribute__((vector_size(kWidth * sizeof(Number))));
};
template <uint32_t kWidth>
using Register = typename RegisterOf<float, kWidth>::Type;

// Sixteen floats in registers.
template <uint32_t kWidth>
struct Lanes {
  static constexpr uint32_t kRegisters = kLanes / kWidth;
  Register<kWidth> part[kRegisters];
};

template <uint32_t kWidth>
[[gnu::always_inline]] inline void load_lanes(const float* from, Lanes<kWidth>* lanes) {
  for (uint32_t i = 0; i < lanes->kRegisters; ++i)
    std::memcpy(&lanes->part[i], from + i * kWidth, sizeof lanes->part[i]);
}
// Lanes from `count` on are zero. REQUIRES: count <= kLanes.
template <uint32_t kWidth>
[[gnu::always_inline]] inline void load_some_lanes(const float* from, uint32_t count, Lanes<kWidth>* lanes) {
  float some[kLanes]{};
  if (count > 0) std::memcpy(some, from, count * sizeof(float));
  load_lanes(some, lanes);
}
template <uint32_t kWidth>
[[gnu::always_inline]] inline void store_lanes(const Lanes<kWidth>& lanes, float* to) {
  for (uint32_t i = 0; i < lanes.kRegisters; ++i)
    std::memcpy(to + i * kWidth, &lanes.part[i], sizeof lanes.part[i]);
}
template <uint32_t kWidth>
[[gnu::always_inline]] inline void add(const Lanes<kWidth>& x, Lanes<kWidth>* sum) {
  for (uint32_t i = 0; i < x.kRegisters; ++i) sum->part[i] += x.part[i];
}
template <uint32_t kWidth>
[[gnu::always_inline]] inline void add_product(const Lanes<kWidth>& x, const Lanes<kWidth>& y,
                                               Lanes<kWidth>* sum) {
  for (uint32_t i = 0; i < x.kRegisters; ++i) sum->part[i] += x.part[i] * y.part[i];
}
template <uint32_t kWidth>
[[gnu::always_inline]] inline void add_product(float x, const Lanes<kWidth>& y, Lanes<kWidth>* sum) {
  for (uint32_t i = 0; i < y.kRegisters; ++i) sum->part[i] += x * y.part[i];
}

// Adds halves until one number is left: lane i and lane i + 8, then i and i + 4, ...
template <uint32_t kWidth>
[[gnu::always_inline]] inline float sum_lanes(const Lanes<kWidth>& lanes) {
  float a[kLanes];
  store_lanes(lanes, a);
  for (uint32_t half = kLanes / 2; half > 0; half /= 2) {
    for (uint32_t i = 0; i < half; ++i) a[i] += a[i + half];
  }
  return a[0];
}

// Sum of a[i] * b[i]; element i is added to lane i % 16.
template <uint32_t kWidth = 4>
[[gnu::always_inline]] inline float dot(const float* a, const float* b, uint32_t count) {
  Lanes<kWidth> sum{}, x, y;
  uint32_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    load_lanes(a + i, &x);
    load_lanes(b + i, &y);
    add_product(x, y, &sum);
  }
  if (i < count) {
    load_some_lanes(a + i, count - i, &x);
    load_some_lanes(b + i, count - i, &y);
    add_product(x, y, &sum);
  }
  return sum_lanes(sum);
}

#if KVTWIN_WIDEST
// Until static initialisation sets it, loops run at the baseline width and give the same bits.
inline const uint32_t machine_width = __builtin_cpu_supports("avx512f") ? 16
                                      : __builtin_cpu_supports("avx2")  ? 8
                                                                        : 4;
template <typename Loop, typename... Args>
[[gnu::target("avx512f")]] void run_at_16(Args... args) {
  Loop::template run<16>(args...);
}
template <typename Loop, typename... Args>
[[gnu::target("avx2")]] void run_at_8(Args... args) {
  Loop::template run<8>(args...);
}
#endif

// Loop::run<kWidth>(args...) at the widest width of this machine. REQUIRES: run() is always_inline.
template <typename Loop, typename... Args>
void widest(Args... args) {
#if KVTWIN_WIDEST
  if (machine_width == 16) return run_at_16<Loop>(args...);
  if (machine_width == 8) return run_at_8<Loop>(args...);
#endif
  Loop::template run<4>(args...);
}

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_COMMON_WIDE_H_
