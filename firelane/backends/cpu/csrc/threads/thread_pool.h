// A fixed pool of threads that runs one step at a time.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <vector>

#include "threads/sleep.h"
#include "vec/vec.h"

namespace firelane {

// A number that threads wait on to change.
class EventCount {
 public:
  std::uint32_t value() const { return word_.load_acquire(); }

  void advance() {
    word_.fetch_add(1);
    if (sleepers_.load()) wake_all(word_);
  }

  // Returns once the value differs from `seen`. Spins for a while, then sleeps. How long is learnt: a wait that ended
  // while spinning lengthens the next one's patience, one that did not halves it. Where other programs want the cores,
  // spinning would keep them from the very thread that is waited for; where the cores are ours, sleeping costs a few
  // microseconds.
  void wait(std::uint32_t seen) {
    const int patience = patience_.load_relaxed();
    for (int i = 0; i < patience; ++i) {
      if (value() != seen) {
        patience_.store_relaxed(min(kMostSpins, patience + patience / 8));
        return;
      }
      cpu_relax();
    }
    patience_.store_relaxed(max(kLeastSpins, patience / 2));
    sleepers_.fetch_add(1);
    while (word_.load() == seen) sleep_while(word_, seen);
    sleepers_.fetch_sub(1);
  }

 private:
  static constexpr int kLeastSpins = 100, kMostSpins = 5000;
  alignas(64) Atomic<std::uint32_t> word_{0};
  Atomic<std::uint32_t> sleepers_{0};
  Atomic<int> patience_{kMostSpins};
};

class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}

  // The last thread to arrive calls at_last() before any goes on.
  template <class AtLast>
  void arrive_and_wait(const AtLast& at_last) {
    const std::uint32_t seen = phase_.value();
    if (arrived_.fetch_add(1) + 1 == threads_) {
      arrived_.store_relaxed(0);
      at_last();
      phase_.advance();
    } else {
      phase_.wait(seen);
    }
  }

 private:
  const int threads_;
  alignas(64) Atomic<int> arrived_{0};
  EventCount phase_;
};

// Runs `work(arg, thread, number)` on every thread of the pool for each submit(), one after the other; a wait() returns
// when all have ended that of the first submit() that was not waited for.
class ThreadPool {
 public:
  using Work = void (*)(void*, int, std::uint32_t);

  ThreadPool(int threads, Work work, void* arg) : barrier_(threads), work_(work), arg_(arg) {
    threads_.reserve(threads);  // each is told where it lies
    for (int t = 0; t < threads; ++t) {
      threads_.push_back({this, t, {}});
      if (pthread_create(&threads_.back().handle, nullptr, &ThreadPool::begin, &threads_.back()) == 0) continue;
      threads_.pop_back();  // the system grants no more threads
      stop();
      throw std::bad_alloc();
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
  struct Thread {
    ThreadPool* pool;
    int number;
    pthread_t handle;
  };

  void stop() {
    stop_.store(true);
    start_.advance();
    for (auto& t : threads_) pthread_join(t.handle, nullptr);
  }

  static void* begin(void* thread) {
    const auto& self = *static_cast<const Thread*>(thread);
    self.pool->serve(self.number);
    return nullptr;
  }

  void serve(int thread) {
    for (std::uint32_t seen = 0;; ++seen) {
      start_.wait(seen);
      if (stop_.load()) return;
      work_(arg_, thread, seen);
      barrier_.arrive_and_wait([] {});
      if (thread == 0) done_.advance();
    }
  }

  Barrier barrier_;
  EventCount start_, done_;
  Work work_;
  void* arg_;
  Atomic<bool> stop_{false};
  std::uint32_t submitted_ = 0, waited_ = 0;
  std::vector<Thread> threads_;
};

}  // namespace firelane
