// Attention in which all query heads share one key, whose first columns are its value (latent attention).
//
// A work item is a run of query tokens of one chunk and up to kHeads query heads. Keys lie in pages as values do (latent.h);
// 64 positions at a time are transposed for the scores of all rows of the item. Positions are cut into splits that depend on
// nothing but themselves; a row's sums begin anew in each split, and splits are added in order. So the splits of one decoded
// token may be shared by threads, and a row's bits depend neither on that nor on the chunk it came in.
//
// With indices (sparse attention), a token reads the positions that its row of them names. These are gathered tile by tile, in
// order, as if they were all there is: an item is of one token, whose position is the number of those before the last one.
#pragma once

#include "attention/attention.h"
#include "products/linear.h"
#include "products/transpose.h"

namespace firelane {

constexpr int kLatentKeys = 256;     // positions of a tile of the softmax
constexpr int kLatentRows = 32;      // rows of a work item that has several tokens
constexpr int kHeads = 16;           // query heads of an item
constexpr int kSplit = 512;          // positions of the first splits
constexpr int kSplitsPerOctave = 8;  // up to 8 * kSplit, and then from each power of two to the next

// The first position of a split, and the split of a position.
constexpr int split_start(int split) {
  const int octave = split / kSplitsPerOctave, within = split % kSplitsPerOctave;
  return octave ? (kSplit * (kSplitsPerOctave + within) / 2) << octave : split * kSplit;
}
constexpr int split_of(int position) {
  int octave = 0;
  while (position >= split_start((octave + 1) * kSplitsPerOctave)) ++octave;
  const int first = split_start(octave * kSplitsPerOctave);
  return octave * kSplitsPerOctave + (position - first) / (split_start(octave * kSplitsPerOctave + 1) - first);
}
static_assert(split_start(9) == 9 * kSplit && split_start(17) == 18 * kSplit && split_of(18 * kSplit - 1) == 16);

// The sums of a row over some splits: the maximum of its scores, the sum of their exponentials and that of its values.
struct SplitSums {
  float max, sum;
};

// Adds a split's sums to those of the splits before it.
template <int V>
FL_INLINE void add_split(SplitSums& to, float* out, SplitSums split, const float* values) {
  const float now = max(to.max, split.max);
  const float kept = exp2_16(splat(to.max - now))[0], added = exp2_16(splat(split.max - now))[0];
  for (int d = 0; d < V; d += 16) store(out + d, fmadd(load(values + d), splat(added), load(out + d) * kept));
  to = {now, to.sum * kept + split.sum * added};
}

// C: how the cache holds keys (cache_codes.h). D: of a key, of which the first V are its value. MAX_LEN: positions of the longest
// sequence. INDICES: positions of a row of indices, LDI apart; 0 without.
template <class T, class C, int HEADS, int D, int V, int BS, std::size_t PAGE, int LDQ, int LDO, class SPAN, bool CAPPED, bool SINKS,
          int MAX_LEN, int INDICES, int LDI>
struct LatentAttention {
  using word = typename C::word;
  using act = typename T::act;
  using product = typename C::product;  // of scores
  using key_word = typename product::word;
  static constexpr int P = C::kPerWord, KP = product::kPerWord;
  static constexpr int GROUPS = (HEADS + kHeads - 1) / kHeads;
  static constexpr int GROUP = (HEADS + GROUPS - 1) / GROUPS;  // heads of the largest
  static constexpr int TOKENS = INDICES ? 1 : kLatentRows / GROUP;
  static constexpr int ROWS = TOKENS * GROUP;
  static constexpr int LDD = D + 32;  // padded row of the query copy
  static constexpr int LDK = kLatentKeys + 16;
  static constexpr int WORDS = 64;  // of a key, transposed at once: they stay in the first-level cache
  static constexpr int STEP = min(BS, kKeyTile);  // positions that lie in one page
  static constexpr int LONGEST = INDICES ? min(INDICES, MAX_LEN) : MAX_LEN;
  static constexpr int SPLITS = split_of(LONGEST - 1) + 1;
  static constexpr int PARTS = 2 * SPLITS;  // of rows by split, in the scratch of each thread
  static_assert(D % 16 == 0 && V % 16 == 0 && BS % 16 == 0 && (kKeyTile % BS == 0 || BS % kKeyTile == 0));
  static_assert(!INDICES || !C::kScaled);

