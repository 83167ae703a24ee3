// Weights in lossless coded forms, decoded on their way into the matrix product.
//
// A bf16 weight has one byte that looks random (kept raw) and one that takes few values (coded in 4 or 3 bits around
// the panel's most frequent ones; the others, escapes, follow as they are). firelane/weights/formats/coded.py describes the
// bytes. Decoding gives the very words of the plain panel, step by step, so that products have the same bits.
//
// With AVX-512 VBMI2 every tile of rows decodes in registers; where several tiles meet a panel, the first one may leave
// what it decodes in the thread's scratch for the others. Elsewhere the few rows of a wide tile decode in registers, and
// for more a panel is decoded into scratch first.
#pragma once

#include <cstddef>

#include "products/linear.h"
#include "panels/coded_step.h"

#if defined(__AVX512VBMI2__) && defined(__AVX512VBMI__) && defined(__BMI2__) && \
    (defined(FIRELANE_ISA_AVX512BF16) || defined(FIRELANE_ISA_AVX512))
#define FIRELANE_DECODE_IN_REGISTERS 1
#endif

namespace firelane {

#if defined(FIRELANE_DECODE_IN_REGISTERS)
constexpr bool kDecodeInRegisters = true;
#else
constexpr bool kDecodeInRegisters = false;
#endif

// A matrix as the Python side hands it over.
struct CodedWeight {
  const std::uint8_t* bytes;
  const std::uint64_t* offsets;   // of panel p, and of the end
  std::int32_t decode_once_from;  // tiles of rows from which a panel is decoded once and kept, not once for each tile
};

#if defined(FIRELANE_DECODE_IN_REGISTERS)

FL_INLINE __m512i load_bytes(const std::uint8_t* p) { return _mm512_loadu_si512(p); }

// `bytes` with the lanes of `escaped` replaced by what lies at `escapes`, which moves on.
FL_INLINE __m512i take_escapes(__m512i bytes, std::uint64_t escaped, const std::uint8_t*& escapes) {
  bytes = _mm512_mask_expand_epi8(bytes, _cvtu64_mask64(escaped), load_bytes(escapes));
  escapes += __builtin_popcountll(escaped);
  return bytes;
}

// The lanes of a step whose three bits of code are all set. Done in integer registers: vector units are busy, and where
// the next block begins follows from it.
FL_INLINE std::uint64_t all_ones(const std::uint8_t* codes) {
  std::uint64_t lanes = 0;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    std::uint64_t bits;
    std::memcpy(&bits, codes + 6 * i, 8);
    lanes |= _pext_u64(bits & bits >> 1 & bits >> 2, 0x249249249249) << (16 * i);
  }
  return lanes;
}

// PANEL_CODED4: low bytes raw, high bytes coded. The escapes of a block have mostly one value, which takes the place
// of the table's entry; where they differ they lie behind all blocks.
struct Coded4 {
  static constexpr int kSteps = 2;
  static constexpr int kBlockBytes = 192;

  const std::uint8_t* block;
  const std::uint8_t* shared;
  const std::uint8_t* escapes;
  __m512i table;

  FL_INLINE Coded4(const std::uint8_t* panel, int steps)
      : block(panel + start_bytes4(steps)),
        shared(panel + kTableBytes),
        escapes(block + steps / kSteps * kBlockBytes),
        table(load_bytes(panel)) {}

  // use(step, words) for the next kSteps steps.
  template <class Use>
  FL_INLINE void decode(const Use& use) {
    constexpr std::uint64_t entries = 0x0080008000800080;  // of code 7
    const std::uint8_t value = *shared++;
    const __m512i codes = load_bytes(block), values = _mm512_mask_set1_epi8(table, _cvtu64_mask64(entries), value);
    __m512i high[2] = {_mm512_permutexvar_epi8(codes, values),
                       _mm512_permutexvar_epi8(_mm512_srli_epi16(codes, 4), values)};
    if (__builtin_expect(value == kEscape4, 0))
      for (__m512i& bytes : high) {
        const __mmask64 escaped = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(kEscape4));
        bytes = take_escapes(bytes, _cvtmask64_u64(escaped), escapes);
      }
#pragma GCC unroll 2
    for (int s = 0; s < kSteps; ++s) {
      const __m512i low = load_bytes(block + 64 + 64 * s);
      const u32x16 words[2] = {(u32x16)_mm512_unpacklo_epi8(low, high[s]), (u32x16)_mm512_unpackhi_epi8(low, high[s])};
      use(s, words);
    }
    block += kBlockBytes;
  }
};

