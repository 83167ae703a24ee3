// Panels for the CPU kernels, from rows of bf16: transposed, checked and coded while a panel lies in the cache.
// firelane/weights/formats/coded.py describes the bytes and is the reference; coded_native.py calls this. Vectors of 128
// bits, which every target has (the formats' lanes are such vectors); compilers widen the plain loops.
#include <cstddef>
#include <cstdint>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))
#define INLINE inline __attribute__((always_inline))

namespace {

using u8x16 = std::uint8_t __attribute__((vector_size(16)));
using u16x8 = std::uint16_t __attribute__((vector_size(16)));
using u32x4 = std::uint32_t __attribute__((vector_size(16)));

enum Format : std::int32_t { kBf16 = 0, kCoded4 = 1, kCoded3 = 2 };

constexpr std::size_t kRows = 32;
constexpr std::size_t kStep = 64;  // words of a step: two inputs of each row
constexpr std::size_t kStrip = 16;  // steps that are transposed at a time: a cache line of each row
constexpr std::size_t kTable = 64, kAlignment = 64;
constexpr std::size_t kPair4 = 192, kBlock3 = 704, kCodes3 = 24;
constexpr int kValues = 512;  // of sign and exponent
constexpr int kCodes = 7, kEscape = 7, kZero4 = 15, kDifferent = 0x7F;

struct Panel {
  const std::uint16_t* rows[kRows];
  std::size_t k;
};

// How often each sign-and-exponent occurs. Four tables, since equal neighbours would wait for each other's store.
class Counts {
 public:
  void add(const std::uint16_t* row, std::size_t n) {
    std::size_t i = 0;
    for (; i + 4 <= n; i += 4) {
      std::uint64_t four;
      std::memcpy(&four, row + i, 8);
      for (int j = 0; j < 4; ++j) ++part_[j][four >> (16 * j + 7) & (kValues - 1)];
    }
    for (; i < n; ++i) {
      std::uint16_t word;
      std::memcpy(&word, row + i, 2);
      ++part_[0][word >> 7];
    }
  }

  std::uint32_t of(int value) const {
    return part_[0][value] + part_[1][value] + part_[2][value] + part_[3][value];
  }

  std::uint32_t exponent(int e) const { return of(e) + of(256 + e); }

 private:
  std::uint32_t part_[4][kValues] = {};
};

bool is_finite(const std::uint16_t* row, std::size_t n) {
  std::uint16_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    std::uint16_t word;
    std::memcpy(&word, row + i, 2);
    word &= 0x7FFF;
    largest = word > largest ? word : largest;
  }
  return largest < 0x7F80;
}

// The first base of first .. last whose range of seven holds most of what `count` counts.
template <class Count>
int best_base(int first, int last, const Count& count) {
  std::uint32_t sum = 0;
  for (int v = first; v < first + kCodes; ++v) sum += count(v);
  int best = first;
  std::uint32_t most = sum;
  for (int base = first + 1; base <= last; ++base) {
    sum += count(base + kCodes - 1) - count(base - 1);
    if (sum > most) {
      most = sum;
      best = base;
    }
  }
  return best;
}

INLINE u32x4 load(const std::uint16_t* p) {
  u32x4 v;
  std::memcpy(&v, p, 16);
  return v;
}

