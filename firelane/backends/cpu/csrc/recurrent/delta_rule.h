// DeltaRule: the recurrence of gated delta networks. What is added for a key replaces what it had found.
#pragma once

#include "recurrent/recurrence.h"

namespace firelane {

// LDQ, LDD, LDB, LDO: from one row of qkv, decay, beta, out to the next.
template <int KEY_HEADS, int HEADS, int DK, int DV, bool BY_CHANNEL, bool FLOOR, int LDQ, int LDD, int LDB, int LDO>
struct DeltaRule {
  static constexpr int kHeads = HEADS, kRows = DK, kColumns = DV, kOutStride = LDO;
  static constexpr bool kCorrects = true, kSkips = false;

  const float *qkv, *decay, *beta, *a_log, *dt_bias;
  float floor;

  FL_INLINE const float* values(int row, int head) const {
    return qkv + std::size_t(row) * LDQ + 2 * KEY_HEADS * DK + head * DV;
  }

  FL_KERNEL void prepare(HeadToken<DK>& token, int row, int head) const {
    constexpr int group = HEADS / KEY_HEADS;
    const float* q = qkv + std::size_t(row) * LDQ + head / group * DK;
    const float* k = q + KEY_HEADS * DK;
    const float speed = exp_16(splat(a_log[head]))[0];
    f32x16 common{};
    if constexpr (!BY_CHANNEL) common = factors(splat(decay[std::size_t(row) * LDD + head] + dt_bias[head]), speed);
    for (int i = 0; i < DK; i += 16) {
      if constexpr (BY_CHANNEL)
        common = factors(load(decay + std::size_t(row) * LDD + head * DK + i) + load(dt_bias + head * DK + i), speed);
      store(token.factor + i, common);
    }
    place_key_and_query(token, k, inverse_length(k), q, inverse_length(q) / std::sqrt(float(DK)));
    token.rate = sigmoid_16(splat(beta[std::size_t(row) * LDB + head]))[0];
  }

 private:
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
};

}  // namespace firelane
