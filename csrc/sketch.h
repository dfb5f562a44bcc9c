// The sketch of a tensor, taken chunk by chunk.
//
// An element has the place (outer o, channel c, inner l). It is added, with its own sign, to bucket (c + o + l) mod 8, and
// with weight c + 1 into the bucket's twin. If two tensors differ in one channel only, the quotient of the differences of
// twin and bucket is that channel's number plus one. Where a channel has few elements together (inner < 64: small
// pictures, convolution weights), all of (c, l) are one row of places, otherwise l is.
//
// Signs are the bits of scrambled numbers: every row begins a new number, 64 places share one. They never repeat, so no
// difference, however regular, adds up with itself.
#pragma once

#include "summarize.h"
#include "wide.h"

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

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

  // The signs of the eight places from `from_start` after the first one, which is at a multiple of eight.
  uint8_t eight(int from_start) const { return bytes()[((place_ & 63) + from_start) >> 3]; }

  // The signs of each eight in turn, where the first place is a multiple of 64.
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

}  // namespace
}  // namespace ROUNDOFF_ISA
}  // namespace roundoff
