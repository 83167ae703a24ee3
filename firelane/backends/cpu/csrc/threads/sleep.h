// Sleeping until a number changes: the only part of the kernels that differs between systems.
#pragma once

#include <cstdint>

#include "threads/atomic.h"
#include "vec/vec.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#else
#include <atomic>
#endif

namespace firelane {

FL_INLINE void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

#if !defined(__linux__)
inline std::atomic<std::uint32_t>& standard(Atomic<std::uint32_t>& word) {
  static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof word);
  return reinterpret_cast<std::atomic<std::uint32_t>&>(word);
}
#endif

// Returns some time after `word` is no longer `seen`, or earlier.
inline void sleep_while(Atomic<std::uint32_t>& word, std::uint32_t seen) {
#if defined(__linux__)
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
#else
  standard(word).wait(seen);
#endif
}

// The same of a word that processes share; returns after a second at the latest.
inline void sleep_shared(Atomic<std::uint32_t>& word, std::uint32_t seen) {
#if defined(__linux__)
  const timespec second{1, 0};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &second, nullptr, 0);
#else
  standard(word).wait(seen);
#endif
}

inline void wake_shared(Atomic<std::uint32_t>& word) {
#if defined(__linux__)
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#else
  standard(word).notify_all();
#endif
}

inline void wake_all(Atomic<std::uint32_t>& word) {
#if defined(__linux__)
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
  standard(word).notify_all();
#endif
}

}  // namespace firelane
