// IndexCache and IndexTopK: the indexer of sparse attention (DeepSeek V3.2, 2025).
//
// Keys lie in pages as those of a key head of other attention do (rope.h): a word of 16 positions is read as a matrix product
// reads its panels. A row's scores are sums in the order of the heads, whatever is computed beside it.
#pragma once

#include "attention/rope.h"
#include "products/linear.h"

namespace firelane {

template <class T, class C, int HEADS, int D, int BS, std::size_t PAGE, int LDQ, int LDX, int LDO>
struct IndexCache {
  static_assert(D % 16 == 0 && !C::kScaled);

  const float *q, *key, *norm, *bias;
  float eps;
  const float* rotary;         // by position
  typename C::element* pages;  // in page 0
  int group;                   // of the cache: whose block table names the pages
  typename T::act* out;

  FL_INLINE void query(int row, const float* angles, int h) const {
    alignas(64) float y[D];
    rotate_head<D>(q + std::size_t(row) * LDQ + h * D, angles, y);
    typename T::act* to = out + std::size_t(row) * LDO + h * D;
    for (int i = 0; i < D; i += 16) T::store_act(to + i, load(y + i));
  }

  FL_INLINE void write(const Context& c, int row, int position, const float* angles) const {
    alignas(64) float n[D], y[D];
    const float* x = key + std::size_t(row) * LDX;
    f32x16 total = {};
    for (int i = 0; i < D; i += 16) total += load(x + i);
    const float mean = sum(total) / D;
    for (int i = 0; i < D; i += 16) store(n + i, load(x + i) - mean);
    const float scale = inverse_rms<D>(n, eps);
    for (int i = 0; i < D; i += 16) store(n + i, load(n + i) * scale * load(norm + i) + load(bias + i));
    rotate_head<D>(n, angles, y);
    const int block = c.block_table(group, c.token_slot[row])[position / BS];
    write_key<C, D, BS, PAGE>(pages, block, 0, position % BS, y);
  }

