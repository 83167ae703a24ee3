// Sixteen-lane float vectors on every target, and the bf16 dot-product step that differs between them.
//
// One target is chosen when compiling: FIRELANE_ISA_AVX512BF16, _AVX512, _AVX2, _NEONBF16, _NEON, or none of them
// (portable). Its header defines f32x16, u32x16 and i32x16 with their operators and these:
//
//   splat, splat_i, load, store, as_f32, as_u32, as_i32, to_f32, lane_index, fmadd, select, swap_lanes
//   less, is_nan     all bits of a lane set where the comparison holds
//   kTileRows        rows of the largest register tile
//   kWideRows        up to so many rows, a tile is two vectors wide (a whole panel), else one
//   kFetchRows, kDecodeFetchRows   rows from which a lone tile of plain, of coded weights fetches ahead
//   FIRELANE_BF16_DOT, with store_bf16, load_bf16, dot_bf16: where products of bf16 pairs are one instruction
//
// Products are fused only through fmadd() (the build passes -ffp-contract=off), so that a kernel gives the same bits
// for a row whatever tile the row is in.
#pragma once

#include <cstdint>
#include <cstring>

#define FL_INLINE inline __attribute__((always_inline))
// One copy for each shape, however many layers call it.
#define FL_KERNEL __attribute__((noinline))
#define FL_LAMBDA __attribute__((always_inline))
// What callers may not look into.
#if defined(__clang__)
#define FL_OPAQUE
#else
#define FL_OPAQUE __attribute__((noipa))
#endif

#if defined(FIRELANE_ISA_AVX512BF16) || defined(FIRELANE_ISA_AVX512)
#include "vec/vec_avx512.h"
#elif defined(FIRELANE_ISA_AVX2)
#include "vec/vec_avx2.h"
#elif defined(FIRELANE_ISA_NEONBF16) || defined(FIRELANE_ISA_NEON)
#include "vec/vec_neon.h"
#else
#include "vec/vec_portable.h"
#endif

