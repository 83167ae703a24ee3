// Exchange of rows between ranks of different hosts: over TCP, a connection for each two ranks (hosts.py). What arrives
// is put where a rank of this host would have left it, so that whoever adds up does not know the difference. Both ends
// know from the step how much is sent: nothing but rows crosses a connection.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "context.h"
#include "ranks/link.h"
#include "threads/sleep.h"

namespace firelane {

constexpr int kPollMs = 1000, kIoSpins = 2000, kMostParts = 32;

// Rows on their way through a connection: `count` of them, `width` bytes each, `apart` bytes from one to the next.
struct RowStream {
  int fd = -1;
  bool sends = false;
  std::uint8_t* at = nullptr;
  std::size_t width = 0, apart = 0, count = 1, done = 0;

  bool is_done() const { return done == width * count; }

  // Moves what the connection takes or has. False where it has broken.
  bool advance() {
    while (!is_done()) {
      iovec parts[kMostParts];
      msghdr message{};
      message.msg_iov = parts;
      std::size_t skipped = done % width;
      for (std::size_t row = done / width; row < count && message.msg_iovlen < kMostParts; ++row, skipped = 0)
        parts[message.msg_iovlen++] = {at + row * apart + skipped, width - skipped};
      const ssize_t moved =
          sends ? sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) : recvmsg(fd, &message, MSG_DONTWAIT);
      if (moved > 0) done += moved;
      else if (moved < 0 && errno == EINTR) continue;
      else return moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    }
    return true;
  }
};

// Runs all streams to their end, whichever goes on first. Ends the group where a connection breaks.
inline void run_streams(const Context& c, RowStream* streams, int count) {
  LinkHeader& link = *static_cast<LinkHeader*>(c.link);
  for (int tries = c.link_spins ? kIoSpins : 0; !link.ended.load_relaxed(); --tries) {
    pollfd waits[2 * kMostLanes];
    int waiting = 0;
    for (int i = 0; i < count; ++i) {
      if (!streams[i].advance()) return end_group(link);
      if (streams[i].is_done()) continue;
      waits[waiting++] = {streams[i].fd, short(streams[i].sends ? POLLOUT : POLLIN), 0};
    }
    if (!waiting) return;
    if (tries <= 0) poll(waits, waiting, kPollMs);
  }
}

// This rank's part of a sum to its peers, and theirs to where parts of their ranks lie. parts: of the first rank.
inline void share_parts(const Context& c, std::uint8_t* parts, std::size_t apart, std::size_t bytes) {
  RowStream streams[2 * kMostLanes];
  int count = 0;
  for (int i = 1; i <= c.peer_count; ++i) {
    const Peer& peer = c.peers[i];
    streams[count++] = {peer.fd, true, parts + c.lane * apart, bytes, bytes};
    streams[count++] = {peer.fd, false, parts + peer.lane * apart, bytes, bytes};
  }
  run_streams(c, streams, count);
}

// This rank's columns of rows to the host that has the first rank; there, those of the peers to their columns.
inline void collect_columns(const Context& c, std::uint8_t* own, std::size_t apart, int rows) {
  std::uint8_t* whole = own - c.peers[0].column;
  RowStream streams[kMostLanes];
  int count = 0;
  const bool collects = c.lane < c.lanes_here;
  for (int i = 1; i <= c.peer_count; ++i) {
    const Peer& peer = c.peers[i];
    const Peer& sender = collects ? peer : c.peers[0];
    if (!collects && peer.lane >= c.lanes_here) continue;
    streams[count++] = {peer.fd, !collects, whole + sender.column, sender.width, apart, std::size_t(rows)};
  }
  run_streams(c, streams, count);
}

// Rows of this step from the stage before, or to the next one. parts: of the values that are handed on.
template <std::size_t N>
void carry_mail(const Context& c, int fd, bool sends, std::uint8_t* places, const MailPart (&parts)[N]) {
  for (const MailPart& part : parts) {
    const std::size_t bytes = part.row_bytes * c.step.num_tokens;
    std::uint8_t* at = c.mail(places) + part.before * c.limits.max_num_batched_tokens;
    RowStream stream{fd, sends, at, bytes, bytes};
    run_streams(c, &stream, 1);
  }
}

}  // namespace firelane
