// RopeAndCache: optional head norm, rotation by position, and the layout of the paged cache.
//
// A layer's part of a page is its K, then its V. In bf16 K is [kv_head][D/2][BS][2] and V is [kv_head][BS/2][D][2]; in
// float K is [kv_head][D][BS] and V is [kv_head][BS][D]. So both products of attention read words of 16 lanes as a matrix
// product reads its panels.
#pragma once

#include "rows.h"

namespace firelane {

// Where the keys or values of a head begin; PAGE: elements from one page to the next.
template <int D, int BS, std::size_t PAGE>
FL_INLINE std::size_t cache_block(int block, int head) {
  return block * PAGE + std::size_t(head) * D * BS;
}

template <class T, int D, int BS, std::size_t PAGE>
FL_INLINE void write_key(typename T::cache* cache, int block, int head, int at, const float* x) {
  constexpr int P = T::kPerWord;
  typename T::cache* base = cache + cache_block<D, BS, PAGE>(block, head) + at * P;
  alignas(64) typename T::cache row[D];
  for (int i = 0; i < D; i += 16) T::store_cache(row + i, 1, load(x + i));
  for (int i = 0; i < D; i += P)
    for (int j = 0; j < P; ++j) base[i * BS + j] = row[i + j];
}

// The token after the last of a chunk shares its words: it is zeroed, so that what an earlier owner of the block left
// there (it may be NaN) cannot reach this sequence through a product with zero.
template <class T, int D, int BS, std::size_t PAGE>
FL_INLINE void write_value(typename T::cache* cache, int block, int head, int at, bool last, const float* x) {
  constexpr int P = T::kPerWord;
  typename T::cache* base = cache + cache_block<D, BS, PAGE>(block, head) + (at / P) * (D * P) + at % P;
  for (int i = 0; i < D; i += 16) T::store_cache(base + i * P, P, load(x + i));
  if (P == 2 && last && at % 2 == 0)
    for (int i = 0; i < D; ++i) base[i * P + 1] = 0;
}

// y = rotate(norm(x)): pairs are (i, i + D/2); `table` holds D/2 cosines, then D/2 sines.
template <int D, bool NORM>
FL_INLINE void rotate_head(const float* x, const float* norm, float eps, const float* table, float* y) {
  alignas(64) float n[D];
  if constexpr (NORM) {
    const float scale = 1.0f / std::sqrt(mean_square<D>(x) + eps);
    for (int i = 0; i < D; i += 16) store(n + i, load(x + i) * scale * load(norm + i));
    x = n;
  }
  constexpr int H = D / 2;
  for (int i = 0; i < H; ++i) {
    const float cos = table[i], sin = table[H + i];
    y[i] = x[i] * cos - x[i + H] * sin;
    y[i + H] = x[i + H] * cos + x[i] * sin;
  }
}

template <class T, int HEADS, int KV_HEADS, int D, int BS, std::size_t PAGE, int LDX, int LDO, bool Q_NORM, bool K_NORM>
struct Rope {
  const float* qkv;
  const float* rotary;
  const float *q_norm, *k_norm;
  float eps;
  typename T::cache *keys, *values;  // in page 0
  int group;                         // of the cache: whose block table names the pages
  typename T::act* out;

  FL_INLINE void head(const Context& c, int row, int h) const {
    const int position = c.token_position[row];
    const float* x = qkv + std::size_t(row) * LDX + h * D;
    const float* table = rotary + std::size_t(position) * D;
    alignas(64) float y[D];
    if (h < HEADS) {
      rotate_head<D, Q_NORM>(x, q_norm, eps, table, y);
      for (int i = 0; i < D; i += 16) T::store_act(out + std::size_t(row) * LDO + h * D + i, load(y + i));
      return;
    }
    const int block = c.block_table(group, c.token_slot[row])[position / BS], at = position % BS;
    if (h < HEADS + KV_HEADS) {
      rotate_head<D, K_NORM>(x, k_norm, eps, table, y);
      write_key<T, D, BS, PAGE>(keys, block, h - HEADS, at, y);
    } else {
      write_value<T, D, BS, PAGE>(values, block, h - HEADS - KV_HEADS, at, c.token_last[row], x);
    }
  }

  FL_KERNEL void run(const Context& c, int thread) const {
    constexpr int per_row = HEADS + 2 * KV_HEADS;
    const Range mine = split(c.step.num_tokens * per_row, thread, c.threads());
    for (int i = mine.begin; i < mine.end; ++i) head(c, i / per_row, i % per_row);
  }
};

}  // namespace firelane
