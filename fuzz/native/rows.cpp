// Rows that a rank of another host sends, in any pieces: they lie side by side at their places, what is between them
// stays as it is, and a connection that breaks is told.
#include "ranks/hosts.h"

#include <unistd.h>

#include "cases.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Case one(data, size);
  firelane::RowStream stream;
  stream.width = one.between(1, 300);
  stream.count = 1 + one.byte() % 40;
  stream.apart = stream.width + one.byte();
  const std::size_t total = stream.width * stream.count, most = one.byte() % 4 ? total : total - 1;
  Room<std::uint8_t> rows((stream.count - 1) * stream.apart + stream.width), sent(total);
  std::memset(rows.data(), 0xA5, rows.bytes());
  stream.at = rows.data();
  int ends[2];
  PROMISE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  stream.fd = ends[1];
  one.fill(sent.data(), most);
  bool goes_on = true;
  for (std::size_t at = 0; at < most;) {
    std::size_t piece = most / 64 + 1 + one.between(0, 1000);
    piece = piece < most - at ? piece : most - at;
    PROMISE(send(ends[0], sent.data() + at, piece, MSG_NOSIGNAL) == ssize_t(piece));
    at += piece;
    goes_on = stream.advance();
    PROMISE(goes_on && stream.done == at);
  }
  close(ends[0]);
  goes_on = stream.advance();
  close(ends[1]);
  PROMISE(stream.is_done() == (most == total));
  PROMISE(goes_on == (most == total));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t row = i / stream.apart, column = i % stream.apart;
    const std::size_t at = row * stream.width + column;
    PROMISE(rows[i] == (column < stream.width && at < most ? sent[at] : 0xA5));
  }
  return 0;
}