  // Sums of one split of one token.
  struct Part {
    alignas(64) float out[GROUP * V];
    SplitSums sums[GROUP];
  };
  struct Scratch {
    alignas(64) key_word keys[WORDS * kKeyTile];
    alignas(64) key_word values[C::kScaled ? kLatentKeys / KP * 32 : 1];  // widened, of 32 columns
    alignas(64) act query[ROWS * LDD];
    alignas(64) act probs[ROWS * LDK];
    alignas(64) float scores[ROWS * kLatentKeys];
    alignas(64) float out[ROWS * V], total[ROWS * V];
    alignas(64) float scales[2][C::kScaled ? kLatentKeys : 1];  // of the value, and of the rest of the key
    alignas(64) word gathered[INDICES ? kLatentKeys / P * D : 1];  // keys of a tile, as they lie in pages
    float max[ROWS], sum[ROWS], alpha[ROWS];
    SplitSums sums[ROWS];
    Part parts[PARTS];
  };

  const act* q;
  const typename C::element* pages;  // in page 0
  int group;                         // of the cache: whose block table names the pages
  float scale, cap;                // see softmax_row()
  const float* sinks;              // SINKS: by query head
  const std::int32_t* indices;     // INDICES: by token row
  act* out;

  struct Item {
    const std::int32_t* blocks;
    int row, position, tokens;  // first token row and its position
    Range heads;

    FL_INLINE int width() const { return heads.end - heads.begin; }
    FL_INLINE int rows() const { return tokens * width(); }
    FL_INLINE int newest() const { return position + tokens - 1; }
  };

  FL_INLINE const word* words(const Item& it, const Scratch& s, int position) const {
    if constexpr (bool(INDICES)) return s.gathered + position % kLatentKeys / P * D;
    return cached(it, position);
  }

  FL_INLINE const word* cached(const Item& it, int position) const {
    const auto base = pages + cache_block<C, D, BS, PAGE>(it.blocks[position / BS], 0);
    return reinterpret_cast<const word*>(base) + (position % BS / P) * D;
  }

  // Words k0 .. k1 - 1 of the keys of kKeyTile positions from `start` on, to s.keys.
  FL_KERNEL void transpose(const Item& it, Scratch& s, int start, int vectors, int k0, int k1) const {
    for (int v = 0; v < vectors; ++v) {
      const word* from = words(it, s, start + v * 16);
      for (int k = k0; k < k1; k += 16 / KP)
        transpose_16<C, D, kKeyTile>(from + k * KP, s.keys + (k - k0) * kKeyTile + v * 16);
    }
  }

  // What is fetched of the keys of the tile from `start` on: a part of them for each block of words, tile of rows and
  // vectors that scores are summed for. Nothing of positions that the item's tokens do not see.
  struct Fetches {
    const LatentAttention& attention;
    const Item& it;
    int start, made, calls;

    FL_INLINE Ahead next(int steps) {
      constexpr int bytes = D * sizeof(typename C::element), all = kKeyTile * bytes;
      const int begin = int(std::int64_t(all) * made / calls), end = int(std::int64_t(all) * (made + 1) / calls);
      const int within = begin / bytes / STEP * STEP, position = start + within;
      ++made;
      if (INDICES || position > it.newest()) return {reinterpret_cast<const char*>(attention.q), 0};
      const auto* from = reinterpret_cast<const char*>(attention.cached(it, position)) + (begin - within * bytes);
      return Ahead::share(from, from + (end - begin), 0, 1, steps);
    }
  };