namespace firelane {

// Vectors that a tile of `rows` rows is wide.
constexpr int tile_width(int rows) { return rows <= kWideRows ? 2 : 1; }

// Of numbers; <algorithm> takes as long to parse as some kernels to compile.
template <class T>
FL_INLINE constexpr T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
FL_INLINE constexpr T min(T a, T b) {
  return b < a ? b : a;
}
FL_INLINE constexpr int clamp(int x, int least, int most) { return max(least, min(x, most)); }
template <class T>
constexpr T largest(T a) {
  return a;
}
template <class T, class... More>
constexpr T largest(T a, T b, More... more) {
  return largest(max(a, b), T(more)...);
}

FL_INLINE f32x16 max(f32x16 a, f32x16 b) { return select(less(b, a), a, b); }
FL_INLINE f32x16 min(f32x16 a, f32x16 b) { return select(less(a, b), a, b); }

// Horizontal reductions in one fixed tree: lanes 8 apart, then 4, 2, 1.
FL_INLINE float sum(f32x16 v) {
  v += swap_lanes<8>(v);
  v += swap_lanes<4>(v);
  v += swap_lanes<2>(v);
  v += swap_lanes<1>(v);
  return v[0];
}
FL_INLINE float hmax(f32x16 v) {
  v = max(v, swap_lanes<8>(v));
  v = max(v, swap_lanes<4>(v));
  v = max(v, swap_lanes<2>(v));
  v = max(v, swap_lanes<1>(v));
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

// The first n < 16 numbers at p, then zeros.
FL_INLINE f32x16 load_part(const float* p, int n) {
  alignas(64) float lanes[16] = {};
  std::memcpy(lanes, p, n * sizeof(float));
  return load(lanes);
}

FL_INLINE f32x16 sigmoid_16(f32x16 x) { return 1.0f / (1.0f + exp_16(-max(x, splat(-87.0f)))); }

// Absolute error below 4e-7.
FL_INLINE f32x16 tanh_16(f32x16 x) { return 1.0f - 2.0f / (1.0f + exp_16(min(x, splat(20.0f)) * 2.0f)); }

// log(1 + e^x), relative error below 1e-6 where e^x is a number: 2 atanh(u / (2 + u)) for u = e^-|x|.
FL_INLINE f32x16 softplus_16(f32x16 x) {
  const f32x16 u = exp_16(-max(x, -x));
  const f32x16 s = u / (2.0f + u), q = s * s;
  f32x16 p = splat(1.0f / 13.0f);
  p = fmadd(p, q, splat(1.0f / 11.0f));
  p = fmadd(p, q, splat(1.0f / 9.0f));
  p = fmadd(p, q, splat(1.0f / 7.0f));
  p = fmadd(p, q, splat(1.0f / 5.0f));
  p = fmadd(p, q, splat(1.0f / 3.0f));
  p = fmadd(p, q, splat(1.0f));
  return max(x, f32x16{}) + s * p * 2.0f;
}

// ---- bf16

FL_INLINE u32x16 round_bf16_bits(f32x16 v) {  // nearest even, result in the low half of each lane
  const u32x16 u = as_u32(v);
  const u32x16 rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  const u32x16 quiet = (u >> 16) | 0x40u;
  const u32x16 nan = as_u32(is_nan(v));
  return (quiet & nan) | (rounded & ~nan);
}
FL_INLINE float bf16_to_f32(std::uint16_t v) {
  std::uint32_t u = std::uint32_t(v) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

// acc[m][v] += x[m * LDX] * w[v].
template <int M, int V, int LDX>
FL_INLINE void add_products(f32x16 (&acc)[M][V], const float* x, const f32x16 (&w)[V]) {
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    const f32x16 factor = splat(x[m * LDX]);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) acc[m][v] = fmadd(w[v], factor, acc[m][v]);
  }
}

// Bf16: weights and cache hold bf16 pairs in 32-bit words (even k in the low half); a step consumes two k.
// `act` holds activations already rounded to bf16: as bf16 where the dot instruction takes them, else widened to float.
struct Bf16 {
  using word = std::uint32_t;   // one lane of a packed panel
  using vector = u32x16;        // sixteen of them
  using cache = std::uint16_t;  // one element of the KV cache
  static constexpr int kPerWord = 2;
#if defined(FIRELANE_BF16_DOT)
  using act = std::uint16_t;
  static FL_INLINE void store_act(act* p, f32x16 v) { store_bf16(p, v); }
  static FL_INLINE f32x16 load_act(const act* p) { return load_bf16(p); }
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
#if defined(FIRELANE_BF16_DOT)
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      std::uint32_t pair;
      std::memcpy(&pair, x + m * LDX, 4);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[m][v] = dot_bf16(w[v], pair, acc[m][v]);
    }
#else
    f32x16 half[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) half[v] = as_f32(w[v] << 16);
    add_products<M, V, LDX>(acc, x, half);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) half[v] = as_f32(w[v] & 0xFFFF0000u);
    add_products<M, V, LDX>(acc, x + 1, half);
#endif
  }

  // The same for one vector whose words are in memory.
  template <int M, int LDX>
  static FL_INLINE void step_from(f32x16 (&acc)[M][1], const act* x, const word* w) {
#if defined(FIRELANE_BF16_DOT)
    step<M, 1, LDX>(acc, x, {load(w)});
#else
    add_products<M, 1, LDX>(acc, x, {as_f32(load(w) << 16)});
    add_products<M, 1, LDX>(acc, x + 1, {load_high_halves(w)});
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
    add_products<M, V, LDX>(acc, x, w);
  }
  template <int M, int LDX>
  static FL_INLINE void step_from(f32x16 (&acc)[M][1], const act* x, const word* w) {
    add_products<M, 1, LDX>(acc, x, {load(w)});
  }
};

// The same with the words still in memory.
template <class T, int M, int V, int LDX>
FL_INLINE void step_from(f32x16 (&acc)[M][V], const typename T::act* x, const typename T::word* const (&w)[V]) {
  if constexpr (V == 1) return T::template step_from<M, LDX>(acc, x, w[0]);
  typename T::vector words[V];
  for (int v = 0; v < V; ++v) words[v] = load(w[v]);
  T::template step<M, V, LDX>(acc, x, words);
}

}  // namespace firelane
