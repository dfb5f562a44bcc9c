// Vectors as wide as the instruction set allows, and the codecs that bring every dtype into them.
//
// Everything is integer arithmetic on bit patterns, or floating-point arithmetic whose operands and results are normal
// numbers or zero, so that flushing subnormals (torch.set_flush_denormal) changes nothing.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>  // intrinsics are always inlined: none is emitted for a wider instruction set
#endif

#define ROUNDOFF_INLINE inline __attribute__((always_inline))

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX2__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif

typedef uint32_t U32 __attribute__((vector_size(kBytes)));
typedef int32_t I32 __attribute__((vector_size(kBytes)));
typedef float F32 __attribute__((vector_size(kBytes)));
typedef uint64_t U64 __attribute__((vector_size(kBytes)));
typedef int64_t I64 __attribute__((vector_size(kBytes)));
typedef double F64 __attribute__((vector_size(kBytes)));
typedef uint16_t U16Of32 __attribute__((vector_size(kBytes / 2)));  // as many lanes as U32
typedef uint8_t U8Of32 __attribute__((vector_size(kBytes / 4)));
typedef uint32_t U32Of64 __attribute__((vector_size(kBytes / 2)));  // as many lanes as U64
typedef uint16_t U16Of64 __attribute__((vector_size(kBytes / 4)));

constexpr uint32_t kInf32 = 0x7f800000u;
constexpr uint64_t kInf64 = 0x7ff0000000000000ull;

template <class To, class From>
ROUNDOFF_INLINE To bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <class Vector, class T>
ROUNDOFF_INLINE Vector load(const T* from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class Vector, class T>
ROUNDOFF_INLINE void store(T* to, Vector v) {
  std::memcpy(to, &v, sizeof v);
}

// The low byte of every lane, where the bytes above it are 0. (Compilers turn a plain conversion into one move per lane.)
ROUNDOFF_INLINE U8Of32 bytes_of(U32 v) {
#if defined(__AVX512F__)
  return (U8Of32)_mm512_cvtepi32_epi8((__m512i)v);
#elif defined(__AVX2__)
  const __m256i words = _mm256_packus_epi32((__m256i)v, (__m256i)v);  // 0-3, 0-3, 4-7, 4-7
  const __m256i bytes = _mm256_packus_epi16(words, words);
  const int halves[] = {_mm256_extract_epi32(bytes, 0), _mm256_extract_epi32(bytes, 4)};
  return load<U8Of32>(halves);
#else
  return __builtin_convertvector(v, U8Of32);
#endif
}

// Writes past the caches: a result larger than they are would only evict other data.
template <class T>
ROUNDOFF_INLINE void store_streaming(T* to, U32 v) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)v);
#elif defined(__AVX2__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)v);
#elif defined(__x86_64__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)v);
#else
  store(to, v);
#endif
}

ROUNDOFF_INLINE void finish_streaming() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// Codecs into 32-bit lanes: the fp32 bit pattern of each value. `narrow` expects a value the dtype holds exactly.
struct Fp32In32 {
  using Word = uint32_t;
  static ROUNDOFF_INLINE U32 widen(const Word* from) { return load<U32>(from); }
  static ROUNDOFF_INLINE U32 narrow(U32 v) { return v; }
};

struct Bf16In32 {
  using Word = uint16_t;
  static ROUNDOFF_INLINE U32 widen(const Word* from) {
    return __builtin_convertvector(load<U16Of32>(from), U32) << 16;
  }
  static ROUNDOFF_INLINE U16Of32 narrow(U32 v) { return __builtin_convertvector(v >> 16, U16Of32); }
};

struct Fp16In32 {
  using Word = uint16_t;
  static ROUNDOFF_INLINE U32 widen(const Word* from) {
    const U32 h = __builtin_convertvector(load<U16Of32>(from), U32);
    const U32 a = h & 0x7fffu, sign = (h & 0x8000u) << 16;
    const U32 subnormal = (U32)(__builtin_convertvector((I32)a, F32) * 0x1p-24f);
    U32 v = (a << 13) + (112u << 23);
    v = (I32)a >= 0x7c00 ? (a << 13) + (224u << 23) : v;
    v = (I32)a < 0x0400 ? subnormal : v;
    return v | sign;
  }
  static ROUNDOFF_INLINE U16Of32 narrow(U32 v) {
    const U32 a = v & 0x7fffffffu, sign = (v >> 16) & 0x8000u;
    const U32 small = (I32)a < (113 << 23) ? a : a ^ a;
    const U32 subnormal = (U32)__builtin_convertvector((F32)small * 0x1p24f, I32);
    U32 h = (a - (112u << 23)) >> 13;
    h = (I32)a >= (I32)(U32{} + kInf32) ? (a - (224u << 23)) >> 13 : h;
    h = (I32)a < (113 << 23) ? subnormal : h;
    return __builtin_convertvector(h | sign, U16Of32);
  }
};

