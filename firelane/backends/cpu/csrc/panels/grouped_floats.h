// Grouped formats where products are of floats: codes become floats that have been rounded to bf16, 32 outputs side by
// side for one input after the other, as a panel of PANEL_F32 has them.
//
// The registers are those of vec_split.h. A code stays in its place within a lane: the conversion to float gives it
// times a power of two, of which the scale takes its share.
#pragma once

#include "panels/grouped.h"

namespace firelane {

// Numbers of kRegisterLanes outputs.
using FloatLanes = f32x16::Register;
using IntLanes = i32x16::Register;
using WordLanes = u32x16::Register;
constexpr int kRegisterLanes = f32x16::kLanes;
constexpr int kRowRegisters = 32 / kRegisterLanes;

#if defined(FIRELANE_ISA_AVX2) || defined(FIRELANE_NEON)
constexpr bool kFusesProducts = true;
#else
constexpr bool kFusesProducts = false;
#endif

template <class Register>
FL_INLINE Register lanes_at(const std::uint8_t* p) {
  Register found;
  std::memcpy(&found, p, sizeof found);
  return found;
}

#if defined(FIRELANE_ISA_AVX2)

FL_INLINE __m128i lanes16_at(const std::uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
FL_INLINE IntLanes bytes_at(const std::uint8_t* p) {
  return (IntLanes)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
FL_INLINE IntLanes unsigned_bytes_at(const std::uint8_t* p) { return bytes_at(p) & 255; }
FL_INLINE IntLanes shorts_at(const std::uint8_t* p) { return (IntLanes)_mm256_cvtepi16_epi32(lanes16_at(p)); }
FL_INLINE FloatLanes halves_at(const std::uint8_t* p) { return (FloatLanes)_mm256_cvtph_ps(lanes16_at(p)); }

// Lanes PARITY, PARITY + 2, ... of `a`, then of `b`.
template <int PARITY>
FL_INLINE WordLanes every_second(WordLanes a, WordLanes b) {
  const __m256 pairs = _mm256_shuffle_ps((__m256)a, (__m256)b, PARITY ? 0xDD : 0x88);
  return (WordLanes)_mm256_permute4x64_epi64((__m256i)pairs, 0xD8);
}

#else

template <class T>
FL_INLINE IntLanes widened_lanes(const std::uint8_t* p) {
  typedef T Narrow __attribute__((vector_size(kRegisterLanes * sizeof(T))));
  return __builtin_convertvector(lanes_at<Narrow>(p), IntLanes);
}
FL_INLINE IntLanes bytes_at(const std::uint8_t* p) { return widened_lanes<std::int8_t>(p); }
FL_INLINE IntLanes unsigned_bytes_at(const std::uint8_t* p) { return bytes_at(p) & 255; }
FL_INLINE IntLanes shorts_at(const std::uint8_t* p) { return widened_lanes<std::int16_t>(p); }
FL_INLINE FloatLanes halves_at(const std::uint8_t* p) {
  const WordLanes bits = (WordLanes)shorts_at(p);
  const FloatLanes size = (FloatLanes)((bits & 0x7FFF) << 13) * 0x1p112f;  // subnormal ones, too
  return (FloatLanes)((WordLanes)size | (bits & 0x80000000u));
}

// LANES and W: so that a compiler looks at the one branch that is taken.
template <int PARITY, int LANES = kRegisterLanes, class W = WordLanes>
FL_INLINE W every_second(W a, W b) {
  constexpr int p = PARITY;
  if constexpr (LANES == 4) return __builtin_shufflevector(a, b, p, 2 + p, 4 + p, 6 + p);
  if constexpr (LANES == 8)
    return __builtin_shufflevector(a, b, p, 2 + p, 4 + p, 6 + p, 8 + p, 10 + p, 12 + p, 14 + p);
  if constexpr (LANES == 16)
    return __builtin_shufflevector(a, b, p, 2 + p, 4 + p, 6 + p, 8 + p, 10 + p, 12 + p, 14 + p, 16 + p, 18 + p, 20 + p,
                                   22 + p, 24 + p, 26 + p, 28 + p, 30 + p);
}

#endif

// To the nearest number of eight significant bits, the even one of two that are as near. v * 65536 is a multiple of
// the last of these bits, so that v less than it is rounded there, and what the product has more is the number.
// (The sum, in place of the difference, would cross a power of two where v is just below one.)
FL_INLINE FloatLanes rounded_lanes(FloatLanes v) {
  const FloatLanes up = FloatLanes{} + 65536.0f;
  return multiply_add(v, up, -multiply_add(v, up, -v));
}

// Of heads stored as HEADS, those of register v.
template <Heads HEADS>
FL_INLINE FloatLanes head_lanes(const std::uint8_t* heads, int v) {
  if constexpr (HEADS == Heads::kF32) return lanes_at<FloatLanes>(heads + 4 * kRegisterLanes * v);
  if constexpr (HEADS == Heads::kPower)
    return (FloatLanes)((127 + kMostPower - (WordLanes)unsigned_bytes_at(heads + kRegisterLanes * v)) << 23);
  const std::uint8_t* at = heads + 2 * kRegisterLanes * v;
  return HEADS == Heads::kBf16 ? (FloatLanes)(shorts_at(at) << 16) : halves_at(at);
}

// Each byte's number of the table.
template <Book BOOK>
FL_INLINE WordLanes looked_up(WordLanes places) {
#if defined(FIRELANE_ISA_AVX2)
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kBookValues<BOOK>));
  return (WordLanes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), (__m256i)places);
#elif defined(FIRELANE_NEON)
  return (WordLanes)vqtbl1q_s8(vld1q_s8(kBookValues<BOOK>), (uint8x16_t)places);
#else
  std::uint8_t bytes[sizeof places];
  std::memcpy(bytes, &places, sizeof places);
  for (std::uint8_t& byte : bytes) byte = std::uint8_t(kBookValues<BOOK>[byte]);
  std::memcpy(&places, bytes, sizeof places);
  return places;
#endif
}

