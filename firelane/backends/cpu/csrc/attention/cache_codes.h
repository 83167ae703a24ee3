// How the numbers of the KV cache lie in its pages, and how a product reads them: plain, or as codes of eight bits with a
// bf16 scale for each row (firelane/program/cache_codes.py), which is what one token has of one key or value head.
//
// A head of codes is its K, the scales of K by position, the scales of V, and its V: one run of bytes. A product takes the
// codes as numbers; scales are factors of its result (keys) or of the probabilities (values).
#pragma once

#include <cstddef>

#include "vec/vec.h"

namespace firelane {

// Numbers as they are: words of T.
template <class T>
struct PlainCache {
  using element = typename T::cache;
  using word = typename T::word;
  using product = T;  // whose words a product reads
  static constexpr int kPerWord = T::kPerWord;
  static constexpr bool kScaled = false;

  // Elements from one head to the next.
  static constexpr std::size_t head(int d, int block_size) { return std::size_t(d) * block_size; }

  template <int M, int V, int LDX>
  static FL_INLINE void step(f32x16 (&acc)[M][V], const typename T::act* x, const word* const (&w)[V]) {
    step_from<T, M, V, LDX>(acc, x, w);
  }
};

// ---- codes

// Whole numbers of two's complement.
struct Int8 {
  static constexpr float kLargest = 127.0f;
  static constexpr float magnitude(int code) { return float(code); }  // of the lower seven bits

  static FL_INLINE std::uint8_t encode(float v) {
    const float shifted = v + 12582912.0f;  // 1.5 * 2^23: rounds to nearest even
    std::uint32_t bits;
    std::memcpy(&bits, &shifted, 4);
    return std::uint8_t(bits);
  }
  // Byte J of each word.
  template <int J>
  static FL_INLINE f32x16 widen(u32x16 words) {
    return to_f32(as_i32(words << (24 - 8 * J)) >> 24);
  }
};

// e4m3: sign, four bits of exponent, three of mantissa. The code of NaN is never written, and read as 480.
struct Fp8 {
  static constexpr float kLargest = 448.0f;
  static constexpr float magnitude(int code) {
    float v = float(code < 8 ? code : 8 + code % 8);
    for (int e = code < 8 ? 1 : code / 8; e < 10; ++e) v *= 0.5f;
    for (int e = 10; e < code / 8; ++e) v *= 2.0f;
    return v;
  }

  static FL_INLINE std::uint8_t encode(float v) {
    std::uint32_t bits, small;
    std::memcpy(&bits, &v, 4);
    const std::uint32_t sign = bits >> 24 & 0x80;
    bits &= 0x7FFFFFFF;
    const std::uint32_t normal = ((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - (120 << 3);
    float shifted;
    std::memcpy(&shifted, &bits, 4);
    shifted += 16384.0f;  // its last bit is 2^-9, the least number with a code
    std::memcpy(&small, &shifted, 4);
    return std::uint8_t(sign | (bits < 0x3C800000 ? small - 0x46800000 : normal));
  }
  // The bits of a float whose exponent is 120 too small.
  template <int J>
  static FL_INLINE f32x16 widen(u32x16 words) {
    return as_f32(as_u32(as_i32(words << (24 - 8 * J)) >> 4) & 0x87F00000u) * 0x1p120f;
  }
};

#if defined(FIRELANE_ISA_AVX512BF16) && defined(__AVX512VBMI__)

// The bf16 number of each magnitude, byte by byte.
template <class Code>
struct MagnitudeTable {
  alignas(64) std::uint8_t low[128], high[128];
  constexpr MagnitudeTable() : low(), high() {
    for (int i = 0; i < 128; ++i) {
      const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, Code::magnitude(i));
      low[i] = std::uint8_t(bits >> 16);
      high[i] = std::uint8_t(bits >> 24);
    }
  }
};
template <class Code>
constexpr MagnitudeTable<Code> kMagnitudes{};

FL_INLINE __m512i magnitudes(Int8, __m512i codes) { return _mm512_abs_epi8(codes); }
FL_INLINE __m512i magnitudes(Fp8, __m512i codes) { return codes; }

// Four numbers a word as two words of bf16 pairs: of its bytes 0 and 1, and of 2 and 3.
template <class Code>
FL_INLINE void to_pairs(u32x16 words, f32x16* to) {
  const auto& table = kMagnitudes<Code>;
  const __m512i halves =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  const __m512i codes = _mm512_shuffle_epi8((__m512i)words, halves), index = magnitudes(Code{}, codes);
  const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(table.low), index, _mm512_load_si512(table.low + 64));
  const __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(table.high), index, _mm512_load_si512(table.high + 64));
  const __m512i with_sign = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(-128), 0xF8);
  to[0] = (f32x16)_mm512_unpacklo_epi8(low, with_sign);
  to[1] = (f32x16)_mm512_unpackhi_epi8(low, with_sign);
}

