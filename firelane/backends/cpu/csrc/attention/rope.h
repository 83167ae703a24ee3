// RopeAndCache: norms of heads, rotation by position, and the layout of the paged cache.
//
// A layer's part of a page is its K, then its V. In bf16 K is [kv_head][D/2][BS][2] and V is [kv_head][BS/2][D][2]; in
// float K is [kv_head][D][BS] and V is [kv_head][BS][D]. So both products of attention read words of 16 lanes as a matrix
// product reads its panels. As codes K is [D/4][BS][4] and V is [BS/4][D][4] of each head (cache_codes.h).
#pragma once

#include "attention/cache_codes.h"
#include "products/rows.h"

namespace firelane {

// The steps between the projections and attention, as bits.
enum HeadSteps : unsigned {
  kNormHeads = 1,    // each query and each key head
  kNormWhole = 2,    // all query heads of a row together, and all key heads
  kNormWeights = 4,  // times a vector
  kNormValues = 8,   // each value head, without a vector
  kRotate = 16,
  kTemper = 32,      // queries times a factor of their position
  kPlace = 64,       // rows may turn by a position of several axes
};

template <int WIDTH>
FL_INLINE float inverse_rms(const float* x, float eps) {
  return 1.0f / std::sqrt(mean_square<WIDTH>(x) + eps);
}

template <int D, bool WEIGHTED>
FL_INLINE void scale_head(const float* x, float scale, const float* weight, float* y) {
  for (int i = 0; i < D; i += 16) {
    f32x16 v = load(x + i) * scale;
    if constexpr (WEIGHTED) v = v * load(weight + i);
    store(y + i, v);
  }
}

// Pairs are (i, i + D/2); `table` holds D/2 cosines, then D/2 sines.
template <int D>
FL_INLINE void rotate_head(const float* x, const float* table, float* y) {
  constexpr int H = D / 2;
  for (int i = 0; i < H; ++i) {
    const float cos = table[i], sin = table[H + i];
    y[i] = x[i] * cos - x[i + H] * sin;
    y[i + H] = x[i + H] * cos + x[i] * sin;
  }
}

// The positions of a row that turns by several axes; LDP: numbers from one row of places to the next.
struct NoPlaces {
  static constexpr int kStride = 0;
  const float* places = nullptr;
  static constexpr int axis(int) { return 0; }
};
template <int LDP, std::uint8_t... AXES>
struct Places {
  static constexpr int kStride = LDP;
  static constexpr std::uint8_t kAxes[] = {AXES...};
  const float* places;
  static constexpr int axis(int i) { return kAxes[i]; }
};

// D, VD: the widths of keys and of values.
template <class T, class C, int HEADS, int KV_HEADS, int D, int VD, int BS, std::size_t PAGE, int LDX, int LDO, unsigned STEPS,
          class P = NoPlaces>
struct Rope {
  const float* qkv;
  const float *rotary, *temperature;  // by position
  const float *q_norm, *k_norm;
  float eps;
  typename C::element *keys, *values;  // in page 0
  int group;                           // of the cache: whose block table names the pages
  typename T::act* out;
  P places = {};

  struct Row {
    int number, position;
    const float* x;
    float q_scale, k_scale;  // of a norm of all heads
    const float* table;      // of its position
  };

  // `mixed` has room for the table of a row of several axes, until the next row begins.
  FL_INLINE Row begin(const Context& c, int row, [[maybe_unused]] float* mixed) const {
    Row r{row, c.token_position[row], qkv + std::size_t(row) * LDX, 0.0f, 0.0f, nullptr};
    if constexpr (bool(STEPS & kRotate)) r.table = rotary + std::size_t(r.position) * D;
    if constexpr (bool(STEPS & kPlace)) {
      const float* place = places.places + std::size_t(row) * P::kStride;
      if (place[0] != 0.0f) {
        for (int i = 0; i < D / 2; ++i) {
          const float* of = rotary + std::size_t(place[1 + P::axis(i)]) * D;
          mixed[i] = of[i];
          mixed[D / 2 + i] = of[D / 2 + i];
        }
        r.table = mixed;
      }
    }
    if constexpr (bool(STEPS & kNormWhole)) {
      r.q_scale = inverse_rms<HEADS * D>(r.x, eps);
      r.k_scale = inverse_rms<KV_HEADS * D>(r.x + HEADS * D, eps);
    }
    return r;
  }

  // Normalised and rotated; `y` and `n` have room for a head. Where the result lies.
  FL_INLINE const float* turned(const Row& r, const float* x, float whole, const float* norm, float* n, float* y) const {
    constexpr bool weighted = bool(STEPS & kNormWeights);
    if constexpr (bool(STEPS & (kNormHeads | kNormWhole))) {
      scale_head<D, weighted>(x, STEPS & kNormWhole ? whole : inverse_rms<D>(x, eps), norm, n);
      x = n;
    }
    if constexpr (bool(STEPS & kRotate)) {
      rotate_head<D>(x, r.table, y);
      x = y;
    }
    return x;
  }

  // The norm's weights of a head: one vector for all of them, or its part of a vector.
  static FL_INLINE const float* part(const float* norm, int head) {
    return STEPS & kNormWhole ? norm + head * D : norm;
  }

  FL_INLINE void query(const Row& r, int h) const {
    alignas(64) float n[D], y[D];
    const float* x = turned(r, r.x + h * D, r.q_scale, part(q_norm, h), n, y);
    typename T::act* to = out + std::size_t(r.number) * LDO + h * D;
    for (int i = 0; i < D; i += 16) {
      f32x16 v = load(x + i);
      if constexpr (bool(STEPS & kTemper)) v = v * temperature[r.position];
      T::store_act(to + i, v);
    }
  }

  FL_INLINE void key_or_value(const Context& c, const Row& r, int h) const {
    alignas(64) float n[D > VD ? D : VD], y[D];
    const int block = c.block_table(group, c.token_slot[r.number])[r.position / BS], at = r.position % BS;
    const float* x = r.x + (HEADS + min(h, KV_HEADS)) * D + max(h - KV_HEADS, 0) * VD;
    if (h < KV_HEADS) {
      x = turned(r, x, r.k_scale, part(k_norm, h), n, y);
      write_key<C, D, BS, PAGE>(keys, block, h, at, x);
      return;
    }
    if constexpr (bool(STEPS & kNormValues)) {
      scale_head<VD, false>(x, inverse_rms<VD>(x, eps), nullptr, n);
      x = n;
    }
    write_value<C, VD, BS, PAGE>(values, block, h - KV_HEADS, at, c.token_last[r.number], x);
  }

  FL_KERNEL void run(const Context& c, int thread) const {
    constexpr int per_row = HEADS + 2 * KV_HEADS;
    const Range mine = split(c.step.num_tokens * per_row, thread, c.threads());
    [[maybe_unused]] alignas(64) float mixed[D];
    Row row{-1, 0, nullptr, 0.0f, 0.0f, nullptr};
    for (int i = mine.begin; i < mine.end; ++i) {
      if (row.number != i / per_row) row = begin(c, i / per_row, mixed);
      const int h = i % per_row;
      if (h < HEADS) query(row, h);
      else key_or_value(c, row, h - HEADS);
    }
  }
};

}  // namespace firelane
