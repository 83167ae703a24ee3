// Steps of coded forms with NEON's byte lookups: a register of sixteen bytes at a time.
#pragma once

namespace firelane {

// What the codes of PANEL_CODED4 stand for.
struct Table4 {
  uint8x16_t bytes;

  static FL_INLINE Table4 of_panel(const std::uint8_t* panel) { return {vld1q_u8(panel)}; }
  // The same with `value` for code 7.
  FL_INLINE Table4 with(std::uint8_t value) const { return {vsetq_lane_u8(value, bytes, 7)}; }
};

// `bytes` with those that equal `escape` replaced by what lies at `escapes`, which moves on.
FL_INLINE uint8x16_t take_escapes(uint8x16_t bytes, std::uint8_t escape, const std::uint8_t*& escapes) {
  const uint8x16_t equal = vceqq_u8(bytes, vdupq_n_u8(escape));
  // Four bits for each byte: NEON has no instruction that gives one.
  std::uint64_t escaped = vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(vreinterpretq_u16_u8(equal), 4)), 0);
  if (__builtin_expect(escaped == 0, 1)) return bytes;
  std::uint8_t lanes[16];
  vst1q_u8(lanes, bytes);
  for (; escaped; escaped &= ~(std::uint64_t(15) << (__builtin_ctzll(escaped) & ~3)))
    lanes[__builtin_ctzll(escaped) / 4] = *escapes++;
  return vld1q_u8(lanes);
}

// High bytes by code, low bytes as they are; returns where the next escapes lie.
FL_INLINE const std::uint8_t* words_of_step4(u32x16 (&words)[2], const std::uint8_t* codes, int shift,
                                             const std::uint8_t* low, Table4 table, bool escapes_differ,
                                             const std::uint8_t* escapes) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const uint8x16_t code = vandq_u8(vshlq_u8(vld1q_u8(codes + 16 * i), vdupq_n_s8(-shift)), vdupq_n_u8(15));
    uint8x16_t high = vqtbl1q_u8(table.bytes, code);
    if (__builtin_expect(escapes_differ, 0)) high = take_escapes(high, kEscape4, escapes);
    const uint8x16_t lows = vld1q_u8(low + 16 * i);
    words[0].r[i] = (u32x16::Register)vzip1q_u8(lows, high);
    words[1].r[i] = (u32x16::Register)vzip2q_u8(lows, high);
  }
  return escapes;
}

// Eight lanes of three bits each: the two bytes that hold a lane's, shifted.
FL_INLINE uint8x8_t codes_of_three_bits(uint8x16_t bytes, uint8x16_t spread, int16x8_t shifts) {
  const uint16x8_t pairs = vreinterpretq_u16_u8(vqtbl1q_u8(bytes, spread));
  return vand_u8(vmovn_u16(vshlq_u16(pairs, shifts)), vdup_n_u8(7));
}

// Sign and mantissa below the exponent, turned by the one bit that the sign is off its place.
FL_INLINE u32x16::Register turned(uint8x16_t pairs) {
  const uint16x8_t x = vreinterpretq_u16_u8(pairs);
  return (u32x16::Register)vsriq_n_u16(vshlq_n_u16(x, 15), x, 1);
}

FL_INLINE const std::uint8_t* words_of_step3(u32x16 (&words)[2], const std::uint8_t* codes,
                                             const std::uint8_t* rest, const std::uint8_t* table,
                                             const std::uint8_t* escapes) {
  const uint8x16_t values = vld1q_u8(table);
  const uint8x16_t spread = {0, 1, 0, 1, 0, 1, 1, 2, 1, 2, 1, 2, 2, 3, 2, 3}, three = vdupq_n_u8(3);
  const int16x8_t shifts = {0, -3, -6, -1, -4, -7, -2, -5};
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const uint8x16_t bits = vld1q_u8(codes + 6 * i);
    const uint8x16_t code = vcombine_u8(codes_of_three_bits(bits, spread, shifts),
                                        codes_of_three_bits(bits, vaddq_u8(spread, three), shifts));
    const uint8x16_t exponents = take_escapes(vqtbl1q_u8(values, code), kEscape3, escapes);
    const uint8x16_t others = vld1q_u8(rest + 16 * i);
    words[0].r[i] = turned(vzip1q_u8(others, exponents));
    words[1].r[i] = turned(vzip2q_u8(others, exponents));
  }
  return escapes;
}

}  // namespace firelane
