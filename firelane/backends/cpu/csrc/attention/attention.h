// Attention over the paged cache, tiled with an online softmax (Milakov and Gimelshein, 2018; Dao et al.,
// "FlashAttention", 2022).
//
// A work item is a run of query tokens of one chunk and one key/value head: (tokens x group) rows. Keys are walked in
// tiles of kKeys positions that start at multiples of kKeys whatever the chunk, and a row's sums run over lanes and
// tiles in one fixed order; positions that a row may not see add exact zeros. So a row's bits do not depend on the
// chunk it came in.
#pragma once

#include "attention/rope.h"
#include "attention/softmax.h"

namespace firelane {

constexpr int kKeys = kKeyTile;
constexpr int kItemRows = 48;  // rows of a work item that has several tokens

struct FetchNothing {
  FL_INLINE void operator()(int) const {}
};

// Two streams of lines, `stride` bytes from one to the next, into the second-level cache.
struct FetchLines {
  const char* from[2];
  int stride;

  FL_INLINE void operator()(int i) const {
    __builtin_prefetch(from[0] + std::ptrdiff_t(i) * stride, 0, 2);
    __builtin_prefetch(from[1] + std::ptrdiff_t(i) * stride, 0, 2);
  }
};

template <class C, int M, int V, int LDX, int STRIDE, class ACT, class FETCH = FetchNothing>
FL_INLINE void cache_tile(f32x16 (&acc)[M][V], const ACT* x, const typename C::word* const (&w)[V], int words,
                          const FETCH& fetch = {}) {
  for (int k = 0; k < words; ++k) {
    const typename C::word* at[V];
    for (int v = 0; v < V; ++v) at[v] = w[v] + std::size_t(k) * STRIDE;
    fetch(k);
    C::template step<M, V, LDX>(acc, x + k * C::kPerWord, at);
  }
}

// C: how the cache holds keys and values (cache_codes.h). D, VD: the widths of keys and of values.
template <class T, class C, int HEADS, int KV_HEADS, int D, int VD, int BS, std::size_t PAGE, int LDQ, int LDO, class SPAN,
          bool CAPPED, bool SINKS>
struct Attention {
  using word = typename C::word;
  using act = typename T::act;
  static constexpr int GROUP = HEADS / KV_HEADS;
  static constexpr int P = C::kPerWord;
  static constexpr int TOKENS = GROUP >= kItemRows ? 1 : kItemRows / GROUP;
  static constexpr int ROWS = TOKENS * GROUP;
  static constexpr int LDD = D + 32;  // padded row of the query copy
  static constexpr int LDK = kKeys + 16;
  static_assert(D % 16 == 0 && VD % 16 == 0 && (!C::kScaled || VD == D));
  static_assert(BS % 16 == 0 && (kKeys % BS == 0 || BS % kKeys == 0));

  struct Scratch {
    alignas(64) act query[ROWS * LDD];
    alignas(64) act probs[ROWS * LDK];
    alignas(64) float scores[ROWS * kKeys];
    alignas(64) float out[ROWS * VD];
    alignas(64) float key_scales[C::kScaled ? kKeys : 1], value_scales[C::kScaled ? kKeys : 1];
    float max[ROWS], sum[ROWS], alpha[ROWS];
  };

  const act* q;
  const typename C::element *keys, *values;  // in page 0
  int group;                                 // of the cache: whose block table names the pages
  float scale, cap;    // see softmax_row()
  const float* sinks;  // SINKS: by query head
  act* out;

  struct Item {
    const std::int32_t* blocks;
    int row, position, tokens, head;  // first token row and its position
    int newest;                       // position of its chunk
    FL_INLINE int last() const { return SPAN::last(position + tokens - 1, newest); }  // that one of its rows sees
  };

  FL_INLINE const word* key_words(const Item& it, int position) const {
    const auto base = keys + cache_block<C, D, BS, PAGE>(it.blocks[position / BS], it.head);
    return reinterpret_cast<const word*>(base) + position % BS;
  }
  FL_INLINE const word* value_words(const Item& it, int position) const {
    const auto base = values + cache_block<C, VD, BS, PAGE>(it.blocks[position / BS], it.head);
    return reinterpret_cast<const word*>(base) + (position % BS / P) * VD;
  }

  FL_INLINE void load_tile_scales(const Item& it, Scratch& s, int start, int vectors) const {
    for (int at = start; at < start + vectors * 16; at += 16) {
      const auto* scales = keys + cache_block<C, D, BS, PAGE>(it.blocks[at / BS], it.head) + D * BS;
      const int count = it.last() + 1 - at;
      load_scales(scales, at % BS, count, s.key_scales + at - start);
      load_scales(scales + 2 * BS, at % BS, count, s.value_scales + at - start);
    }
  }

