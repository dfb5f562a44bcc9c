// Vectors of 64 bytes with the same lanes everywhere: one register if the processor has such, otherwise halves of
// halves. (GCC computes its own vectors one element at a time where they are wider than a register.)
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>  // intrinsics are always inlined: none is emitted for a wider instruction set
#endif

#define ROUNDOFF_WIDE inline __attribute__((always_inline))

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

template <class V>
struct Pair {
  V low, high;
};

template <class T, int kBytes>
struct Native {
  typedef T type __attribute__((vector_size(kBytes)));
};

#if defined(__AVX512F__)
template <class T>
using Wide = typename Native<T, 64>::type;
#elif defined(__AVX2__)
template <class T>
using Wide = Pair<typename Native<T, 32>::type>;
#else
template <class T>
using Wide = Pair<Pair<typename Native<T, 16>::type>>;
#endif

using d8 = Wide<double>;
using f16 = Wide<float>;
using u16 = Wide<uint32_t>;
using u8 = Wide<uint64_t>;

// ---- the same for registers and for pairs of them -------------------------------------------------------------------

#define ROUNDOFF_PAIRWISE(op)                                  \
  template <class V>                                           \
  ROUNDOFF_WIDE Pair<V> operator op(Pair<V> x, Pair<V> y) {    \
    return {x.low op y.low, x.high op y.high};                 \
  }                                                            \
  template <class V>                                           \
  ROUNDOFF_WIDE Pair<V>& operator op##=(Pair<V>& x, Pair<V> y) { \
    return x = x op y;                                         \
  }
ROUNDOFF_PAIRWISE(+)
ROUNDOFF_PAIRWISE(-)
ROUNDOFF_PAIRWISE(*)
ROUNDOFF_PAIRWISE(&)
ROUNDOFF_PAIRWISE(^)
#undef ROUNDOFF_PAIRWISE

template <class V>
struct Make {
  static ROUNDOFF_WIDE V load(const char* from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
  }
  template <class S>
  static ROUNDOFF_WIDE V of(S value) {
    // Clang adds no number of another type, not even of the same width: a literal may be unsigned long long.
    using Lane = std::remove_reference_t<decltype(std::declval<V&>()[0])>;
    return V{} + static_cast<Lane>(value);
  }
};
template <class V>
struct Make<Pair<V>> {
  static ROUNDOFF_WIDE Pair<V> load(const char* from) { return {Make<V>::load(from), Make<V>::load(from + sizeof(V))}; }
  template <class S>
  static ROUNDOFF_WIDE Pair<V> of(S value) {
    return {Make<V>::of(value), Make<V>::of(value)};
  }
};

template <class V>
ROUNDOFF_WIDE V load(const void* from) {
  return Make<V>::load(static_cast<const char*>(from));
}

// `value` in every lane.
template <class V, class S>
ROUNDOFF_WIDE V all(S value) {
  return Make<V>::of(value);
}

// The same bits, looked at as another type.
template <class To, class From>
struct As {
  static ROUNDOFF_WIDE To of(From x) { return (To)x; }
};
template <class To, class From>
struct As<Pair<To>, Pair<From>> {
  static ROUNDOFF_WIDE Pair<To> of(Pair<From> x) { return {As<To, From>::of(x.low), As<To, From>::of(x.high)}; }
};
template <class To, class From>
ROUNDOFF_WIDE To bits_as(From x) {
  return As<To, From>::of(x);
}

template <class V>
ROUNDOFF_WIDE V smaller(V a, V b) { return a < b ? a : b; }
template <class V>
ROUNDOFF_WIDE V larger(V a, V b) { return a > b ? a : b; }
template <class V>
ROUNDOFF_WIDE Pair<V> smaller(Pair<V> a, Pair<V> b) { return {smaller(a.low, b.low), smaller(a.high, b.high)}; }
template <class V>
ROUNDOFF_WIDE Pair<V> larger(Pair<V> a, Pair<V> b) { return {larger(a.low, b.low), larger(a.high, b.high)}; }

// All bits of a lane where the comparison is true, none elsewhere.
template <class V>
ROUNDOFF_WIDE V where_equal(V a, V b) { return (V)(a == b); }
template <class V>
ROUNDOFF_WIDE V where_less(V a, V b) { return (V)(a < b); }
template <class V>
ROUNDOFF_WIDE Pair<V> where_equal(Pair<V> a, Pair<V> b) { return {where_equal(a.low, b.low), where_equal(a.high, b.high)}; }
template <class V>
ROUNDOFF_WIDE Pair<V> where_less(Pair<V> a, Pair<V> b) { return {where_less(a.low, b.low), where_less(a.high, b.high)}; }

// ---- single lanes ---------------------------------------------------------------------------------------------------

// The lanes of a vector in memory; of a copy, so that the vector itself can stay in a register.
template <class T>
struct Lanes {
  T at[64 / sizeof(T)];
  T operator[](int i) const { return at[i]; }
};
template <class T, class V>
ROUNDOFF_WIDE Lanes<T> lanes_of(V x) {
  static_assert(sizeof x == 64, "a whole vector");
  Lanes<T> lanes;
  std::memcpy(&lanes, &x, sizeof lanes);
  return lanes;
}

ROUNDOFF_WIDE void add_to_lane(d8& x, int i, double value) {
  char* at = reinterpret_cast<char*>(&x) + i * sizeof value;
  double sum;
  std::memcpy(&sum, at, sizeof sum);
  sum += value;
  std::memcpy(at, &sum, sizeof sum);
}

// ---- what each instruction set does in its own way ------------------------------------------------------------------

ROUNDOFF_WIDE d8 load_wide(const double* from) { return load<d8>(from); }

#if defined(__AVX512F__)
ROUNDOFF_WIDE d8 load_wide(const float* from) { return (d8)_mm512_cvtps_pd(_mm256_loadu_ps(from)); }
#elif defined(__AVX2__)
ROUNDOFF_WIDE d8 load_wide(const float* from) {
  using Half = Native<double, 32>::type;
  return {(Half)_mm256_cvtps_pd(_mm_loadu_ps(from)), (Half)_mm256_cvtps_pd(_mm_loadu_ps(from + 4))};
}
#else
ROUNDOFF_WIDE Native<double, 16>::type two_wide(const float* from) {
  return __builtin_convertvector(load<Native<float, 8>::type>(from), Native<double, 16>::type);
}
ROUNDOFF_WIDE d8 load_wide(const float* from) {
  return {{two_wide(from), two_wide(from + 2)}, {two_wide(from + 4), two_wide(from + 6)}};
}
#endif

// Products of the low 32 bits of each lane.
#if defined(__AVX512F__)
ROUNDOFF_WIDE u8 multiply_low(u8 a, u8 b) { return (u8)_mm512_mul_epu32((__m512i)a, (__m512i)b); }
#else
template <class V>
ROUNDOFF_WIDE V multiply_low(V a, V b) {
#if defined(__AVX2__)
  return (V)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
  return (V)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
  return (a & 0xffffffffull) * b;
#endif
}
template <class V>
ROUNDOFF_WIDE Pair<V> multiply_low(Pair<V> a, Pair<V> b) {
  return {multiply_low(a.low, b.low), multiply_low(a.high, b.high)};
}
#endif

// The upper 32 bits of each lane, moved down.
template <class V>
ROUNDOFF_WIDE V upper_half(V x) { return x >> 32; }
template <class V>
ROUNDOFF_WIDE Pair<V> upper_half(Pair<V> x) { return {upper_half(x.low), upper_half(x.high)}; }

}  // namespace
}  // namespace ROUNDOFF_ISA
}  // namespace roundoff
