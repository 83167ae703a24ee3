// Where to cut a list of candidates so that the largest, with enough count or mass, are kept: a radix select, no sort.
#pragma once

#include <bit>
#include <cstdint>

#include "vec/vec.h"

namespace firelane {

// Floats as integers in the same order; -0 and +0 are one.
FL_INLINE std::uint32_t key_of(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
FL_INLINE float value_of(std::uint32_t key) {
  return std::bit_cast<float>(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

// Kept are the candidates whose key is above `key`, and the first `ties` of those equal to it.
struct Cut {
  std::uint32_t key;
  int ties;
};

constexpr int kDigits = 2048;

// One level of the select: the highest digit at which the measure summed from above reaches `target`, or the lowest
// digit in use. `above` grows by the measure of the digits over it.
inline int choose_digit(const double* histogram, double target, double& above) {
  int chosen = -1;
  for (int digit = kDigits - 1; digit >= 0; --digit) {
    if (!(histogram[digit] > 0)) continue;
    if (chosen >= 0) above += histogram[chosen];
    chosen = digit;
    if (above + histogram[digit] >= target) break;
  }
  return chosen;
}

// The cut that keeps the fewest of the n >= 1 candidates `ids` (ascending), largest x first and lower ids first on a
// tie, whose measures (positive, equal where x is equal) sum to `target`; one at least, all where the sum falls short.
// `pending` has room for n ids, `histogram` for kDigits. A digit's measures are summed in the order of `ids`.
template <class Measure>
Cut select(const float* x, const std::int32_t* ids, int n, Measure measure, double target, std::int32_t* pending,
           double* histogram) {
  double above = 0;
  std::uint32_t key = 0;
  for (const int shift : {21, 10, 0}) {
    const std::uint32_t mask = shift ? 0x7FF : 0x3FF;
    std::memset(histogram, 0, kDigits * sizeof(double));
    for (int i = 0; i < n; ++i) histogram[key_of(x[ids[i]]) >> shift & mask] += measure(ids[i]);
    const std::uint32_t digit = std::uint32_t(choose_digit(histogram, target, above));
    int kept = 0;
    for (int i = 0; i < n; ++i) {
      const std::int32_t id = ids[i];  // `pending` may be `ids`
      pending[kept] = id;
      kept += (key_of(x[id]) >> shift & mask) == digit;
    }
    key |= digit << shift;
    ids = pending;
    n = kept;
  }
  int ties = 1;
  for (double reached = above + measure(ids[0]); ties < n && reached < target; ++ties) reached += measure(ids[0]);
  return {key, ties};
}

// Drop the candidates that the cut does not keep, in place; returns how many are left.
inline int apply_cut(const float* x, std::int32_t* ids, int n, Cut cut) {
  int kept = 0;
  for (int i = 0; i < n; ++i) {
    const std::int32_t id = ids[i];
    const std::uint32_t key = key_of(x[id]);
    ids[kept] = id;
    kept += key > cut.key || (key == cut.key && cut.ties-- > 0);
  }
  return kept;
}

}  // namespace firelane
