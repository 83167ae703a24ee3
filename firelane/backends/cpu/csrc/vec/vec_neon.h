// Sixteen-lane vectors in four 128-bit registers, with fused multiply-add (FIRELANE_ISA_NEONBF16, FIRELANE_ISA_NEON).
#pragma once

#include <arm_neon.h>

namespace firelane {

#define FIRELANE_NEON 1
constexpr int kRegisterBytes = 16;

// Of 32 registers 24 are accumulators: six rows by one vector, and two rows take both of a panel's. Fewer without the dot
// instruction: words and their halves need registers, too.
#if defined(FIRELANE_ISA_NEONBF16)
constexpr int kTileRows = 6;
constexpr int kWideRows = 2;
#else
constexpr int kTileRows = 5;
constexpr int kWideRows = 1;
#endif
constexpr int kFetchRows = 1, kDecodeFetchRows = 1;

FL_INLINE float32x4_t multiply_add(float32x4_t a, float32x4_t b, float32x4_t c) { return vfmaq_f32(c, a, b); }

}  // namespace firelane

#include "vec/vec_split.h"

#if defined(FIRELANE_ISA_NEONBF16)
#define FIRELANE_BF16_DOT 1

namespace firelane {

FL_INLINE void store_bf16(std::uint16_t* p, f32x16 v) {
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const bfloat16x8_t low = vcvtq_low_bf16_f32((float32x4_t)v.r[2 * i]);
    const bfloat16x8_t both = vcvtq_high_bf16_f32(low, (float32x4_t)v.r[2 * i + 1]);
    std::memcpy(p + 8 * i, &both, 16);
  }
}
FL_INLINE f32x16 load_bf16(const std::uint16_t* p) {
  return by_register<float>([&](int i) FL_LAMBDA {
    return (f32x16::Register)vshll_n_u16(vld1_u16(p + 4 * i), 16);
  });
}
// c + the dot product of each lane's bf16 pair with `pair`: both products and both sums are rounded to odd, and numbers
// below the normal ones count as zero (Arm's BFDOT without the extended behaviour).
FL_INLINE f32x16 dot_bf16(u32x16 words, std::uint32_t pair, f32x16 c) {
  const bfloat16x8_t x = vreinterpretq_bf16_u32(vdupq_n_u32(pair));
  return by_register<float>([&](int i) FL_LAMBDA {
    return vbfdotq_f32((float32x4_t)c.r[i], vreinterpretq_bf16_u32((uint32x4_t)words.r[i]), x);
  });
}

}  // namespace firelane
#endif
