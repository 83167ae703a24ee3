// Pages of the KV cache that another process sends, in any pieces: each lies at its number, its sum is that of its
// bytes, other pages stay as they are, and a sender that has gone is told.
#include "page_copy.cpp"

#include <unistd.h>

#include "cases.h"

namespace {

constexpr std::size_t kPages = 8;

void send_all(int fd, Case& one, std::size_t most, std::size_t total) {
  std::uint8_t piece[4096];
  for (std::size_t sent = 0; sent < total;) {
    std::size_t size = total / 64 + 1 + one.between(0, 1000);  // a socket holds so many pieces
    size = size < most - sent ? size : most - sent;
    if (!size) break;
    one.fill(piece, size);
    PROMISE(send(fd, piece, size, MSG_NOSIGNAL) == ssize_t(size));
    sent += size;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Case one(data, size);
  const std::size_t page = one.between(1, 1500), count = one.byte() % 5;
  const bool is_cut = one.byte() % 4 == 0;
  Room<std::int64_t> numbers(count);
  bool taken[kPages] = {};
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t number = one.byte() % kPages;
    while (taken[number]) number = (number + 1) % kPages;
    taken[number] = true;
    numbers[i] = std::int64_t(number);
  }
  int ends[2];
  PROMISE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const std::size_t total = count * page, most = is_cut && total ? total - 1 : total;
  send_all(ends[0], one, most, total);
  if (is_cut) shutdown(ends[0], SHUT_WR);

  Room<std::uint8_t> pages(kPages * page), copies(kPages * page);
  Room<std::uint64_t> sums(count), copied(count);
  std::memset(pages.data(), 0xA5, pages.bytes());
  const int outcome =
      firelane_receive_pages(ends[1], pages.data(), numbers.data(), sums.data(), count, page, 5.0);
  close(ends[0]);
  close(ends[1]);
  PROMISE(outcome == (is_cut && total ? kHungUp : kDone));
  for (std::size_t i = 0; i < kPages; ++i)
    for (std::size_t at = 0; !taken[i] && at < page; ++at) PROMISE(pages[i * page + at] == 0xA5);
  if (outcome != kDone) return 0;
  const int done = firelane_copy_pages(pages.data(), numbers.data(), copies.data(), numbers.data(), copied.data(), count,
                                       page, 5.0);
  PROMISE(done == kDone);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = std::size_t(numbers[i]) * page;
    PROMISE(sums[i] == firelane_checksum(pages.data() + at, page));
    PROMISE(copied[i] == sums[i]);
    PROMISE(std::memcmp(pages.data() + at, copies.data() + at, page) == 0);
  }
  return 0;
}