  // A single token waits for memory, not for arithmetic: while its scores are computed the values of the same positions
  // are fetched, and while these are weighed the keys of the next tile. Of other items, what is there already.
  FL_INLINE FetchLines values_at(const Item& it, int position, int other) const {
    if (it.tokens > 1) return {{as_bytes(key_words(it, position)), as_bytes(key_words(it, position))}, 0};
    return {{as_bytes(value_words(it, position)), as_bytes(value_words(it, other))}, 64};
  }
  // Keys of the sixteen positions from `position` on: those words that hold columns first .. last - 1.
  FL_INLINE FetchLines keys_at(const Item& it, int position, int first, int last) const {
    if (it.tokens > 1 || position > it.position)
      return {{as_bytes(value_words(it, it.position)), as_bytes(value_words(it, it.position))}, 0};
    const word* from = key_words(it, position) + std::size_t(first / P) * BS;
    return {{as_bytes(from), as_bytes(from + (last - first) / (2 * P) * BS)}, BS * int(sizeof(word))};
  }
  static FL_INLINE const char* as_bytes(const word* p) { return reinterpret_cast<const char*>(p); }

  template <int M>
  FL_INLINE void score_rows(const Item& it, Scratch& s, int row, int start, int vectors) const {
    if constexpr (tile_width(M) == 1) return score_narrow<M>(it, s, row, start, vectors);
    for (int v = 0; v < vectors; v += 2) {
      const bool pair = v + 1 < vectors;
      const word* first = key_words(it, start + v * 16);
      const word* const w[2] = {first, pair ? key_words(it, start + v * 16 + 16) : first};
      f32x16 acc[M][2] = {};
      const int other = pair ? start + v * 16 + 16 : start + v * 16;
      if constexpr (M == GROUP)
        cache_tile<C, M, 2, LDD, BS>(acc, s.query + row * LDD, w, D / P, values_at(it, start + v * 16, other));
      else
        cache_tile<C, M, 2, LDD, BS>(acc, s.query + row * LDD, w, D / P);
      for (int m = 0; m < M; ++m) {
        store_score(s, row + m, v, acc[m][0]);
        if (pair) store_score(s, row + m, v + 1, acc[m][1]);
      }
    }
  }

  static FL_INLINE void store_score(Scratch& s, int row, int v, f32x16 score) {
    if constexpr (C::kScaled) score = score * load(s.key_scales + v * 16);
    store(s.scores + row * kKeys + v * 16, score);
  }

  // One vector of keys at a time, where registers are few.
  template <int M>
  FL_INLINE void score_narrow(const Item& it, Scratch& s, int row, int start, int vectors) const {
    for (int v = 0; v < vectors; ++v) {
      const word* const w[1] = {key_words(it, start + v * 16)};
      f32x16 acc[M][1] = {};
      cache_tile<C, M, 1, LDD, BS>(acc, s.query + row * LDD, w, D / P);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) store_score(s, row + m, v, acc[m][0]);
    }
  }

  template <bool WHOLE>
  FL_KERNEL void softmax_row(const Item& it, Scratch& s, int row, int start, int vectors) const {
    firelane::softmax_row<T, SPAN, CAPPED, WHOLE, kKeys>(s.scores + row * kKeys, s.probs + row * LDK,
                                                         {s.max + row, s.sum + row, s.alpha + row},
                                                         it.position + row / GROUP, it.newest, start, vectors, scale, cap,
                                                         C::kScaled ? s.value_scales : nullptr);
  }

  // Whether rows row .. row + m - 1 may see all of the keys from `start` on.
  FL_INLINE bool whole(const Item& it, int row, int m, int start) const {
    const int first = it.position + row / GROUP, last = it.position + (row + m - 1) / GROUP;
    return start + kKeys - 1 <= SPAN::last(first, it.newest) && start >= SPAN::first(last);
  }

