// Positions as lanes: what the cache keeps with the numbers of a position beside each other, in the order in which a
// product with them reads it.
#pragma once

#include "attention/cache_codes.h"

namespace firelane {

#if defined(FIRELANE_ISA_AVX512BF16) || defined(FIRELANE_ISA_AVX512)

constexpr int lane_of_a(int i, int bit) { return i & bit ? 16 + (i ^ bit) : i; }
constexpr int lane_of_b(int i, int bit) { return i & bit ? 16 + i : i ^ bit; }
#define FIRELANE_LANES(of, b)                                                                                   \
  of(0, b), of(1, b), of(2, b), of(3, b), of(4, b), of(5, b), of(6, b), of(7, b), of(8, b), of(9, b), of(10, b), \
      of(11, b), of(12, b), of(13, b), of(14, b), of(15, b)

// Lanes with BIT of a change places with those without it of b.
template <int BIT>
FL_INLINE void exchange(f32x16& a, f32x16& b) {
  const f32x16 both = __builtin_shufflevector(a, b, FIRELANE_LANES(lane_of_a, BIT));
  b = __builtin_shufflevector(a, b, FIRELANE_LANES(lane_of_b, BIT));
  a = both;
}
#undef FIRELANE_LANES

// Quad i of vector j is quad j of vector i.
FL_INLINE void exchange_quads(f32x16& a, f32x16& b, f32x16& c, f32x16& d) {
  const __m512 ab0 = _mm512_shuffle_f32x4((__m512)a, (__m512)b, 0x44), ab1 = _mm512_shuffle_f32x4((__m512)a, (__m512)b, 0xee);
  const __m512 cd0 = _mm512_shuffle_f32x4((__m512)c, (__m512)d, 0x44), cd1 = _mm512_shuffle_f32x4((__m512)c, (__m512)d, 0xee);
  a = (f32x16)_mm512_shuffle_f32x4(ab0, cd0, 0x88);
  b = (f32x16)_mm512_shuffle_f32x4(ab0, cd0, 0xdd);
  c = (f32x16)_mm512_shuffle_f32x4(ab1, cd1, 0x88);
  d = (f32x16)_mm512_shuffle_f32x4(ab1, cd1, 0xdd);
}

// Of each pair of lanes the low halves in the even one, the high halves in the odd one.
FL_INLINE f32x16 pair_halves(f32x16 v) {
  const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  return (f32x16)_mm512_shuffle_epi8((__m512i)v, order);
}

#else

template <int BIT>
FL_INLINE void exchange(f32x16& a, f32x16& b) {
  const i32x16 without = less(lane_index() & splat_i(BIT), splat_i(1));
  const f32x16 from_a = swap_lanes<BIT>(a), from_b = swap_lanes<BIT>(b);
  a = select(without, a, from_b);
  b = select(without, from_a, b);
}

FL_INLINE void exchange_quads(f32x16& a, f32x16& b, f32x16& c, f32x16& d) {
  exchange<4>(a, b);
  exchange<4>(c, d);
  exchange<8>(a, c);
  exchange<8>(b, d);
}

FL_INLINE f32x16 pair_halves(f32x16 v) {
  const f32x16 other = swap_lanes<1>(v);
  const u32x16 low = (as_u32(v) & 0xFFFFu) | (as_u32(other) << 16);
  const u32x16 high = (as_u32(other) >> 16) | (as_u32(v) & 0xFFFF0000u);
  return select(less(lane_index() & splat_i(1), splat_i(1)), as_f32(low), as_f32(high));
}

#endif

// An exchange of all pairs of N vectors whose numbers differ by STEP.
template <int BIT, int STEP, int N>
FL_INLINE void exchange_all(f32x16 (&v)[N]) {
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i)
    if (!(i & STEP)) exchange<BIT>(v[i], v[i + STEP]);
}

// Vectors of 16 columns, of a pair of positions or of one each, from [position / P][column][P] at rows STRIDE words apart.
template <class C, int STRIDE, int N>
FL_INLINE void load_columns(const typename C::word* from, f32x16 (&v)[N]) {
  if constexpr (!C::kScaled) {
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i)
      if constexpr (C::kPerWord == 2) v[i] = as_f32(load(from + i * STRIDE));
      else v[i] = load(from + i * STRIDE);
  } else {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) C::widen(load(from + i * STRIDE), v + i * (N / 4));
  }
}

// Sixteen positions of 16 columns to words of P columns with a position a lane, TO words apart.
template <int TO>
FL_INLINE void store_positions(f32x16 (&v)[8], std::uint32_t* to) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) v[i] = pair_halves(v[i]);
  exchange_all<2, 1>(v);
  exchange_quads(v[0], v[2], v[4], v[6]);
  exchange_quads(v[1], v[3], v[5], v[7]);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) store(to + i * TO, as_u32(v[i]));
}
template <int TO>
FL_INLINE void store_positions(f32x16 (&v)[16], float* to) {
  exchange_all<1, 1>(v);
  exchange_all<2, 2>(v);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) exchange_quads(v[i], v[i + 4], v[i + 8], v[i + 12]);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) store(to + i * TO, v[i]);
}

template <class C, int STRIDE, int TO>
FL_INLINE void transpose_16(const typename C::word* from, typename C::product::word* to) {
  f32x16 v[16 / C::product::kPerWord];
  load_columns<C, STRIDE>(from, v);
  store_positions<TO>(v, to);
}

}  // namespace firelane
