// Positions as lanes: what the cache keeps with the numbers of a position beside each other, in the order in which a
// product with them reads it.
#pragma once

#include "vec.h"

namespace firelane {

// Lanes with BIT of a change places with those without it of b.
template <int BIT>
FL_INLINE void exchange(f32x16& a, f32x16& b) {
  const i32x16 without = less(lane_index() & splat_i(BIT), splat_i(1));
  const f32x16 from_a = swap_lanes<BIT>(a), from_b = swap_lanes<BIT>(b);
  a = select(without, a, from_b);
  b = select(without, from_a, b);
}

// The same with all pairs of N vectors whose numbers differ by STEP.
template <int BIT, int STEP, int N>
FL_INLINE void exchange_all(f32x16 (&v)[N]) {
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i)
    if (!(i & STEP)) exchange<BIT>(v[i], v[i + STEP]);
}

// Of each pair of lanes the low halves in the even one, the high halves in the odd one.
FL_INLINE f32x16 pair_halves(f32x16 v) {
  const f32x16 other = swap_lanes<1>(v);
  const u32x16 low = (as_u32(v) & 0xFFFFu) | (as_u32(other) << 16);
  const u32x16 high = (as_u32(other) >> 16) | (as_u32(v) & 0xFFFF0000u);
  return select(less(lane_index() & splat_i(1), splat_i(1)), as_f32(low), as_f32(high));
}

// Sixteen positions of 16 columns, from [position / P][column][P] at rows `STRIDE` words apart, to words of P columns with
// a position a lane, `to` words apart.
template <int STRIDE, int TO>
FL_INLINE void transpose_16(const Bf16*, const std::uint32_t* from, std::uint32_t* to) {
  f32x16 v[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) v[i] = pair_halves(as_f32(load(from + i * STRIDE)));
  exchange_all<2, 1>(v);
  exchange_all<4, 2>(v);
  exchange_all<8, 4>(v);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) store(to + i * TO, as_u32(v[i]));
}
template <int STRIDE, int TO>
FL_INLINE void transpose_16(const F32*, const float* from, float* to) {
  f32x16 v[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = load(from + i * STRIDE);
  exchange_all<1, 1>(v);
  exchange_all<2, 2>(v);
  exchange_all<4, 4>(v);
  exchange_all<8, 8>(v);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) store(to + i * TO, v[i]);
}

}  // namespace firelane