// PANEL_CODED3: exponents coded, sign and mantissa raw; one weight in fifty or so is an escape, kept in its block.
struct Coded3 {
  static constexpr int kSteps = 8;
  static constexpr int kBlockBytes = 704;

  const std::uint8_t* block;
  __m512i table, spread, shifts;

  FL_INLINE Coded3(const std::uint8_t* panel, int) : block(panel + kTableBytes), table(load_bytes(panel)) {
    alignas(64) std::uint8_t from[64], by[64];
    for (int i = 0; i < 64; ++i) {
      from[i] = std::uint8_t(i / 8 * 3 + min(i % 8, 2));  // three bytes of codes for eight lanes
      by[i] = std::uint8_t(i % 8 * 3);
    }
    spread = load_bytes(from);
    shifts = load_bytes(by);
  }

  template <class Use>
  FL_INLINE void decode(const Use& use) {
    const std::uint8_t* escapes = block + kBlockBytes;
#pragma GCC unroll 8
    for (int s = 0; s < kSteps; ++s) {
      const std::uint8_t* codes = block + 24 * s;
      const __m512i groups = _mm512_permutexvar_epi8(spread, load_bytes(codes));
      __m512i exponents = _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(shifts, groups), table);
      exponents = take_escapes(exponents, all_ones(codes), escapes);
      const __m512i rest = load_bytes(block + 192 + 64 * s);
      const __m512i even = _mm512_unpacklo_epi8(rest, exponents), odd = _mm512_unpackhi_epi8(rest, exponents);
      const u32x16 words[2] = {(u32x16)_mm512_shrdi_epi16(even, even, 1), (u32x16)_mm512_shrdi_epi16(odd, odd, 1)};
      use(s, words);
    }
    block = escapes;
  }
};

#else

struct Coded4 {
  static constexpr int kSteps = 2;
  static constexpr int kBlockBytes = 192;

  const std::uint8_t* block;
  const std::uint8_t* shared;
  const std::uint8_t* escapes;
  Table4 table;

  FL_INLINE Coded4(const std::uint8_t* panel, int steps)
      : block(panel + start_bytes4(steps)),
        shared(panel + kTableBytes),
        escapes(block + steps / kSteps * kBlockBytes),
        table(Table4::of_panel(panel)) {}

  template <class Use>
  FL_INLINE void decode(const Use& use) {
    const std::uint8_t value = *shared++;
    const Table4 values = table.with(value);
#pragma GCC unroll 2
    for (int s = 0; s < kSteps; ++s) {
      u32x16 words[2];
      escapes = words_of_step4(words, block, 4 * s, block + 64 + 64 * s, values, value == kEscape4, escapes);
      use(s, words);
    }
    block += kBlockBytes;
  }
};

struct Coded3 {
  static constexpr int kSteps = 8;
  static constexpr int kBlockBytes = 704;

  const std::uint8_t* block;
  const std::uint8_t* table;

  FL_INLINE Coded3(const std::uint8_t* panel, int) : block(panel + kTableBytes), table(panel) {}

  template <class Use>
  FL_INLINE void decode(const Use& use) {
    const std::uint8_t* escapes = block + kBlockBytes;
    for (int s = 0; s < kSteps; ++s) {
      u32x16 words[2];
      escapes = words_of_step3(words, block + 24 * s, block + 192 + 64 * s, table, escapes);
      use(s, words);
    }
    block = escapes;
  }
};

#endif

FL_INLINE void store_words(std::uint32_t* to, const u32x16 (&words)[2]) {
  store(to, words[0]);
  store(to + 16, words[1]);
}

// The next `count` words of k, a multiple of Coded::kSteps.
template <class Coded>
FL_INLINE void decode_words(Coded& coded, int count, std::uint32_t* out) {
  for (int k = 0; k < count; k += Coded::kSteps)
    coded.decode([&](int s, const u32x16(&words)[2]) FL_LAMBDA { store_words(out + (k + s) * 32, words); });
}

