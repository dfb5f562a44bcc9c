// The loops behind summarize, written once with vectors of 64 bytes (wide.h) and compiled for each instruction set.
//
// A tensor is walked in its logical order in chunks of 1024 elements that stay in the first cache: each chunk is hashed,
// its numbers are added up in eight or sixteen fixed lanes, and its sketch is taken. Lanes are the same on every
// machine, and products of fp32 and narrower are exact in fp64 (contracted or not), so their sums are the same too.
#include "summarize.h"

#include "wide.h"

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

constexpr int kChunk = 1024;

ROUNDOFF_WIDE d8 absolute(d8 x) { return bits_as<d8>(bits_as<u8>(x) & all<u8>(0x7fffffffffffffffull)); }

// ---- hash -----------------------------------------------------------------------------------------------------------

// Weighted sum of at most 1024 words; words that are not there count as 0.
uint64_t hash_block(const char* words, int num_words) {
  const Tables& t = tables();
  u8 even = {}, odd = {};
  int i = 0;
  for (; i + 16 <= num_words; i += 16) {
    const u8 pair = load<u8>(words + 4 * i);
    even += multiply_low(pair, load<u8>(t.even_weights + i / 2));
    odd += multiply_low(upper_half(pair), load<u8>(t.odd_weights + i / 2));
  }
  even += odd;
  uint64_t sum = 0;
  for (uint64_t each : lanes_of<uint64_t>(even).at) sum += each;
  for (; i < num_words; ++i) {
    uint32_t word;
    std::memcpy(&word, words + 4 * i, 4);
    sum += word * (i % 2 ? t.odd_weights[i / 2] : t.even_weights[i / 2]);
  }
  return sum;
}

// ---- numbers --------------------------------------------------------------------------------------------------------

struct Numbers {
  d8 sum = {}, sum_abs = {}, sum_squares = {};
  double min = __builtin_inf(), max = -__builtin_inf();
  int64_t num_nan = 0, num_posinf = 0, num_neginf = 0, num_zero = 0, num_subnormal = 0;
};

template <class T>
struct Bits;
template <>
struct Bits<float> {
  using word = uint32_t;
  using lanes = u16;
  using values = f16;
  static constexpr word magnitude = 0x7fffffffu, infinity = 0x7f800000u;
};
template <>
struct Bits<double> {
  using word = uint64_t;
  using lanes = u8;
  using values = d8;
  static constexpr word magnitude = 0x7fffffffffffffffull, infinity = 0x7ff0000000000000ull;
};

template <class T>
inline typename Bits<T>::word magnitude_bits(T x) {
  typename Bits<T>::word bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits & Bits<T>::magnitude;
}

// What a loop over values may do besides adding them up: nothing, or a part of the sketch.
struct Nothing {
  void add(d8, int) {}
};

// Adds the first `n` values, a multiple of 16; false, and `into` as it was, if they cannot all be finite.
template <class T, class Extra>
bool add_finite(const T* x, int n, typename Bits<T>::word smallest_normal, Numbers& into, Extra& extra) {
  using B = Bits<T>;
  using V = typename B::values;
  using W = typename B::lanes;
  constexpr int lanes = sizeof(V) / sizeof(T);
  d8 sum[2] = {}, sum_abs[2] = {}, sum_squares[2] = {};
  V low = load<V>(x), high = low;
  const W magnitude = all<W>(B::magnitude);
  W least = bits_as<W>(low) & magnitude;
  for (int i = 0; i < n; i += 16) {
    __builtin_prefetch(x + i + kChunk);  // the next chunk: the processor's own prefetching stops at a page's end
    for (int part = 0; part < 16; part += lanes) {
      const V v = load<V>(x + i + part);
      low = smaller(v, low);
      high = larger(v, high);
      least = smaller(bits_as<W>(v) & magnitude, least);
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const d8 v = load_wide(x + i + 8 * half);
      sum[half] += v;
      sum_abs[half] += absolute(v);
      sum_squares[half] += v * v;
      extra.add(v, half);
    }
  }
  double total = 0;  // NaN or infinite if one value is, or if squares of large fp64 values are
  const auto squares = lanes_of<double>(sum_squares[0]), more_squares = lanes_of<double>(sum_squares[1]);
  for (int i = 0; i < 8; ++i) total += squares[i] + more_squares[i];
  if (!(total < __builtin_inf())) return false;
  typename B::word smallest = ~(typename B::word)0;
  for (typename B::word each : lanes_of<typename B::word>(least).at) smallest = smaller(each, smallest);
  for (T each : lanes_of<T>(low).at) into.min = smaller<double>(each, into.min);
  for (T each : lanes_of<T>(high).at) into.max = larger<double>(each, into.max);
  into.sum += sum[0] + sum[1];
  into.sum_abs += sum_abs[0] + sum_abs[1];
  into.sum_squares += sum_squares[0] + sum_squares[1];
  if (smallest < smallest_normal) {  // rare for weights, usual after a ReLU: one more look at the cached chunk
    const W limit = all<W>(smallest_normal);
    W zeros = {}, small = {};
    for (int i = 0; i < n; i += lanes) {
      const W m = load<W>(x + i) & magnitude;
      zeros -= where_equal(m, W{});
      small -= where_less(m, limit);
    }
    const auto num_zero = lanes_of<typename B::word>(zeros), num_small = lanes_of<typename B::word>(small);
    for (int i = 0; i < lanes; ++i) {
      into.num_zero += num_zero[i];
      into.num_subnormal += num_small[i] - num_zero[i];
    }
  }
  return true;
}

