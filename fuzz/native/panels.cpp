// Weights of a checkpoint, coded without loss: what the encoder makes of any rows fits the room that a panel may take,
// and the kernels' decoder gives the same words. Rows that hold a number that is not finite are refused.
#include "coded.cpp"

#include "panels/coded.h"

#include "cases.h"

namespace {

constexpr std::size_t kOverread = 128;  // OVERREAD_BYTES of firelane/weights/formats/coded.py

std::size_t round_up(std::size_t size) { return (size + 63) / 64 * 64; }

// panel_bounds of coded.py: the most.
std::size_t most_bytes(std::int32_t format, std::size_t k) {
  if (format == kBf16) return 32 * k * 2;
  if (format == kCoded4) return round_up(64 + round_up(k / 4) + k / 4 * 192 + 32 * k);
  return round_up(64 + k / 16 * 704 + 32 * k);
}

template <class Coded>
void decode(const std::uint8_t* panel, std::size_t k, std::uint32_t* out) {
  Coded coded(panel, int(k / 2));
  firelane::decode_words(coded, int(k / 2), out);
}

void decode(std::int32_t format, const std::uint8_t* panel, std::size_t k, std::uint16_t* out) {
  auto* words = reinterpret_cast<std::uint32_t*>(out);
  if (format == kBf16) std::memcpy(out, panel, 32 * k * 2);
  else if (format == kCoded4) decode<firelane::Coded4>(panel, k, words);
  else decode<firelane::Coded3>(panel, k, words);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Case one(data, size);
  const std::int32_t format = one.byte() % 3;
  const std::size_t multiple = format == kBf16 ? 2 : format == kCoded4 ? 4 : 16;
  const std::size_t k = multiple * (1 + one.byte() % 8), panels = 1 + one.byte() % 2;
  const std::uint8_t likely = one.byte();  // the high byte that most words have
  Room<std::uint16_t> words(panels * 32 * k);
  Room<const std::uint16_t*> rows(panels * 32);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::uint8_t way = one.left() ? one.byte() : 0;
    words[i] = std::uint16_t(likely << 8 | way);
    if (way % 8 == 7) one.fill(&words[i], 2);
  }
  for (std::size_t r = 0; r < rows.size(); ++r) rows[r] = words.data() + r * k;

  Room<std::uint8_t> out(panels * most_bytes(format, k) + kOverread);
  Room<std::uint64_t> ends(panels);
  const std::size_t done = firelane_encode_panels(format, rows.data(), panels, k, out.data(), ends.data());
  Room<std::uint16_t> found(32 * k);
  std::uint64_t begin = 0;
  for (std::size_t p = 0; p < done; begin = ends[p++]) {
    PROMISE(ends[p] - begin <= most_bytes(format, k));
    decode(format, out.data() + begin, k, found.data());
    for (std::size_t i = 0; i < 32 * k; ++i) PROMISE(found[(i % k / 2) * 64 + i / k * 2 + i % 2] == rows[p * 32 + i / k][i % k]);
  }
  bool is_finite = true;
  for (std::size_t i = 0; done < panels && i < 32 * k; ++i)
    is_finite = is_finite && (rows[done * 32 + i / k][i % k] & 0x7FFF) < 0x7F80;
  PROMISE(done == panels || !is_finite);
  return 0;
}
