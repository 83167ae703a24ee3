// Pages copied, sent and received with their checksums, in one pass over their bytes and one call for many pages.
// The face towards Python is firelane/kv/transfer/native.py; the checksum is that of page_copy.py.
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <initializer_list>

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#if defined(__AVX512F__) || defined(__AVX__)
#include <immintrin.h>
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

#ifndef MSG_NOSIGNAL  // a system that has an option of the socket in its place
#define MSG_NOSIGNAL 0
#endif

namespace {

constexpr size_t kLanes = 32, kRowBytes = kLanes * 8, kVectors = kLanes / 8;
constexpr uint64_t kPrime = 0x9E3779B97F4A7C15u;
constexpr size_t kMostParts = 256;
// Bytes of one receive: the checksum finds them in the second-level cache.
constexpr size_t kReceiveBytes = size_t{256} << 10, kSendBytes = size_t{4} << 20;

enum Outcome : int { kDone = 0, kLate = -1, kHungUp = -2 };  // a number above 0: errno

typedef uint64_t Words __attribute__((vector_size(64)));

Words load(const uint8_t* from) {
  Words words;
  std::memcpy(&words, from, sizeof words);
  return words;
}

// A store that does not read what it overwrites; `into` lies on a multiple of 64 bytes.
void stream(uint8_t* into, const Words& words) {
#if defined(__AVX512F__)
  __m512i v;
  std::memcpy(&v, &words, sizeof v);
  _mm512_stream_si512(reinterpret_cast<__m512i*>(into), v);
#elif defined(__AVX__)
  __m256i v[2];
  std::memcpy(v, &words, sizeof v);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(into), v[0]);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(into) + 1, v[1]);
#else
  std::memcpy(into, &words, sizeof words);
#endif
}

void fence() {
#if defined(__AVX512F__) || defined(__AVX__)
  _mm_sfence();
#endif
}

// Sums of each lane, and sums of those sums, which know the order of rows.
struct Sums {
  Words sums[kVectors] = {}, sums_of_sums[kVectors] = {};

  void add(size_t vector, const Words& words) {
    sums[vector] += words;
    sums_of_sums[vector] += sums[vector];
  }

  void add_rows(const uint8_t* from, size_t rows) {
    Sums local = *this;
    for (size_t row = 0; row < rows; ++row, from += kRowBytes)
      for (size_t i = 0; i < kVectors; ++i) local.add(i, load(from + i * sizeof(Words)));
    *this = local;
  }

  // With what is left of a page, fewer bytes than a row.
  uint64_t finish(const uint8_t* rest, size_t bytes) {
    if (bytes) {
      uint8_t row[kRowBytes] = {};
      std::memcpy(row, rest, bytes);
      add_rows(row, 1);
    }
    uint64_t hash = 0;
    for (const auto& part : {&sums, &sums_of_sums})
      for (size_t lane = 0; lane < kLanes; ++lane) {
        hash = (hash ^ (*part)[lane / 8][lane % 8]) * kPrime;
        hash ^= hash >> 32;
      }
    return hash;
  }
};

uint64_t copy_page(const uint8_t* from, uint8_t* into, size_t bytes) {
  Sums total;
  const size_t rows = bytes / kRowBytes, copied = rows * kRowBytes;
  if (reinterpret_cast<uintptr_t>(into) % sizeof(Words) == 0) {
    for (size_t at = 0; at < copied; at += kRowBytes)
      for (size_t i = 0; i < kVectors; ++i) {
        const Words words = load(from + at + i * sizeof(Words));
        stream(into + at + i * sizeof(Words), words);
        total.add(i, words);
      }
  } else {
    for (size_t at = 0; at < copied; at += kRowBytes)
      for (size_t i = 0; i < kVectors; ++i) {
        const Words words = load(from + at + i * sizeof(Words));
        std::memcpy(into + at + i * sizeof(Words), &words, sizeof words);
        total.add(i, words);
      }
  }
  // What is summed is what has been written, whatever happens to the source meanwhile.
  std::memcpy(into + copied, from + copied, bytes - copied);
  return total.finish(into + copied, bytes - copied);
}

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Until the socket is ready; deadline: of CLOCK_MONOTONIC.
int wait_for(int fd, short events, double deadline) {
  for (;;) {
    const double left = deadline - now();
    if (left <= 0) return kLate;
    pollfd one{fd, events, 0};
    const int found = poll(&one, 1, left > 1e6 ? 1000000000 : static_cast<int>(left * 1e3) + 1);
    if (found > 0) return kDone;
    if (found < 0 && errno != EINTR) return errno;
  }
}

