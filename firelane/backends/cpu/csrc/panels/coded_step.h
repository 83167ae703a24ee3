// One step of a coded form (coded.h) to 64 bf16 words, two vectors of pairs, without AVX-512 VBMI2.
//
// Byte i of a step is word (i % 16 < 8 ? 0 : 32) + i / 16 * 8 + i % 8: halves of sixteen bytes go to either half.
#pragma once

#include "vec/vec.h"

namespace firelane {

constexpr int kStepLanes = 64;   // bf16 words of one step: 32 outputs by two k
constexpr int kTableBytes = 64;  // a panel begins with the byte that each code stands for
// What the table says of the code of an escape; of CODED4, of those that differ within their pair of steps.
constexpr std::uint8_t kEscape4 = 0x7F;
constexpr std::uint8_t kEscape3 = 0xFF;

// PANEL_CODED4: bytes before the first block, the table and a byte for each pair of steps.
FL_INLINE int start_bytes4(int steps) { return kTableBytes + (steps / 2 + 63) / 64 * 64; }

FL_INLINE int word_of_lane(int i) { return (i % 16 < 8 ? 0 : 32) + i / 16 * 8 + i % 8; }

FL_INLINE std::uint16_t join3(std::uint8_t exponent, std::uint8_t rest) {
  return std::uint16_t(exponent << 7 | rest >> 1 | rest << 15);
}

FL_INLINE void load_words(u32x16 (&words)[2], const std::uint16_t (&lanes)[kStepLanes]) {
  std::uint32_t pairs[kStepLanes / 2];
  std::memcpy(pairs, lanes, sizeof pairs);
  words[0] = load(pairs);
  words[1] = load(pairs + 16);
}

#if defined(FIRELANE_ISA_AVX512BF16) || defined(FIRELANE_ISA_AVX512) || defined(FIRELANE_ISA_AVX2)

FL_INLINE u32x16 join_halves(__m256i low, __m256i high) {
#if defined(FIRELANE_ISA_AVX2)
  return {{(u32x16::Register)low, (u32x16::Register)high}};
#else
  return (u32x16)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
#endif
}
FL_INLINE __m256i load_32(const std::uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
FL_INLINE __m128i load_16(const std::uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

// What the codes of PANEL_CODED4 stand for, in both halves of a register.
struct Table4 {
  __m256i bytes;

  static FL_INLINE Table4 of_panel(const std::uint8_t* panel) {
    return {_mm256_broadcastsi128_si256(load_16(panel))};
  }
  // The same with `value` for code 7.
  FL_INLINE Table4 with(std::uint8_t value) const {
    const __m256i entry = _mm256_set1_epi64x(std::int64_t(0xFF) << 56);
    const __m256i entries = _mm256_and_si256(entry, _mm256_setr_epi64x(-1, 0, -1, 0));
    return {_mm256_blendv_epi8(bytes, _mm256_set1_epi8(char(value)), entries)};
  }
};

// High bytes by code, low bytes as they are; returns where the next escapes lie.
FL_INLINE const std::uint8_t* words_of_step4(u32x16 (&words)[2], const std::uint8_t* codes, int shift,
                                             const std::uint8_t* low, Table4 table, bool escapes_differ,
                                             const std::uint8_t* escapes) {
  const __m256i nibble = _mm256_set1_epi8(15);
  __m256i even[2], odd[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m256i code = _mm256_and_si256(_mm256_srli_epi16(load_32(codes + 32 * i), shift), nibble);
    __m256i high = _mm256_shuffle_epi8(table.bytes, code);
    if (__builtin_expect(escapes_differ, 0)) {
      unsigned escaped = _mm256_movemask_epi8(_mm256_cmpeq_epi8(high, _mm256_set1_epi8(kEscape4)));
      alignas(32) std::uint8_t bytes[32];
      _mm256_store_si256(reinterpret_cast<__m256i*>(bytes), high);
      for (; escaped; escaped &= escaped - 1) bytes[__builtin_ctz(escaped)] = *escapes++;
      high = _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes));
    }
    const __m256i lows = load_32(low + 32 * i);
    even[i] = _mm256_unpacklo_epi8(lows, high);
    odd[i] = _mm256_unpackhi_epi8(lows, high);
  }
  words[0] = join_halves(even[0], even[1]);
  words[1] = join_halves(odd[0], odd[1]);
  return escapes;
}

// Sixteen lanes at a time: their 48 bits of codes spread to 16-bit lanes, two bytes each, shifted by a product.
FL_INLINE const std::uint8_t* words_of_step3(u32x16 (&words)[2], const std::uint8_t* codes,
                                             const std::uint8_t* rest, const std::uint8_t* table,
                                             const std::uint8_t* escapes) {
  const __m256i values = _mm256_broadcastsi128_si256(load_16(table)), byte = _mm256_set1_epi16(255);
  const __m256i spread =
      _mm256_setr_epi8(0, 1, 0, 1, 0, 1, 1, 2, 1, 2, 1, 2, 2, 3, 2, 3, 3, 4, 3, 4, 3, 4, 4, 5, 4, 5, 4, 5, 5, 6, 5, 6);
  const __m256i up = _mm256_setr_epi16(1 << 13, 1 << 10, 1 << 7, 1 << 12, 1 << 9, 1 << 6, 1 << 11, 1 << 8, 1 << 13,
                                       1 << 10, 1 << 7, 1 << 12, 1 << 9, 1 << 6, 1 << 11, 1 << 8);
  alignas(64) std::uint16_t lanes[kStepLanes];
  for (int i = 0; i < 64; i += 16) {
    std::int64_t bits;
    std::memcpy(&bits, codes + i / 8 * 3, 8);
    const __m256i two = _mm256_shuffle_epi8(_mm256_set1_epi64x(bits), spread);
    const __m256i code = _mm256_srli_epi16(_mm256_mullo_epi16(two, up), 13);
    const __m256i exponent = _mm256_and_si256(_mm256_shuffle_epi8(values, code), byte);
    const __m256i other = _mm256_cvtepu8_epi16(load_16(rest + i));
    const __m256i word = _mm256_or_si256(_mm256_or_si256(_mm256_slli_epi16(exponent, 7), _mm256_srli_epi16(other, 1)),
                                         _mm256_slli_epi16(other, 15));
    _mm_store_si128(reinterpret_cast<__m128i*>(lanes + i / 2), _mm256_castsi256_si128(word));
    _mm_store_si128(reinterpret_cast<__m128i*>(lanes + 32 + i / 2), _mm256_extracti128_si256(word, 1));
    unsigned escaped = _mm256_movemask_epi8(_mm256_cmpeq_epi16(exponent, byte)) & 0x55555555;
    for (; escaped; escaped &= escaped - 1) {
      const int lane = i + __builtin_ctz(escaped) / 2;
      lanes[word_of_lane(lane)] = join3(*escapes++, rest[lane]);
    }
  }
  load_words(words, lanes);
  return escapes;
}

#elif !defined(FIRELANE_NEON)

struct Table4 {
  std::uint8_t bytes[16];

