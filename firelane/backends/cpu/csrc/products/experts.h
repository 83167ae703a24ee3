// Matrix products of rows with the experts that were picked for them.
//
// Each thread sorts the picks by expert itself, and copies the rows of an expert one behind the other before it
// multiplies them: products are those of linear.h, and a row's bits do not depend on the rows beside it. The panels of
// an ExpertLinear belong to one thread each, which adds the experts' parts in ascending order, or keeps them beside each
// other and adds them as a tree in the end (segments.h).
#pragma once

#include "products/linear.h"

namespace firelane {

constexpr int kStartBytes = 2048;

// The slots of a step by expert, of EXPERTS from `first` on. Slot j of row t is number t * PICKS + j.
template <int EXPERTS, int PICKS>
struct ExpertSlots {
  int active[EXPERTS];  // experts with slots, ascending
  int count = 0;        // of those

  // A counting sort: the slots of an expert are in ascending order. They lie in `memory`, which has room for all.
  template <int LDP>
  FL_INLINE void sort(const std::int32_t* picks, int rows, int first, std::int32_t* memory) {
    const auto each = [&](const auto& use) FL_LAMBDA {
      for (int row = 0; row < rows; ++row)
        for (int j = 0; j < PICKS; ++j) {
          const int expert = picks[std::size_t(row) * LDP + j] - first;
          if (unsigned(expert) < unsigned(EXPERTS)) use(expert, row * PICKS + j);
        }
    };
    std::memset(starts_, 0, sizeof(starts_));
    each([&](int expert, int) FL_LAMBDA { ++starts_[expert + 2]; });
    for (int e = 0; e < EXPERTS; ++e) {
      if (starts_[e + 2]) active[count++] = e;
      starts_[e + 2] += starts_[e + 1];
    }
    each([&](int expert, int slot) FL_LAMBDA { memory[starts_[expert + 1]++] = slot; });
    slots_ = memory;
  }

  FL_INLINE int rows(int expert) const { return starts_[expert + 1] - starts_[expert]; }
  FL_INLINE const std::int32_t* of(int expert) const { return slots_ + starts_[expert]; }

 private:
  int starts_[EXPERTS + 2];  // those of expert e lie from starts_[e] to starts_[e + 1]
  const std::int32_t* slots_;
};

// Rows of x by expert. LDX: elements from one row to the next; SLOT: from one slot of a row to the next, 0 where all
// slots are the row itself; LDC: from one copy to the next.
template <class T, int EXPERTS, int PICKS, int K, int LDP, int LDX, int SLOT, int LDC>
class ExpertRows {
 public:
  using act = typename T::act;
  static constexpr int kCopyStride = LDC;

  FL_INLINE ExpertRows(const Context& c, int thread, int op, int rows, const std::int32_t* picks, const act* x)
      : x_(x) {
    auto* memory = reinterpret_cast<std::int32_t*>(c.thread_rows(thread));
    slots.template sort<LDP>(picks, rows, c.parts[op].first, memory);
    const std::size_t taken = std::size_t(rows) * PICKS;
    copies_ = reinterpret_cast<act*>(memory + (taken + 15) / 16 * 16);
    behind = reinterpret_cast<float*>(copies_ + std::size_t(rows) * LDC);
  }

  ExpertSlots<EXPERTS, PICKS> slots;
  float* behind;  // memory of this thread that is left

  // The rows of an expert, valid until another's are asked for: copies, or where there is one, the row itself.
  FL_INLINE const act* of(int expert) {
    const int rows = slots.rows(expert);
    const std::int32_t* from = slots.of(expert);
    if (rows == 1) return source(*from);
    if (held_ != expert)
      for (int row = 0; row < rows; ++row)
        std::memcpy(copies_ + std::size_t(row) * LDC, source(from[row]), K * sizeof(act));
    held_ = expert;
    return copies_;
  }

 private:
  FL_INLINE const act* source(int slot) const { return x_ + std::size_t(slot / PICKS) * LDX + slot % PICKS * SLOT; }