  FL_KERNEL void run(const Context& c, int thread) const {
    c.split_up(thread, c.step.num_tokens * (HEADS + 1), [&](int item) {
      const int row = item / (HEADS + 1), h = item % (HEADS + 1), position = c.token_position[row];
      const float* angles = rotary + std::size_t(position) * D;
      if (h < HEADS) query(row, angles, h);
      else write(c, row, position, angles);
    });
  }
};

// A number whose order among unsigned ones is that of floats; of equal floats equal ones.
FL_INLINE std::uint32_t ordered(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// K: positions of a row of `out`. MAX_LEN: positions of the longest sequence.
template <class T, class C, int HEADS, int D, int BS, std::size_t PAGE, int LDQ, int LDW, int LDO, int K, int MAX_LEN>
struct IndexTopK {
  using word = typename C::word;
  static constexpr int P = C::kPerWord, M = 4, W = 2;  // heads and vectors of positions that are summed at once
  static constexpr int STEP = 32 <= BS ? 32 : BS;      // positions of a run, which lie in one page
  static_assert(D % 16 == 0 && BS % 16 == 0 && BS % STEP == 0 && !C::kScaled);

  struct Scratch {
    alignas(64) std::uint32_t scores[(MAX_LEN + STEP - 1) / STEP * STEP];  // ordered()
  };

  const typename T::act* q;
  const float* weights;
  const typename C::element* pages;  // in page 0
  int group;                         // of the cache: whose block table names the pages
  std::int32_t* out;

  // Adds the scores of the COUNT heads from h on, of V vectors of positions.
  template <int COUNT, int V>
  FL_INLINE void add_heads(const typename T::act* x, const float* weight, const word* keys, int h, f32x16 (&total)[V]) const {
    f32x16 acc[COUNT][V] = {};
    for (int k = 0; k < D / P; ++k) {
      const word* at[V];
      for (int v = 0; v < V; ++v) at[v] = keys + k * BS + v * 16;
      const word* const(&from)[V] = reinterpret_cast<const word* const(&)[V]>(at);
      step_from<T, COUNT, V, D>(acc, x + h * D + k * P, from);
    }
    for (int m = 0; m < COUNT; ++m)
      for (int v = 0; v < V; ++v) total[v] = total[v] + firelane::max(acc[m][v], f32x16{}) * weight[h + m];
  }

  // The scores of the positions of a run.
  template <int V>
  FL_INLINE void score(const Context& c, int row, int start, std::uint32_t* to) const {
    const int block = c.block_table(group, c.token_slot[row])[start / BS];
    const auto* base = pages + cache_block<C, D, BS, PAGE>(block, 0);
    const auto* keys = reinterpret_cast<const word*>(base) + start % BS;
    const typename T::act* x = q + std::size_t(row) * LDQ;
    const float* weight = weights + std::size_t(row) * LDW;
    f32x16 total[V] = {};
    int h = 0;
    for (; h + M <= HEADS; h += M) add_heads<M, V>(x, weight, keys, h, total);
    for (; h < HEADS; ++h) add_heads<1, V>(x, weight, keys, h, total);
    for (int v = 0; v < V; ++v) {
      alignas(64) float numbers[16];
      store(numbers, total[v]);
      for (int i = 0; i < 16; ++i) to[start + v * 16 + i] = ordered(numbers[i]);
    }
  }

  FL_KERNEL void score_runs(const Context& c, int row, Range runs, std::uint32_t* to) const {
    for (int run = runs.begin; run < runs.end; ++run) score<STEP / 16>(c, row, run * STEP, to);
  }

  // The K-th largest of `count` numbers, and how many of those that equal it are among the K largest.
  struct Least {
    std::uint32_t number;
    int equals;
  };
  static FL_INLINE Least least_of_best(const std::uint32_t* numbers, int count) {
    std::uint32_t found = 0, known = 0;
    int wanted = K;
    for (int shift = 24; shift >= 0; shift -= 8) {
      int bins[256] = {};
      for (int i = 0; i < count; ++i)
        if ((numbers[i] & known) == found) ++bins[numbers[i] >> shift & 255];
      int bin = 255;
      for (; bins[bin] < wanted; --bin) wanted -= bins[bin];
      found |= std::uint32_t(bin) << shift;
      known |= 255u << shift;
    }
    return {found, wanted};
  }

  FL_KERNEL void choose(int row, int seen, const std::uint32_t* numbers) const {
    std::int32_t* to = out + std::size_t(row) * LDO;
    Least least = least_of_best(numbers, seen);
    for (int i = 0, n = 0; n < K; ++i)
      if (numbers[i] > least.number || (numbers[i] == least.number && least.equals-- > 0)) to[n++] = i;
  }

  FL_INLINE void take_all(int row, int seen) const {
    std::int32_t* to = out + std::size_t(row) * LDO;
    for (int i = 0; i < K; ++i) to[i] = i < seen ? i : -1;
  }

  FL_INLINE std::uint32_t* scores_of(const Context& c, int thread) const {
    return reinterpret_cast<Scratch*>(c.thread_scratch(thread))->scores;
  }
  static FL_INLINE int runs_of(int seen) { return (seen + STEP - 1) / STEP; }
  FL_INLINE bool is_apart(const Context& c) const { return c.step.num_tokens <= c.threads(); }

  // Of no more rows than there are threads, each thread scores a part of the positions, in the scratch of the row's thread.
  // Of more, each thread takes whole rows.
  FL_KERNEL void run(const Context& c, int thread, int op) const {
    const int rows = c.step.num_tokens, shared = is_apart(c);
    if (shared) {
      for (int row = 0; row < rows; ++row) {
        const int seen = c.token_position[row] + 1;
        if (seen > K) score_runs(c, row, split(runs_of(seen), thread, c.threads()), scores_of(c, row));
      }
      return;
    }
    for (int row = c.next_item(op); row < rows; row = c.next_item(op)) {
      const int seen = c.token_position[row] + 1;
      if (seen > K) {
        score_runs(c, row, {0, runs_of(seen)}, scores_of(c, thread));
        choose(row, seen, scores_of(c, thread));
      } else {
        take_all(row, seen);
      }
    }
  }

  // Chooses where threads have shared a row, once all of it is scored.
  FL_KERNEL void choose_shared(const Context& c, int thread) const {
    if (!is_apart(c) || thread >= c.step.num_tokens) return;
    const int seen = c.token_position[thread] + 1;
    if (seen > K) choose(thread, seen, scores_of(c, thread));
    else take_all(thread, seen);
  }
};

}  // namespace firelane
