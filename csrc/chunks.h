// The elements of a tensor in logical order, 1024 at a time, as words for the hash and as floats or doubles.
#pragma once

#include <cstring>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "summarize.h"

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

template <class T>
inline T load_one(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline int element_size(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64: case Dtype::i64: return 8;
    case Dtype::f32: case Dtype::i32: return 4;
    case Dtype::bf16: case Dtype::f16: case Dtype::i16: return 2;
    default: return 1;
  }
}

float half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000u) << 16, rest = half & 0x7fffu;
  uint32_t bits;
  if (rest >= 0x7c00u) bits = 0x7f800000u | (rest & 0x3ffu) << 13;
  else if (rest >= 0x400u) bits = (rest << 13) + (112u << 23);
  else {
    const float small = float(rest) * 0x1p-24f;
    std::memcpy(&bits, &small, 4);
  }
  bits |= sign;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

void halves_to_floats(const char* raw, int n, float* out) {
  int i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(raw + 2 * i))));
#endif
  for (; i < n; ++i) out[i] = half_to_float(load_one<uint16_t>(raw + 2 * i));
}

template <class From, class To>
void convert(const char* raw, int n, To* out) {
  for (int i = 0; i < n; ++i) out[i] = To(load_one<From>(raw + sizeof(From) * i));
}

// Gives the elements of a view in logical order, 1024 at a time, copying only where they are not contiguous.
class Chunks {
 public:
  explicit Chunks(const View& view) : data_(view.data), size_(element_size(view.dtype)) {
    for (int d = 0; d < view.num_dims; ++d) {
      const int64_t extent = view.shape[d], stride = view.stride[d];
      total_ *= extent;
      if (extent == 1) continue;
      if (num_dims_ && stride_[num_dims_ - 1] == stride * extent) {
        shape_[num_dims_ - 1] *= extent;
        stride_[num_dims_ - 1] = stride;
      } else {
        shape_[num_dims_] = extent;
        stride_[num_dims_] = stride;
        index_[num_dims_++] = 0;
      }
    }
    contiguous_ = num_dims_ == 0 || (num_dims_ == 1 && stride_[0] == 1);
  }

  int64_t total() const { return total_; }

  // The next `n` elements; `room` is used when they have to be gathered.
  const char* next(int n, char* room) {
    if (contiguous_) {
      const char* at = data_ + done_ * size_;
      done_ += n;
      return at;
    }
    char* to = room;
    for (int left = n; left > 0;) {
      const int last = num_dims_ - 1;
      int64_t run = shape_[last] - index_[last];
      if (run > left) run = left;
      copy_run(to, data_ + offset() * size_, run, stride_[last]);
      to += run * size_;
      left -= int(run);
      advance(run);
    }
    return room;
  }

 private:
  int64_t offset() const {
    int64_t at = 0;
    for (int d = 0; d < num_dims_; ++d) at += index_[d] * stride_[d];
    return at;
  }

  void advance(int64_t run) {
    int d = num_dims_ - 1;
    index_[d] += run;
    while (d > 0 && index_[d] == shape_[d]) {
      index_[d] = 0;
      ++index_[--d];
    }
  }

  void copy_run(char* to, const char* from, int64_t n, int64_t stride) const {
    if (stride == 1) {
      std::memcpy(to, from, n * size_);
      return;
    }
    switch (size_) {
      case 8: strided<uint64_t>(to, from, n, stride); break;
      case 4: strided<uint32_t>(to, from, n, stride); break;
      case 2: strided<uint16_t>(to, from, n, stride); break;
      default: strided<uint8_t>(to, from, n, stride); break;
    }
  }

  template <class U>
  static void strided(char* to, const char* from, int64_t n, int64_t stride) {
    for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * sizeof(U), from + i * stride * sizeof(U), sizeof(U));
  }

  const char* data_;
  int size_;
  int num_dims_ = 0;
  int64_t shape_[kMaxDims], stride_[kMaxDims], index_[kMaxDims];
  int64_t total_ = 1, done_ = 0;
  bool contiguous_;
};

// Words of a chunk for the hash: itself where an element has four or eight bytes, widened where it has fewer.
const char* words_of(Dtype dtype, const char* raw, int n, uint32_t* room) {
  switch (element_size(dtype)) {
    case 2: convert<uint16_t>(raw, n, room); return (const char*)room;
    case 1: convert<uint8_t>(raw, n, room); return (const char*)room;
    default: return raw;
  }
}

inline const float* values_of(Dtype dtype, const char* raw, int n, float* room) {
  switch (dtype) {
    case Dtype::f32: return (const float*)raw;
    case Dtype::f16: halves_to_floats(raw, n, room); return room;
    default:  // bf16 is the upper half of a float
      for (int i = 0; i < n; ++i) {
        const uint32_t bits = uint32_t(load_one<uint16_t>(raw + 2 * i)) << 16;
        std::memcpy(room + i, &bits, 4);
      }
      return room;
  }
}

inline const double* values_of(Dtype dtype, const char* raw, int n, double* room) {
  switch (dtype) {
    case Dtype::f64: return (const double*)raw;
    case Dtype::i64: convert<int64_t>(raw, n, room); return room;
    case Dtype::i32: convert<int32_t>(raw, n, room); return room;
    case Dtype::i16: convert<int16_t>(raw, n, room); return room;
    case Dtype::i8: convert<int8_t>(raw, n, room); return room;
    default: convert<uint8_t>(raw, n, room); return room;
  }
}

}  // namespace
}  // namespace ROUNDOFF_ISA
}  // namespace roundoff