  const act* x_;
  act* copies_;
  int held_ = -1;  // the expert whose rows the copies are
};

// store(slot, global panel, panel, lanes 0-15, lanes 16-31) for panels p0 .. p1 - 1 of an expert and each of its slots.
template <int PANELS, class Rows, class Panels, class Store>
FL_INLINE void multiply_expert(Rows& rows, int expert, int p0, int p1, const Panels& panels, void* scratch,
                               const Store& store) {
  const int first = expert * PANELS;
  const std::int32_t* slots = rows.slots.of(expert);
  const auto store_slot = [&](int row, int p, f32x16 a, f32x16 b) FL_LAMBDA { store(slots[row], p, p - first, a, b); };
  panels.template multiply<Rows::kCopyStride>(first + p0, first + p1, rows.slots.rows(expert), rows.of(expert), scratch,
                                              store_slot);
}

// Panels that are walked together, of so many that are to be shared out.
template <class Panels>
FL_INLINE int group_size(const Context& c, int panels) {
  return clamp(panels / (8 * c.threads()), 1, max(1, kPanelGroupBytes / Panels::kPanelBytes));
}

// What a product that begins at this panel reads first: another expert's panels are far from those before.
template <class Panels>
FL_INLINE void fetch_start(const Panels& panels, int p) {
  const auto* from = reinterpret_cast<const char*>(panels.panel(p));
  for (int at = 0; at < kStartBytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}

// All panels of the experts that have rows, shared out as one list: an expert's lie beside each other in memory.
template <int PANELS, class Rows, class Panels, class Store>
FL_KERNEL void expert_gated_linear(const Context& c, int thread, int op, int tokens, const std::int32_t* picks,
                                   const typename Rows::act* x, const Panels& panels, const Store& store) {
  Rows rows(c, thread, op, tokens, picks, x);
  const int group = min(PANELS, group_size<Panels>(c, rows.slots.count * PANELS));
  const int groups = (PANELS + group - 1) / group;
  c.for_each_stealing(op, thread, rows.slots.count * groups, [&](int item) {
    const int p0 = item % groups * group, p1 = min(p0 + group, PANELS);
    multiply_expert<PANELS>(rows, rows.slots.active[item / groups], p0, p1, panels, c.thread_scratch(thread), store);
  });
}

// Panels of the output, shared out; to each the experts give their parts one after the other.
template <int PANELS, class Rows, class Panels, class Store>
FL_KERNEL void expert_linear(const Context& c, int thread, int op, int tokens, const std::int32_t* picks,
                             const typename Rows::act* x, const Panels& panels, const Store& store) {
  Rows rows(c, thread, op, tokens, picks, x);
  const int group = min(Store::kPanels, group_size<Panels>(c, 2 * PANELS));
  c.for_each_stealing(op, thread, (PANELS + group - 1) / group, [&](int item) {
    const int p0 = item * group, p1 = min(p0 + group, PANELS);
    Store mine = store;
    mine.begin(rows.behind, p0);
    for (int i = 0; i < rows.slots.count; ++i) {
      if (i + 1 < rows.slots.count) fetch_start(panels, rows.slots.active[i + 1] * PANELS + p0);
      multiply_expert<PANELS>(rows, rows.slots.active[i], p0, p1, panels, c.thread_scratch(thread), mine);
    }
    mine.end(picks, tokens, p1);
  });
}

// The bias of a panel of PANEL_F32 with one input, which is padded to two.
FL_INLINE const float* bias_of(const float* bias, int p) { return bias + std::size_t(p) * 64; }

// Lanes from `values` on that belong to a slot N wide: not those behind it, which are another slot's.
template <class T, int N>
FL_INLINE void store_in_slot(typename T::act* slot, int from, f32x16 values) {
  if (N % 16 == 0 || from + 16 <= N) return T::store_act(slot + from, values);
  typename T::act lanes[16];
  T::store_act(lanes, values);
  std::memcpy(slot + from, lanes, N % 16 * sizeof(lanes[0]));
}

// A panel of 16 gate and 16 up outputs gives 16 values of the slot, N wide.
template <class T, int PICKS, int N, int LDO, int LDS, bool BIAS, bool SHARES, class GATE>
struct StoreExpertGated {
  typename T::act* out;
  const float* bias;
  const float* shares;
  GATE function;
  FL_INLINE void operator()(int slot, int p, int panel, f32x16 gate, f32x16 up) const {
    const int row = slot / PICKS, j = slot % PICKS;
    if constexpr (BIAS) {
      gate += load(bias_of(bias, p));
      up += load(bias_of(bias, p) + 16);
    }
    if constexpr (SHARES) {
      const float share = shares[std::size_t(row) * LDS + j];
      gate = gate * share;
      up = up * share;
    }
    store_in_slot<T, N>(out + std::size_t(row) * LDO + j * N, panel * 16, function(gate, up));
  }
};

// A panel of 32 outputs gives 32 values max(sum, 0)^2 of the slot, N wide.
template <class T, int PICKS, int N, int LDO, int LDS, bool BIAS, bool SHARES>
struct StoreExpertSquared {
  typename T::act* out;
  const float* bias;
  const float* shares;
  FL_INLINE void operator()(int slot, int p, int panel, f32x16 a, f32x16 b) const {
    const int row = slot / PICKS, j = slot % PICKS;
    if constexpr (BIAS) {
      a += load(bias_of(bias, p));
      b += load(bias_of(bias, p) + 16);
    }
    if constexpr (SHARES) {
      const float share = shares[std::size_t(row) * LDS + j];
      a = a * share;
      b = b * share;
    }
    a = max(a, splat(0.0f));
    b = max(b, splat(0.0f));
    typename T::act* to = out + std::size_t(row) * LDO + j * N;
    store_in_slot<T, N>(to, panel * 32, a * a);
    if (panel * 32 + 16 < N) store_in_slot<T, N>(to, panel * 32 + 16, b * b);
  }
};

// The first slot of a row begins with the residual, later ones add to what those before left.
template <int PICKS, int LDO, int LDR, int LDS, bool BIAS, bool SHARES, bool RESIDUAL>
struct StoreExpertSum {
  static constexpr int kPanels = 1 << 20;
  float* out;
  const float* bias;
  const float* shares;
  const float* residual;

  FL_INLINE void begin(float*, int) {}
  FL_INLINE void end(const std::int32_t*, int, int) const {}
  FL_INLINE void operator()(int slot, int p, int panel, f32x16 a, f32x16 b) const {
    const int row = slot / PICKS, j = slot % PICKS;
    float* sum = out + std::size_t(row) * LDO + panel * 32;
    if constexpr (BIAS) {
      a += load(bias_of(bias, p));
      b += load(bias_of(bias, p) + 16);
    }
    if constexpr (SHARES) {
      const float share = shares[std::size_t(row) * LDS + j];
      a = a * share;
      b = b * share;
    }
    const float* from = sum;
    if (j == 0) from = RESIDUAL ? residual + std::size_t(row) * LDR + panel * 32 : nullptr;
    if (from) {
      a += load(from);
      b += load(from + 16);
    }
    store(sum, a);
    store(sum + 16, b);
  }
};

// The parts of a row's slots lie beside each other until all are there. Those of experts of one segment are added in
// their order, then segments as a tree, then the residual. LDP: from one row of picks to the next.
template <int PICKS, int LDP, int LDO, int LDR, int LDS, bool BIAS, bool SHARES, bool RESIDUAL, class SEGMENTS>
struct StoreExpertTree {
  static constexpr int kPanels = 4;  // that are walked together at most: parts take memory
  float* out;
  const float* bias;
  const float* shares;
  const float* residual;
  int expert;  // the first
  float* parts = nullptr;
  int first = 0;

  FL_INLINE void begin(float* memory, int p0) {
    parts = memory;
    first = p0;
  }

  FL_INLINE float* part(int slot, int panel) const { return parts + (std::size_t(slot) * kPanels + panel - first) * 32; }

  FL_INLINE void operator()(int slot, int p, int panel, f32x16 a, f32x16 b) const {
    if constexpr (BIAS) {
      a += load(bias_of(bias, p));
      b += load(bias_of(bias, p) + 16);
    }
    if constexpr (SHARES) {
      const float share = shares[std::size_t(slot / PICKS) * LDS + slot % PICKS];
      a = a * share;
      b = b * share;
    }
    float* to = part(slot, panel);
    store(to, a);
    store(to + 16, b);
  }

  FL_INLINE void end(const std::int32_t* picks, int rows, int p1) const {
    for (int row = 0; row < rows; ++row) {
      const Order order(picks + std::size_t(row) * LDP, expert);
      for (int panel = first; panel < p1; ++panel)
        for (int lane = 0; lane < 32; lane += 16) {
          f32x16 sum = added(order, row, panel, lane);
          const std::size_t column = panel * 32 + lane;
          if constexpr (RESIDUAL) sum += load(residual + std::size_t(row) * LDR + column);
          store(out + std::size_t(row) * LDO + column, sum);
        }
    }
  }

 private:
  // The order in which a row's slots are added: `meets[i]` is the height at which the segments of slots i and i + 1 of
  // those that are there meet in the tree, 0 within a segment.
  struct Order {
    int slots[PICKS], meets[PICKS], count = 0;

    FL_INLINE explicit Order(const std::int32_t* picks, int first) {
      int last = 0;
      for (int j = 0; j < PICKS; ++j) {
        const int expert = picks[j] - first;
        if (unsigned(expert) >= unsigned(SEGMENTS::kWords)) continue;
        const int segment = segment_of(expert);
        if (count) meets[count - 1] = segment == last ? 0 : 32 - __builtin_clz(segment ^ last);
        slots[count++] = j;
        last = segment;
      }
    }

    static FL_INLINE int segment_of(int expert) {
      int segment = 0;
      for (int end = SEGMENTS::kWidths[0]; expert >= end; end += SEGMENTS::kWidths[segment]) ++segment;
      return segment;
    }
  };

  FL_INLINE f32x16 added(const Order& order, int row, int panel, int lane) const {
    if (order.count == 0) return splat(0.0f);
    const auto slot = [&](int i) FL_LAMBDA { return load(part(row * PICKS + order.slots[i], panel) + lane); };
    f32x16 aside[4], sum = slot(0);
    int heights[4], depth = 0;
    for (int i = 1; i < order.count; ++i) {
      const int height = order.meets[i - 1];
      if (height == 0) {
        sum += slot(i);
        continue;
      }
      while (depth && heights[depth - 1] < height) sum = aside[--depth] + sum;
      aside[depth] = sum;
      heights[depth++] = height;
      sum = slot(i);
    }
    while (depth) sum = aside[--depth] + sum;
    return sum;
  }
};

}  // namespace firelane
