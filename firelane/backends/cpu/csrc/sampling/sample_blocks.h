// Passes over one row of logits, 64 at a time: maximum, first maximum, exponential weights, best few.
//
// No product is fused here and every sum has one fixed order, so all targets give the same bits. NaN logits count as
// -inf.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "vec/vec.h"

namespace firelane {

constexpr int kBlock = 64;
constexpr float kNegInf = -std::numeric_limits<float>::infinity();

constexpr int blocks_of(int vocab) { return (vocab + kBlock - 1) / kBlock; }

// Vectors as wide as a register: compilers split wider ones lane by lane where lanes are compared.
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Lanes __attribute__((vector_size(4 * kLanes)));
typedef std::int32_t LaneMask __attribute__((vector_size(4 * kLanes)));
typedef std::uint32_t LaneBits __attribute__((vector_size(4 * kLanes)));

constexpr int kVectors = kBlock / kLanes;
struct Block {
  Lanes v[kVectors];
};

// Block `block` of x[VOCAB]; lanes past the end are -inf.
template <int VOCAB>
FL_INLINE Block load_block(const float* x, int block) {
  const float* from = x + std::size_t(block) * kBlock;
  float tail[kBlock];
  if (VOCAB % kBlock && block == VOCAB / kBlock) {
    for (int i = 0; i < kBlock; ++i) tail[i] = i < VOCAB % kBlock ? from[i] : kNegInf;
    from = tail;
  }
  Block out;
  for (int j = 0; j < kVectors; ++j) std::memcpy(&out.v[j], from + kLanes * j, sizeof(Lanes));
  return out;
}

FL_INLINE bool any(LaneMask mask) {
  std::uint64_t words[kLanes / 2], all = 0;
  std::memcpy(words, &mask, sizeof mask);
  for (const std::uint64_t word : words) all |= word;
  return all != 0;
}

// Whether some lane is above `bound`, or equal to it.
FL_INLINE bool any_above(const Block& x, float bound) {
  LaneMask mask = {};
  for (const Lanes& v : x.v) mask |= v > bound;
  return any(mask);
}
FL_INLINE bool any_equal(const Block& x, float value) {
  LaneMask mask = {};
  for (const Lanes& v : x.v) mask |= v == value;
  return any(mask);
}

FL_INLINE float largest_lane(Lanes v) {
  float best = v[0];
  for (int i = 1; i < kLanes; ++i) best = v[i] > best ? v[i] : best;
  return best;
}

// In one order on every target: lanes 64 -> 16 as (a + b) + (c + d), then 8, 4, 2 and 1 apart.
FL_INLINE float block_sum(const Block& x) {
  constexpr int kQuarter = kVectors / 4;
  float t[16];
  for (int j = 0; j < kQuarter; ++j) {
    const Lanes s = (x.v[j] + x.v[j + kQuarter]) + (x.v[j + 2 * kQuarter] + x.v[j + 3 * kQuarter]);
    std::memcpy(t + kLanes * j, &s, sizeof s);
  }
  for (int width = 8; width; width >>= 1)
    for (int i = 0; i < width; ++i) t[i] += t[i + width];
  return t[0];
}

// e^x for x <= 0, within 1.5 units in the last place; 0 below -87 and for NaN, exactly 1 at 0. Cody and Waite's
// reduction, then e^r = 1 + r + r^2 Q(r) with Q fitted to |r| <= ln(2) / 2 (relative error 3e-9 before rounding).
FL_INLINE Lanes exp_unfused(Lanes x) {
  const Lanes magic = Lanes{} + 12582912.0f;  // 1.5 * 2^23: rounds to nearest even in the addition
  const Lanes shifted = x * 1.44269504f + magic;
  const Lanes n = shifted - magic;
  const Lanes r = (x - n * 0.693359375f) - n * -2.12194440e-4f;  // the first product is exact
  Lanes q = Lanes{} + 1.381455919e-3f;
  q = q * r + 8.368744714e-3f;
  q = q * r + 4.166839044e-2f;
  q = q * r + 1.666652040e-1f;
  q = q * r + 4.999999343e-1f;
  const Lanes p = (q * (r * r) + r) + 1.0f;
  const Lanes scaled = (Lanes)((LaneBits)p + ((LaneBits)shifted << 23));
  return x >= -87.0f ? scaled : Lanes{};
}

// The largest of x; -inf where there is none.
template <int VOCAB>
float largest(const float* x) {
  Lanes best[4] = {Lanes{} + kNegInf, Lanes{} + kNegInf, Lanes{} + kNegInf, Lanes{} + kNegInf};
  for (int b = 0; b < blocks_of(VOCAB); ++b) {
    const Block in = load_block<VOCAB>(x, b);
    for (int j = 0; j < kVectors; ++j) best[j % 4] = in.v[j] > best[j % 4] ? in.v[j] : best[j % 4];
  }
  for (int j = 1; j < 4; ++j) best[0] = best[j] > best[0] ? best[j] : best[0];
  return largest_lane(best[0]);
}

// The largest of each block.
template <int VOCAB>
void block_maxima(const float* x, float* maxima) {
  for (int b = 0; b < blocks_of(VOCAB); ++b) {
    const Block in = load_block<VOCAB>(x, b);
    Lanes best = Lanes{} + kNegInf;
    for (const Lanes& v : in.v) best = v > best ? v : best;
    maxima[b] = largest_lane(best);
  }
}

// The lowest index of the largest of x; 0 where none is above -inf.
template <int VOCAB>
int first_largest(const float* x) {
  const float best = largest<VOCAB>(x);
  if (best == kNegInf) return 0;
  for (int b = 0; b < blocks_of(VOCAB); ++b) {
    if (!any_equal(load_block<VOCAB>(x, b), best)) continue;
    for (int i = b * kBlock; i < VOCAB && i < (b + 1) * kBlock; ++i)
      if (x[i] == best) return i;
  }
  return 0;
}

// weights[i] = exp((x[i] - top) * scale), 0 where x[i] is -inf or NaN; block_mass[b] is the sum of block b. Returns the
// sum of all. `top` is no less than any x. Pass nullptr for what is not wanted.
template <int VOCAB>
double exponentials(const float* x, float top, float scale, float* weights, double* block_mass) {
  double total = 0;
  for (int b = 0; b < blocks_of(VOCAB); ++b) {
    Block block = load_block<VOCAB>(x, b);
    for (Lanes& v : block.v) v = exp_unfused((v - top) * scale);
    if (weights) std::memcpy(weights + std::size_t(b) * kBlock, &block, sizeof block);
    const double mass = block_sum(block);
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
    if (found == n && !any_above(load_block<VOCAB>(x, b), values[n - 1])) continue;
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
