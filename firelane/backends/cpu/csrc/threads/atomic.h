// Atomic numbers by the compiler's builtins: <atomic> takes longer to parse than a small model's kernels to compile.
#pragma once

namespace firelane {

// Order is that of all operations on all such numbers, where a name does not say otherwise.
template <class T>
class Atomic {
 public:
  constexpr explicit Atomic(T value) : value_(value) {}

  T load() const { return __atomic_load_n(&value_, __ATOMIC_SEQ_CST); }
  T load_acquire() const { return __atomic_load_n(&value_, __ATOMIC_ACQUIRE); }
  T load_relaxed() const { return __atomic_load_n(&value_, __ATOMIC_RELAXED); }
  void store(T value) { __atomic_store_n(&value_, value, __ATOMIC_SEQ_CST); }
  void store_relaxed(T value) { __atomic_store_n(&value_, value, __ATOMIC_RELAXED); }
  // Both return the value before.
  T fetch_add(T more) { return __atomic_fetch_add(&value_, more, __ATOMIC_SEQ_CST); }
  T fetch_sub(T less) { return __atomic_fetch_sub(&value_, less, __ATOMIC_SEQ_CST); }

 private:
  static_assert(__atomic_always_lock_free(sizeof(T), 0));
  T value_;
};

}  // namespace firelane