// The plain panel's words.
template <class Coded, int K>
FL_KERNEL void decode_panel(const std::uint8_t* panel, std::uint32_t* out) {
  Coded coded(panel, K / 2);
  decode_words(coded, K / 2, out);
}

// How far ahead one of several tiles fetches its panel into the first-level cache.
constexpr int kNearTileBytes = 1024;
// How far ahead few rows fetch a panel that is read in an order which the hardware's own prefetch does not follow.
constexpr int kLoneBytes = 6144;

enum class Fetch {
  kFar,   // a single tile: its own panel, from memory
  kNear,  // one of several: its own panel, and `ahead` from memory
  kKeep,  // the same, and it leaves the words in `kept`
};

// Decoding waits longer for a word than a plain product does: fewer rows fetch.
template <class Coded, Fetch F, int M>
FL_INLINE void fetch_block(const std::uint8_t* block) {
  if constexpr (F == Fetch::kFar && M < kDecodeFetchRows) {
    if constexpr (requires { Coded::kFetchAhead; })
      for (int at = 0; at < Coded::kFetchAhead * Coded::kBlockBytes; at += 64)
        __builtin_prefetch(block + kLoneBytes + at, 0, 3);
    return;
  }
  constexpr int near = F == Fetch::kFar ? kNearBytes : kNearTileBytes;
  for (int at = 0; at < Coded::kBlockBytes; at += 64) {
    __builtin_prefetch(block + near + at, 0, 3);
    if constexpr (F == Fetch::kFar) __builtin_prefetch(block + kAheadBytes + at, 0, 2);
  }
}

template <class Coded, Fetch F, int M, class SEGMENTS, int LDX>
FL_KERNEL void decode_rows(const Bf16::act* x, const std::uint8_t* panel, Ahead ahead, std::uint32_t* kept,
                           Sums& sums) {
  constexpr bool in_blocks = SEGMENTS::in_blocks(Coded::kSteps);  // else a segment may end within what is decoded
  f32x16 acc[M][2] = {};
  Tree<M, SEGMENTS> tree;
  Coded coded(panel, SEGMENTS::kWords);
  int k = 0, segment = 0;
  const auto block = [&]() FL_LAMBDA {
    fetch_block<Coded, F, M>(coded.block);
    coded.decode([&](int s, const u32x16(&words)[2]) FL_LAMBDA {
      if constexpr (F != Fetch::kFar) {
        __builtin_prefetch(ahead.from, 0, 2);
        ahead.from += ahead.stride;
      }
      if constexpr (F == Fetch::kKeep) store_words(kept + (k + s) * 32, words);
      Bf16::step<M, 2, LDX>(acc, x + (k + s) * 2, words);
      if constexpr (!in_blocks)
        if (k + s + 1 == SEGMENTS::kPlan.end[segment]) tree.close(segment++, acc);
    });
    k += Coded::kSteps;
  };
  if constexpr (in_blocks) {
    for (; segment < SEGMENTS::kCount; ++segment) {
      for (const int end = SEGMENTS::kPlan.end[segment]; k < end;) block();
      tree.close(segment, acc);
    }
  } else {
    while (k < SEGMENTS::kWords) block();
  }
  leave(acc, sums);
}

// LEAST: with several tiles, none has fewer rows than half a tile.
template <class Coded, Fetch F, int LEAST, class SEGMENTS, int LDX, int M = kWideRows>
FL_INLINE void decode_any(int rows, const Bf16::act* x, const std::uint8_t* panel, Ahead ahead, std::uint32_t* kept,
                          Sums& sums) {
  if constexpr (M >= LEAST) {
    if (rows == M) return decode_rows<Coded, F, M, SEGMENTS, LDX>(x, panel, ahead, kept, sums);
    decode_any<Coded, F, LEAST, SEGMENTS, LDX, M - 1>(rows, x, panel, ahead, kept, sums);
  }
}

// Rows that are multiplied while a panel is decoded. Where decoding itself takes many registers, more of them find its
// words decoded already.
template <class Coded>
constexpr int kRowsInRegisters = kWideRows;
template <class Coded>
  requires requires { Coded::kManyRegisters; }
