// Codes of quantised weights, packed to panels: exactly the bytes of a panel are written, zeros where there is no row,
// and in panels of eight bits the very codes.
#include "coded.cpp"
#include "grouped.cpp"

#include "cases.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Case one(data, size);
  constexpr std::int32_t kBits[] = {4, 6, 8};
  Groups groups{};
  groups.bits = kBits[one.byte() % 3];
  groups.offset = groups.bits == 8 ? 0 : 1 << (groups.bits - 1);
  groups.word_steps = one.byte() % 2 ? 4 : 8;
  groups.span = 32 * (1 + one.byte() % 4);
  groups.k = groups.span * (1 + one.byte() % 3);
  groups.panels = 1 + one.byte() % 2;
  groups.heads = one.byte() % 3;
  const std::size_t height = one.between(1, 40), spans = groups.k / groups.span;

  Room<std::uint8_t> numbers(2 * height * spans * 4 * 2), codes(height * groups.k), zeros(groups.span);
  Room<Head> heads(2);
  std::size_t span_bytes = groups.span * groups.bits / 8 * kRows;
  for (std::size_t h = 0; h < groups.heads; ++h) {
    heads[h] = {numbers.data() + h * height * spans * 8, std::size_t{1} << one.byte() % 3, std::size_t(1 + one.byte() % 2)};
    span_bytes += heads[h].size * heads[h].count * kRows;
  }
  Room<std::int64_t> rows(groups.panels * kRows);
  for (std::size_t r = 0; r < rows.size(); ++r) rows[r] = std::int64_t(one.byte() % (height + 1)) - 1;
  one.fill(numbers.data(), numbers.bytes());
  one.fill(codes.data(), codes.bytes());
  const int half = 1 << (groups.bits - 1);
  for (std::size_t i = 0; i < codes.size() && groups.bits < 8; ++i)  // of its bits, with a sign
    codes[i] = std::uint8_t(codes[i] % (2 * half) - half);

  const std::size_t panel = (span_bytes * spans + kAlignment - 1) / kAlignment * kAlignment;
  Room<std::uint8_t> out(groups.panels * panel), again(groups.panels * panel);
  std::memset(out.data(), 0xA5, out.bytes());
  std::memset(again.data(), 0x5A, again.bytes());
  for (Room<std::uint8_t>* to : {&out, &again})
    firelane_encode_groups(&groups, heads.data(), rows.data(), codes.data(), zeros.data(), to->data());
  PROMISE(std::memcmp(out.data(), again.data(), out.bytes()) == 0);  // each byte was written
  if (groups.bits == 8 && groups.heads == 0)
    for (std::size_t r = 0; r < rows.size(); ++r)
      for (std::size_t i = 0; i < groups.k; ++i) {
        const std::size_t at = r / kRows * panel + i / 2 * 2 * kRows + r % kRows * 2 + i % 2;
        PROMISE(out[at] == (rows[r] < 0 ? 0 : codes[std::size_t(rows[r]) * groups.k + i]));
      }
  return 0;
}
