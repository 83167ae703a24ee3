// LatentCache and HeadLinear: the way of a token into and out of latent attention (DeepSeek V2, 2024).
//
// A layer's part of a page has each token once, as rope.h lays out values: in bf16 [BS/2][D][2], in float [BS][D], where D
// is the latent and the key for the position together. As codes [BS/4][D][4], then the scales by position of the latent, and
// those of the key for the position (cache_codes.h).
#pragma once

#include "products/experts.h"
#include "attention/rope.h"

namespace firelane {

enum LatentSteps : unsigned { kTurn = 1, kWarm = 2 };  // rotation, and a factor, by position

// RANK: of the latent; R: columns for the position; W: of a query head, the last R of which are for the position.
template <class T, class C, int HEADS, int RANK, int R, int W, int BS, std::size_t PAGE, int LDQ, int LDX, int LDO, unsigned STEPS>
struct Latent {
  static constexpr int D = RANK + R;
  static_assert(D % 16 == 0);

  const float *q, *latent, *norm;
  float eps;
  const float *rotary, *temperature;  // by position
  typename C::element* pages;         // in page 0
  int group;                          // of the cache: whose block table names the pages
  typename T::act* out;

  static FL_INLINE void turn(const float* x, const float* table, float* y) {
    if constexpr (bool(STEPS & kTurn)) rotate_head<R>(x, table, y);
    else std::memcpy(y, x, R * sizeof(float));
  }

  FL_INLINE const float* angles(int position) const { return STEPS & kTurn ? rotary + std::size_t(position) * R : nullptr; }

  FL_INLINE void query(int row, int position, int h) const {
    alignas(64) float y[(W + 15) / 16 * 16];
    const float* x = q + std::size_t(row) * LDQ + h * W;
    std::memcpy(y, x, (W - R) * sizeof(float));
    turn(x + W - R, angles(position), y + W - R);
    typename T::act* to = out + std::size_t(row) * LDO + h * W;
    for (int i = 0; i < W; i += 16) {
      f32x16 v = load(y + i);
      if constexpr (bool(STEPS & kWarm)) v = v * temperature[position];
      store_in_slot<T, W>(to, i, v);
    }
  }

  FL_INLINE void key(const Context& c, int row, int position) const {
    alignas(64) float y[D + 16];
    const float* x = latent + std::size_t(row) * LDX;
    const float scale = inverse_rms<RANK>(x, eps);
    for (int i = 0; i < RANK; i += 16) store(y + i, load(x + i) * scale * load(norm + i));
    turn(x + RANK, angles(position), y + RANK);
    const int block = c.block_table(group, c.token_slot[row])[position / BS];
    write_latent<C, D, RANK, BS, PAGE>(pages, block, position % BS, c.token_last[row], y);
  }

  FL_KERNEL void run(const Context& c, int thread) const {
    c.split_up(thread, c.step.num_tokens * (HEADS + 1), [&](int item) {
      const int row = item / (HEADS + 1), h = item % (HEADS + 1), position = c.token_position[row];
      if (h < HEADS) query(row, position, h);
      else key(c, row, position);
    });
  }
};

// Outputs of a head, N wide, behind which KEEP columns of its input follow.
template <class T, int N, int KEEP, int LDO>
struct StoreHead {
  typename T::act* out;
  FL_INLINE typename T::act* at(int row, int head) const { return out + std::size_t(row) * LDO + head * (N + KEEP); }
  FL_INLINE void operator()(int row, int head, int panel, f32x16 a, f32x16 b) const {
    store_in_slot<T, N>(at(row, head), panel * 32, a);
    if (panel * 32 + 16 < N) store_in_slot<T, N>(at(row, head), panel * 32 + 16, b);
  }
  FL_INLINE void keep(int row, int head, const typename T::act* from) const {
    std::memcpy(at(row, head) + N, from, KEEP * sizeof(*from));
  }
};

// A head's panels times its K columns of x, which has KEEP more for each head.
template <int HEADS, int PANELS, int K, int KEEP, int LDX, class Panels, class Store>
FL_KERNEL void head_linear(const Context& c, int thread, int op, int rows, const typename Panels::type::act* x,
                           const Panels& panels, const Store& store) {
  const int group = min(PANELS, group_size<Panels>(c, HEADS * PANELS));
  constexpr int from_head = K + KEEP;
  const int groups = (PANELS + group - 1) / group;
  c.for_each_stealing(op, thread, HEADS * groups, [&](int item) {
    const int head = item / groups, p0 = item % groups * group, p1 = min(p0 + group, PANELS);
    const int first = head * PANELS;
    const auto* from = x + head * from_head;
    const auto store_head = [&](int row, int p, f32x16 a, f32x16 b) FL_LAMBDA { store(row, head, p - first, a, b); };
    panels.template multiply<LDX>(first + p0, first + p1, rows, from, c.thread_scratch(thread), store_head);
    if (KEEP && p0 == 0)
      for (int row = 0; row < rows; ++row) store.keep(row, head, from + std::size_t(row) * LDX + K);
  });
}

}  // namespace firelane
