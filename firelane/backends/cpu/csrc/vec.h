// Sixteen-lane float vectors on every target, and the bf16 dot-product step that differs between them.
//
// One target is chosen when compiling: FIRELANE_ISA_AVX512BF16, _AVX512, _AVX2 or _PORTABLE. Vectors are GCC/clang
// vector extensions of 64 bytes; the compiler splits them where registers are narrower. Products are fused only through
// fmadd() (the build passes -ffp-contract=off), so that a kernel gives the same bits for a row whatever tile the row is
// in.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(FIRELANE_ISA_AVX512BF16) || defined(FIRELANE_ISA_AVX512) || defined(FIRELANE_ISA_AVX2)
#include <immintrin.h>
#endif

#define FL_INLINE inline __attribute__((always_inline))
// One copy for each shape, however many layers call it.
#define FL_KERNEL __attribute__((noinline))
#define FL_LAMBDA __attribute__((always_inline))

namespace firelane {

typedef float f32x16 __attribute__((vector_size(64)));
typedef std::uint32_t u32x16 __attribute__((vector_size(64)));
typedef std::int32_t i32x16 __attribute__((vector_size(64)));

FL_INLINE f32x16 splat(float v) { return f32x16{} + v; }
FL_INLINE i32x16 splat_i(std::int32_t v) { return i32x16{} + v; }
FL_INLINE f32x16 load(const float* p) {
  f32x16 v;
  std::memcpy(&v, p, 64);
  return v;
}
FL_INLINE u32x16 load(const std::uint32_t* p) {
  u32x16 v;
  std::memcpy(&v, p, 64);
  return v;
}
FL_INLINE void store(float* p, f32x16 v) { std::memcpy(p, &v, 64); }
FL_INLINE f32x16 as_f32(u32x16 v) { return (f32x16)v; }
FL_INLINE u32x16 as_u32(f32x16 v) { return (u32x16)v; }
FL_INLINE i32x16 lane_index() { return i32x16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }

FL_INLINE f32x16 fmadd(f32x16 a, f32x16 b, f32x16 c) {
#if defined(FIRELANE_ISA_AVX512BF16) || defined(FIRELANE_ISA_AVX512)
  return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(FIRELANE_ISA_AVX2)
  union {
    f32x16 v;
    __m256 h[2];
  } x{a}, y{b}, z{c};
  z.h[0] = _mm256_fmadd_ps(x.h[0], y.h[0], z.h[0]);
  z.h[1] = _mm256_fmadd_ps(x.h[1], y.h[1], z.h[1]);
  return z.v;
#else
  return a * b + c;
#endif
}

// Comparisons are made register by register: compilers take vectors wider than a register apart lane by lane there.
#if defined(FIRELANE_ISA_AVX512BF16) || defined(FIRELANE_ISA_AVX512)
constexpr int kRegisterBytes = 64;
#elif defined(FIRELANE_ISA_AVX2)
constexpr int kRegisterBytes = 32;
#else
constexpr int kRegisterBytes = 16;
#endif
typedef float f32_register __attribute__((vector_size(kRegisterBytes)));
typedef std::int32_t i32_register __attribute__((vector_size(kRegisterBytes)));

template <class Wide, class Register, class Op>
FL_INLINE i32x16 compare(Wide a, Wide b, Op op) {
  constexpr int n = 64 / kRegisterBytes;
  union {
    Wide v;
    Register r[n];
  } x{a}, y{b};
  union {
    i32x16 v;
    i32_register r[n];
  } m;
  for (int i = 0; i < n; ++i) m.r[i] = op(x.r[i], y.r[i]);
  return m.v;
}
// All bits of a lane set where the comparison holds.
FL_INLINE i32x16 less(f32x16 a, f32x16 b) {
  return compare<f32x16, f32_register>(a, b, [](f32_register x, f32_register y) FL_LAMBDA { return x < y; });
}
FL_INLINE i32x16 less(i32x16 a, i32x16 b) {
  return compare<i32x16, i32_register>(a, b, [](i32_register x, i32_register y) FL_LAMBDA { return x < y; });
}
FL_INLINE i32x16 is_nan(f32x16 a) {
  return compare<f32x16, f32_register>(a, a, [](f32_register x, f32_register y) FL_LAMBDA { return x != y; });
}
FL_INLINE f32x16 select(i32x16 mask, f32x16 yes, f32x16 no) {
  return (f32x16)(((i32x16)yes & mask) | ((i32x16)no & ~mask));
}
FL_INLINE f32x16 max(f32x16 a, f32x16 b) { return select(less(b, a), a, b); }

// Horizontal reductions in one fixed tree: lanes 8 apart, then 4, 2, 1.
FL_INLINE f32x16 rotate8(f32x16 v) {
  return __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
}
FL_INLINE f32x16 rotate4(f32x16 v) {
  return __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
}
FL_INLINE f32x16 rotate2(f32x16 v) {
  return __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
}
FL_INLINE f32x16 rotate1(f32x16 v) {
  return __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
}
FL_INLINE float sum(f32x16 v) {
  v += rotate8(v);
  v += rotate4(v);
  v += rotate2(v);
  v += rotate1(v);
  return v[0];
}
FL_INLINE float hmax(f32x16 v) {
  v = max(v, rotate8(v));
  v = max(v, rotate4(v));
  v = max(v, rotate2(v));
  v = max(v, rotate1(v));
  return v[0];
}

// 2^x for x <= 127, relative error below 2e-7 on [-126, 127]; 0 below -126. exp2_16(0) is exactly 1.
// Minimax polynomial of 2^f on [-0.5, 0.5] (degree 6 Taylor terms of ln2^n/n!), exponent added as an integer.
FL_INLINE f32x16 exp2_16(f32x16 x) {
  const f32x16 low = splat(-126.0f);
  const i32x16 under = less(x, low);
  x = select(under, low, x);
  const f32x16 magic = splat(12582912.0f);  // 1.5 * 2^23: rounds to nearest even in the addition
  const f32x16 shifted = x + magic;
  const f32x16 n = shifted - magic;
  const f32x16 f = x - n;
  f32x16 p = splat(1.5403530e-4f);
  p = fmadd(p, f, splat(1.3333558e-3f));
  p = fmadd(p, f, splat(9.6181291e-3f));
  p = fmadd(p, f, splat(5.5504109e-2f));
  p = fmadd(p, f, splat(2.4022651e-1f));
  p = fmadd(p, f, splat(6.9314718e-1f));
  p = fmadd(p, f, splat(1.0f));
  const u32x16 bits = as_u32(p) + (as_u32(shifted) << 23);
  return select(under, f32x16{}, as_f32(bits));
}
FL_INLINE f32x16 exp_16(f32x16 x) { return exp2_16(x * 1.44269504f); }

// ---- bf16

FL_INLINE u32x16 round_bf16_bits(f32x16 v) {  // nearest even, result in the low half of each lane
  const u32x16 u = as_u32(v);
  const u32x16 rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  const u32x16 quiet = (u >> 16) | 0x40u;
  const u32x16 nan = (u32x16)is_nan(v);
  return (quiet & nan) | (rounded & ~nan);
}
FL_INLINE float bf16_to_f32(std::uint16_t v) {
  std::uint32_t u = std::uint32_t(v) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

// Bf16: weights and cache hold bf16 pairs in 32-bit words (even k in the low half); a step consumes two k.
// `act` holds activations already rounded to bf16: as bf16 where the dot instruction takes them, else widened to float.
struct Bf16 {
  using word = std::uint32_t;   // one lane of a packed panel
  using vector = u32x16;        // sixteen of them
  using cache = std::uint16_t;  // one element of the KV cache
  static constexpr int kPerWord = 2;
#if defined(FIRELANE_ISA_AVX512BF16)
  using act = std::uint16_t;
  static FL_INLINE void store_act(act* p, f32x16 v) {
    __m256bh h = _mm512_cvtneps_pbh((__m512)v);
    std::memcpy(p, &h, 32);
  }
  static FL_INLINE f32x16 load_act(const act* p) {
    __m256i h;
    std::memcpy(&h, p, 32);
    return (f32x16)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
  }
  static FL_INLINE float act_to_f32(act v) { return bf16_to_f32(v); }
#else
  using act = float;
  static FL_INLINE void store_act(act* p, f32x16 v) { store(p, as_f32(round_bf16_bits(v) << 16)); }
  static FL_INLINE f32x16 load_act(const act* p) { return load(p); }
  static FL_INLINE float act_to_f32(act v) { return v; }
#endif
  static FL_INLINE void store_cache(cache* p, int stride, f32x16 v) {
    const u32x16 bits = round_bf16_bits(v);
    for (int i = 0; i < 16; ++i) p[i * stride] = cache(bits[i]);
  }

  // acc[m][v] += two k of row m times word vector v: even k first on targets without the dot instruction.
  template <int M, int V, int LDX>
  static FL_INLINE void step(f32x16 (&acc)[M][V], const act* x, const vector (&w)[V]) {
#if defined(FIRELANE_ISA_AVX512BF16)
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      std::uint32_t pair;
      std::memcpy(&pair, x + m * LDX, 4);
      const __m512bh xv = (__m512bh)_mm512_set1_epi32(int(pair));
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[m][v] = (f32x16)_mm512_dpbf16_ps((__m512)acc[m][v], (__m512bh)w[v], xv);
    }
#else
    f32x16 even[V], odd[V];
    for (int v = 0; v < V; ++v) {
      even[v] = as_f32(w[v] << 16);
      odd[v] = as_f32(w[v] & 0xFFFF0000u);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const f32x16 x0 = splat(x[m * LDX]), x1 = splat(x[m * LDX + 1]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[m][v] = fmadd(odd[v], x1, fmadd(even[v], x0, acc[m][v]));
    }
#endif
  }
};

// F32: weights, cache and activations are floats; a step consumes one k.
struct F32 {
  using word = float;
  using vector = f32x16;
  using cache = float;
  using act = float;
  static constexpr int kPerWord = 1;
  static FL_INLINE void store_act(act* p, f32x16 v) { store(p, v); }
  static FL_INLINE f32x16 load_act(const act* p) { return load(p); }
  static FL_INLINE float act_to_f32(act v) { return v; }
  static FL_INLINE void store_cache(cache* p, int stride, f32x16 v) {
    for (int i = 0; i < 16; ++i) p[i * stride] = v[i];
  }
  template <int M, int V, int LDX>
  static FL_INLINE void step(f32x16 (&acc)[M][V], const act* x, const vector (&w)[V]) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const f32x16 xv = splat(x[m * LDX]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[m][v] = fmadd(w[v], xv, acc[m][v]);
    }
  }
};

// The same with the words still in memory.
template <class T, int M, int V, int LDX>
FL_INLINE void step_from(f32x16 (&acc)[M][V], const typename T::act* x, const typename T::word* const (&w)[V]) {
  typename T::vector words[V];
  for (int v = 0; v < V; ++v) words[v] = load(w[v]);
  T::template step<M, V, LDX>(acc, x, words);
}

// Rows in one register tile of two vectors: 24 accumulators of 32 registers; 12 of 16 with AVX2; what is left
// elsewhere.
#if defined(FIRELANE_ISA_AVX512BF16) || defined(FIRELANE_ISA_AVX512)
constexpr int kTileRows = 12;
#elif defined(FIRELANE_ISA_AVX2)
constexpr int kTileRows = 3;
#else
constexpr int kTileRows = 2;
#endif

}  // namespace firelane
