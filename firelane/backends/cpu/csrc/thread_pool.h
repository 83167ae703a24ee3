// A fixed pool of threads that runs one step at a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "sleep.h"
#include "vec.h"

namespace firelane {

// A number that threads wait on to change.
class EventCount {
 public:
  std::uint32_t value() const { return word_.load(std::memory_order_acquire); }

  void advance() {
    word_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst)) wake_all(word_);
  }

  // Returns once the value differs from `seen`. Spins for a while, then sleeps. How long is learnt: a wait that ended
  // while spinning lengthens the next one's patience, one that did not halves it. Where other programs want the cores,
  // spinning would keep them from the very thread that is waited for; where the cores are ours, sleeping costs a few
  // microseconds.
  void wait(std::uint32_t seen) {
    const int patience = patience_.load(std::memory_order_relaxed);
    for (int i = 0; i < patience; ++i) {
      if (value() != seen) {
        patience_.store(std::min(kMostSpins, patience + patience / 8), std::memory_order_relaxed);
        return;
      }
      cpu_relax();
    }
    patience_.store(std::max(kLeastSpins, patience / 2), std::memory_order_relaxed);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (word_.load(std::memory_order_seq_cst) == seen) sleep_while(word_, seen);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  static constexpr int kLeastSpins = 100, kMostSpins = 5000;
  alignas(64) std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> sleepers_{0};
  std::atomic<int> patience_{kMostSpins};
};

class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}

  // The last thread to arrive calls at_last() before any goes on.
  template <class AtLast>
  void arrive_and_wait(const AtLast& at_last) {
    const std::uint32_t seen = phase_.value();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      at_last();
      phase_.advance();
    } else {
      phase_.wait(seen);
    }
  }

 private:
  const int threads_;
  alignas(64) std::atomic<int> arrived_{0};
  EventCount phase_;
};

// Runs `work(arg, thread, number)` on every thread of the pool for each submit(), one after the other; a wait() returns
// when all have ended that of the first submit() that was not waited for.
class ThreadPool {
 public:
  using Work = void (*)(void*, int, std::uint32_t);

  ThreadPool(int threads, Work work, void* arg) : barrier_(threads), work_(work), arg_(arg) {
    try {
      for (int t = 0; t < threads; ++t) threads_.emplace_back([this, t] { serve(t); });
    } catch (...) {  // the system grants no more threads
      stop();
      throw;
    }
  }
  ~ThreadPool() {
    while (waited_ != submitted_) wait();  // a thread that saw the end before its work would leave the others at the barrier
    stop();
  }
  void submit() {
    ++submitted_;
    start_.advance();
  }
  void wait() {
    if (waited_ != submitted_) done_.wait(waited_++);
  }
  template <class AtLast>
  void sync(const AtLast& at_last) {
    barrier_.arrive_and_wait(at_last);
  }
  int size() const { return int(threads_.size()); }

 private:
  void stop() {
    stop_ = true;
    start_.advance();
    for (auto& t : threads_) t.join();
  }

  void serve(int thread) {
    for (std::uint32_t seen = 0;; ++seen) {
      start_.wait(seen);
      if (stop_) return;
      work_(arg_, thread, seen);
      barrier_.arrive_and_wait([] {});
      if (thread == 0) done_.advance();
    }
  }

  Barrier barrier_;
  EventCount start_, done_;
  Work work_;
  void* arg_;
  std::atomic<bool> stop_{false};
  std::uint32_t submitted_ = 0, waited_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace firelane