  // Adds the products of `count` words to the scores at `to` of M rows. x: of the first row; v: vector of s.keys; scales: of
  // the products by position.
  template <int M>
  FL_KERNEL void score_rows(Scratch& s, const act* x, float* to, int v, int count, bool first, const float* scales,
                            Ahead fetched) const {
    constexpr int W = tile_width(M);
    f32x16 acc[M][W];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
      for (int w = 0; w < W; ++w) acc[m][w] = first || C::kScaled ? splat(0.0f) : load(to + m * kLatentKeys + w * 16);
    for (int k = 0; k < count; ++k) {
      const key_word* at[W];
      for (int w = 0; w < W; ++w) at[w] = s.keys + k * kKeyTile + (v + w) * 16;
      const key_word* const(&from)[W] = reinterpret_cast<const key_word* const(&)[W]>(at);
      fetched.fetch();
      step_from<product, M, W, LDD>(acc, x + k * KP, from);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
      for (int w = 0; w < W; ++w) {
        float* score = to + m * kLatentKeys + w * 16;
        if constexpr (C::kScaled) acc[m][w] = fmadd(acc[m][w], load(scales + (v + w) * 16), first ? splat(0.0f) : load(score));
        store(score, acc[m][w]);
      }
  }

  template <bool WHOLE>
  FL_KERNEL void softmax_row(Scratch& s, int row, int position, int start, int vectors) const {
    firelane::softmax_row<T, SPAN, CAPPED, WHOLE, kLatentKeys>(s.scores + row * kLatentKeys, s.probs + row * LDK,
                                                              {s.max + row, s.sum + row, s.alpha + row}, position, position, start,
                                                              vectors, scale, cap, C::kScaled ? s.scales[0] : nullptr);
  }

  // The codes of 32 columns at most, from d on, of the words from lo to hi, as the numbers that `product` reads: to s.values.
  FL_KERNEL void widen_values(const Item& it, Scratch& s, int d, int start, int lo, int hi) const {
    constexpr int parts = P / KP;
    for (int k = lo; k < hi; ++k) {
      const word* from = words(it, s, start + k * P) + d;
      key_word* to = s.values + k * parts * 32;
      for (int c = 0; c < min(32, V - d); c += 16) {
        f32x16 numbers[parts];
        C::widen(load(from + c), numbers);
        for (int i = 0; i < parts; ++i) std::memcpy(to + i * 32 + c, &numbers[i], 64);
      }
    }
  }

  template <class VALUES, int STRIDE, int M, int W>
  FL_INLINE void add_values(f32x16 (&acc)[M][W], const act* x, const typename VALUES::word* values, int count) const {
    const typename VALUES::word* at[W];
    for (int w = 0; w < W; ++w) at[w] = values + w * 16;
    const typename VALUES::word* const(&from)[W] = reinterpret_cast<const typename VALUES::word* const(&)[W]>(at);
    cache_tile<VALUES, M, W, LDK, STRIDE>(acc, x, from, count);
  }

  // One column block of the values of the words from lo to hi, for M rows; both are counted from `start` on.
  template <int M, int W>
  FL_KERNEL void weigh_columns(const Item& it, Scratch& s, int row, int d, int start, int lo, int hi) const {
    f32x16 acc[M][W];
    for (int m = 0; m < M; ++m)
      for (int w = 0; w < W; ++w) acc[m][w] = load(s.out + (row + m) * V + d + w * 16) * s.alpha[row + m];
    const act* x = s.probs + row * LDK;
    if constexpr (C::kScaled) {
      add_values<PlainCache<product>, 32>(acc, x + lo * P, s.values + lo * P / KP * 32 + d % 32, (hi - lo) * P / KP);
    } else {
      for (int k = lo; k < hi; k += STEP / P)
        add_values<C, D>(acc, x + k * P, words(it, s, start + k * P) + d, min(STEP / P, hi - k));
    }
    for (int m = 0; m < M; ++m)
      for (int w = 0; w < W; ++w) store(s.out + (row + m) * V + d + w * 16, acc[m][w]);
  }

  template <int M>
  FL_INLINE void weigh_wide(const Item& it, Scratch& s, int row, int d, int start, int lo, int hi) const {
    constexpr int W = tile_width(M);
    for (int at = d; at < min(d + 32, V); at += 16 * W)
      if (at + 16 * W <= V) weigh_columns<M, W>(it, s, row, at, start, lo, hi);
      else weigh_columns<M, 1>(it, s, row, at, start, lo, hi);
  }

  // f.template operator()<M>(first row) for tiles of M rows.
  template <int M = kTileRows, class F>
  static FL_INLINE void with_rows(int rows, int row, const F& f) {
    if constexpr (M >= 1) {
      if (rows == M) return f.template operator()<M>(row);
      with_rows<M - 1>(rows, row, f);
    }
  }
  template <class F>
  static FL_INLINE void each_tile(int rows, const F& f) {
    const int tiles = (rows + kTileRows - 1) / kTileRows;
    for (int i = 0; i < tiles; ++i) {
      const Range r = split(rows, i, tiles);
      with_rows(r.end - r.begin, r.begin, f);
    }
  }

  // The scores of the positions from `start` on, kKeyTile at most: at `to` of each row's. The keys from `next` on are
  // fetched meanwhile.
  FL_INLINE void score(const Item& it, Scratch& s, int start, int to, int vectors, int next) const {
    constexpr int all = D / KP, part = C::kScaled ? V / KP : all;  // words of one scale
    constexpr int blocks = (part + WORDS - 1) / WORDS + (all - part + WORDS - 1) / WORDS;
    const int tiles = (it.rows() + kTileRows - 1) / kTileRows;
    Fetches fetches{*this, it, next, 0, blocks * tiles * ((vectors + 1) / 2)};
    for (int k = 0, count; k < all; k += count) {
      count = min(WORDS, (k < part ? part : all) - k);
      const float* scales = s.scales[k >= part] + (C::kScaled ? to : 0);
      transpose(it, s, start, vectors, k, k + count);
      each_tile(it.rows(), [&]<int M>(int row) FL_LAMBDA {
        const act* x = s.query + row * LDD + k * KP;
        float* scores = s.scores + row * kLatentKeys + to;
        for (int v = 0; v < vectors; v += tile_width(M))
          score_rows<M>(s, x, scores + v * 16, v, count, k == 0, scales, fetches.next(count));
      });
    }
  }

  FL_INLINE void load_tile_scales(const Item& it, Scratch& s, int start, int lo, int hi) const {
    std::memset(s.scales, 0, sizeof(s.scales));
    for (int at = lo; at < hi; at += 16) {
      const auto* scales = pages + cache_block<C, D, BS, PAGE>(it.blocks[at / BS], 0) + D * BS;
      load_scales(scales, at % BS, hi - at, s.scales[0] + at - start);
      load_scales(scales + 2 * BS, at % BS, hi - at, s.scales[1] + at - start);
    }
  }

  // Column i of a gathered word: a number of each of P positions; zero for those that there are not.
  static FL_INLINE word joined(word low, int at_low, word high, int at_high) {
    const auto half = [](word from, int at) FL_LAMBDA { return from >> 16 * at & 0xFFFFu; };
    return half(low, at_low) | half(high, at_high) << 16;
  }

  // The keys of the positions that the row names at lo .. hi - 1, to s.gathered.
  FL_KERNEL void gather(const Item& it, Scratch& s, int lo, int hi) const {
    const std::int32_t* named = indices + std::size_t(it.row) * LDI;
    for (int at = lo; at < hi; at += P) {
      word* to = s.gathered + at % kLatentKeys / P * D;
      const word* low = cached(it, named[at]);
      if constexpr (P == 1) {
        std::memcpy(to, low, D * sizeof(word));
      } else if (at + 1 < hi) {
        const word* high = cached(it, named[at + 1]);
        const int at_low = named[at] % P, at_high = named[at + 1] % P;
        for (int i = 0; i < D; ++i) to[i] = joined(low[i], at_low, high[i], at_high);
      } else {
        const int at_low = named[at] % P;
        for (int i = 0; i < D; ++i) to[i] = joined(low[i], at_low, 0, 0);
      }
    }
  }

  // The tile of positions lo .. hi - 1, of those from `start` on. next: the first position of the one that follows.
  FL_INLINE void tile(const Item& it, Scratch& s, int start, int lo, int hi, int next) const {
    if constexpr (C::kScaled) load_tile_scales(it, s, start, lo, hi);
    if constexpr (bool(INDICES)) gather(it, s, lo, hi);
    for (int at = lo; at < hi; at += kKeyTile)
      score(it, s, at, at - start, (min(kKeyTile, hi - at) + 15) / 16, at + kKeyTile < hi ? at + kKeyTile : next);
    const int rows = it.rows(), width = it.width(), vectors = (hi - start + 15) / 16;
    for (int row = 0; row < rows; ++row) {
      const int position = it.position + row / width;
      if (start + kLatentKeys - 1 <= position && start >= SPAN::first(position)) softmax_row<true>(s, row, position, start, vectors);
      else softmax_row<false>(s, row, position, start, vectors);
    }
    const int from = (lo - start) / P, to = (hi - start + P - 1) / P;
    for (int d = 0; d < V; d += 32) {
      if constexpr (C::kScaled) widen_values(it, s, d, start, from, to);
      each_tile(rows, [&]<int M>(int row) FL_LAMBDA { weigh_wide<M>(it, s, row, d, start, from, to); });
    }
  }

  // The sums of one split, in s.out, s.max and s.sum. next: the split that is worked on after it.
  FL_INLINE void split_sums(const Item& it, Scratch& s, int number, int next) const {
    const int rows = it.rows();
    for (int r = 0; r < rows; ++r) s.max[r] = -1e30f, s.sum[r] = 0.0f;
    std::memset(s.out, 0, sizeof(float) * rows * V);
    const int oldest = SPAN::first(it.position) / kKeyTile * kKeyTile;
    const int begin = max(split_start(number), oldest), end = min(split_start(number + 1), it.newest() + 1);
    for (int start = begin / kLatentKeys * kLatentKeys; start < end; start += kLatentKeys)
      tile(it, s, start, max(begin, start), min(end, start + kLatentKeys),
           start + kLatentKeys < end ? start + kLatentKeys : split_start(next));
  }

  FL_INLINE void copy_query(const Item& it, Scratch& s) const {
    const int width = it.width();
    for (int r = 0; r < it.rows(); ++r) {
      const act* from = q + std::size_t(it.row + r / width) * LDQ + (it.heads.begin + r % width) * D;
      std::memcpy(s.query + r * LDD, from, D * sizeof(act));
    }
  }

  FL_INLINE SplitSums no_splits(int head) const {
    return SINKS ? SplitSums{sinks[head] * 1.44269504f, 1.0f} : SplitSums{-1e30f, 0.0f};
  }
  FL_INLINE void finish(int row, int head, SplitSums sums, const float* total) const {
    const float inverse = 1.0f / sums.sum;
    act* to = out + std::size_t(row) * LDO + head * V;
    for (int d = 0; d < V; d += 16) T::store_act(to + d, load(total + d) * inverse);
  }

  // All splits of an item, one after the other.
  FL_KERNEL void whole(const Item& it, Scratch& s) const {
    const int rows = it.rows(), width = it.width();
    copy_query(it, s);
    std::memset(s.total, 0, sizeof(float) * rows * V);
    for (int r = 0; r < rows; ++r) s.sums[r] = no_splits(it.heads.begin + r % width);
    for (int number = split_of(SPAN::first(it.position)); number <= split_of(it.newest()); ++number) {
      split_sums(it, s, number, number + 1);
      for (int r = 0; r < rows; ++r) add_split<V>(s.sums[r], s.total + r * V, {s.max[r], s.sum[r]}, s.out + r * V);
    }
    for (int r = 0; r < rows; ++r) finish(it.row + r / width, it.heads.begin + r % width, s.sums[r], s.total + r * V);
  }

  // One split of one token.
  FL_KERNEL void part(const Item& it, Scratch& s, int number, int next, Part& to) const {
    copy_query(it, s);
    split_sums(it, s, number, next);
    std::memcpy(to.out, s.out, sizeof(float) * it.rows() * V);
    for (int r = 0; r < it.rows(); ++r) to.sums[r] = {s.max[r], s.sum[r]};
  }

  FL_INLINE Scratch& scratch(const Context& c, int thread) const {
    return *reinterpret_cast<Scratch*>(c.thread_scratch(thread));
  }
  FL_INLINE Part& part_of(const Context& c, int number) const {
    return scratch(c, number % c.threads()).parts[number / c.threads()];
  }

  // The number of positions that a token reads before the last of them.
  static FL_INLINE int seen(int position) { return INDICES ? min(position, INDICES - 1) : position; }

  // The work of one chunk. parts: of each group of heads where they are worked on apart, else 0.
  struct Plan {
    int row, position, length;
    const std::int32_t* blocks;
    int parts, first_split, first_part;

    FL_INLINE int runs() const { return (length + TOKENS - 1) / TOKENS; }
    FL_INLINE int items() const { return (parts ? parts : runs()) * GROUPS; }
  };

  // f(plan) for each chunk. Chunks of one token have their splits worked on apart while there is room for their sums.
  template <class F>
  FL_INLINE void each_chunk(const Context& c, const F& f) const {
    int row = 0, taken = 0;
    for (int i = 0; i < c.step.num_chunks; ++i) {
      const int position = c.step.chunk_start[i], length = c.step.chunk_len[i];
      const int first = split_of(SPAN::first(position)), parts = split_of(seen(position)) - first + 1;
      const bool apart = length == 1 && parts > 1 && taken + parts * GROUPS <= PARTS * c.threads();
      f(Plan{row, position, length, c.block_table(group, c.step.chunk_slot[i]), apart ? parts : 0, first, taken});
      if (apart) taken += parts * GROUPS;
      row += length;
    }
  }

  // Items are numbered chunk by chunk; those that read the same keys follow on each other. Threads take the next one as
  // they get free.
  FL_KERNEL void run(const Context& c, int thread, int op) const {
    Scratch& s = scratch(c, thread);
    const int next = max(1, c.threads() / GROUPS);  // splits from an item of this thread to its next, most likely
    int first = 0, mine = c.next_item(op);
    each_chunk(c, [&](const Plan& plan) {
      for (; mine < first + plan.items(); mine = c.next_item(op)) {
        const int at = (mine - first) / GROUPS, which = (mine - first) % GROUPS;
        const int token = plan.parts ? 0 : at * TOKENS, tokens = min(TOKENS, plan.length - token);
        const Item it{plan.blocks, plan.row + token, seen(plan.position + token), tokens, split(HEADS, which, GROUPS)};
        const int number = plan.first_split + at;
        if (plan.parts) part(it, s, number, number + next, part_of(c, plan.first_part + mine - first));
        else whole(it, s);
      }
      first += plan.items();
    });
  }

  // Adds up what was worked on apart, once all of it is done.
  FL_KERNEL void merge(const Context& c, int thread) const {
    alignas(64) float total[V];
    int first = 0;
    each_chunk(c, [&](const Plan& plan) {
      if (!plan.parts) return;
      for (int head = 0; head < HEADS; ++head) {
        if ((first + head) % c.threads() != thread) continue;
        int which = 0;
        while (split(HEADS, which, GROUPS).end <= head) ++which;
        const int r = head - split(HEADS, which, GROUPS).begin;
        SplitSums sums = no_splits(head);
        std::memset(total, 0, sizeof(total));
        for (int i = 0; i < plan.parts; ++i) {
          const Part& part = part_of(c, plan.first_part + i * GROUPS + which);
          add_split<V>(sums, total, part.sums[r], part.out + r * V);
        }
        finish(plan.row, head, sums, total);
      }
      first += HEADS;
    });
  }
};

}  // namespace firelane
