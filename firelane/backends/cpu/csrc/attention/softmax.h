// One row of scores in the online softmax (Milakov and Gimelshein, 2018).
#pragma once

#include "attention/span.h"

namespace firelane {

// Of a row, over the tiles of keys so far. alpha: what sums of former tiles are multiplied with in this one.
struct RowSums {
  float *max, *sum, *alpha;
};

// Scales the scores of KEYS positions from `start` on, masks them unless WHOLE says that the row may see them all, updates
// its sums, and leaves its probabilities. newest: the last position of its chunk. vectors: of 16 positions, that were computed. scale: of the exponent in base 2:
// softmax scale times log2(e); CAPPED: of the argument of tanh, of whose result `cap` is the factor, times log2(e). factors: of
// the probabilities that are left, by position, or nullptr.
template <class T, class SPAN, bool CAPPED, bool WHOLE, int KEYS>
FL_INLINE void softmax_row(const float* scores, typename T::act* probs, RowSums row, int position, int newest, int start,
                           int vectors, float scale, float cap, const float* factors = nullptr) {
  const i32x16 after = splat_i(SPAN::last(position, newest) + 1), before_all = splat_i(SPAN::first(position) - 1);
  f32x16 x[KEYS / 16], top = splat(-1e30f);
  i32x16 seen[KEYS / 16];
  const int count = WHOLE ? KEYS / 16 : vectors;
  for (int v = 0; v < count; ++v) {
    x[v] = load(scores + v * 16) * scale;
    if constexpr (CAPPED) x[v] = tanh_16(x[v]) * cap;
    if constexpr (!WHOLE) {
      const i32x16 at = lane_index() + (start + v * 16);
      seen[v] = less(at, after) & less(before_all, at);
      x[v] = select(seen[v], x[v], splat(-1e30f));
    }
    top = firelane::max(top, x[v]);
  }
  const float before = *row.max, now = max(before, hmax(top));
  f32x16 total = {};
  for (int v = 0; v < count; ++v) {
    f32x16 p = exp2_16(x[v] - now);
    if constexpr (!WHOLE) p = select(seen[v], p, f32x16{});
    total += p;
    T::store_act(probs + v * 16, factors ? p * load(factors + v * 16) : p);
  }
  *row.alpha = exp2_16(splat(before - now))[0];
  *row.sum = *row.sum * *row.alpha + firelane::sum(total);
  *row.max = now;
}

}  // namespace firelane
