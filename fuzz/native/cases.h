// What native targets have in common: bytes of a case taken one after the other, memory that ends where it ends, and a
// promise that ends the process when it is broken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#define PROMISE(condition)                                                          \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "broken at %s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                 \
    }                                                                               \
  } while (false)

// The bytes of a case. Those behind the last one are zeros.
class Case {
 public:
  Case(const std::uint8_t* data, std::size_t size) : at_(data), left_(size) {}

  std::size_t left() const { return left_; }

  std::uint8_t byte() {
    std::uint8_t value = 0;
    fill(&value, 1);
    return value;
  }

  // From `least` to `most`.
  std::size_t between(std::size_t least, std::size_t most) {
    const std::size_t value = byte() | std::size_t{byte()} << 8;
    return least + value % (most - least + 1);
  }

  void fill(void* to, std::size_t size) {
    const std::size_t taken = size < left_ ? size : left_;
    if (taken) std::memcpy(to, at_, taken);
    std::memset(static_cast<std::uint8_t*>(to) + taken, 0, size - taken);
    at_ += taken;
    left_ -= taken;
  }

 private:
  const std::uint8_t* at_;
  std::size_t left_;
};

// Memory of its own size: the sanitizer sees each byte that is touched outside of it.
template <class T>
class Room {
 public:
  explicit Room(std::size_t count) : count_(count), data_(new T[count]()) {}

  T* data() { return data_.get(); }
  T& operator[](std::size_t i) { return data_[i]; }
  std::size_t size() const { return count_; }
  std::size_t bytes() const { return count_ * sizeof(T); }

 private:
  std::size_t count_;
  std::unique_ptr<T[]> data_;
};
