// Panels of quantised weights, from rows of codes and of numbers for groups of them: gathered and packed while a
// panel lies in the cache. firelane/weights/formats/grouped.py describes the bytes and is the reference; coded_native.py
// compiles this behind coded.cpp and calls it.
namespace {

struct Groups {
  std::int32_t bits, offset;  // offset: added to each code
  std::int32_t word_steps;    // of codes of four bits
  std::size_t k, span;        // inputs, and those that are packed together
  std::size_t panels, heads;
};

struct Head {
  const std::uint8_t* numbers;  // of all rows, one row behind the other
  std::size_t size, count;      // bytes of a number, and how many of them a span has
};

constexpr int kStepOfNibble[8] = {0, 2, 4, 6, 1, 3, 5, 7}, kSameStep[4] = {0, 1, 2, 3};

// Numbers of 32 outputs side by side; 0 for rows that are not there.
template <class Number>
std::uint8_t* pack_head(const Head& head, std::size_t spans, std::size_t span, const std::int64_t* rows,
                        std::uint8_t* out) {
  for (std::size_t i = 0; i < head.count; ++i) {
    for (std::size_t r = 0; r < kRows; ++r) {
      Number number = 0;
      const std::size_t at = rows[r] * spans * head.count + span * head.count + i;
      if (rows[r] >= 0) std::memcpy(&number, head.numbers + at * sizeof(Number), sizeof(Number));
      std::memcpy(out + (i * kRows + r) * sizeof(Number), &number, sizeof(Number));
    }
  }
  return out + head.count * kRows * sizeof(Number);
}

std::uint8_t* pack_head(const Head& head, std::size_t spans, std::size_t span, const std::int64_t* rows,
                        std::uint8_t* out) {
  if (head.size == 1) return pack_head<std::uint8_t>(head, spans, span, rows, out);
  if (head.size == 2) return pack_head<std::uint16_t>(head, spans, span, rows, out);
  return pack_head<std::uint32_t>(head, spans, span, rows, out);
}

// Of two inputs of each row, as they are.
std::uint8_t* pack8(const std::uint8_t* const* rows, std::size_t inputs, std::uint8_t* out) {
  for (std::size_t i = 0; i < inputs; i += 2, out += 2 * kRows) {
    for (std::size_t r = 0; r < kRows; ++r) std::memcpy(out + 2 * r, rows[r] + i, 2);
  }
  return out;
}

// STEPS steps of each row in a word for each of both inputs, the steps of its nibbles in this order.
template <int STEPS>
std::uint8_t* pack4(const std::uint8_t* const* rows, std::size_t inputs, std::uint8_t offset, const int (&order)[STEPS],
                    std::uint8_t* out) {
  for (std::size_t i = 0; i < inputs; i += 2 * STEPS) {
    for (std::size_t r = 0; r < kRows; ++r, out += STEPS) {
      const std::uint8_t* codes = rows[r] + i;
      for (int p = 0; p < 2; ++p) {
        for (int j = 0; j < STEPS / 2; ++j) {
          const std::uint8_t low = codes[2 * order[2 * j] + p] + offset;
          const std::uint8_t high = codes[2 * order[2 * j + 1] + p] + offset;
          out[STEPS / 2 * p + j] = low | high << 4;
        }
      }
    }
  }
  return out;
}

// Sixteen steps in three words: five steps in each, and of the last one two bits or four in what is left.
std::uint8_t* pack6(const std::uint8_t* const* rows, std::size_t inputs, std::uint8_t offset, std::uint8_t* out) {
  for (std::size_t i = 0; i < inputs; i += 32, out += 3 * 8 * kRows) {
    for (std::size_t r = 0; r < kRows; ++r) {
      std::uint8_t codes[32];
      for (int j = 0; j < 32; ++j) codes[j] = rows[r][i + j] + offset;
      const std::uint64_t first = codes[30], second = codes[31];
      std::uint64_t words[3] = {first & 15, second & 15, first >> 4 | second >> 4 << 2};
      for (int q = 0; q < 3; ++q) {
        words[q] <<= 60;
        for (int j = 0; j < 10; ++j) words[q] |= std::uint64_t{codes[10 * q + j]} << 6 * j;
        std::memcpy(out + 8 * (q * kRows + r), &words[q], 8);
      }
    }
  }
  return out;
}

// The codes of a span.
std::uint8_t* pack(const Groups& groups, const std::uint8_t* const* rows, std::uint8_t* out) {
  const std::uint8_t offset = static_cast<std::uint8_t>(groups.offset);
  if (groups.bits == 8) return pack8(rows, groups.span, out);
  if (groups.bits == 6) return pack6(rows, groups.span, offset, out);
  if (groups.word_steps == 4) return pack4(rows, groups.span, offset, kSameStep, out);
  return pack4(rows, groups.span, offset, kStepOfNibble, out);
}

}  // namespace

// rows: of each row of the panels, one behind the other, its number in `codes`, of k each, and in each head; -1
// for zeros.
EXPORT void firelane_encode_groups(const Groups* groups, const Head* heads, const std::int64_t* rows,
                                   const std::uint8_t* codes, const std::uint8_t* zeros, std::uint8_t* out) {
  const std::size_t spans = groups->k / groups->span;
  const std::uint8_t* begin = out;
  for (std::size_t panel = 0; panel < groups->panels; ++panel, rows += kRows) {
    for (std::size_t span = 0; span < spans; ++span) {
      for (std::size_t h = 0; h < groups->heads; ++h) out = pack_head(heads[h], spans, span, rows, out);
      const std::uint8_t* starts[kRows];
      for (std::size_t r = 0; r < kRows; ++r) {
        starts[r] = rows[r] < 0 ? zeros : codes + rows[r] * groups->k + span * groups->span;
      }
      out = pack(*groups, starts, out);
    }
    for (; (out - begin) % kAlignment; ++out) *out = 0;
  }
}