// Four rows, four steps (two words each) -> four steps, four rows.
INLINE void transpose(u32x4 (&v)[4]) {
  const u32x4 a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5), b = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
  const u32x4 c = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7), d = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
  v[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
  v[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  v[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
  v[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

INLINE void four_steps(const Panel& panel, std::size_t row, std::size_t at, u32x4 (&out)[4]) {
  for (int i = 0; i < 4; ++i) out[i] = load(panel.rows[row + i] + at);
  transpose(out);
}

// Steps as PANEL_BF16 has them. `steps` is a multiple of four.
void gather_words(const Panel& panel, std::size_t at, std::size_t steps, std::uint16_t* out) {
  for (std::size_t row = 0; row < kRows; row += 4) {
    for (std::size_t s = 0; s < steps; s += 4) {
      u32x4 v[4];
      four_steps(panel, row, at + 2 * s, v);
      for (int i = 0; i < 4; ++i) std::memcpy(out + (s + i) * kStep + 2 * row, &v[i], 16);
    }
  }
}

// Steps as bytes in the order of lanes: of words, or of words turned left by one bit.
struct Strip {
  alignas(64) std::uint8_t low[kStrip][kStep];
  alignas(64) std::uint8_t high[kStrip][kStep];
};

template <bool kTurn>
void gather_bytes(const Panel& panel, std::size_t at, std::size_t steps, Strip& out) {
  for (std::size_t lane = 0; lane < 4; ++lane) {
    for (std::size_t s = 0; s < steps; s += 4) {
      u32x4 v[2][4];
      four_steps(panel, 4 * lane, at + 2 * s, v[0]);
      four_steps(panel, 16 + 4 * lane, at + 2 * s, v[1]);
      for (int i = 0; i < 4; ++i) {
        u16x8 a = (u16x8)v[0][i], b = (u16x8)v[1][i];
        if constexpr (kTurn) {
          a = a << 1 | a >> 15;
          b = b << 1 | b >> 15;
        }
        const u8x16 c = (u8x16)a, d = (u8x16)b;
        const u8x16 low =
            __builtin_shufflevector(c, d, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        const u8x16 high =
            __builtin_shufflevector(c, d, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
        std::memcpy(out.low[s + i] + 16 * lane, &low, 16);
        std::memcpy(out.high[s + i] + 16 * lane, &high, 16);
      }
    }
  }
}

// Calls use(panel, at, steps, whole steps of four) for strips from the first input to the last. The last strip, where
// it is no whole one, is a copy of its own with zeros behind it, so that no row is read past its end.
template <class Use>
void each_strip(const Panel& panel, const Use& use) {
  constexpr std::size_t kWords = 2 * kStrip;
  std::size_t at = 0;
  for (; at + kWords <= panel.k; at += kWords) use(panel, at, kStrip, kStrip);
  const std::size_t left = panel.k - at;
  if (left == 0) return;
  std::uint16_t copy[kRows][kWords] = {};
  Panel tail;
  tail.k = kWords;
  for (std::size_t r = 0; r < kRows; ++r) {
    std::memcpy(copy[r], panel.rows[r] + at, 2 * left);
    tail.rows[r] = copy[r];
  }
  const std::size_t steps = (left + 1) / 2;
  use(tail, 0, steps, (steps + 3) / 4 * 4);
}

// Appends bytes[i] for each i whose code is that of an escape.
INLINE std::uint8_t* take_escapes(const std::uint8_t* codes, const std::uint8_t* bytes, std::uint8_t* out) {
  constexpr std::uint64_t kOnes = 0x0101010101010101;
  for (std::size_t i = 0; i < kStep; i += 8) {
    std::uint64_t eight;
    std::memcpy(&eight, codes + i, 8);
    // Codes are below 16: 16 - (code ^ escape) has bit 4 where they are equal, and only there.
    std::uint64_t found = (kOnes * 16 - (eight ^ kOnes * kEscape)) >> 4 & kOnes;
    for (; found != 0; found &= found - 1) *out++ = bytes[i + __builtin_ctzll(found) / 8];
  }
  return out;
}

INLINE void codes_of_high_bytes(const std::uint8_t* high, std::uint8_t base, std::uint8_t* codes) {
  for (std::size_t i = 0; i < kStep; ++i) {
    const std::uint8_t code = std::uint8_t((high[i] & 0x7F) - base);
    const std::uint8_t other = high[i] == 0 ? kZero4 : kEscape;
    codes[i] = code < kCodes ? std::uint8_t(code | (high[i] >> 4 & 8)) : other;
  }
}

INLINE void codes_of_exponents(const std::uint8_t* exponents, std::uint8_t base, std::uint8_t* codes) {
  for (std::size_t i = 0; i < kStep; ++i) {
    const std::uint8_t code = std::uint8_t(exponents[i] - base);
    codes[i] = code < kCodes ? code : std::uint8_t(kEscape);
  }
}

// Three bits of each of 64 codes.
INLINE void join_codes(const std::uint8_t* codes, std::uint8_t* out) {
  for (std::size_t group = 0; group < 8; ++group) {
    std::uint64_t x;
    std::memcpy(&x, codes + 8 * group, 8);
    x = (x | x >> 5) & 0x003F003F003F003F;
    x = (x | x >> 10) & 0x00000FFF00000FFF;
    x |= x >> 20;
    const std::uint8_t bytes[3] = {std::uint8_t(x), std::uint8_t(x >> 8), std::uint8_t(x >> 16)};
    std::memcpy(out + 3 * group, bytes, 3);
  }
}

std::uint8_t* pad(std::uint8_t* end, const std::uint8_t* start) {
  const std::size_t zeros = -std::size_t(end - start) % kAlignment;
  std::memset(end, 0, zeros);
  return end + zeros;
}

// These return the panel's end, or nullptr for weights that are not finite.
std::uint8_t* encode_bf16(const Panel& panel, std::uint8_t* out) {
  for (const std::uint16_t* row : panel.rows) {
    if (!is_finite(row, panel.k)) return nullptr;
  }
  auto* words = reinterpret_cast<std::uint16_t*>(out);
  each_strip(panel, [&](const Panel& rows, std::size_t at, std::size_t steps, std::size_t whole) {
    if (steps == whole) {
      gather_words(rows, at, steps, words);
    } else {
      std::uint16_t strip[kStrip * kStep];
      gather_words(rows, at, whole, strip);
      std::memcpy(words, strip, 2 * steps * kStep);
    }
    words += steps * kStep;
  });
  return reinterpret_cast<std::uint8_t*>(words);
}

// What the escapes of a pair of steps have in common.
INLINE std::uint8_t shared_escape(const std::uint8_t* escapes, std::size_t count) {
  for (std::size_t i = 1; i < count; ++i) {
    if (escapes[i] != escapes[0]) return kDifferent;
  }
  return count == 0 ? 0 : escapes[0];
}

std::uint8_t* encode4(const Panel& panel, const Counts& counts, std::uint8_t* out) {
  const auto count = [&](int high) { return counts.exponent(2 * high) + counts.exponent(2 * high + 1); };
  const int base = best_base(1, 0x78, count);
  for (std::size_t i = 0; i < kTable; ++i) {
    const std::size_t code = i % 16;
    const std::size_t high = base + code % 8 + (code >= 8 ? 0x80 : 0);
    out[i] = code == kEscape ? 0x7F : code == kZero4 ? 0 : std::uint8_t(high);
  }
  std::uint8_t* shared = out + kTable;
  std::uint8_t* pair = pad(shared + panel.k / 4, out);
  std::uint8_t* escapes = pair + panel.k / 4 * kPair4;
  Strip strip;
  each_strip(panel, [&](const Panel& rows, std::size_t at, std::size_t steps, std::size_t whole) {
    gather_bytes<false>(rows, at, whole, strip);
    for (std::size_t s = 0; s < steps; s += 2, pair += kPair4) {
      std::uint8_t codes[2][kStep], found[2 * kStep];
      std::uint8_t* end = found;
      for (std::size_t i = 0; i < 2; ++i) {
        codes_of_high_bytes(strip.high[s + i], std::uint8_t(base), codes[i]);
        end = take_escapes(codes[i], strip.high[s + i], end);
      }
      const std::size_t count = std::size_t(end - found);
      *shared = shared_escape(found, count);
      if (*shared++ == kDifferent) {
        std::memcpy(escapes, found, count);
        escapes += count;
      }
      for (std::size_t i = 0; i < kStep; ++i) pair[i] = std::uint8_t(codes[0][i] | codes[1][i] << 4);
      std::memcpy(pair + kStep, strip.low[s], 2 * kStep);
    }
  });
  return pad(escapes, out);
}

std::uint8_t* encode3(const Panel& panel, const Counts& counts, std::uint8_t* out) {
  const int base = best_base(0, 248, [&](int e) { return counts.exponent(e); });
  for (std::size_t i = 0; i < kTable; ++i) out[i] = i % 8 == kEscape ? 0xFF : std::uint8_t(base + i % 8);
  std::uint8_t* block = out + kTable;
  Strip strip;
  each_strip(panel, [&](const Panel& rows, std::size_t at, std::size_t steps, std::size_t whole) {
    gather_bytes<true>(rows, at, whole, strip);
    for (std::size_t first = 0; first < steps; first += 8) {
      std::uint8_t* escapes = block + kBlock3;
      for (std::size_t s = 0; s < 8; ++s) {
        std::uint8_t codes[kStep];
        codes_of_exponents(strip.high[first + s], std::uint8_t(base), codes);
        join_codes(codes, block + kCodes3 * s);
        escapes = take_escapes(codes, strip.high[first + s], escapes);
      }
      std::memcpy(block + 8 * kCodes3, strip.low[first], 8 * kStep);
      block = escapes;
    }
  });
  return pad(block, out);
}

std::uint8_t* encode_coded(std::int32_t format, const Panel& panel, std::uint8_t* out) {
  Counts counts;
  for (const std::uint16_t* row : panel.rows) counts.add(row, panel.k);
  if (counts.exponent(255) != 0) return nullptr;
  return format == kCoded4 ? encode4(panel, counts, out) : encode3(panel, counts, out);
}

}  // namespace

// rows: 32 pointers to k words for each panel. Panels are written one behind the other to `out`, which has room for the
// largest that they may be; ends[i] is where panel i ends. k fits the format. Returns how many panels were done: it
// stops before the first that holds a weight that is not finite.
EXPORT std::size_t firelane_encode_panels(std::int32_t format, const std::uint16_t* const* rows, std::size_t panels,
                                          std::size_t k, std::uint8_t* out, std::uint64_t* ends) {
  std::uint8_t* end = out;
  for (std::size_t p = 0; p < panels; ++p) {
    Panel panel;
    panel.k = k;
    std::memcpy(panel.rows, rows + p * kRows, sizeof panel.rows);
    std::uint8_t* next = format == kBf16 ? encode_bf16(panel, end) : encode_coded(format, panel, end);
    if (next == nullptr) return p;
    end = next;
    ends[p] = std::uint64_t(end - out);
  }
  return panels;
}

// Adds to counts[512] how often each sign-and-exponent (word >> 7) occurs among n < 2^32 words.
EXPORT void firelane_count_exponents(const std::uint16_t* words, std::size_t n, std::int64_t* counts) {
  Counts found;
  found.add(words, n);
  for (int i = 0; i < kValues; ++i) counts[i] += found.of(i);
}
