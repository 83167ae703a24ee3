// Passes over one row of logits, 64 at a time: maximum, first maximum, exponential weights, best few.
//
// No product is fused here and every sum has one fixed order, so all targets give the same bits. NaN logits count as -inf.
#pragma once

#include <cstdint>
#include <limits>

#include "vec.h"

namespace firelane {

constexpr int kBlock = 64;
constexpr float kNegInf = -std::numeric_limits<float>::infinity();

constexpr int blocks_of(int vocab) { return (vocab + kBlock - 1) / kBlock; }

// Block `block` of x[VOCAB]; lanes past the end are -inf.
template <int VOCAB>
FL_INLINE void load_block(f32x16 (&v)[4], const float* x, int block) {
  const float* from = x + std::size_t(block) * kBlock;
  float tail[kBlock];
  if (VOCAB % kBlock && block == VOCAB / kBlock) {
    for (int i = 0; i < kBlock; ++i) tail[i] = i < VOCAB % kBlock ? from[i] : kNegInf;
    from = tail;
  }
  for (int j = 0; j < 4; ++j) v[j] = load(from + 16 * j);
}

FL_INLINE bool any(i32x16 mask) {
  std::uint64_t t[8];
  std::memcpy(t, &mask, 64);
  return (t[0] | t[1] | t[2] | t[3] | t[4] | t[5] | t[6] | t[7]) != 0;
}

// e^x for x <= 0, within 1.5 units in the last place; 0 below -87 and for NaN, exactly 1 at 0. Cody and Waite's reduction, then
// e^r = 1 + r + r^2 Q(r) with Q fitted to |r| <= ln(2) / 2 (relative error 3e-9 before rounding).
FL_INLINE f32x16 exp_unfused(f32x16 x) {
  const f32x16 magic = splat(12582912.0f);  // 1.5 * 2^23: rounds to nearest even in the addition
  const f32x16 shifted = x * 1.44269504f + magic;
  const f32x16 n = shifted - magic;
  const f32x16 r = (x - n * 0.693359375f) - n * -2.12194440e-4f;  // the first product is exact
  f32x16 q = splat(1.381455919e-3f);
  q = q * r + 8.368744714e-3f;
  q = q * r + 4.166839044e-2f;
  q = q * r + 1.666652040e-1f;
  q = q * r + 4.999999343e-1f;
  const f32x16 p = (q * (r * r) + r) + 1.0f;
  const f32x16 scaled = as_f32(as_u32(p) + (as_u32(shifted) << 23));
  return x >= -87.0f ? scaled : f32x16{};
}

// The largest of x; -inf where there is none.
template <int VOCAB>
float largest(const float* x) {
  f32x16 best[4] = {splat(kNegInf), splat(kNegInf), splat(kNegInf), splat(kNegInf)};
  for (int b = 0; b < blocks_of(VOCAB); ++b) {
    f32x16 v[4];
    load_block<VOCAB>(v, x, b);
    for (int j = 0; j < 4; ++j) best[j] = v[j] > best[j] ? v[j] : best[j];
  }
  return hmax(max(max(best[0], best[1]), max(best[2], best[3])));
}

// The largest of each block.
template <int VOCAB>
void block_maxima(const float* x, float* maxima) {
  for (int b = 0; b < blocks_of(VOCAB); ++b) {
    f32x16 v[4], best = splat(kNegInf);
    load_block<VOCAB>(v, x, b);
    for (int j = 0; j < 4; ++j) best = v[j] > best ? v[j] : best;
    maxima[b] = hmax(best);
  }
}

// The lowest index of the largest of x; 0 where none is above -inf.
template <int VOCAB>
int first_largest(const float* x) {
  const float best = largest<VOCAB>(x);
  if (best == kNegInf) return 0;
  const f32x16 wanted = splat(best);
  for (int b = 0; b < blocks_of(VOCAB); ++b) {
    f32x16 v[4];
    load_block<VOCAB>(v, x, b);
    if (!any((v[0] == wanted) | (v[1] == wanted) | (v[2] == wanted) | (v[3] == wanted))) continue;
    for (int i = b * kBlock; i < VOCAB && i < (b + 1) * kBlock; ++i)
      if (x[i] == best) return i;
  }
  return 0;
}

// weights[i] = exp((x[i] - top) * scale), 0 where x[i] is -inf or NaN; block_mass[b] is the sum of block b. Returns the sum of
// all. `top` is no less than any x. Pass nullptr for what is not wanted.
template <int VOCAB>
double exponentials(const float* x, float top, float scale, float* weights, double* block_mass) {
  double total = 0;
  for (int b = 0; b < blocks_of(VOCAB); ++b) {
    f32x16 v[4];
    load_block<VOCAB>(v, x, b);
    for (int j = 0; j < 4; ++j) {
      v[j] = exp_unfused((v[j] - top) * scale);
      if (weights) store(weights + b * kBlock + 16 * j, v[j]);
    }
    const double mass = sum((v[0] + v[1]) + (v[2] + v[3]));
    if (block_mass) block_mass[b] = mass;
    total += mass;
  }
  return total;
}

// The n largest of x, best first, lower ids first on a tie; NaN is left out. Returns how many were found.
template <int VOCAB>
int best_few(const float* x, int n, std::int32_t* ids, float* values) {
  int found = 0;
  for (int b = 0; b < blocks_of(VOCAB) && n > 0; ++b) {
    if (found == n) {
      const f32x16 worst = splat(values[n - 1]);
      f32x16 v[4];
      load_block<VOCAB>(v, x, b);
      if (!any((v[0] > worst) | (v[1] > worst) | (v[2] > worst) | (v[3] > worst))) continue;
    }
    for (int i = b * kBlock; i < VOCAB && i < (b + 1) * kBlock; ++i) {
      if (!(found < n ? x[i] == x[i] : x[i] > values[n - 1])) continue;
      int at = found < n ? found++ : n - 1;
      for (; at > 0 && x[i] > values[at - 1]; --at) {
        values[at] = values[at - 1];
        ids[at] = ids[at - 1];
      }
      values[at] = x[i];
      ids[at] = i;
    }
  }
  return found;
}

}  // namespace firelane
