// Sixteen-lane vectors as several registers of kRegisterBytes, each a member of its own: compilers keep those in
// registers, and vectors wider than a register in memory. The target's header defines kRegisterBytes and
// multiply_add(a, b, c) of one register before it includes this.
#pragma once

#include <type_traits>

namespace firelane {

template <class T>
struct Vector16 {
  typedef T Register __attribute__((vector_size(kRegisterBytes)));
  static constexpr int kLanes = kRegisterBytes / 4, kRegisters = 64 / kRegisterBytes;

  Register r[kRegisters];

  FL_INLINE T operator[](int lane) const { return r[lane / kLanes][lane % kLanes]; }
};
using f32x16 = Vector16<float>;
using u32x16 = Vector16<std::uint32_t>;
using i32x16 = Vector16<std::int32_t>;

// f(i) for each register i: of a vector of Out.
template <class Out, class F>
FL_INLINE Vector16<Out> by_register(const F& f) {
  Vector16<Out> out;
#pragma GCC unroll 4
  for (int i = 0; i < Vector16<Out>::kRegisters; ++i) out.r[i] = (typename Vector16<Out>::Register)f(i);
  return out;
}

template <class T>
FL_INLINE Vector16<T> splat_to(T v) {
  return by_register<T>([&](int) FL_LAMBDA { return v - typename Vector16<T>::Register{}; });  // a broadcast: -0 stays
}
FL_INLINE f32x16 splat(float v) { return splat_to<float>(v); }
FL_INLINE i32x16 splat_i(std::int32_t v) { return splat_to<std::int32_t>(v); }

// Scalars count as vectors of equal lanes.
#define FIRELANE_BINARY(OP)                                                                          \
  template <class T>                                                                                 \
  FL_INLINE Vector16<T> operator OP(Vector16<T> a, Vector16<T> b) {                                  \
    return by_register<T>([&](int i) FL_LAMBDA { return a.r[i] OP b.r[i]; });                        \
  }                                                                                                  \
  template <class T>                                                                                 \
  FL_INLINE Vector16<T> operator OP(Vector16<T> a, std::type_identity_t<T> b) {                      \
    return a OP splat_to<T>(b);                                                                      \
  }                                                                                                  \
  template <class T>                                                                                 \
  FL_INLINE Vector16<T> operator OP(std::type_identity_t<T> a, Vector16<T> b) {                      \
    return splat_to<T>(a) OP b;                                                                      \
  }
FIRELANE_BINARY(+)
FIRELANE_BINARY(-)
FIRELANE_BINARY(*)
FIRELANE_BINARY(/)
FIRELANE_BINARY(&)
FIRELANE_BINARY(|)
#undef FIRELANE_BINARY

template <class T>
FL_INLINE Vector16<T> operator-(Vector16<T> a) {
  return by_register<T>([&](int i) FL_LAMBDA { return -a.r[i]; });
}
template <class T>
FL_INLINE Vector16<T> operator~(Vector16<T> a) {
  return by_register<T>([&](int i) FL_LAMBDA { return ~a.r[i]; });
}
template <class T>
FL_INLINE Vector16<T> operator<<(Vector16<T> a, int bits) {
  return by_register<T>([&](int i) FL_LAMBDA { return a.r[i] << bits; });
}
template <class T>
FL_INLINE Vector16<T> operator>>(Vector16<T> a, int bits) {
  return by_register<T>([&](int i) FL_LAMBDA { return a.r[i] >> bits; });
}
template <class T>
FL_INLINE Vector16<T>& operator+=(Vector16<T>& a, Vector16<T> b) {
  return a = a + b;
}

template <class T>
FL_INLINE Vector16<T> load(const T* p) {
  return by_register<T>([&](int i) FL_LAMBDA {
    typename Vector16<T>::Register v;
    std::memcpy(&v, p + i * Vector16<T>::kLanes, sizeof v);
    return v;
  });
}
template <class T>
FL_INLINE void store(T* p, Vector16<T> v) {
#pragma GCC unroll 4
  for (int i = 0; i < Vector16<T>::kRegisters; ++i) std::memcpy(p + i * Vector16<T>::kLanes, &v.r[i], sizeof v.r[i]);
}

// The floats whose high halves are those of the words at p. The words are loaded once more and the mask is used from
// memory, whatever the compiler knows of either: where accumulators fill the registers, none is left to keep them in.
FL_INLINE f32x16 load_high_halves(const std::uint32_t* p) {
  using Register = u32x16::Register;
  alignas(64) static constexpr std::uint32_t high[16] = {
      0xFFFF0000, 0xFFFF0000, 0xFFFF0000, 0xFFFF0000, 0xFFFF0000, 0xFFFF0000, 0xFFFF0000, 0xFFFF0000,
      0xFFFF0000, 0xFFFF0000, 0xFFFF0000, 0xFFFF0000, 0xFFFF0000, 0xFFFF0000, 0xFFFF0000, 0xFFFF0000};
  const std::uint32_t* mask = high;
  asm("" : "+r"(p), "+r"(mask));
  const u32x16 words = load(p);
  return by_register<float>([&](int i) FL_LAMBDA {
    Register keep;
    std::memcpy(&keep, mask, sizeof keep);
    return words.r[i] & keep;
  });
}

template <class To, class From>
FL_INLINE Vector16<To> bits_as(Vector16<From> v) {
  return by_register<To>([&](int i) FL_LAMBDA { return v.r[i]; });
}
FL_INLINE f32x16 as_f32(u32x16 v) { return bits_as<float>(v); }
FL_INLINE u32x16 as_u32(f32x16 v) { return bits_as<std::uint32_t>(v); }
FL_INLINE u32x16 as_u32(i32x16 v) { return bits_as<std::uint32_t>(v); }
FL_INLINE i32x16 as_i32(u32x16 v) { return bits_as<std::int32_t>(v); }
FL_INLINE f32x16 to_f32(i32x16 v) {
  return by_register<float>([&](int i) FL_LAMBDA { return __builtin_convertvector(v.r[i], f32x16::Register); });
}
FL_INLINE i32x16 lane_index() {
  alignas(64) static constexpr std::int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load(lanes);
}

FL_INLINE f32x16 fmadd(f32x16 a, f32x16 b, f32x16 c) {
  return by_register<float>([&](int i) FL_LAMBDA { return multiply_add(a.r[i], b.r[i], c.r[i]); });
}

FL_INLINE i32x16 less(f32x16 a, f32x16 b) {
  return by_register<std::int32_t>([&](int i) FL_LAMBDA { return a.r[i] < b.r[i]; });
}
FL_INLINE i32x16 less(i32x16 a, i32x16 b) {
  return by_register<std::int32_t>([&](int i) FL_LAMBDA { return a.r[i] < b.r[i]; });
}
FL_INLINE i32x16 is_nan(f32x16 a) {
  return by_register<std::int32_t>([&](int i) FL_LAMBDA { return a.r[i] != a.r[i]; });
}
FL_INLINE f32x16 select(i32x16 mask, f32x16 yes, f32x16 no) {
  return by_register<float>([&](int i) FL_LAMBDA { return mask.r[i] ? yes.r[i] : no.r[i]; });
}

// Lane i of the result is lane i ^ APART of v.
template <int APART>
FL_INLINE f32x16 swap_lanes(f32x16 v) {
  constexpr int a = APART, n = f32x16::kLanes;
  if constexpr (a >= n) return by_register<float>([&](int i) FL_LAMBDA { return v.r[i ^ a / n]; });
  return by_register<float>([&](int i) FL_LAMBDA {
    const auto x = v.r[i];
    if constexpr (n == 4)
      return __builtin_shufflevector(x, x, 0 ^ (a & 3), 1 ^ (a & 3), 2 ^ (a & 3), 3 ^ (a & 3));
    else if constexpr (n == 8)
      return __builtin_shufflevector(x, x, 0 ^ (a & 7), 1 ^ (a & 7), 2 ^ (a & 7), 3 ^ (a & 7), 4 ^ (a & 7),
                                     5 ^ (a & 7), 6 ^ (a & 7), 7 ^ (a & 7));
    else
      return __builtin_shufflevector(x, x, 0 ^ a, 1 ^ a, 2 ^ a, 3 ^ a, 4 ^ a, 5 ^ a, 6 ^ a, 7 ^ a, 8 ^ a, 9 ^ a,
                                     10 ^ a, 11 ^ a, 12 ^ a, 13 ^ a, 14 ^ a, 15 ^ a);
  });
}

}  // namespace firelane
