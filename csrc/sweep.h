// Applies a function of (value, index) to a run of memory, one vector at a time.
#pragma once

#include "random.h"

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

constexpr int64_t kStreamBytes = int64_t(32) << 20;  // results from this size on are written past the caches

template <class Index>
ROUNDOFF_INLINE Index first_indices(uint32_t first) {
  Index index;
  for (uint32_t i = 0; i < sizeof(Index) / 4; ++i) index[i] = first + i;
  return index;
}

// Fewer elements than a vector holds: through a buffer.
template <class Codec, class Index, class Function>
ROUNDOFF_INLINE void sweep_rest(const typename Codec::Word* in, typename Codec::Word* out, int64_t n, uint32_t first,
                                const Function& function) {
  if (n <= 0) return;
  typename Codec::Word buffer[sizeof(Index) / 4] = {};
  std::memcpy(buffer, in, n * sizeof *in);
  store(buffer, Codec::narrow(function(Codec::widen(buffer), first_indices<Index>(first))));
  std::memcpy(out, buffer, n * sizeof *out);
}

// `in` and `out` are the same memory or do not overlap; the run does not cross a multiple of 2^32 indices.
template <class Codec, class Index, class Function>
ROUNDOFF_INLINE void sweep_run(const typename Codec::Word* in, typename Codec::Word* out, int64_t n, uint32_t first,
                               bool streaming, const Function& function) {
  constexpr int64_t kLanes = sizeof(Index) / 4;
  constexpr bool kCanStream = sizeof(typename Codec::Word) * kLanes == kBytes && sizeof(typename Codec::Word) == 4;
  int64_t i = 0;
  if constexpr (kCanStream) {
    if (streaming) {
      const int64_t head = -(reinterpret_cast<intptr_t>(out) / 4) & (kLanes - 1);
      i = head < n ? head : n;
      sweep_rest<Codec, Index>(in, out, i, first, function);
      Index index = first_indices<Index>(first + uint32_t(i));
      for (; i + kLanes <= n; i += kLanes, index += kLanes)
        store_streaming(out + i, Codec::narrow(function(Codec::widen(in + i), index)));
      finish_streaming();
    }
  }
  Index index = first_indices<Index>(first + uint32_t(i));
  for (; i + kLanes <= n; i += kLanes, index += kLanes)
    store(out + i, Codec::narrow(function(Codec::widen(in + i), index)));
  sweep_rest<Codec, Index>(in + i, out + i, n - i, first + uint32_t(i), function);
}

// `make(keys)` returns the function to apply; the keys change every 2^32 elements.
template <class Codec, class Index, class Make>
ROUNDOFF_INLINE void sweep(const void* in_, void* out_, int64_t n, uint64_t first, uint64_t key, const Make& make) {
  auto* in = static_cast<const typename Codec::Word*>(in_);
  auto* out = static_cast<typename Codec::Word*>(out_);
  const bool streaming = in != out && n * int64_t(sizeof *out) >= kStreamBytes;
  while (n > 0) {
    const int64_t left = (int64_t(1) << 32) - int64_t(first & 0xffffffffu);
    const int64_t run = n < left ? n : left;
    sweep_run<Codec, Index>(in, out, run, uint32_t(first), streaming, make(keys_for(key, uint32_t(first >> 32))));
    in += run, out += run, n -= run, first += uint64_t(run);
  }
}

}  // namespace
}  // namespace ROUNDOFF_ISA
}  // namespace roundoff
