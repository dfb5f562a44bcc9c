// Applies a function of (value, random counter) to a run of memory, one vector at a time.
#pragma once

#include "random.h"

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

constexpr int64_t kStreamBytes = int64_t(32) << 20;  // results from this size on are written past the caches

template <class Counter>
ROUNDOFF_INLINE Counter first_counters(uint32_t first, Counting counting) {
  Counter counter;
  for (uint32_t i = 0; i < sizeof(Counter) / 4; ++i) counter[i] = counting.start + (first + i) * counting.step;
  return counter;
}

// Fewer elements than a vector holds: through a buffer.
template <class Codec, class Counter, class Function>
ROUNDOFF_INLINE void sweep_rest(const typename Codec::Word* in, typename Codec::Word* out, int64_t n, Counter counter,
                                const Function& function) {
  if (n <= 0) return;
  typename Codec::Word buffer[sizeof(Counter) / 4] = {};
  std::memcpy(buffer, in, n * sizeof *in);
  store(buffer, Codec::narrow(function(Codec::widen(buffer), counter)));
  std::memcpy(out, buffer, n * sizeof *out);
}

// `in` and `out` are the same memory or do not overlap; the run does not cross a multiple of 2^32 indices.
template <class Codec, class Counter, class Function>
ROUNDOFF_INLINE void sweep_run(const typename Codec::Word* in, typename Codec::Word* out, int64_t n, uint32_t first,
                               Counting counting, bool streaming, const Function& function) {
  constexpr int64_t kLanes = sizeof(Counter) / 4;
  constexpr bool kCanStream = sizeof(typename Codec::Word) == 4 && kLanes * 4 == kBytes;
  const uint32_t stride = uint32_t(kLanes) * counting.step;
  int64_t i = 0;
  if constexpr (kCanStream) {
    if (streaming) {
      const int64_t head = -(reinterpret_cast<intptr_t>(out) / 4) & (kLanes - 1);
      i = head < n ? head : n;
      sweep_rest<Codec>(in, out, i, first_counters<Counter>(first, counting), function);
      Counter counter = first_counters<Counter>(first + uint32_t(i), counting);
      for (; i + kLanes <= n; i += kLanes, counter += stride)
        store_streaming(out + i, Codec::narrow(function(Codec::widen(in + i), counter)));
      finish_streaming();
    }
  }
  Counter counter = first_counters<Counter>(first + uint32_t(i), counting);
  for (; i + kLanes <= n; i += kLanes, counter += stride)
    store(out + i, Codec::narrow(function(Codec::widen(in + i), counter)));
  sweep_rest<Codec>(in + i, out + i, n - i, counter, function);
}

// Element i of the run has the index `first` + i; `key` chooses the random numbers.
template <class Codec, class Counter, class Function>
ROUNDOFF_INLINE void sweep(const void* in_, void* out_, int64_t n, uint64_t first, uint64_t key,
                           const Function& function) {
  auto* in = static_cast<const typename Codec::Word*>(in_);
  auto* out = static_cast<typename Codec::Word*>(out_);
  const bool streaming = in != out && n * int64_t(sizeof *out) >= kStreamBytes;
  while (n > 0) {
    const int64_t left = (int64_t(1) << 32) - int64_t(first & 0xffffffffu);
    const int64_t run = n < left ? n : left;
    const Counting counting = counting_for(key, uint32_t(first >> 32));
    sweep_run<Codec, Counter>(in, out, run, uint32_t(first), counting, streaming, function);
    in += run, out += run, n -= run, first += uint64_t(run);
  }
}

}  // namespace
}  // namespace ROUNDOFF_ISA
}  // namespace roundoff