constexpr int kRowsInRegisters<Coded> = min(kWideRows, 8);

// Panels of a coded form in the place of PlainPanels<Bf16, K>. Needs kScratchBytes of scratch.
template <class Coded, int K, class SEGMENTS = Segments<K / 2>>
struct CodedPanels {
  using type = Bf16;
  static constexpr int kPanelBytes = K / 2 / Coded::kSteps * Coded::kBlockBytes;
  static constexpr std::size_t kScratchBytes = std::size_t(K / 2) * 128;
  static constexpr int kFew = kRowsInRegisters<Coded>;
  static constexpr bool kInRegisters = kDecodeInRegisters && !requires { Coded::kManyRegisters; };
  static constexpr int kLeast = kInRegisters ? kTileRows / 2 : 1;  // rows of one of several tiles

  const CodedWeight& weight;

  FL_INLINE const std::uint8_t* panel(int p) const { return weight.bytes + weight.offsets[p]; }

  template <int LDX, class Store>
  FL_INLINE void multiply(int p0, int p1, int rows, const Bf16::act* x, void* scratch, const Store& store) const {
    const int tiles = (rows + kTileRows - 1) / kTileRows;
    for (int p = p0; p < p1; ++p) {
      auto* kept = static_cast<std::uint32_t*>(scratch);
      if (rows <= kFew) {
        Sums sums;
        decode_any<Coded, Fetch::kFar, 1, SEGMENTS, LDX, kFew>(rows, x, panel(p), {}, nullptr, sums);
        store_rows(sums, {0, rows}, p, store);
      } else if (are_few(rows)) {
        multiply_few<LDX>(p, rows, x, kept, store);
      } else {
        multiply_tiles<LDX>(p, rows, tiles, x, kept, store);
      }
    }
  }

  // The part of the next panel that tile `i` fetches.
  FL_INLINE Ahead ahead(int p, int i, int tiles) const {
    const auto* next = reinterpret_cast<const char*>(panel(p + 1));
    const auto* after = next + (next - reinterpret_cast<const char*>(panel(p)));  // about
    return Ahead::share(next, after, i, tiles, K / 2);
  }

  // Decoded block by block.
  template <int LDX, class Store>
  FL_INLINE void multiply_few(int p, int rows, const Bf16::act* x, std::uint32_t* kept,
                              const Store& store) const {
    f32x16 sums[kFewRows][2];
    Coded coded(panel(p), K / 2);
    const auto block = [&](int first) FL_LAMBDA {
      decode_words(coded, min(kBlockWords, K / 2 - first), kept);
      return static_cast<const std::uint32_t*>(kept);
    };
    constexpr int bytes = kBlockWords / Coded::kSteps * Coded::kBlockBytes;
    const auto next = [&](int) FL_LAMBDA { return reinterpret_cast<const char*>(coded.block); };
    few_rows<Bf16, SEGMENTS, LDX>(rows, x, block, next, bytes, sums);
    store_rows(sums, {0, rows}, p, store);
  }

  template <int LDX, class Store>
  FL_INLINE void multiply_tiles(int p, int rows, int tiles, const Bf16::act* x, std::uint32_t* kept,
                                const Store& store) const {
    const bool once = !kInRegisters || tiles >= weight.decode_once_from;
    if constexpr (!kInRegisters) decode_panel<Coded, K>(panel(p), kept);
    Sums sums;
    for (int i = 0; i < tiles; ++i) {
      const Range r = split(rows, i, tiles);
      const auto* from = x + std::size_t(r.begin) * LDX;
      const Ahead ahead = this->ahead(p, i, tiles);
      const int count = r.end - r.begin;
      if (!kInRegisters || (once && i > 0))
        tile_any<Bf16, SEGMENTS, LDX, kLeast>(count, from, kept, ahead, sums);
      else if constexpr (kInRegisters) {
        if (once)
          decode_any<Coded, Fetch::kKeep, kLeast, SEGMENTS, LDX>(count, from, panel(p), ahead, kept, sums);
        else
          decode_any<Coded, Fetch::kNear, kLeast, SEGMENTS, LDX>(count, from, panel(p), ahead, nullptr, sums);
      }
      store_rows(sums, r, p, store);
    }
  }
};

}  // namespace firelane
