// One pass over a tensor: its numbers, its hash and its sketch.
#pragma once

#include <cstdint>

#include "isa.h"

namespace roundoff {

// Order is shared with kernels/row.py.
enum class Dtype : int { f64, f32, bf16, f16, i64, i32, i16, i8, u8 };

// Places in a row of results, shared with kernels/row.py.
enum Place { MIN, MAX, SUM, SUM_ABS, SUM_SQUARES, NUM_NAN, NUM_POSINF, NUM_NEGINF, NUM_ZERO, NUM_SUBNORMAL, HASH, SKETCH };
constexpr int kBuckets = 8;                        // random-sign sums in a sketch, each with a channel-weighted twin
constexpr int kRowWidth = SKETCH + 2 * kBuckets;   // doubles in a row
constexpr int kMaxDims = 64;                       // as many as torch itself can reduce
constexpr int kChunk = 1024;                       // elements that are looked at together
constexpr int kPeriod = 1024;                      // hash weights repeat after this many places

// The number that the well-known SplitMix64 generator gives from state `x`. Static and always inlined: each instruction
// set needs its own.
static inline __attribute__((always_inline)) uint64_t splitmix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

struct View {
  const char* data;
  Dtype dtype;
  int num_dims;
  int64_t shape[kMaxDims];
  int64_t stride[kMaxDims];  // in elements
};

struct Tables {
  uint64_t even_weights[kPeriod / 2];  // hash weights of the words 0, 2, 4, ... of a block
  uint64_t odd_weights[kPeriod / 2];   // and of the words 1, 3, 5, ...
  double channel_weights[kPeriod];     // channel + 1
};
const Tables& tables();
uint64_t block_weight(uint64_t block);

// Fills one row. `histogram`, if not null, gets 64 counts of the nonzero finite elements by power of two:
// bucket b holds |x| in [2^(b-40), 2^(b-39)), the outer two are open.
ROUNDOFF_EACH_LEVEL(void summarize(const View& view, double* row, uint32_t* histogram))

}  // namespace roundoff