  static FL_INLINE Table4 of_panel(const std::uint8_t* panel) {
    Table4 table;
    std::memcpy(table.bytes, panel, sizeof table.bytes);
    return table;
  }
  FL_INLINE Table4 with(std::uint8_t value) const {
    Table4 table = *this;
    table.bytes[7] = value;
    return table;
  }
};

FL_INLINE const std::uint8_t* words_of_step4(u32x16 (&words)[2], const std::uint8_t* codes, int shift,
                                             const std::uint8_t* low, const Table4& table, bool,
                                             const std::uint8_t* escapes) {
  alignas(64) std::uint16_t lanes[kStepLanes];
  for (int i = 0; i < kStepLanes; ++i) {
    std::uint8_t high = table.bytes[codes[i] >> shift & 15];
    if (high == kEscape4) high = *escapes++;
    lanes[word_of_lane(i)] = std::uint16_t(high << 8 | low[i]);
  }
  load_words(words, lanes);
  return escapes;
}

FL_INLINE const std::uint8_t* words_of_step3(u32x16 (&words)[2], const std::uint8_t* codes,
                                             const std::uint8_t* rest, const std::uint8_t* table,
                                             const std::uint8_t* escapes) {
  alignas(64) std::uint16_t lanes[kStepLanes];
  for (int i = 0; i < kStepLanes; ++i) {
    const std::uint8_t* group = codes + i / 8 * 3;
    const unsigned bits = group[0] | group[1] << 8 | group[2] << 16;
    std::uint8_t exponent = table[bits >> (i % 8 * 3) & 7];
    if (exponent == kEscape3) exponent = *escapes++;
    lanes[word_of_lane(i)] = join3(exponent, rest[i]);
  }
  load_words(words, lanes);
  return escapes;
}

#endif

}  // namespace firelane

#if defined(FIRELANE_NEON)
#include "panels/coded_step_neon.h"
#endif
