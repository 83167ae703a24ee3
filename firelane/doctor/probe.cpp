// Measures what the machine can do at best, free of any model: streaming reads from memory, and multiply-adds in
// registers. Each function runs `threads` threads on work of their own, `repeats` times, and returns the best rate.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include <arm_neon.h>
#endif
#if defined(__linux__)
#include <sched.h>
#include <sys/mman.h>
#endif

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kAccumulators = 24;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kAccumulators = 12;
#elif defined(__aarch64__)
constexpr int kVectorBytes = 16, kAccumulators = 24;
#else
constexpr int kVectorBytes = 16, kAccumulators = 12;
#endif
typedef float Vector __attribute__((vector_size(kVectorBytes)));
constexpr int kFloats = kVectorBytes / 4;

// The accumulators stay in registers only when the loop over them is unrolled.
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 24")
#endif

namespace {

// The compiler must compute what is given to this.
void consume(float value) { asm volatile("" : : "m"(value) : "memory"); }

float horizontal_sum(Vector v) {
  float sum = 0;
  for (int i = 0; i < kFloats; ++i) sum += v[i];
  return sum;
}

// Runs are shorter than the scheduler takes to spread new threads: each goes to a core of its own (the t-th allowed).
void settle_on_core(int t) {
#if defined(__linux__)
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  int skip = t % std::max(1, CPU_COUNT(&allowed));
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed) && skip-- == 0) {
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      sched_setaffinity(0, sizeof one, &one);
      return;
    }
#endif
}

// Seconds from the moment all threads are ready until the last has run work(thread) once.
template <class Work>
double run_together(int threads, Work work) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> team;
  for (int t = 0; t < threads; ++t)
    team.emplace_back([&, t] {
      settle_on_core(t);
      ready.fetch_add(1);
      while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
      work(t);
    });
  while (ready.load() < threads) std::this_thread::yield();
  auto start = std::chrono::steady_clock::now();
  go.store(true, std::memory_order_release);
  for (auto& thread : team) thread.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <class Work>
double best_seconds(int threads, int repeats, Work work) {
  double best = 1e30;
  for (int r = 0; r < repeats; ++r) best = std::min(best, run_together(threads, work));
  return best;
}

float read_all(const Vector* data, size_t vectors) {
  Vector sum[8] = {};
  for (size_t i = 0; i + 8 <= vectors; i += 8)
    UNROLL for (int j = 0; j < 8; ++j) sum[j] += data[i + j];
  for (int j = 1; j < 8; ++j) sum[0] += sum[j];
  return horizontal_sum(sum[0]);
}

float multiply_add(size_t rounds, float seed) {
  Vector sum[kAccumulators], scale, add;
  for (int i = 0; i < kFloats; ++i) scale[i] = 0.5f, add[i] = seed;
  UNROLL for (int j = 0; j < kAccumulators; ++j) sum[j] = add + static_cast<float>(j);
  for (size_t r = 0; r < rounds; ++r)
    UNROLL for (int j = 0; j < kAccumulators; ++j) sum[j] = sum[j] * scale + add;
  UNROLL for (int j = 1; j < kAccumulators; ++j) sum[0] += sum[j];
  return horizontal_sum(sum[0]);
}

#if defined(__AVX512BF16__)
constexpr int kDotFlops = 64;
float dot(size_t rounds, float seed) {
  __m512 sum[kAccumulators];  // all different, or the compiler would compute only one
  const __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(seed), _mm512_set1_ps(seed));
  const __m512bh b = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.25f), _mm512_set1_ps(0.5f));
  UNROLL for (int j = 0; j < kAccumulators; ++j) sum[j] = _mm512_set1_ps(seed + j);
  for (size_t r = 0; r < rounds; ++r)
    UNROLL for (int j = 0; j < kAccumulators; ++j) sum[j] = _mm512_dpbf16_ps(sum[j], a, b);
  UNROLL for (int j = 1; j < kAccumulators; ++j) sum[0] = _mm512_add_ps(sum[0], sum[j]);
  return _mm512_cvtss_f32(sum[0]);
}
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr int kDotFlops = 16;
float dot(size_t rounds, float seed) {
  float32x4_t sum[kAccumulators];
  const bfloat16x8_t a = vdupq_n_bf16(vcvth_bf16_f32(seed)), b = vdupq_n_bf16(vcvth_bf16_f32(0.25f));
  UNROLL for (int j = 0; j < kAccumulators; ++j) sum[j] = vdupq_n_f32(seed + j);
  for (size_t r = 0; r < rounds; ++r)
    UNROLL for (int j = 0; j < kAccumulators; ++j) sum[j] = vbfdotq_f32(sum[j], a, b);
  float total = 0;
  UNROLL for (int j = 0; j < kAccumulators; ++j) total += vaddvq_f32(sum[j]);
  return total;
}
#else
constexpr int kDotFlops = 0;
float dot(size_t, float) { return 0; }
#endif

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// Bytes a second, each thread reading `bytes` of its own, far more than the caches hold; -1: no memory.
EXPORT double firelane_probe_read(int threads, size_t bytes, int repeats) {
  std::vector<void*> buffers(threads, nullptr);
  bool enough = true;
  for (auto& buffer : buffers) {
    buffer = std::aligned_alloc(1 << 21, (bytes + (1 << 21) - 1) >> 21 << 21);
    enough = enough && buffer != nullptr;
  }
  double rate = -1;
  if (enough) {
#if defined(__linux__)
    for (auto& buffer : buffers) madvise(buffer, bytes, MADV_HUGEPAGE);
#endif
    run_together(threads, [&](int t) { std::memset(buffers[t], 0, bytes); });
    const double seconds = best_seconds(threads, repeats, [&](int t) {
      consume(read_all(static_cast<const Vector*>(buffers[t]), bytes / kVectorBytes));
    });
    rate = static_cast<double>(bytes) * threads / seconds;
  }
  for (auto& buffer : buffers) std::free(buffer);
  return rate;
}

// Float32 operations a second, two for each fused multiply-add.
EXPORT double firelane_probe_fma(int threads, size_t rounds, int repeats) {
  const double flops = 2.0 * kFloats * kAccumulators * static_cast<double>(rounds) * threads;
  return flops / best_seconds(threads, repeats, [&](int t) { consume(multiply_add(rounds, 1.0f + t)); });
}

// Operations a second of the bf16 dot-product instruction; 0: this machine has none.
EXPORT double firelane_probe_dot(int threads, size_t rounds, int repeats) {
  if (kDotFlops == 0) return 0;
  const double flops = 1.0 * kDotFlops * kAccumulators * static_cast<double>(rounds) * threads;
  return flops / best_seconds(threads, repeats, [&](int t) { consume(dot(rounds, 1.0f + t)); });
}
