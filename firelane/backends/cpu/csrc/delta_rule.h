// DeltaRule: for each head a matrix S [DK][DV] that every token decays, corrects and reads.
//
// A work item is one head of one chunk; its tokens are walked in order, a few at a time for a strip of S's columns, so
// that the strip stays in the first-level cache. While a strip is read, lines of the next head's state are fetched: for a
// single token a step is bound by the way of the states from memory and back.
#pragma once

#include "context.h"

namespace firelane {

// LDQ, LDD, LDB, LDO: from one row of qkv, decay, beta, out to the next.
template <int KEY_HEADS, int HEADS, int DK, int DV, bool BY_CHANNEL, bool FLOOR, int LDQ, int LDD, int LDB, int LDO>
struct DeltaRule {
  static constexpr int kTokens = 4;
  static constexpr int kHead = DK * DV;  // numbers of a head's state
  static_assert(DK % 16 == 0 && DV % 16 == 0);

  const float *qkv, *decay, *beta, *a_log, *dt_bias;
  float floor;
  StatePlace state;
  float* out;

  // Of one token: by channel its factor of S, the key, and both key and query times the factor; the query's product with
  // the key; and how far the state is corrected.
  struct Token {
    alignas(64) float factor[DK], key[DK], decayed_key[DK], decayed_query[DK];
    float query_key, rate;
  };
  using Scratch = Token[kTokens];

  FL_KERNEL void run(const Context& c, int thread, int op) const {
    auto& tokens = *reinterpret_cast<Scratch*>(c.thread_scratch(thread));
    const int items = c.step.num_chunks * HEADS;
    c.for_each_stealing(op, thread, items, [&](int item) { run_item(c, tokens, item, items); });
  }

 private:
  FL_INLINE float* head_of(const Context& c, int index, int head) const {
    return c.state(state, index) + std::size_t(head) * kHead;
  }

  FL_INLINE void run_item(const Context& c, Scratch& tokens, int item, int items) const {
    const int chunk = item / HEADS, head = item % HEADS, count = c.step.chunk_len[chunk];
    float* s = head_of(c, c.step.chunk_slot[chunk], head);
    begin(c, chunk, head, s);
    const float speed = exp_16(splat(a_log[head]))[0];
    for (int t = 0; t < count; t += kTokens) {
      const int row = c.chunk_row[chunk] + t, some = std::min(kTokens, count - t);
      for (int i = 0; i < some; ++i) prepare(tokens[i], row + i, head, speed);
      const float* next = t + some == count && item + 1 < items ? state_before(c, item + 1) : nullptr;
      advance(tokens, some, row, head, s, next);
    }
    if (c.step.chunk_save[chunk] >= 0)
      std::memcpy(head_of(c, c.step.chunk_save[chunk], head), s, kHead * sizeof(float));
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
    const int chunk = item / HEADS, from = c.step.chunk_from[chunk];
    return head_of(c, from < 0 ? c.step.chunk_slot[chunk] : from, item % HEADS);
  }

  FL_KERNEL void prepare(Token& token, int row, int head, float speed) const {
    constexpr int group = HEADS / KEY_HEADS;
    const float* q = qkv + std::size_t(row) * LDQ + head / group * DK;
    const float* k = q + KEY_HEADS * DK;
    const float query_scale = inverse_length(q) / std::sqrt(float(DK)), key_scale = inverse_length(k);
    f32x16 common{}, product{};
    if constexpr (!BY_CHANNEL) common = factors(splat(decay[std::size_t(row) * LDD + head] + dt_bias[head]), speed);
    for (int i = 0; i < DK; i += 16) {
      if constexpr (BY_CHANNEL)
        common = factors(load(decay + std::size_t(row) * LDD + head * DK + i) + load(dt_bias + head * DK + i), speed);
      const f32x16 query = load(q + i) * query_scale, key = load(k + i) * key_scale;
      product = fmadd(query, key, product);
      store(token.factor + i, common);
      store(token.key + i, key);
      store(token.decayed_key + i, common * key);
      store(token.decayed_query + i, common * query);
    }
    token.query_key = sum(product);
    token.rate = sigmoid_16(splat(beta[std::size_t(row) * LDB + head]))[0];
  }

  static FL_INLINE float inverse_length(const float* x) {
    f32x16 squares{};
    for (int i = 0; i < DK; i += 16) squares = fmadd(load(x + i), load(x + i), squares);
    return 1.0f / std::sqrt(sum(squares) + 1e-6f);
  }

  // e^g
  FL_INLINE f32x16 factors(f32x16 raw, float speed) const {
    if constexpr (FLOOR) return exp_16(sigmoid_16(raw * speed) * floor);
    return exp_16(softplus_16(raw) * -speed);
  }

  // `some` tokens from row `row` on, strip by strip; `next`: the state to be fetched meanwhile, if any.
  FL_INLINE void advance(const Scratch& tokens, int some, int row, int head, float* s, const float* next) const {
    constexpr int wide = DV / 32 * 32;
    for (int column = 0; column < DV; column += 32) {
      for (int i = 0; i < some; ++i) {
        const float* v = qkv + std::size_t(row + i) * LDQ + 2 * KEY_HEADS * DK + head * DV + column;
        float* y = out + std::size_t(row + i) * LDO + head * DV + column;
        const bool fetch = next && i == 0;
        if (column == wide)
          strip<1, false>(tokens[i], s + column, v, y, nullptr);
        else if (fetch)
          strip<2, true>(tokens[i], s + column, v, y, next + std::size_t(column) * DK);
        else
          strip<2, false>(tokens[i], s + column, v, y, nullptr);
      }
    }
  }

  // One token for V vectors of columns. FETCH: as many lines as are read are fetched from `next`.
  template <int V, bool FETCH>
  FL_KERNEL void strip(const Token& token, float* s, const float* v, float* y, const float* next) const {
    f32x16 by_key[V] = {}, by_query[V] = {}, delta[V];
    for (int i = 0; i < DK; ++i) {
      const f32x16 k = splat(token.decayed_key[i]), q = splat(token.decayed_query[i]);
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) {
        if constexpr (FETCH) __builtin_prefetch(next + (i * V + j) * 16, 1);
        const f32x16 row = load(s + i * DV + j * 16);
        by_key[j] = fmadd(row, k, by_key[j]);
        by_query[j] = fmadd(row, q, by_query[j]);
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) {
      delta[j] = (load(v + j * 16) - by_key[j]) * token.rate;
      store(y + j * 16, fmadd(delta[j], splat(token.query_key), by_query[j]));
    }
    for (int i = 0; i < DK; ++i) {
      const f32x16 k = splat(token.key[i]), factor = splat(token.factor[i]);
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) {
        const f32x16 row = load(s + i * DV + j * 16);
        store(s + i * DV + j * 16, fmadd(delta[j], k, row * factor));
      }
    }
  }
};

}  // namespace firelane
