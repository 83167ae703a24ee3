// Grouped formats in registers of 512 bits.
//
// Lane i of vector v of a step: output 8 v + i / 2, input i % 2. Units for the products are the bottleneck of a single
// row: a code becomes a float by one look-up, or in the mantissa of a power of two, from which the product's addend
// takes it away: both are exact, so that a weight is rounded just as its definition says.
#pragma once

#include "panels/grouped.h"

namespace firelane {

struct StepLanes {
  f32x16 v[4];
};

// Numbers of 32 outputs, each for both inputs of a step.
FL_INLINE StepLanes twice(f32x16 low, f32x16 high) {
  StepLanes out;
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const f32x16 rows = half ? high : low;
    out.v[2 * half] = __builtin_shufflevector(rows, rows, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    out.v[2 * half + 1] = __builtin_shufflevector(rows, rows, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15);
  }
  return out;
}

template <class F>
FL_INLINE StepLanes each_lane(const F& f) {
  StepLanes out;
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) out.v[v] = f(v);
  return out;
}

// Vectors 2 i and 2 i + 1, rounded to bf16, as word vector i.
FL_INLINE u32x16 pairs_bf16(f32x16 a, f32x16 b) {
#if defined(FIRELANE_ISA_AVX512BF16)
  return (u32x16)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
#else
  const u32x16 x = round_bf16_bits(a), y = round_bf16_bits(b);
  const u32x16 even = __builtin_shufflevector(x, y, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const u32x16 odd = __builtin_shufflevector(x, y, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return even | odd << 16;
#endif
}

// Bits of `lanes` in the mantissa of a power of two.
FL_INLINE f32x16 in_mantissa(u32x16 lanes, std::uint32_t mask, float power) {
  const __m512i m = _mm512_set1_epi32(int(mask)), p = (__m512i)_mm512_set1_ps(power);
  return (f32x16)_mm512_ternarylogic_epi32((__m512i)lanes, m, p, 0xEA);
}

FL_INLINE f32x16 bytes16(const std::uint8_t* p) {
  return (f32x16)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

// Floats of eight bits.
FL_INLINE f32x16 e4m3_16(const std::uint8_t* p) {
  const __m512i bytes = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return (f32x16)_mm512_and_si512(_mm512_slli_epi32(bytes, 20), _mm512_set1_epi32(int(0x87F00000))) * kE4m3Power;
}

template <Heads HEADS>
FL_INLINE f32x16 head16(const std::uint8_t* p) {
  if constexpr (HEADS == Heads::kF32) return load(reinterpret_cast<const float*>(p));
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  if constexpr (HEADS == Heads::kBf16) return (f32x16)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
  return (f32x16)_mm512_cvtph_ps(halves);
}

// The heads of 32 outputs at p.
template <Heads HEADS>
FL_INLINE StepLanes heads_at(const std::uint8_t* p) {
  constexpr int half = HEADS == Heads::kF32 ? 64 : 32;
  return twice(head16<HEADS>(p), head16<HEADS>(p + half));
}

// Codes of four bits to floats, eight steps from four vectors. Step s lies in nibble_of_step(s): the even ones of four
// shifts, and the odd ones, 16 bits higher.
template <int OFFSET, Book BOOK>
struct Codes4 {
  f32x16 floats;  // of the lowest four bits of a lane
  __m512i words;  // bf16 numbers of five bits, of which the highest does not count

  FL_INLINE Codes4() {
    floats = __builtin_convertvector(lane_index(), f32x16) - float(OFFSET);
    if constexpr (BOOK != Book::kInt) floats = bytes16(reinterpret_cast<const std::uint8_t*>(kBookValues<BOOK>));
    const __m512i bits = (__m512i)(as_u32(floats) >> 16);
    const __m256i half = _mm512_cvtepi32_epi16(bits);
    words = _mm512_inserti64x4(_mm512_castsi256_si512(half), half, 1);
  }

  // Of a lane shifted by 4 (s / 2).
  FL_INLINE f32x16 number(u32x16 shifted, int s) const {
    if (s % 2 == 0) return (f32x16)_mm512_permutexvar_ps((__m512i)shifted, (__m512)floats);
    return (f32x16)_mm512_maskz_permutexvar_epi16(0xAAAAAAAA, (__m512i)shifted, words);
  }
};

// Codes of six bits, sixteen steps from three words of 64 bits for each output.
struct Codes6 {
  const std::uint8_t* codes;

  // Code + 32 in bits 17 .. 22, among others.
  FL_INLINE u32x16 placed(int s, int v) const {
    const auto word = [&](int q) FL_LAMBDA { return _mm512_loadu_si512(codes + 256 * q + 64 * v); };
    const __mmask16 odd = 0xAAAA;
    if (s < 15) return (u32x16)moved(word(s / 5), 17 - s % 5 * 12, 11 - s % 5 * 12);
    const __m512i low = _mm512_mask_blend_epi32(odd, moved(word(0), 21, 21), moved(word(1), 21, 21));
    const __m512i high = moved(word(2), 25, 23), four = _mm512_set1_epi32(15 << 17);
    return (u32x16)_mm512_ternarylogic_epi32(four, low, high, 0xCA);
  }

 private:
  // The byte 16 .. 23 of each half of a word, which is turned left by so many bits before.
  static FL_INLINE __m512i moved(__m512i word, int even, int odd) {
#if defined(__AVX512VBMI__)
    const std::uint64_t from = std::uint64_t((16 - even) & 63) << 16 | std::uint64_t((16 - odd) & 63) << 48;
    return _mm512_multishift_epi64_epi8(_mm512_set1_epi64(std::int64_t(from)), word);
#else
    const auto turned = [&](int by) FL_LAMBDA { return _mm512_rolv_epi64(word, _mm512_set1_epi64(by & 63)); };
    return _mm512_mask_blend_epi32(0xAAAA, turned(even), turned(odd + 32));
#endif
  }
};

template <int BITS, int GROUP, bool MINIMA, Heads HEADS, Book BOOK>
struct Grouped : GroupedSpan<BITS, GROUP, MINIMA, HEADS, BOOK> {
  using Span = GroupedSpan<BITS, GROUP, MINIMA, HEADS, BOOK>;
  static constexpr int kSteps = BITS == 6 ? 16 : GROUP / 2;
  static constexpr int kBlockBytes = Span::kBytes / (Span::kInputs / 2 / kSteps);  // about, of levels
  static constexpr bool kFetchAhead = BITS != 8;  // bytes are read one after the other
  static constexpr bool kManyRegisters = true;    // scales, minima and codes of two steps
  // Whether 96 times a scale is exact, and so what takes a mantissa's power of two away.
  static constexpr bool kFused6 = !MINIMA && HEADS != Heads::kF32;

  const std::uint8_t* block;  // the next codes, or at the end of a span the next heads

  FL_INLINE Grouped(const std::uint8_t* panel, int) : block(panel) {}

  // use(step, words) for the next kSteps steps.
  template <class Use>
  FL_INLINE void decode(const Use& use) {
    if (left_ == 0) begin_span();
    left_ -= 2 * kSteps;
    if constexpr (BITS == 6) {
#pragma GCC unroll 2
      for (int t = 0; t < 16; t += GROUP / 2) {
        const StepLanes scales = leveled(units_, 0), least = leveled(least_units_, Span::kGroups);
        steps_ += 32;
        group6(block, t, scales, least, use);
      }
    } else {
      const StepLanes scales = leveled(units_, 0), least = leveled(least_units_, Span::kGroups);
      steps_ += 32;
      if constexpr (BITS == 4)
        group4(block, scales, least, use);
      else
        group8(block, scales, least, use);
    }
    block += kSteps * 8 * BITS;
  }

 private:
  StepLanes units_, least_units_{};
  const std::uint8_t* steps_;
  int left_ = 0;  // inputs of the span

  FL_INLINE void begin_span() {
    constexpr Heads stored = Span::kLevels ? Heads::kF16 : HEADS;
    units_ = heads_at<stored>(block);
    if constexpr (MINIMA) least_units_ = heads_at<stored>(block + Span::kNumberBytes);
    steps_ = block + Span::kStepsAt;
    block += Span::kCodesAt;
    left_ = Span::kInputs;
  }

  // What the next group has: `further` groups on are the bytes of its numbers.
  FL_INLINE StepLanes leveled(const StepLanes& units, int further) const {
    if constexpr (!Span::kLevels) return units;
    const std::uint8_t* steps = steps_ + 32 * further;
    const StepLanes by = twice(bytes16(steps), bytes16(steps + 16));
    return each_lane([&](int v) FL_LAMBDA { return units.v[v] * by.v[v]; });
  }

  static FL_INLINE f32x16 weigh(f32x16 code, f32x16 scale, f32x16 least) {
    return MINIMA ? fmadd(code, scale, least) : code * scale;
  }

  // use(step, .) of the words of weight(v).
  template <class Use, class Weight>
  static FL_INLINE void give(const Use& use, int step, const Weight& weight) {
    const StepLanes w = each_lane(weight);
    const u32x16 words[2] = {pairs_bf16(w.v[0], w.v[1]), pairs_bf16(w.v[2], w.v[3])};
    use(step, words);
  }

  template <class Use>
  static FL_INLINE void group4(const std::uint8_t* codes, const StepLanes& scales, const StepLanes& least,
                               const Use& use) {
    const Codes4<Span::kOffset, BOOK> numbers;
#pragma GCC unroll 2
    for (int at = 0; at < GROUP / 2; at += 8, codes += 256) {
      u32x16 lanes[4], shifted[4];
      std::memcpy(lanes, codes, 256);
#pragma GCC unroll 8
      for (int s = 0; s < 8; ++s) {
        if (s % 2 == 0)
#pragma GCC unroll 4
          for (int v = 0; v < 4; ++v) shifted[v] = lanes[v] >> (2 * s);
        give(use, at + s, [&](int v) FL_LAMBDA {
          return weigh(numbers.number(shifted[v], s), scales.v[v], least.v[v]);
        });
      }
    }
  }

  template <class Use>
  static FL_INLINE void group6(const std::uint8_t* codes, int from, const StepLanes& scales,
                               const StepLanes& least, const Use& use) {
    const Codes6 numbers{codes};
    [[maybe_unused]] const StepLanes away = each_lane([&](int v) FL_LAMBDA { return scales.v[v] * -96.0f; });
#pragma GCC unroll 16
    for (int s = from; s < from + GROUP / 2; ++s)
      give(use, s, [&](int v) FL_LAMBDA {
        const f32x16 code = in_mantissa(numbers.placed(s, v), 63 << 17, 64);
        return kFused6 ? fmadd(code, scales.v[v], away.v[v]) : weigh(code - 96.0f, scales.v[v], least.v[v]);
      });
  }

  template <class Use>
  static FL_INLINE void group8(const std::uint8_t* codes, const StepLanes& scales, const StepLanes& least,
                               const Use& use) {
#pragma GCC unroll 4
    for (int s = 0; s < GROUP / 2; ++s)
      give(use, s, [&](int v) FL_LAMBDA {
        const std::uint8_t* at = codes + 64 * s + 16 * v;
        return weigh(BOOK == Book::kE4m3 ? e4m3_16(at) : bytes16(at), scales.v[v], least.v[v]);
      });
  }
};

// Four-bit floats times powers of two are words of a table less the difference of exponents: no number is rounded.
template <>
struct Grouped<4, 32, false, Heads::kPower, Book::kE2m1>
    : GroupedSpan<4, 32, false, Heads::kPower, Book::kE2m1> {
  static constexpr int kSteps = 16;
  static constexpr int kBlockBytes = kBytes;

  const std::uint8_t* block;
  __m512i table;  // times 2^kMostPower

  FL_INLINE Grouped(const std::uint8_t* panel, int) : block(panel) {
    const f32x16 values = bytes16(reinterpret_cast<const std::uint8_t*>(kBookValues<Book::kE2m1>)) * 0x1p119f;
    const __m256i half = _mm512_cvtepi32_epi16((__m512i)(as_u32(values) >> 16));
    table = _mm512_inserti64x4(_mm512_castsi256_si512(half), half, 1);
  }

  template <class Use>
  FL_INLINE void decode(const Use& use) {
    const __m512i less[2] = {exponents(block), exponents(block + 16)};
    const std::uint8_t* codes = block + kCodesAt;
#pragma GCC unroll 4
    for (int run = 0; run < kSteps; run += 4, codes += 128) {
      const __m512i lanes[2] = {_mm512_loadu_si512(codes), _mm512_loadu_si512(codes + 64)};
#pragma GCC unroll 4
      for (int s = 0; s < 4; ++s) {
        u32x16 words[2];
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
          const __m512i most = _mm512_permutexvar_epi16(_mm512_srli_epi16(lanes[i], 4 * s), table);
          words[i] = (u32x16)_mm512_subs_epu16(most, less[i]);  // a zero stays one
        }
        use(run + s, words);
      }
    }
    block += kBlockBytes;
  }

 private:
  // Of 16 outputs, for both inputs of a step.
  static FL_INLINE __m512i exponents(const std::uint8_t* heads) {
    const __m512i halvings = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(heads)));
    return _mm512_or_si512(_mm512_slli_epi32(halvings, 7), _mm512_slli_epi32(halvings, 23));
  }
};

}  // namespace firelane
