// The loop of difference. Both tensors are walked in chunks that stay in the L1 cache, and summed in sixteen
// fixed lanes, so that every instruction set gets the same sums. A chunk that is not all finite is walked again.
#include "difference.h"

#include "lanes.h"

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

constexpr int kSums = 16;

struct Sums {
  double square[kSums] = {}, first[kSums] = {}, second[kSums] = {}, product[kSums] = {}, largest[kSums] = {};
  double num_different[kSums] = {};
};

double added(const double* lanes) {
  double sum = 0;
  for (int lane = 0; lane < kSums; ++lane) sum += lanes[lane];
  return sum;
}

template <class T>
void add(const T* a, const T* b, Sums& to) {
  for (int i = 0; i < kChunk; i += kSums) {
    for (int lane = 0; lane < kSums; ++lane) {
      const double x = a[i + lane], y = b[i + lane], apart = y - x;
      const double magnitude = __builtin_fabs(apart);
      to.square[lane] += apart * apart;
      to.first[lane] += x * x;
      to.second[lane] += y * y;
      to.product[lane] += x * y;
      to.largest[lane] = magnitude > to.largest[lane] ? magnitude : to.largest[lane];
      to.num_different[lane] += apart != 0 ? 1.0 : 0.0;
    }
  }
}

// 0 for finite numbers, and another number for NaN, +inf and -inf each.
template <class T>
int kind_of(T x) {
  return x - x == 0 ? 0 : x != x ? 1 : x > 0 ? 2 : 3;
}

template <class T>
class Walk {
 public:
  explicit Walk(double* row) : row_(row) {
    for (int place = 0; place < DIFFERENCE_WIDTH; ++place) row[place] = 0;
    row[LARGEST_AT] = row[FIRST_UNLIKE] = -1;
  }

  // Adds a chunk; what is beyond its end is 0 in both. Values that are not finite are replaced in place.
  void chunk(T* a, T* b, int64_t start) {
    Sums sums;
    add(a, b, sums);
    if (!(added(sums.first) + added(sums.second) < __builtin_inf())) {
      replace_bad(a, b, start);
      sums = Sums();
      add(a, b, sums);
    }
    row_[SQUARE] += added(sums.square);
    row_[SQUARE_OF_FIRST] += added(sums.first);
    row_[SQUARE_OF_SECOND] += added(sums.second);
    row_[PRODUCT] += added(sums.product);
    row_[NUM_DIFFERENT] += added(sums.num_different);
    double largest = 0;
    for (double each : sums.largest) largest = each > largest ? each : largest;
    if (largest > row_[LARGEST]) {
      row_[LARGEST] = largest;
      int at = 0;
      while (__builtin_fabs(double(b[at]) - double(a[at])) != largest) ++at;
      row_[LARGEST_AT] = double(start + at);
    }
  }

 private:
  void replace_bad(T* a, T* b, int64_t start) {
    for (int i = 0; i < kChunk; ++i) {
      const int first = kind_of(a[i]), second = kind_of(b[i]);
      if (!first && !second) continue;
      row_[NUM_BAD_IN_FIRST] += first != 0;
      row_[NUM_BAD_IN_SECOND] += second != 0;
      if (first != second) {
        if (!row_[NUM_UNLIKE]++) row_[FIRST_UNLIKE] = double(start + i);
        ++row_[NUM_DIFFERENT];
      }
      a[i] = b[i] = 0;
    }
  }

  double* row_;
};

template <class Codec>
void widen(const char* from, int n, float* to) {
  constexpr int lanes = sizeof(U32) / 4;
  auto* words = reinterpret_cast<const typename Codec::Word*>(from);
  int i = 0;
  for (; i + lanes <= n; i += lanes) store(to + i, Codec::widen(words + i));
  if (i == n) return;
  typename Codec::Word rest[lanes] = {};
  std::memcpy(rest, words + i, (n - i) * sizeof *words);
  U32 last = Codec::widen(rest);
  std::memcpy(to + i, &last, (n - i) * sizeof(float));
}

void read(Dtype dtype, const char* from, int n, float* to) {
  switch (dtype) {
    case Dtype::bf16: return widen<Bf16In32>(from, n, to);
    case Dtype::f16: return widen<Fp16In32>(from, n, to);
    default: std::memcpy(to, from, n * sizeof(float));
  }
}

void read(Dtype dtype, const char* from, int n, double* to) {
  if (dtype == Dtype::f64) {
    std::memcpy(to, from, n * sizeof(double));
    return;
  }
  alignas(64) float narrow[kChunk];
  read(dtype, from, n, narrow);
  for (int i = 0; i < n; ++i) to[i] = narrow[i];
}

int size_of(Dtype dtype) { return dtype == Dtype::f64 ? 8 : dtype == Dtype::f32 ? 4 : 2; }

template <class T>
void walk(Side first, Side second, int64_t size, double* row) {
  alignas(64) T a[kChunk], b[kChunk];
  const int each[2] = {size_of(first.dtype), size_of(second.dtype)};
  Walk<T> walk(row);
  bool same_bits = first.dtype == second.dtype;
  for (int64_t start = 0; start < size; start += kChunk) {
    const int n = size - start < kChunk ? int(size - start) : kChunk;
    const char *from[2] = {first.data + start * each[0], second.data + start * each[1]};
    same_bits = same_bits && !std::memcmp(from[0], from[1], size_t(n) * each[0]);
    read(first.dtype, from[0], n, a);
    read(second.dtype, from[1], n, b);
    for (int i = n; i < kChunk; ++i) a[i] = b[i] = 0;
    walk.chunk(a, b, start);
  }
  row[SAME_BITS] = same_bits;
}

}  // namespace

void difference(Side first, Side second, int64_t size, double* row) {
  if (first.dtype == Dtype::f64 || second.dtype == Dtype::f64) walk<double>(first, second, size, row);
  else walk<float>(first, second, size, row);
}

}  // namespace ROUNDOFF_ISA
}  // namespace roundoff