template <int BITS, int GROUP, bool MINIMA, Heads HEADS, Book BOOK>
struct Grouped : GroupedSpan<BITS, GROUP, MINIMA, HEADS, BOOK> {
  using Span = GroupedSpan<BITS, GROUP, MINIMA, HEADS, BOOK>;
  static constexpr bool kFloats = true;
  static constexpr int kSteps = Span::kInputs / 2;
  static constexpr int kBlockBytes = Span::kBytes;
  static constexpr int kUnit = Span::kInputs % 32 == 0 ? 32 : 16;  // inputs that are decoded together

  const std::uint8_t* block;

  FL_INLINE Grouped(const std::uint8_t* panel, int) : block(panel) {}

  // Inputs first .. first + kUnit - 1 of a panel: out [kUnit][32]. Meanwhile between(i) is called for each i < kUnit.
  template <class Between>
  static FL_INLINE void decode_unit(const std::uint8_t* panel, int first, float* out, const Between& between) {
    const std::uint8_t* span = panel + std::size_t(first / Span::kInputs) * kBlockBytes;
    for (int v = 0; v < kRowRegisters; ++v) {
      int given = 0;
#pragma GCC unroll 2
      for (int part = 0; part < kUnit; part += 16) {
        const int at = first % Span::kInputs + part;
        const Head head = Head::of(span, at / GROUP, v);
        const auto give = [&](int input, WordLanes code, int power) FL_LAMBDA {
          FloatLanes number = head.weight(code, power);
          if constexpr (!kIsExact) number = rounded_lanes(number);
          std::memcpy(out + (part + input) * 32 + v * kRegisterLanes, &number, sizeof number);
          if (++given % kRowRegisters == 0) between((v * kUnit + given) / kRowRegisters - 1);
        };
        codes16(span + Span::kCodesAt, at, v, give);
      }
    }
  }

  // use(step, words) for the next kSteps steps.
  template <class Use>
  FL_INLINE void decode(const Use& use) {
    alignas(64) float numbers[kUnit * 32];
    for (int k = 0; k < Span::kInputs; k += kUnit) {
      decode_unit(block, k, numbers, [](int) {});
      for (int s = 0; s < kUnit; s += 2) {
        u32x16 words[2];
        for (int half = 0; half < 2; ++half) {
          const float* pair = numbers + s * 32 + half * 16;
          words[half] = as_u32(load(pair)) >> 16 | as_u32(load(pair + 32));
        }
        use((k + s) / 2, words);
      }
    }
    block += kBlockBytes;
  }

