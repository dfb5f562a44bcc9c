// The loops of summarize, written once with vectors of 64 bytes (wide.h) and compiled for each instruction set.
//
// A tensor is walked in its logical order in chunks of 1024 elements that stay in the first cache: each chunk is hashed,
// its numbers are added up in eight or sixteen fixed lanes, and its sketch is taken. Lanes are the same on every
// machine, and products of fp32 and narrower are exact in fp64 (contracted or not), so their sums are the same too.
#include "summarize.h"

#include "chunks.h"
#include "sketch.h"
#include "wide.h"

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

ROUNDOFF_WIDE d8 absolute(d8 x) { return bits_as<d8>(bits_as<u8>(x) & all<u8>(0x7fffffffffffffffull)); }

// ---- hash -----------------------------------------------------------------------------------------------------------

// Weighted sum of at most 1024 words; missing words count as 0.
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

// What a loop over values does besides summing them: nothing, or a part of the sketch.
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

// Adds one chunk. Returns the address of its finite values: `x` itself, or `spare` with 0 instead of NaN and infinity.
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

// ---- all of it ------------------------------------------------------------------------------------------------------

constexpr int kExponents = 64, kBucketOfOne = 40;

template <class T>
void count_exponents(const T* x, int n, uint32_t* histogram) {
  constexpr int mantissa = sizeof(T) == 4 ? 23 : 52, bias = sizeof(T) == 4 ? 127 : 1023;
  for (int i = 0; i < n; ++i) {
    const auto m = magnitude_bits(x[i]);
    if (m == 0) continue;
    const int bucket = int(m >> mantissa) - bias + kBucketOfOne;
    ++histogram[bucket < 0 ? 0 : bucket > kExponents - 1 ? kExponents - 1 : bucket];
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

  // Adds a whole chunk that is within one channel, numbers and sketch at once; false if that is impossible, or if not
  // all values are finite.
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