template <class T>
void add_one(T x, int at, typename Bits<T>::word smallest_normal, Numbers& into) {
  const auto m = magnitude_bits(x);
  if (m >= Bits<T>::infinity) {
    if (m > Bits<T>::infinity) ++into.num_nan;
    else if (x > 0) ++into.num_posinf;
    else ++into.num_neginf;
    return;
  }
  into.num_zero += m == 0;
  into.num_subnormal += m != 0 && m < smallest_normal;
  const double v = x;
  into.min = smaller(v, into.min);
  into.max = larger(v, into.max);
  add_to_lane(into.sum, at, v);
  add_to_lane(into.sum_abs, at, __builtin_fabs(v));
  add_to_lane(into.sum_squares, at, v * v);
}

// Adds one chunk. Returns where its finite values stand: `x` itself, or `spare` with 0 in place of NaN and infinity.
template <class T>
const T* add_chunk(const T* x, int n, typename Bits<T>::word smallest_normal, T* spare, Numbers& into) {
  using B = Bits<T>;
  const int body = n & ~15;
  Nothing nothing;
  if (body && add_finite(x, body, smallest_normal, into, nothing)) {
    bool finite = true;
    for (int i = body; i < n; ++i) {
      add_one(x[i], i & 7, smallest_normal, into);
      finite &= magnitude_bits(x[i]) < B::infinity;
    }
    if (finite) return x;
  } else {
    for (int i = 0; i < n; ++i) add_one(x[i], i & 7, smallest_normal, into);
  }
  for (int i = 0; i < n; ++i) spare[i] = magnitude_bits(x[i]) < B::infinity ? x[i] : T(0);
  return spare;
}

// ---- sketch ---------------------------------------------------------------------------------------------------------
//
// An element stands at (outer o, channel c, inner l). It goes, with a sign of its own, into bucket (c + o + l) mod 8, and
// with weight c + 1 into the bucket's twin. If two tensors differ in one channel only, the quotient of the differences of
// twin and bucket is that channel's number plus one. Where a channel has few elements together (inner < 64: small
// pictures, convolution weights), all of (c, l) are one row of places, otherwise l is.
//
// Signs are the bits of scrambled numbers: every row begins a new number, 64 places share one. They never repeat, so no
// difference, however regular, adds up with itself.

constexpr int kShortInner = 64;
constexpr int kSignWords = kChunk / 64 + 1;  // as many as a chunk can touch
constexpr uint64_t kFirstSignWord = 1ull << 62;

struct Shape3 {
  int64_t channels, inner;
  bool by_rows() const { return inner < kShortInner; }
  int64_t row() const { return channels * inner; }
};

// The signs of the places of row `row` from `place` on, as far as a chunk goes; a bit that is set means minus.
class Signs {
 public:
  Signs(int64_t row, int64_t row_length, int64_t place, int num) : place_(place) {
    const uint64_t first = kFirstSignWord + uint64_t(row * ((row_length + 63) >> 6) + (place >> 6));
    const int num_words = int(((place & 63) + num + 63) >> 6);
    for (int i = 0; i < num_words; ++i) words_[i] = splitmix64(first + uint64_t(i));
  }

  // Those of the eight places from `from_start` after the first on; it stands at a multiple of eight.
  uint8_t eight(int from_start) const { return bytes()[((place_ & 63) + from_start) >> 3]; }

  // Those of each eight in turn, where the first place is a multiple of 64.
  const uint8_t* bytes() const { return reinterpret_cast<const uint8_t*>(words_); }