  template <int M, int V>
  FL_INLINE void weigh_columns(const Item& it, Scratch& s, int row, int d, int start, int words) const {
    f32x16 acc[M][V];
    for (int m = 0; m < M; ++m)
      for (int v = 0; v < V; ++v) acc[m][v] = load(s.out + (row + m) * VD + d + v * 16) * s.alpha[row + m];
    constexpr int run = 16 / P;
    for (int k = 0; k < words; k += run) {
      const word* first = value_words(it, start + k * P) + d;
      const word* w[V];
      for (int v = 0; v < V; ++v) w[v] = first + v * 16;
      const word* const(&cw)[V] = reinterpret_cast<const word* const(&)[V]>(w);
      const act* x = s.probs + row * LDK + k * P;
      if constexpr (M == GROUP && V == 2)
        cache_tile<C, M, V, LDK, VD>(acc, x, cw, min(run, words - k), keys_at(it, start + kKeys + k * P, d, d + 32));
      else
        cache_tile<C, M, V, LDK, VD>(acc, x, cw, min(run, words - k));
    }
    for (int m = 0; m < M; ++m)
      for (int v = 0; v < V; ++v) store(s.out + (row + m) * VD + d + v * 16, acc[m][v]);
  }

  template <int M>
  FL_KERNEL void tile_rows(const Item& it, Scratch& s, int row, int start, int vectors, int words) const {
    score_rows<M>(it, s, row, start, vectors);
    if (whole(it, row, M, start))
      for (int m = 0; m < M; ++m) softmax_row<true>(it, s, row + m, start, vectors);
    else
      for (int m = 0; m < M; ++m) softmax_row<false>(it, s, row + m, start, vectors);
    constexpr int V = tile_width(M);
    for (int d = 0; d + 16 * V <= VD; d += 16 * V) weigh_columns<M, V>(it, s, row, d, start, words);
    if constexpr (VD % (16 * V) != 0) weigh_columns<M, 1>(it, s, row, VD - 16, start, words);
  }

  template <int M = kTileRows>
  FL_INLINE void tile_any(const Item& it, Scratch& s, int rows, int row, int start, int vectors, int words) const {
    if constexpr (M >= 1) {
      if (rows == M) return tile_rows<M>(it, s, row, start, vectors, words);
      tile_any<M - 1>(it, s, rows, row, start, vectors, words);
    }
  }

  FL_INLINE void begin(const Item& it, Scratch& s, int rows) const {
    for (int r = 0; r < rows; ++r) {
      const act* from = q + std::size_t(it.row + r / GROUP) * LDQ + (it.head * GROUP + r % GROUP) * D;
      std::memcpy(s.query + r * LDD, from, D * sizeof(act));
      s.max[r] = SINKS ? sinks[it.head * GROUP + r % GROUP] * 1.44269504f : -1e30f;
      s.sum[r] = SINKS ? 1.0f : 0.0f;
    }
    std::memset(s.out, 0, sizeof(float) * rows * VD);
  }

  FL_INLINE void finish(const Item& it, const Scratch& s, int rows) const {
    for (int r = 0; r < rows; ++r) {
      const float inverse = 1.0f / s.sum[r];
      act* to = out + std::size_t(it.row + r / GROUP) * LDO + (it.head * GROUP + r % GROUP) * VD;
      for (int d = 0; d < VD; d += 16) T::store_act(to + d, load(s.out + r * VD + d) * inverse);
    }
  }

  void item(const Item& it, Scratch& s) const {
    const int rows = it.tokens * GROUP, newest = it.last();
    const int tiles = (rows + kTileRows - 1) / kTileRows;
    begin(it, s, rows);
    for (int start = SPAN::first(it.position) / kKeys * kKeys; start <= newest; start += kKeys) {
      const int count = min(kKeys, newest - start + 1);
      const int vectors = (count + 15) / 16, words = (count + P - 1) / P;
      if constexpr (C::kScaled) load_tile_scales(it, s, start, vectors);
      for (int i = 0; i < tiles; ++i) {
        const Range r = split(rows, i, tiles);
        tile_any(it, s, r.end - r.begin, r.begin, start, vectors, words);
      }
    }
    finish(it, s, rows);
  }

  // Items are numbered chunk by chunk, then by head, then by run of tokens; threads take the next one as they get free.
  FL_KERNEL void run(const Context& c, int thread, int op) const {
    Scratch& s = *reinterpret_cast<Scratch*>(c.thread_scratch(thread));
    int first = 0, row = 0, mine = c.next_item(op);
    for (int i = 0; i < c.step.num_chunks; ++i) {
      const int length = c.step.chunk_len[i], runs = (length + TOKENS - 1) / TOKENS, items = runs * KV_HEADS;
      while (mine < first + items) {
        const int at = (mine - first) % runs * TOKENS;
        item({c.block_table(group, c.step.chunk_slot[i]), row + at, c.step.chunk_start[i] + at, min(TOKENS, length - at),
              (mine - first) / runs, c.step.chunk_start[i] + length - 1},
             s);
        mine = c.next_item(op);
      }
      first += items;
      row += length;
    }
  }
};

}  // namespace firelane
