// StateSpace: the recurrence of Mamba-2.
#pragma once

#include "recurrent/recurrence.h"

namespace firelane {

// ROWS: of a head's state, the width of B and C; LDX, LDT, LDO: from one row of xbc, dt, out to the next.
template <int HEADS, int GROUPS, int ROWS, int COLUMNS, int LDX, int LDT, int LDO>
struct StateSpace {
  static constexpr int kHeads = HEADS, kRows = ROWS, kColumns = COLUMNS, kOutStride = LDO;
  static constexpr bool kCorrects = false, kSkips = true;

  const float *xbc, *dt, *a_log, *dt_bias, *skip;
  float least, most;

  FL_INLINE const float* values(int row, int head) const { return xbc + std::size_t(row) * LDX + head * COLUMNS; }

  FL_KERNEL void prepare(HeadToken<ROWS>& token, int row, int head) const {
    const float* b = xbc + std::size_t(row) * LDX + HEADS * COLUMNS + head / (HEADS / GROUPS) * ROWS;
    const float raw = softplus_16(splat(dt[std::size_t(row) * LDT + head] + dt_bias[head]))[0];
    token.rate = min(max(raw, least), most);
    const f32x16 factor = exp_16(exp_16(splat(a_log[head])) * -token.rate);
    for (int i = 0; i < ROWS; i += 16) store(token.factor + i, factor);
    place_key_and_query(token, b, 1.0f, b + GROUPS * ROWS, 1.0f);
    token.skip = skip[head];
  }
};

}  // namespace firelane