  double one(int from_start) const {
    const int64_t at = (place_ & 63) + from_start;
    return words_[at >> 6] >> (at & 63) & 1 ? -1.0 : 1.0;
  }

 private:
  int64_t place_;
  uint64_t words_[kSignWords];
};

#if !defined(__AVX512DQ__)
constexpr uint64_t kMinus = 1ull << 63;
#define ROUNDOFF_FOUR(i) {i & 1 ? kMinus : 0, i & 2 ? kMinus : 0, i & 4 ? kMinus : 0, i & 8 ? kMinus : 0}
alignas(64) constexpr uint64_t kFourSigns[16][4] = {
    ROUNDOFF_FOUR(0), ROUNDOFF_FOUR(1), ROUNDOFF_FOUR(2), ROUNDOFF_FOUR(3), ROUNDOFF_FOUR(4), ROUNDOFF_FOUR(5),
    ROUNDOFF_FOUR(6), ROUNDOFF_FOUR(7), ROUNDOFF_FOUR(8), ROUNDOFF_FOUR(9), ROUNDOFF_FOUR(10), ROUNDOFF_FOUR(11),
    ROUNDOFF_FOUR(12), ROUNDOFF_FOUR(13), ROUNDOFF_FOUR(14), ROUNDOFF_FOUR(15)};
#undef ROUNDOFF_FOUR
#endif

inline d8 with_signs(d8 x, uint8_t signs) {
#if defined(__AVX512DQ__)
  return (d8)_mm512_mask_xor_pd((__m512d)x, signs, (__m512d)x, _mm512_set1_pd(-0.0));
#else
  using Half = decltype(u8::low);
  return bits_as<d8>(bits_as<u8>(x) ^ u8{load<Half>(kFourSigns[signs & 15]), load<Half>(kFourSigns[signs >> 4])});
#endif
}

// The sketch of a stretch of one channel, taken while its numbers are added up.
struct InnerSums {
  const uint8_t* signs;
  d8 sums[2] = {};
  void add(d8 v, int half) { sums[half] += with_signs(v, *signs++); }
};

inline d8 rotate(d8 x, int64_t by) {
  double twice[16];
  std::memcpy(twice, &x, sizeof x);
  std::memcpy(twice + 8, &x, sizeof x);
  return load<d8>(twice + ((8 - (by & 7)) & 7));
}

// A product that is rounded before anything is added to it. Its factors have too many bits for an exact product, so
// contracting it would give other sums where the processor has fused additions than where it has none.
inline d8 rounded_product(d8 a, double b) {
  d8 product = a * all<d8>(b);
  asm("" : "+m"(product));
  return product;
}

struct Sketch {
  d8 plain = {}, weighted = {};

  // Adds what a stretch of channel `c` summed up to, lane by lane.
  void add_run(d8 sum, int64_t o, int64_t c) {
    const d8 turned = rotate(sum, c + o);
    plain += turned;
    weighted += rounded_product(turned, double(c + 1));
  }

  // Adds what a row, or a part of it, summed up to.
  void add_row(d8 sum, d8 sum_weighted, int64_t o) {
    plain += rotate(sum, o);
    weighted += rotate(sum_weighted, o);
  }
};

template <class T>
void sketch_inner(const T* x, int n, int64_t start, Shape3 shape, Sketch& into) {
  const int64_t plane = shape.channels * shape.inner;
  int64_t o = start / plane, c = start % plane / shape.inner, l = start % shape.inner;
  while (n > 0) {
    const int run = shape.inner - l < n ? int(shape.inner - l) : n;
    const Signs signs(o * shape.channels + c, shape.inner, l, run);
    d8 sum = {}, other = {};  // two, so that one addition need not wait for the last
    double edge[8] = {};
    bool edged = false;
    int i = 0;
    const int offset = int(l & 7);
    for (; i < run && ((offset + i) & 7); ++i) edge[offset + i] += x[i] * signs.one(i), edged = true;
    for (; i + 16 <= run; i += 16) {
      sum += with_signs(load_wide(x + i), signs.eight(i));
      other += with_signs(load_wide(x + i + 8), signs.eight(i + 8));
    }
    for (; i + 8 <= run; i += 8) sum += with_signs(load_wide(x + i), signs.eight(i));
    sum += other;
    for (; i < run; ++i) edge[(offset + i) & 7] += x[i] * signs.one(i), edged = true;
    if (edged) sum += load<d8>(edge);
    into.add_run(sum, o, c);
    x += run;
    n -= run;
    l = 0;
    if (++c == shape.channels) c = 0, ++o;
  }
}

