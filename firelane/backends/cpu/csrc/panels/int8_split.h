// Lanes of four codes in registers of vec_split.h.
#pragma once

#include "panels/grouped.h"

namespace firelane {

constexpr int kWideRaised = 0;
constexpr int kInt8PackedRows = 2, kInt8TileRows = 4;

FL_INLINE FloatLanes& register_of(f32x16 (&sums)[2], int v) {
  constexpr int each = f32x16::kRegisters;
  return sums[v / each].r[v % each];
}

FL_INLINE WordLanes joined_pairs(const std::uint8_t* low, const std::uint8_t* high, int v) {
  const int at = 2 * kRegisterLanes * v;
#if defined(FIRELANE_ISA_AVX2)
  const __m128i a = lanes16_at(low + at), b = lanes16_at(high + at);
  return (WordLanes)_mm256_set_m128i(_mm_unpackhi_epi16(a, b), _mm_unpacklo_epi16(a, b));
#else
  return ((WordLanes)shorts_at(low + at) & 0xFFFFu) | (WordLanes)shorts_at(high + at) << 16;
#endif
}

FL_INLINE WordLanes bytes_of_table(const std::uint8_t* table, WordLanes places) {
#if defined(FIRELANE_ISA_AVX2)
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return (WordLanes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), (__m256i)places);
#elif defined(FIRELANE_NEON)
  return (WordLanes)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)places);
#else
  std::uint8_t bytes[sizeof places];
  std::memcpy(bytes, &places, sizeof places);
  for (std::uint8_t& byte : bytes) byte = table[byte];
  std::memcpy(&places, bytes, sizeof places);
  return places;
#endif
}

#if defined(FIRELANE_ISA_AVX2) && !defined(__AVXVNNI__)
#define FIRELANE_SHORT_SUMS 1

typedef std::int16_t ShortLanes __attribute__((vector_size(32)));

FL_INLINE ShortLanes products_of_two(WordLanes codes, std::uint32_t row) {
  return (ShortLanes)_mm256_maddubs_epi16((__m256i)codes, _mm256_set1_epi32(int(row)));
}

FL_INLINE IntLanes sums_of_two(ShortLanes products) {
  return (IntLanes)_mm256_madd_epi16((__m256i)products, _mm256_set1_epi16(1));
}
#endif

// sums + the dot product of each lane's codes with four bytes of a row; WIDE codes have signs.
template <bool WIDE>
FL_INLINE IntLanes add_dots(IntLanes sums, WordLanes codes, std::uint32_t row) {
#if defined(FIRELANE_ISA_AVX2)
  const __m256i x = _mm256_set1_epi32(int(row)), w = (__m256i)codes;
  const __m256i size = WIDE ? _mm256_abs_epi8(w) : w, by = WIDE ? _mm256_sign_epi8(x, w) : x;
#if defined(__AVXVNNI__)
  return (IntLanes)_mm256_dpbusd_avx_epi32((__m256i)sums, size, by);
#else
  sums = sums + (IntLanes)_mm256_madd_epi16(_mm256_maddubs_epi16(size, by), _mm256_set1_epi16(1));
  asm("" : "+x"(sums));  // see Dots
  return sums;
#endif
#elif defined(FIRELANE_NEON) && defined(__ARM_FEATURE_DOTPROD)
  return (IntLanes)vdotq_s32((int32x4_t)sums, (int8x16_t)codes, (int8x16_t)vdupq_n_u32(row));
#else
  const IntLanes w = (IntLanes)codes;
  const std::int32_t x = std::int32_t(row);
  sums += (w << 24 >> 24) * (x << 24 >> 24);
  sums += (w << 16 >> 24) * (x << 16 >> 24);
  sums += (w << 8 >> 24) * (x << 8 >> 24);
  return sums + (w >> 24) * (x >> 24);
#endif
}

FL_INLINE void store_low_bytes(std::int8_t* p, u32x16 v) {
  std::uint32_t words[16];
  store(words, v);
  for (int i = 0; i < 16; ++i) p[i] = std::int8_t(words[i]);
}

}  // namespace firelane