 private:
  static constexpr bool kIsExact = HEADS == Heads::kPower;  // a number of so few bits that none is rounded
  static constexpr bool kLooksUp = BITS == 4 && BOOK != Book::kInt;
  static constexpr bool kRaised = Span::kOffset != 0;  // codes are higher than the numbers

  // Of a group, the numbers of kRegisterLanes outputs.
  struct Head {
    FloatLanes scales[4];  // less the power that codes of a kind are raised by
    FloatLanes least;

    static FL_INLINE Head of(const std::uint8_t* span, int group, int v) {
      Head head;
      const FloatLanes scale = number(span, 0, group, v);
      #pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) head.scales[i] = scale * (1 / raised_by(i));
      if constexpr (MINIMA)
        head.least = number(span, 1, group, v);
      else
        head.least = scale * -float(Span::kOffset);
      return head;
    }

    static FL_INLINE FloatLanes number(const std::uint8_t* span, int which, int group, int v) {
      constexpr Heads stored = Span::kLevels ? Heads::kF16 : HEADS;
      FloatLanes found = head_lanes<stored>(span + which * Span::kNumberBytes, v);
      if constexpr (Span::kLevels) {
        const std::uint8_t* steps = span + Span::kStepsAt + 32 * (which * Span::kGroups + group) + kRegisterLanes * v;
        found = found * __builtin_convertvector(bytes_at(steps), FloatLanes);
      }
      return found;
    }

    // What codes of kind i are times the numbers that they stand for.
    static constexpr float kRaised8[4] = {0x1p24f, 0x1p8f, 1, 1};
    static constexpr float kRaised4[4] = {1, 0x1p4f, 0x1p8f, 0x1p12f};
    static constexpr float raised_by(int i) { return kLooksUp ? 0x1p24f : BITS == 4 ? kRaised4[i] : BITS == 8 && BOOK == Book::kInt ? kRaised8[i] : 1.0f; }

    // The weight of a code of kind i, in float32.
    FL_INLINE FloatLanes weight(WordLanes code, int i) const {
      if constexpr (BOOK == Book::kE4m3) return (FloatLanes)code * kE4m3Power * scales[0];
      FloatLanes raised = __builtin_convertvector((IntLanes)code, FloatLanes);
      if constexpr (kRaised && (MINIMA || !kFusesProducts)) raised = raised - Span::kOffset * raised_by(i);
      if constexpr (MINIMA || (kRaised && kFusesProducts)) return multiply_add(raised, scales[i], least);
      return raised * scales[i];
    }
  };

  // give(input, code, kind) for 16 inputs from `at` on of the span whose codes these are.
  template <class Give>
  static FL_INLINE void codes16(const std::uint8_t* codes, int at, int v, const Give& give) {
    if constexpr (HEADS == Heads::kPower) return give_powers(codes + at * 16 + v * kRegisterLanes * 4, give);
    if constexpr (kLooksUp) return give_book(codes + at * 16 + v * kRegisterLanes * 8, give);
    if constexpr (BOOK == Book::kE4m3) return give_e4m3(codes + at * 32 + v * kRegisterLanes * 2, give);
    if constexpr (BITS == 4) return give4(codes + at * 16 + v * kRegisterLanes * 8, give);
    if constexpr (BITS == 8) return give8(codes + at * 32 + v * kRegisterLanes * 2, give);
    if constexpr (BITS == 6) return give6(codes + at / 32 * 768 + v * kRegisterLanes * 8, at % 32 / 2, give);
  }

  template <class Give>
  static FL_INLINE void give4(const std::uint8_t* codes, const Give& give) {
    const WordLanes a = lanes_at<WordLanes>(codes), b = lanes_at<WordLanes>(codes + 4 * kRegisterLanes);
    const WordLanes even = every_second<0>(a, b), odd = every_second<1>(a, b);
    const WordLanes lanes[2][2] = {{even, even >> 16}, {odd, odd >> 16}};
#pragma GCC unroll 8
    for (int s = 0; s < 8; ++s) {
      const int kind = nibble_of_step(s) % 4, half = nibble_of_step(s) / 4;
#pragma GCC unroll 2
      for (int p = 0; p < 2; ++p) give(2 * s + p, lanes[p][half] & (15u << 4 * kind), kind);
    }
  }