#elif defined(FIRELANE_BF16_DOT)

template <class Code>
FL_INLINE void to_pairs(u32x16 words, f32x16* to) {
  const auto join = [](f32x16 a, f32x16 b) FL_LAMBDA { return as_f32((as_u32(a) >> 16) | (as_u32(b) & 0xFFFF0000u)); };
  to[0] = join(Code::template widen<0>(words), Code::template widen<1>(words));
  to[1] = join(Code::template widen<2>(words), Code::template widen<3>(words));
}

#else

template <class Code>
FL_INLINE void to_pairs(u32x16, f32x16*) {}  // no product reads them

#endif

// The codes of a row of N numbers, and its scale. Rows that are not finite have a scale of NaN.
template <class Code, int N>
FL_INLINE std::uint16_t quantise(const float* x, std::uint8_t* codes) {
  std::uint32_t top = 0;  // the bits of the largest magnitude: more, where it is not finite
  for (int i = 0; i < N; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, x + i, 4);
    bits &= 0x7FFFFFFF;
    top = bits > top ? bits : top;
  }
  if (top >= 0x7F800000) {
    std::memset(codes, 0, N);
    return 0x7FC0;
  }
  float largest;
  std::memcpy(&largest, &top, 4);
  largest /= Code::kLargest;
  std::memcpy(&top, &largest, 4);
  const std::uint16_t scale = std::uint16_t((top + 0x7FFF + (top >> 16 & 1)) >> 16);
  if (scale == 0) {
    std::memset(codes, 0, N);
    return 0;
  }
  const float by = bf16_to_f32(scale);
  for (int i = 0; i < N; ++i) codes[i] = Code::encode(x[i] / by);
  return scale;
}

// Codes, four a word, in a program of T.
template <class T, class CODE>
struct CodedCache {
  using element = std::uint8_t;
  using word = std::uint32_t;
  using code = CODE;
#if defined(FIRELANE_BF16_DOT)
  using product = T;
#else
  using product = F32;
#endif
  static constexpr int kPerWord = 4;
  static constexpr bool kScaled = true;

  static constexpr std::size_t head(int d, int block_size) { return std::size_t(2 * d + 4) * block_size; }

  template <int M, int V, int LDX>
  static FL_INLINE void step(f32x16 (&acc)[M][V], const typename T::act* x, const word* const (&w)[V]) {
    if constexpr (product::kPerWord == 2) {
      u32x16 first[V], second[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        f32x16 both[2];
        widen(load(w[v]), both);
        first[v] = as_u32(both[0]), second[v] = as_u32(both[1]);
      }
      product::template step<M, V, LDX>(acc, x, first);
      product::template step<M, V, LDX>(acc, x + 2, second);
    } else {
      add_byte<0, M, V, LDX>(acc, x, w);
      add_byte<1, M, V, LDX>(acc, x, w);
      add_byte<2, M, V, LDX>(acc, x, w);
      add_byte<3, M, V, LDX>(acc, x, w);
    }
  }

  // The numbers of words as vectors that `product` reads, in order: two of pairs, or four.
  static FL_INLINE void widen(u32x16 words, f32x16* to) {
    if constexpr (product::kPerWord == 2) {
      to_pairs<CODE>(words, to);
    } else {
      to[0] = CODE::template widen<0>(words), to[1] = CODE::template widen<1>(words);
      to[2] = CODE::template widen<2>(words), to[3] = CODE::template widen<3>(words);
    }
  }

