// Attention spans: the query at position p sees positions first(p) .. last(p, newest), where newest is the last position
// of its chunk. Mirrors firelane/contract/span.py.
#pragma once

#include "vec/vec.h"

namespace firelane {

struct ToItself {
  FL_INLINE static int last(int position, int) { return position; }
};

struct Causal : ToItself {
  FL_INLINE static int first(int) { return 0; }
};

// The last N positions, the query's own among them.
template <int N>
struct SlidingWindow : ToItself {
  FL_INLINE static int first(int position) { return position < N ? 0 : position - N + 1; }
};

// From the last multiple of N on.
template <int N>
struct AlignedChunk : ToItself {
  FL_INLINE static int first(int position) { return position / N * N; }
};

// On both sides, N positions away at most; all of them where N is 0.
template <int N>
struct BothSides {
  FL_INLINE static int first(int position) { return N == 0 || position < N ? 0 : position - N; }
  FL_INLINE static int last(int position, int newest) { return N == 0 ? newest : min(position + N, newest); }
};

}  // namespace firelane
