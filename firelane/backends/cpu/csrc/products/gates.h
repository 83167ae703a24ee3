// Functions of a gate and a number that it lets through; and Gated, which is such a function of two values.
#pragma once

#include "context.h"

namespace firelane {

// erf(x) for x >= 0: Abramowitz and Stegun (1964), 7.1.26; the error is below 1.5e-7.
FL_INLINE f32x16 erf_of_positive(f32x16 x) {
  const f32x16 t = 1.0f / (1.0f + x * 0.3275911f);
  f32x16 y = t * 1.061405429f - 1.453152027f;
  y = fmadd(y, t, splat(1.421413741f));
  y = fmadd(y, t, splat(-0.284496736f));
  y = fmadd(y, t, splat(0.254829592f));
  return 1.0f - y * t * exp_16(-min(x * x, splat(87.0f)));
}

// The normal distribution's function.
FL_INLINE f32x16 normal_16(f32x16 x) {
  const f32x16 size = max(x, -x), erf = erf_of_positive(size * 0.70710678f);
  return select(less(x, splat(0.0f)), (1.0f - erf) * 0.5f, (1.0f + erf) * 0.5f);
}

struct NormalShare {
  FL_INLINE f32x16 operator()(f32x16 gate, f32x16 up) const { return normal_16(gate) * up; }
};

struct Gelu {
  FL_INLINE f32x16 operator()(f32x16 gate, f32x16 up) const { return gate * normal_16(gate) * up; }
};

struct Silu {
  FL_INLINE f32x16 operator()(f32x16 gate, f32x16 up) const {
    const f32x16 silu = gate / (1.0f + exp_16(-max(gate, splat(-87.0f))));
    return silu * up;
  }
};

FL_INLINE f32x16 gelu_slope(f32x16 gate) {
  return (gate + gate * gate * gate * 0.044715f) * 1.5957691216f;  // 2 sqrt(2 / pi)
}

struct GeluTanh {
  FL_INLINE f32x16 operator()(f32x16 gate, f32x16 up) const { return gate * sigmoid_16(gelu_slope(gate)) * up; }
};

struct NormalTanh {
  FL_INLINE f32x16 operator()(f32x16 gate, f32x16 up) const { return sigmoid_16(gelu_slope(gate)) * up; }
};

// LIMITED: whether both are bounded by `limit`.
template <bool LIMITED>
struct ShiftedSilu {
  float alpha, limit, up_offset;
  FL_INLINE f32x16 operator()(f32x16 gate, f32x16 up) const {
    if constexpr (LIMITED) {
      gate = min(gate, splat(limit));
      up = max(min(up, splat(limit)), splat(-limit));
    }
    return gate * sigmoid_16(gate * alpha) * (up + up_offset);
  }
};

struct Sigmoid {
  FL_INLINE f32x16 operator()(f32x16 gate, f32x16 up) const { return sigmoid_16(gate) * up; }
};

struct Relu {
  FL_INLINE f32x16 operator()(f32x16 gate, f32x16 up) const { return max(gate, splat(0.0f)) * up; }
};

struct Factor {
  FL_INLINE f32x16 operator()(f32x16 gate, f32x16 up) const { return gate * up; }
};

// T, TO: of x and of out; FROM: the gate's first column.
template <class T, class TO, int WIDTH, int FROM, int LDX, int LDG, int LDO, class GATE>
FL_KERNEL void gated(const Context& c, int thread, int rows, const typename T::act* x, const float* gate,
                     typename TO::act* out) {
  constexpr int whole = WIDTH / 16 * 16;
  const Range mine = split(rows, thread, c.threads());
  for (int row = mine.begin; row < mine.end; ++row) {
    const typename T::act* from = x + std::size_t(row) * LDX;
    const float* factors = gate + std::size_t(row) * LDG + FROM;
    typename TO::act* to = out + std::size_t(row) * LDO;
    for (int i = 0; i < whole; i += 16) TO::store_act(to + i, GATE{}(load(factors + i), T::load_act(from + i)));
    if constexpr (whole < WIDTH)
      TO::store_act(to + whole, GATE{}(load_part(factors + whole, WIDTH - whole), T::load_act(from + whole)));
  }
}

}  // namespace firelane