// The weights of a row of places: those of the tables, which repeat, or its own where places are not channels.
class RowWeights {
 public:
  explicit RowWeights(Shape3 shape) {
    if (shape.inner == 1 || !shape.by_rows()) return;
    const int64_t row = shape.row();
    own_ = static_cast<double*>(__builtin_malloc(row * sizeof(double)));
    int64_t i = 0;
    for (int64_t c = 0; c < shape.channels; ++c)
      for (int64_t l = 0; l < shape.inner; ++l, ++i)
        own_[i] = double(c + 1);
  }
  ~RowWeights() { __builtin_free(own_); }
  RowWeights(const RowWeights&) = delete;

  // The weights from `place` in the period that begins at `base` on; without own ones, each less `base`.
  const double* at(int64_t base, int64_t place) const {
    return own_ ? own_ + base + place : tables().channel_weights + place;
  }
  double missing(int64_t base) const { return own_ ? 0.0 : double(base); }

 private:
  double* own_ = nullptr;
};

template <class T>
void sketch_rows(const T* x, int n, int64_t start, int64_t row, const RowWeights& row_weights, Sketch& into) {
  int64_t o = start / row, c = start % row;
  while (n > 0) {  // one row, or the part of it that shares a period of weights
    const int64_t place = c & (kPeriod - 1), base = c - place;
    int64_t end = row - base < kPeriod ? row - base : kPeriod;
    const int run = end - place < n ? int(end - place) : n;
    const Signs signs(o, row, c, run);
    const double* weights = row_weights.at(base, place);
    d8 plain[2] = {}, weighted[2] = {};
    double edge[8] = {}, edge_weighted[8] = {};
    bool edged = false;
    int i = 0;
    auto one = [&](int at) {
      const double v = x[at] * signs.one(at);
      edge[(place + at) & 7] += v;
      edge_weighted[(place + at) & 7] += v * weights[at];
      edged = true;
    };
    auto eight = [&](int at, int which) {
      const d8 v = with_signs(load_wide(x + at), signs.eight(at));
      plain[which] += v;
      weighted[which] += v * load<d8>(weights + at);
    };
    for (; i < run && ((place + i) & 7); ++i) one(i);
    for (; i + 16 <= run; i += 16) eight(i, 0), eight(i + 8, 1);
    if (i + 8 <= run) eight(i, 0), i += 8;
    for (; i < run; ++i) one(i);
    d8 sum = plain[0] + plain[1], sum_weighted = weighted[0] + weighted[1];
    if (edged) sum += load<d8>(edge), sum_weighted += load<d8>(edge_weighted);
    if (const double missing = row_weights.missing(base)) sum_weighted += rounded_product(sum, missing);
    into.add_row(sum, sum_weighted, o);
    x += run;
    n -= run;
    c += run;
    if (c == row) c = 0, ++o;
  }
}

// ---- reading --------------------------------------------------------------------------------------------------------

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
  for (; i < n; ++i) out[i] = half_to_float(load<uint16_t>(raw + 2 * i));
}