 private:
  template <int J, int M, int V, int LDX>
  static FL_INLINE void add_byte(f32x16 (&acc)[M][V], const typename T::act* x, const word* const (&w)[V]) {
    f32x16 numbers[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) numbers[v] = CODE::template widen<J>(load(w[v]));
    add_products<M, V, LDX>(acc, x + J, numbers);
  }
};

// ---- places

// Where the keys or values of a head begin; PAGE: elements from one page to the next.
template <class C, int D, int BS, std::size_t PAGE>
FL_INLINE std::size_t cache_block(int block, int head) {
  return block * PAGE + head * C::head(D, BS);
}

// The scales of the 16 positions from `at` on of a page, as floats; zero from `count` on, whatever lies there.
FL_INLINE void load_scales(const std::uint8_t* scales, int at, int count, float* to) {
  std::uint16_t bits[16];
  std::memcpy(bits, scales + 2 * at, sizeof bits);
  for (int i = 0; i < 16; ++i) to[i] = i < count ? bf16_to_f32(bits[i]) : 0.0f;
}

FL_INLINE void store_scale(std::uint8_t* scales, int at, std::uint16_t scale) { std::memcpy(scales + 2 * at, &scale, 2); }

template <class C, int D, int BS, std::size_t PAGE>
FL_INLINE void write_key(typename C::element* cache, int block, int head, int at, const float* x) {
  constexpr int P = C::kPerWord;
  typename C::element* base = cache + cache_block<C, D, BS, PAGE>(block, head);
  alignas(64) typename C::element row[D];
  if constexpr (C::kScaled) {
    store_scale(base + D * BS, at, quantise<typename C::code, D>(x, row));
  } else {
    for (int i = 0; i < D; i += 16) C::product::store_cache(row + i, 1, load(x + i));
  }
  for (int i = 0; i < D; i += P) std::memcpy(base + i * BS + at * P, row + i, P * sizeof(*row));
}

// Codes of one position beside those of others, `from` on in each group of P positions.
template <int D, int P>
FL_INLINE void scatter(const std::uint8_t* row, std::uint8_t* base, int at) {
  std::uint8_t* to = base + (at / P) * (D * P) + at % P;
  for (int i = 0; i < D; ++i) to[i * P] = row[i];
}

// The token after the last of a chunk shares its words: of plain numbers it is zeroed, so that what an earlier owner of the
// block left there (it may be NaN) cannot reach this sequence through a product with zero. Codes are finite.
template <class C, int D, int BS, std::size_t PAGE>
FL_INLINE void write_value(typename C::element* cache, int block, int head, int at, bool last, const float* x) {
  constexpr int P = C::kPerWord;
  typename C::element* base = cache + cache_block<C, D, BS, PAGE>(block, head);
  if constexpr (C::kScaled) {
    alignas(64) std::uint8_t row[D];
    store_scale(base - 2 * BS, at, quantise<typename C::code, D>(x, row));
    scatter<D, P>(row, base, at);
  } else {
    base += (at / P) * (D * P) + at % P;
    for (int i = 0; i < D; i += 16) C::product::store_cache(base + i * P, P, load(x + i));
    if (P == 2 && last && at % 2 == 0)
      for (int i = 0; i < D; ++i) base[i * P + 1] = 0;
  }
}

// A key whose first V numbers are its value, which has a scale of its own.
template <class C, int D, int V, int BS, std::size_t PAGE>
FL_INLINE void write_latent(typename C::element* cache, int block, int at, bool last, const float* x) {
  if constexpr (C::kScaled) {
    std::uint8_t* base = cache + cache_block<C, D, BS, PAGE>(block, 0);
    alignas(64) std::uint8_t row[D];
    store_scale(base + D * BS, at, quantise<typename C::code, V>(x, row));
    if constexpr (V < D) store_scale(base + (D + 2) * BS, at, quantise<typename C::code, D - V>(x + V, row + V));
    scatter<D, C::kPerWord>(row, base, at);
  } else {
    write_value<C, D, BS, PAGE>(cache, block, 0, at, last, x);
  }
}

}  // namespace firelane