  // The numbers of a table that the nibbles SHIFT .. SHIFT + 3 of each byte name, in the highest byte of lanes: give(b, .)
  // of byte b.
  template <int SHIFT, class Give>
  static FL_INLINE void give_bytes(WordLanes lanes, const Give& give) {
    const WordLanes found = looked_up<BOOK>(lanes >> SHIFT & 0x0F0F0F0Fu);
    give(0, found << 24);
    give(1, found << 16 & 0xFF000000u);
    give(2, found << 8 & 0xFF000000u);
    give(3, found & 0xFF000000u);
  }

  template <class Give>
  static FL_INLINE void give_book(const std::uint8_t* codes, const Give& give) {
    const WordLanes a = lanes_at<WordLanes>(codes), b = lanes_at<WordLanes>(codes + 4 * kRegisterLanes);
    const WordLanes lanes[2] = {every_second<0>(a, b), every_second<1>(a, b)};
    constexpr int step_of_nibble[8] = {0, 2, 4, 6, 1, 3, 5, 7};
#pragma GCC unroll 2
    for (int p = 0; p < 2; ++p) {
      give_bytes<0>(lanes[p], [&](int b, WordLanes code) FL_LAMBDA { give(2 * step_of_nibble[2 * b] + p, code, 0); });
      give_bytes<4>(lanes[p], [&](int b, WordLanes code) FL_LAMBDA { give(2 * step_of_nibble[2 * b + 1] + p, code, 0); });
    }
  }

  // Of each output, four nibbles of either input.
  template <class Give>
  static FL_INLINE void give_powers(const std::uint8_t* codes, const Give& give) {
#pragma GCC unroll 2
    for (int run = 0; run < 2; ++run) {
      const WordLanes lanes = lanes_at<WordLanes>(codes + 128 * run);
      const auto at = [&](int b) { return 8 * run + 4 * (b % 2) + b / 2; };
      give_bytes<0>(lanes, [&](int b, WordLanes code) FL_LAMBDA { give(at(b), code, 0); });
      give_bytes<4>(lanes, [&](int b, WordLanes code) FL_LAMBDA { give(at(b) + 2, code, 0); });
    }
  }

  // Sign, exponent and mantissa where a float has its sign and the lowest bits of its exponent.
  template <class Give>
  static FL_INLINE void give_e4m3(const std::uint8_t* codes, const Give& give) {
#pragma GCC unroll 8
    for (int s = 0; s < 8; ++s) {
      const IntLanes pair = shorts_at(codes + 64 * s);
      give(2 * s, (WordLanes)(pair << 24 >> 4) & 0x87F00000u, 0);
      give(2 * s + 1, (WordLanes)(pair << 12) & 0x87F00000u, 0);
    }
  }

  template <class Give>
  static FL_INLINE void give8(const std::uint8_t* codes, const Give& give) {
#pragma GCC unroll 8
    for (int s = 0; s < 8; ++s) {
      const WordLanes pair = (WordLanes)shorts_at(codes + 64 * s);
      give(2 * s, pair << 24, 0);
      give(2 * s + 1, pair & 0xFFFFFF00u, 1);
    }
  }

  // Steps `from` .. from + 7 of sixteen.
  template <class Give>
  static FL_INLINE void give6(const std::uint8_t* codes, int from, const Give& give) {
    WordLanes low[3], high[3];
#pragma GCC unroll 3
    for (int q = 0; q < 3; ++q) {
      const WordLanes a = lanes_at<WordLanes>(codes + 256 * q), b = lanes_at<WordLanes>(codes + 256 * q + 4 * kRegisterLanes);
      low[q] = every_second<0>(a, b);
      high[q] = every_second<1>(a, b);
    }
    const auto bits = [&](int q, int bit) FL_LAMBDA {
      if (bit >= 32) return high[q] >> (bit - 32);
      return bit > 26 ? low[q] >> bit | high[q] << (32 - bit) : low[q] >> bit;
    };
    const auto step = [&](int s) FL_LAMBDA {
      for (int p = 0; p < 2; ++p) {
        const WordLanes last = high[p] >> 28 | (high[2] >> (28 + 2 * p) & 3) << 4;
        give(2 * (s % 8) + p, s == 15 ? last : bits(s / 5, s % 5 * 12 + 6 * p) & 63, 0);
      }
    };
    if (from == 0) {
#pragma GCC unroll 8
      for (int s = 0; s < 8; ++s) step(s);
    } else {
#pragma GCC unroll 8
      for (int s = 8; s < 16; ++s) step(s);
    }
  }
};

}  // namespace firelane