template <class From, class To>
void convert(const char* raw, int n, To* out) {
  for (int i = 0; i < n; ++i) out[i] = To(load<From>(raw + sizeof(From) * i));
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

// The channel is the second dimension of four and more, the last of fewer; a long vector is cut into at most 1024
// stretches of a multiple of 1024 elements.
Shape3 channels_of(const View& view, int64_t total) {
  if (view.num_dims >= 4) {
    int64_t inner = 1;
    for (int d = 2; d < view.num_dims; ++d) inner *= view.shape[d];
    return {view.shape[1], inner};
  }
  if (view.num_dims >= 2) return {view.shape[view.num_dims - 1], 1};
  if (total <= kPeriod) return {total ? total : 1, 1};
  const int64_t stretch = kChunk * ((total + kChunk * kPeriod - 1) / (kChunk * kPeriod));
  return {(total + stretch - 1) / stretch, stretch};
}

template <class T>
void count_exponents(const T* x, int n, uint32_t* histogram) {
  constexpr int mantissa = sizeof(T) == 4 ? 23 : 52, bias = sizeof(T) == 4 ? 127 : 1023;
  for (int i = 0; i < n; ++i) {
    const auto m = magnitude_bits(x[i]);
    if (m == 0) continue;
    const int bucket = (int(m >> mantissa) - bias + 48) >> 1;
    ++histogram[bucket < 0 ? 0 : bucket > 31 ? 31 : bucket];
  }
}

template <class T>
struct Summary {
  typename Bits<T>::word smallest_normal;
  Shape3 shape;
  uint32_t* histogram;
  RowWeights row_weights;
  Numbers numbers;
  Sketch sketch;
  T spare[kChunk];

  Summary(typename Bits<T>::word smallest_normal, Shape3 shape, uint32_t* histogram)
      : smallest_normal(smallest_normal), shape(shape), histogram(histogram), row_weights(shape) {}

  void add(const T* x, int n, int64_t start) {
    if (n == kChunk && add_stretch(x, start)) return;
    const T* finite = add_chunk(x, n, smallest_normal, spare, numbers);
    if (shape.by_rows()) sketch_rows(finite, n, start, shape.row(), row_weights, sketch);
    else sketch_inner(finite, n, start, shape, sketch);
    if (histogram) count_exponents(finite, n, histogram);
  }

  // Adds a whole chunk that lies within one channel, numbers and sketch at once; false if it cannot be done so, or is
  // not all finite.
  bool add_stretch(const T* x, int64_t start) {
    if (shape.inner % kChunk) return false;
    const int64_t stretch = start / shape.inner, o = stretch / shape.channels, c = stretch % shape.channels;
    const int64_t l = start % shape.inner;
    const Signs signs(stretch, shape.inner, l, kChunk);
    InnerSums sums{signs.bytes()};
    if (!add_finite(x, kChunk, smallest_normal, numbers, sums)) return false;
    sketch.add_run(sums.sums[0] + sums.sums[1], o, c);
    if (histogram) count_exponents(x, kChunk, histogram);
    return true;
  }

  void write(double* row) const {
    const Numbers& a = numbers;
    const bool any = a.min <= a.max;
    row[MIN] = any ? a.min : __builtin_nan("");
    row[MAX] = any ? a.max : __builtin_nan("");
    row[SUM] = row[SUM_ABS] = row[SUM_SQUARES] = 0;
    for (int i = 0; i < 8; ++i) {
      row[SUM] += lanes_of<double>(a.sum)[i];
      row[SUM_ABS] += lanes_of<double>(a.sum_abs)[i];
      row[SUM_SQUARES] += lanes_of<double>(a.sum_squares)[i];
      row[SKETCH + i] = lanes_of<double>(sketch.plain)[i];
      row[SKETCH + kBuckets + i] = lanes_of<double>(sketch.weighted)[i];
    }
    row[NUM_NAN] = double(a.num_nan);
    row[NUM_POSINF] = double(a.num_posinf);
    row[NUM_NEGINF] = double(a.num_neginf);
    row[NUM_ZERO] = double(a.num_zero);
    row[NUM_SUBNORMAL] = double(a.num_subnormal);
  }
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
        const uint32_t bits = uint32_t(load<uint16_t>(raw + 2 * i)) << 16;
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

template <class T>
void walk(const View& view, typename Bits<T>::word smallest_normal, double* row, uint32_t* histogram) {
  Chunks chunks(view);
  const int64_t total = chunks.total();
  Summary<T> summary(smallest_normal, channels_of(view, total), histogram);
  alignas(64) char gathered[kChunk * 8];
  alignas(64) uint32_t words[kChunk];
  alignas(64) T values[kChunk];
  const int words_each = element_size(view.dtype) == 8 ? 2 : 1;
  uint64_t hash = 0, block = 0;
  for (int64_t start = 0; start < total; start += kChunk) {
    const int n = total - start < kChunk ? int(total - start) : kChunk;
    const char* raw = chunks.next(n, gathered);
    const char* bits = words_of(view.dtype, raw, n, words);
    for (int left = n * words_each; left > 0; left -= kPeriod, bits += 4 * kPeriod)
      hash += hash_block(bits, left < kPeriod ? left : kPeriod) * block_weight(block++);
    summary.add(values_of(view.dtype, raw, n, values), n, start);
  }
  summary.write(row);
  std::memcpy(row + HASH, &hash, sizeof hash);
}

}  // namespace

void summarize(const View& view, double* row, uint32_t* histogram) {
  switch (view.dtype) {
    case Dtype::f32: case Dtype::bf16: return walk<float>(view, 0x00800000u, row, histogram);
    case Dtype::f16: return walk<float>(view, 0x38800000u, row, histogram);
    case Dtype::f64: return walk<double>(view, 0x0010000000000000ull, row, histogram);
    default: return walk<double>(view, 1, row, histogram);  // integers have no subnormals
  }
}

}  // namespace ROUNDOFF_ISA
}  // namespace roundoff