// Codecs into 64-bit lanes: the fp64 bit pattern. In fp64 no value of the narrower dtypes is subnormal.
constexpr uint64_t kTwo52 = 0x4330000000000000ull;  // 2^52: its low bits count in ones

ROUNDOFF_INLINE U64 exact_product(U64 count, double unit) { return (U64)(((F64)(count | kTwo52) - 0x1p52) * unit); }

ROUNDOFF_INLINE U64 exact_quotient(U64 v, double per_unit) {
  return (U64)((F64)v * per_unit + 0x1p52) & ((1ull << 52) - 1);
}

// A dtype with `Mantissa` bits and the exponent bias `Bias`, zero-extended in `a` without its sign.
template <int Mantissa, int Bias>
ROUNDOFF_INLINE U64 widen_to_64(U64 a, double smallest) {
  constexpr int kShift = 52 - Mantissa;
  constexpr uint64_t kRebias = uint64_t(1023 - Bias) << 52;
  U64 v = (a << kShift) + kRebias;
  v = (I64)a >= (I64)(U64{} + (uint64_t(2 * Bias + 1) << Mantissa)) ? (a << kShift) + 2 * kRebias : v;
  return (I64)a < (I64)(U64{} + (1ull << Mantissa)) ? exact_product(a, smallest) : v;
}

template <int Mantissa, int Bias>
ROUNDOFF_INLINE U64 narrow_from_64(U64 a, double per_smallest) {
  constexpr int kShift = 52 - Mantissa;
  constexpr uint64_t kRebias = uint64_t(1023 - Bias) << 52;
  const I64 below = (I64)a < (I64)(U64{} + kRebias + (1ull << 52));
  U64 v = (a - kRebias) >> kShift;
  v = (I64)a >= (I64)(U64{} + kInf64) ? (a - 2 * kRebias) >> kShift : v;
  return below ? exact_quotient(below ? a : a ^ a, per_smallest) : v;
}

struct Fp64In64 {
  using Word = uint64_t;
  static ROUNDOFF_INLINE U64 widen(const Word* from) { return load<U64>(from); }
  static ROUNDOFF_INLINE U64 narrow(U64 v) { return v; }
};

struct Fp32In64 {
  using Word = uint32_t;
  static ROUNDOFF_INLINE U64 widen(const Word* from) {
    const U64 v = __builtin_convertvector(load<U32Of64>(from), U64);
    return widen_to_64<23, 127>(v & 0x7fffffffu, 0x1p-149) | (v >> 31) << 63;
  }
  static ROUNDOFF_INLINE U32Of64 narrow(U64 v) {
    return __builtin_convertvector(narrow_from_64<23, 127>(v & ~(1ull << 63), 0x1p149) | (v >> 63) << 31, U32Of64);
  }
};

struct Bf16In64 {
  using Word = uint16_t;
  static ROUNDOFF_INLINE U64 widen(const Word* from) {
    const U64 v = __builtin_convertvector(load<U16Of64>(from), U64);
    return widen_to_64<7, 127>(v & 0x7fffu, 0x1p-133) | (v >> 15) << 63;
  }
  static ROUNDOFF_INLINE U16Of64 narrow(U64 v) {
    return __builtin_convertvector(narrow_from_64<7, 127>(v & ~(1ull << 63), 0x1p133) | (v >> 63) << 15, U16Of64);
  }
};

struct Fp16In64 {
  using Word = uint16_t;
  static ROUNDOFF_INLINE U64 widen(const Word* from) {
    const U64 v = __builtin_convertvector(load<U16Of64>(from), U64);
    return widen_to_64<10, 15>(v & 0x7fffu, 0x1p-24) | (v >> 15) << 63;
  }
  static ROUNDOFF_INLINE U16Of64 narrow(U64 v) {
    return __builtin_convertvector(narrow_from_64<10, 15>(v & ~(1ull << 63), 0x1p24) | (v >> 63) << 15, U16Of64);
  }
};

}  // namespace
}  // namespace ROUNDOFF_ISA
}  // namespace roundoff