// Places of pages, in order, as a stream of bytes is sent from or received to them.
struct Cursor {
  uint8_t* pages;
  const int64_t* numbers;
  size_t count, page_bytes, index = 0, offset = 0;

  bool at_end() const { return index == count; }
  uint8_t* page() const { return pages + static_cast<size_t>(numbers[index]) * page_bytes; }

  size_t parts(iovec* into, size_t most_bytes) const {
    size_t used = 0, from = offset;
    for (size_t i = index; i < count && used < kMostParts && most_bytes; ++i, from = 0) {
      const size_t bytes = page_bytes - from < most_bytes ? page_bytes - from : most_bytes;
      into[used++] = {pages + static_cast<size_t>(numbers[i]) * page_bytes + from, bytes};
      most_bytes -= bytes;
    }
    return used;
  }
};

template <typename Call>
int transmit(int fd, short events, double deadline, size_t most_bytes, Cursor& cursor, Call call) {
  iovec parts[kMostParts];
  while (!cursor.at_end()) {
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = cursor.parts(parts, most_bytes);
    const ssize_t done = call(&message);
    if (done == 0) return kHungUp;
    if (done > 0) continue;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return errno;
    if (const int outcome = wait_for(fd, events, deadline)) return outcome;
  }
  return kDone;
}

}  // namespace

EXPORT uint64_t firelane_checksum(const uint8_t* page, size_t bytes) {
  Sums total;
  const size_t rows = bytes / kRowBytes;
  total.add_rows(page, rows);
  return total.finish(page + rows * kRowBytes, bytes % kRowBytes);
}

EXPORT int firelane_copy_pages(const uint8_t* theirs, const int64_t* from, uint8_t* mine, const int64_t* to,
                               uint64_t* sums, size_t count, size_t page_bytes, double left_s) {
  const double deadline = now() + left_s;
  for (size_t i = 0; i < count; ++i) {
    if (now() >= deadline) return kLate;
    sums[i] = copy_page(theirs + static_cast<size_t>(from[i]) * page_bytes,
                        mine + static_cast<size_t>(to[i]) * page_bytes, page_bytes);
  }
  fence();
  return kDone;
}

EXPORT int firelane_send_pages(int fd, uint8_t* pages, const int64_t* numbers, size_t count, size_t page_bytes,
                               double left_s) {
  Cursor cursor{pages, numbers, count, page_bytes};
  return transmit(fd, POLLOUT, now() + left_s, kSendBytes, cursor, [&](msghdr* message) {
    const ssize_t done = sendmsg(fd, message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (done > 0) {
      const size_t at = cursor.offset + static_cast<size_t>(done);
      cursor.index += at / page_bytes;
      cursor.offset = at % page_bytes;
    }
    return done;
  });
}

EXPORT int firelane_receive_pages(int fd, uint8_t* pages, const int64_t* numbers, uint64_t* sums, size_t count,
                                  size_t page_bytes, double left_s) {
  Cursor cursor{pages, numbers, count, page_bytes};
  Sums total;
  size_t summed = 0;  // bytes of the page that the cursor is in
  return transmit(fd, POLLIN, now() + left_s, kReceiveBytes, cursor, [&](msghdr* message) {
    const ssize_t done = recvmsg(fd, message, MSG_DONTWAIT);
    for (size_t left = done > 0 ? static_cast<size_t>(done) : 0; left;) {
      const size_t space = page_bytes - cursor.offset, came = left < space ? left : space;
      cursor.offset += came;
      left -= came;
      const size_t rows = (cursor.offset - summed) / kRowBytes;
      total.add_rows(cursor.page() + summed, rows);
      summed += rows * kRowBytes;
      if (cursor.offset < page_bytes) break;
      sums[cursor.index] = total.finish(cursor.page() + summed, page_bytes - summed);
      ++cursor.index;
      cursor.offset = summed = 0;
      total = Sums();
    }
    return done;
  });
}
