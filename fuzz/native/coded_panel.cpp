// A packed panel that somebody has changed: whatever its bytes say, the kernels' decoder reads no further than a panel
// of its size may reach, and writes no more than its words.
#include "panels/coded.h"

#include "cases.h"

namespace {

constexpr std::size_t kOverread = 128;  // OVERREAD_BYTES of firelane/weights/formats/coded.py

std::size_t round_up(std::size_t size) { return (size + 63) / 64 * 64; }

template <class Coded>
void decode(Case& one, std::size_t steps, std::size_t most) {
  Room<std::uint8_t> panel(round_up(most) + kOverread);
  Room<std::uint32_t> out(32 * steps);
  one.fill(panel.data(), panel.bytes());
  Coded coded(panel.data(), int(steps));
  firelane::decode_words(coded, int(steps), out.data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Case one(data, size);
  const bool is_coded4 = one.byte() % 2;
  const std::size_t k = (is_coded4 ? 4 : 16) * (1 + one.byte() % 8);
  if (is_coded4) decode<firelane::Coded4>(one, k / 2, 64 + round_up(k / 4) + k / 4 * 192 + 32 * k);
  else decode<firelane::Coded3>(one, k / 2, 64 + k / 16 * 704 + 32 * k);
  return 0;
}
