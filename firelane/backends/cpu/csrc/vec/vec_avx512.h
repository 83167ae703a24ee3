// Sixteen-lane vectors in one 512-bit register (FIRELANE_ISA_AVX512BF16, FIRELANE_ISA_AVX512).
#pragma once

#include <immintrin.h>

namespace firelane {

typedef float f32x16 __attribute__((vector_size(64)));
typedef std::uint32_t u32x16 __attribute__((vector_size(64)));
typedef std::int32_t i32x16 __attribute__((vector_size(64)));

// 24 accumulators of 32 registers.
constexpr int kTileRows = 12;
constexpr int kWideRows = 12;
// Rows from which the dot products of a panel take about as long as its way from memory.
#if defined(FIRELANE_ISA_AVX512BF16)
constexpr int kFetchRows = 7, kDecodeFetchRows = 5;
#else
constexpr int kFetchRows = 3, kDecodeFetchRows = 1;
#endif

FL_INLINE f32x16 splat(float v) { return v - f32x16{}; }  // a broadcast: -0 stays
FL_INLINE i32x16 splat_i(std::int32_t v) { return v - i32x16{}; }
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
FL_INLINE void store(std::uint32_t* p, u32x16 v) { std::memcpy(p, &v, 64); }
FL_INLINE f32x16 as_f32(u32x16 v) { return (f32x16)v; }
FL_INLINE u32x16 as_u32(f32x16 v) { return (u32x16)v; }
FL_INLINE u32x16 as_u32(i32x16 v) { return (u32x16)v; }
FL_INLINE i32x16 as_i32(u32x16 v) { return (i32x16)v; }
FL_INLINE f32x16 to_f32(i32x16 v) { return __builtin_convertvector(v, f32x16); }
// The floats whose high halves are those of the words at p.
FL_INLINE f32x16 load_high_halves(const std::uint32_t* p) { return as_f32(load(p) & 0xFFFF0000u); }
FL_INLINE i32x16 lane_index() { return i32x16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }

FL_INLINE f32x16 fmadd(f32x16 a, f32x16 b, f32x16 c) {
  return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

FL_INLINE i32x16 less(f32x16 a, f32x16 b) { return a < b; }
FL_INLINE i32x16 less(i32x16 a, i32x16 b) { return a < b; }
FL_INLINE i32x16 is_nan(f32x16 a) { return a != a; }
FL_INLINE f32x16 select(i32x16 mask, f32x16 yes, f32x16 no) {
  return (f32x16)(((i32x16)yes & mask) | ((i32x16)no & ~mask));
}

template <int APART>
FL_INLINE f32x16 swap_lanes(f32x16 v) {
  constexpr int a = APART;
  return __builtin_shufflevector(v, v, 0 ^ a, 1 ^ a, 2 ^ a, 3 ^ a, 4 ^ a, 5 ^ a, 6 ^ a, 7 ^ a, 8 ^ a, 9 ^ a, 10 ^ a,
                                 11 ^ a, 12 ^ a, 13 ^ a, 14 ^ a, 15 ^ a);
}

#if defined(FIRELANE_ISA_AVX512BF16)
#define FIRELANE_BF16_DOT 1

FL_INLINE void store_bf16(std::uint16_t* p, f32x16 v) {
  const __m256bh h = _mm512_cvtneps_pbh((__m512)v);
  std::memcpy(p, &h, 32);
}
FL_INLINE f32x16 load_bf16(const std::uint16_t* p) {
  __m256i h;
  std::memcpy(&h, p, 32);
  return (f32x16)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
}
// c + the dot product of each lane's bf16 pair with `pair`.
FL_INLINE f32x16 dot_bf16(u32x16 words, std::uint32_t pair, f32x16 c) {
  const __m512bh x = (__m512bh)_mm512_set1_epi32(int(pair));
  return (f32x16)_mm512_dpbf16_ps((__m512)c, (__m512bh)words, x);
}
#endif

}  // namespace firelane
