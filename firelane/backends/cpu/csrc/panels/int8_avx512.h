// Lanes of four codes in registers of 512 bits.
#pragma once

#include "panels/grouped.h"

namespace firelane {

using FloatLanes = f32x16;
using IntLanes = i32x16;
using WordLanes = u32x16;
constexpr int kRegisterLanes = 16;

// Products take one factor without a sign.
constexpr int kWideRaised = 128;
constexpr int kInt8PackedRows = 4, kInt8TileRows = 6;

FL_INLINE FloatLanes& register_of(f32x16 (&sums)[2], int v) { return sums[v]; }

template <class Register>
FL_INLINE Register lanes_at(const std::uint8_t* p) {
  Register found;
  std::memcpy(&found, p, sizeof found);
  return found;
}

template <int PARITY>
FL_INLINE WordLanes every_second(WordLanes a, WordLanes b) {
  constexpr int p = PARITY;
  return __builtin_shufflevector(a, b, p, 2 + p, 4 + p, 6 + p, 8 + p, 10 + p, 12 + p, 14 + p, 16 + p, 18 + p, 20 + p,
                                 22 + p, 24 + p, 26 + p, 28 + p, 30 + p);
}

FL_INLINE IntLanes bytes_at(const std::uint8_t* p) {
  return (IntLanes)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

template <Heads HEADS>
FL_INLINE FloatLanes head_lanes(const std::uint8_t* heads, int v) {
  if constexpr (HEADS == Heads::kPower) return as_f32(as_u32(127 + kMostPower - (bytes_at(heads + 16 * v) & 255)) << 23);
  else return head16<HEADS>(heads + (HEADS == Heads::kF32 ? 64 : 32) * v);
}

// Pairs of bytes of each output, at `low` and at `high`, side by side.
FL_INLINE WordLanes joined_pairs(const std::uint8_t* low, const std::uint8_t* high, int v) {
  typedef std::uint16_t u16x32 __attribute__((vector_size(64)));
  u16x32 a, b;
  std::memcpy(&a, low, 64);
  std::memcpy(&b, high, 64);
  if (v == 0)
    return (WordLanes)__builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41,
                                              10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47);
  return (WordLanes)__builtin_shufflevector(a, b, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56,
                                            25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63);
}

FL_INLINE WordLanes bytes_of_table(const std::uint8_t* table, WordLanes places) {
  const __m512i values = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return (WordLanes)_mm512_shuffle_epi8(values, (__m512i)places);
}

#if defined(__AVX512VBMI__) && defined(__AVX512VBMI2__)
#define FIRELANE_SPREAD6 1

FL_INLINE WordLanes spread6(WordLanes t) {
  const __m512i from = _mm512_set1_epi64(0x322C2620120C0600);  // 0, 6, 12, 18 of both lanes
  return (WordLanes)_mm512_multishift_epi64_epi8(from, (__m512i)t) & 0x3F3F3F3Fu;
}

FL_INLINE WordLanes joined_words(WordLanes low, WordLanes high) {
  return (WordLanes)_mm512_shrdi_epi32((__m512i)low, (__m512i)high, 24);
}
#endif

#if !defined(__AVX512VNNI__)
#define FIRELANE_SHORT_SUMS 1

typedef std::int16_t ShortLanes __attribute__((vector_size(64)));

FL_INLINE ShortLanes products_of_two(WordLanes codes, std::uint32_t row) {
  return (ShortLanes)_mm512_maddubs_epi16((__m512i)codes, _mm512_set1_epi32(int(row)));
}

FL_INLINE IntLanes sums_of_two(ShortLanes products) {
  return (IntLanes)_mm512_madd_epi16((__m512i)products, _mm512_set1_epi16(1));
}
#endif

// sums + the dot product of each lane's codes, raised, with four bytes of a row.
template <bool WIDE>
FL_INLINE IntLanes add_dots(IntLanes sums, WordLanes codes, std::uint32_t row) {
  const __m512i x = _mm512_set1_epi32(int(row)), w = (__m512i)codes;
#if defined(__AVX512VNNI__)
  return (IntLanes)_mm512_dpbusd_epi32((__m512i)sums, w, x);
#else
  static_assert(WIDE);
  const __m512i ones = _mm512_set1_epi16(1), low = _mm512_set1_epi8(15);
  const __m512i parts[2] = {_mm512_and_si512(w, low), _mm512_and_si512(_mm512_srli_epi16(w, 4), low)};
  sums = sums + (IntLanes)_mm512_madd_epi16(_mm512_maddubs_epi16(parts[0], x), ones);
  return sums + (IntLanes)_mm512_madd_epi16(_mm512_maddubs_epi16(parts[1], x), _mm512_set1_epi16(16));
#endif
}

FL_INLINE void store_low_bytes(std::int8_t* p, u32x16 v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8((__m512i)v));
}

}  // namespace firelane
