// Recurrent layers whose heads each keep a matrix S [ROWS][COLUMNS] that every token decays, adds to and reads.
//
// A work item is one head of one chunk; its tokens are walked in order, a few at a time for a strip of S's columns, so
// that the strip stays in the first-level cache. While a strip is read, lines of the next head's state are fetched: for a
// single token a step is bound by the way of the states from memory and back.
#pragma once

#include "context.h"

namespace firelane {

// Of one token and head. S <- factor · S + key ⊗ delta; out = Sᵀ query + skip · value. delta is rate · value, or rate ·
// (value - the decayed Sᵀ key). Key and query are kept times the factors, too.
template <int ROWS>
struct HeadToken {
  alignas(64) float factor[ROWS], key[ROWS], decayed_key[ROWS], decayed_query[ROWS];
  float query_key, rate, skip;
};

// RULE: what makes tokens of rows, with kHeads, kRows, kColumns, kOutStride (from one row of out to the next), kCorrects
// and kSkips; prepare(token, row, head); values(row, head).
template <class RULE>
struct Recurrence {
  static constexpr int kTokens = 4, kRows = RULE::kRows, kColumns = RULE::kColumns;
  static constexpr int kHead = kRows * kColumns;  // numbers of a head's state
  static_assert(kRows % 16 == 0 && kColumns % 16 == 0);
  using Token = HeadToken<kRows>;
  using Scratch = Token[kTokens];

  RULE rule;
  StatePlace state;
  float* out;

  FL_KERNEL void run(const Context& c, int thread, int op) const {
    auto& tokens = *reinterpret_cast<Scratch*>(c.thread_scratch(thread));
    const int items = c.step.num_chunks * RULE::kHeads;
    c.for_each_stealing(op, thread, items, [&](int item) { run_item(c, tokens, item, items); });
  }

 private:
  FL_INLINE float* head_of(const Context& c, int index, int head) const {
    return c.state(state, index) + std::size_t(head) * kHead;
  }

  FL_INLINE void run_item(const Context& c, Scratch& tokens, int item, int items) const {
    const int chunk = item / RULE::kHeads, head = item % RULE::kHeads;
    const int drafted = c.step.chunk_drafted[chunk], known = c.step.chunk_len[chunk] - drafted;
    const float* next = item + 1 < items ? state_before(c, item + 1) : nullptr;
    float* s = head_of(c, c.step.chunk_slot[chunk], head);
    begin(c, chunk, head, s);
    walk(tokens, c.chunk_row[chunk], known, head, s, drafted ? nullptr : next);
    if (c.step.chunk_save[chunk] >= 0)
      std::memcpy(head_of(c, c.step.chunk_save[chunk], head), s, kHead * sizeof(float));
    if (!drafted) return;
    float* spare = head_of(c, c.step.chunk_spare[chunk], head);
    std::memcpy(spare, s, kHead * sizeof(float));
    walk(tokens, c.chunk_row[chunk] + known, drafted, head, spare, next);
  }

  // `count` tokens from row `first` on; `next`: the state to be fetched meanwhile, if any.
  FL_KERNEL void walk(Scratch& tokens, int first, int count, int head, float* s, const float* next) const {
    for (int t = 0; t < count; t += kTokens) {
      const int row = first + t, some = min(kTokens, count - t);
      for (int i = 0; i < some; ++i) rule.prepare(tokens[i], row + i, head);
      advance(tokens, some, row, head, s, t + some == count ? next : nullptr);
    }
  }

  // The state before the chunk's first token.
  FL_INLINE void begin(const Context& c, int chunk, int head, float* s) const {
    const int from = c.step.chunk_from[chunk];
    if (from < 0)
      std::memset(s, 0, kHead * sizeof(float));
    else if (from != c.step.chunk_slot[chunk])
      std::memcpy(s, head_of(c, from, head), kHead * sizeof(float));
  }

  FL_INLINE const float* state_before(const Context& c, int item) const {
    const int chunk = item / RULE::kHeads, from = c.step.chunk_from[chunk];
    return head_of(c, from < 0 ? c.step.chunk_slot[chunk] : from, item % RULE::kHeads);
  }

  // `some` tokens from row `row` on, strip by strip; `next`: the state to be fetched meanwhile, if any.
  FL_INLINE void advance(const Scratch& tokens, int some, int row, int head, float* s, const float* next) const {
    constexpr int wide = kColumns / 32 * 32;
    for (int column = 0; column < kColumns; column += 32)
      for (int i = 0; i < some; ++i) {
        const float* v = rule.values(row + i, head) + column;
        float* y = out + std::size_t(row + i) * RULE::kOutStride + head * kColumns + column;
        if (column == wide)
          strip<1, false>(tokens[i], s + column, v, y, nullptr);
        else if (next && i == 0)
          strip<2, true>(tokens[i], s + column, v, y, next + std::size_t(column) * kRows);
        else
          strip<2, false>(tokens[i], s + column, v, y, nullptr);
      }
  }

  // One token for V vectors of columns. FETCH: as many lines as are read are fetched from `next`.
  template <int V, bool FETCH>
  FL_KERNEL void strip(const Token& token, float* s, const float* v, float* y, const float* next) const {
    f32x16 by_key[V] = {}, by_query[V] = {}, delta[V];
    for (int i = 0; i < kRows; ++i) {
      const f32x16 k = splat(token.decayed_key[i]), q = splat(token.decayed_query[i]);
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) {
        if constexpr (FETCH) __builtin_prefetch(next + (i * V + j) * 16, 1);
        const f32x16 row = load(s + i * kColumns + j * 16);
        if constexpr (RULE::kCorrects) by_key[j] = fmadd(row, k, by_key[j]);
        by_query[j] = fmadd(row, q, by_query[j]);
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) {
      const f32x16 value = load(v + j * 16);
      delta[j] = (value - by_key[j]) * token.rate;
      f32x16 sum = fmadd(delta[j], splat(token.query_key), by_query[j]);
      if constexpr (RULE::kSkips) sum = fmadd(value, splat(token.skip), sum);
      store(y + j * 16, sum);
    }
    for (int i = 0; i < kRows; ++i) {
      const f32x16 k = splat(token.key[i]), factor = splat(token.factor[i]);
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) {
        const f32x16 row = load(s + i * kColumns + j * 16);
        store(s + i * kColumns + j * 16, fmadd(delta[j], k, row * factor));
      }
    }
  }
};

// Key and query of a token, [ROWS] each, times these; and both times the factors that are in the token already.
template <int ROWS>
FL_INLINE void place_key_and_query(HeadToken<ROWS>& token, const float* k, float key_scale, const float* q,
                                   float query_scale) {
  f32x16 product{};
  for (int i = 0; i < ROWS; i += 16) {
    const f32x16 query = load(q + i) * query_scale, key = load(k + i) * key_scale, factor = load(token.factor + i);
    product = fmadd(query, key, product);
    store(token.key + i, key);
    store(token.decayed_key + i, factor * key);
    store(token.decayed_query + i, factor * query);
  }
  token.query_key = sum(product);
}

}  // namespace firelane
