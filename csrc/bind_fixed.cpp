// Fixed point for Python: measure, write the scale in place, round; one call per tensor.
#include <nanobind/nanobind.h>

#include <cmath>
#include <cstring>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "fixed_point.h"

namespace nb = nanobind;

namespace roundoff {

constexpr int64_t kLarge = 1 << 15;  // from this many elements on, other Python threads may run meanwhile
constexpr double kSmallestBound = double(1e-5f);
constexpr int kMaxExponent = 127;  // the scale is stored in fp32

// Statistics of the elements that share a scale.
struct Seen {
  double largest = 0, sum = 0, sum_squares = 0;
  int64_t size = 0, num_nonfinite = 0;

  double three_sigma() const {
    const double n = double(size - num_nonfinite), mean = n > 0 ? sum / n : 0;
    const double variance = n > 1 ? (sum_squares - n * mean * mean) / (n - 1) : 0;
    return 3 * std::sqrt(variance > 0 ? variance : 0) + std::fabs(mean);
  }
};

static int64_t width_of(Dtype dtype) { return dtype == Dtype::f64 ? 8 : dtype == Dtype::f32 ? 4 : 2; }

// `word` holds a magnitude in the dtype of the tensor.
static double value_of(uint64_t word, Dtype dtype) {
  if (dtype == Dtype::f64) {
    double value;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }
  if (dtype == Dtype::f16) {
    const int exponent = int(word >> 10), fraction = int(word & 0x3ff);
    return exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
  }
  const uint32_t bits = uint32_t(dtype == Dtype::bf16 ? word << 16 : word);
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

static void look_at(const char* in, int64_t size, Dtype dtype, Range range, Seen& seen) {
  if (range == Range::three_sigma) {
    View view{in, dtype, 1, {size}, {1}};
    double row[kRowWidth];
    ROUNDOFF_PICK(summarize)(view, row, nullptr);
    const int64_t bad = int64_t(row[NUM_NAN] + row[NUM_POSINF] + row[NUM_NEGINF]);
    if (bad < size) seen.largest = std::fmax(seen.largest, std::fmax(-row[MIN], row[MAX]));
    seen.sum += row[SUM];
    seen.sum_squares += row[SUM_SQUARES];
    seen.num_nonfinite += bad;
  } else {
    uint64_t largest = 0;
    int64_t bad = 0;
    ROUNDOFF_PICK(absmax)(in, size, dtype, &largest, &bad);
    seen.largest = std::fmax(seen.largest, value_of(largest, dtype));
    seen.num_nonfinite += bad;
  }
  seen.size += size;
}

static float covering(double bound, bool float_scale) {
  bound = std::fmax(bound, kSmallestBound);
  if (float_scale) return float(bound);
  int exponent;
  if (std::frexp(bound, &exponent) == 0.5) --exponent;
  return float(std::ldexp(1.0, exponent < kMaxExponent ? exponent : kMaxExponent));
}

// Calls work(start, length, scale index) for every run of elements that share a scale.
template <class Work>
static void each_run(int64_t size, const Scaling& scaling, Work work) {
  for (int64_t i = 0, row = 0; i < size; i += scaling.inner, ++row)
    work(i, size - i < scaling.inner ? size - i : scaling.inner, row % scaling.num_scales);
}

// Halves the scales that lose less when they are halved, once or twice.
static void sweep_scales(const float* in, int64_t size, const Scaling& scaling, std::vector<float>& scales) {
  std::vector<double> errors(scales.size() * kCandidates);
  each_run(size, scaling, [&](int64_t start, int64_t n, int64_t c) {
    float steps[kCandidates];
    for (int k = 0; k < kCandidates; ++k) steps[k] = float(scaling.step(std::ldexp(scales[c], -k)));
    ROUNDOFF_PICK(add_rounding_errors)(in + start, n, steps, float(scaling.lowest()), float(scaling.highest()),
                                       &errors[c * kCandidates]);
  });
  for (size_t c = 0; c < scales.size(); ++c) {
    int best = 0;
    for (int k = 1; k < kCandidates; ++k)
      if (errors[c * kCandidates + k] < errors[c * kCandidates + best]) best = k;
    scales[c] = std::ldexp(scales[c], -best);
  }
}

static void write_scales(const void* in, int64_t size, const Scaling& scaling, const std::vector<Seen>& seen) {
  std::vector<float> scales(seen.size());
  for (size_t c = 0; c < seen.size(); ++c)
    scales[c] = covering(scaling.range == Range::three_sigma ? seen[c].three_sigma() : seen[c].largest,
                         scaling.float_scale);
  if (scaling.range == Range::sweep) sweep_scales(static_cast<const float*>(in), size, scaling, scales);
  for (size_t c = 0; c < seen.size(); ++c) {
    float& kept = scaling.scales[c];
    const bool nothing_seen = seen[c].size == seen[c].num_nonfinite && kept > 0;
    if (nothing_seen || (scaling.follow == Follow::at_least && kept > scales[c])) continue;
    kept = scales[c];
  }
}

// Requests large pages for a large new result: touching 64 MB for the first time in small ones takes five times as
// long as rounding into it. From this size on malloc gives every block pages of its own.
static void ask_for_large_pages(void* out, int64_t num_bytes) {
#ifdef __linux__
  constexpr int64_t kLargeBytes = int64_t(32) << 20, kPage = 4096;
  if (num_bytes < kLargeBytes) return;
  const uintptr_t start = (reinterpret_cast<uintptr_t>(out) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(out) + num_bytes) / kPage * kPage;
  madvise(reinterpret_cast<void*>(start), end - start, MADV_HUGEPAGE);
#else
  (void)out, (void)num_bytes;
#endif
}

// Returns twice the number of non-finite elements, plus one if an element is beyond its scale by more than half a step.
static int64_t quantize(const Span& span, const Scaling& scaling, Rounding rounding, uint64_t key) {
  std::vector<Seen> seen(scaling.num_scales);
  const Range range = scaling.follow == Follow::never ? Range::max : scaling.range;
  each_run(span.size, scaling, [&](int64_t start, int64_t n, int64_t c) {
    look_at(static_cast<const char*>(span.in) + start * width_of(span.dtype), n, span.dtype, range, seen[c]);
  });
  if (scaling.follow != Follow::never) write_scales(span.in, span.size, scaling, seen);
  std::vector<double> steps(scaling.num_scales);
  int64_t num_nonfinite = 0;
  bool saturates = false;
  for (size_t c = 0; c < steps.size(); ++c) {
    steps[c] = scaling.step(scaling.scales[c]);
    num_nonfinite += seen[c].num_nonfinite;
    saturates |= seen[c].largest > scaling.scales[c] + steps[c] / 2;
  }
  if (span.out) {
    ask_for_large_pages(span.out, span.size * width_of(span.dtype));
    const Fixed fixed{steps.data(), scaling.num_scales, scaling.inner, scaling.lowest(), scaling.highest()};
    ROUNDOFF_PICK(round_fixed)(span, fixed, rounding, key);
  }
  return 2 * num_nonfinite + saturates;
}

static Scaling scaling_at(uintptr_t scales, int64_t num_scales, int64_t inner, int num_bits, bool nics, int range,
                          bool float_scale, int follow) {
  return {reinterpret_cast<float*>(scales), num_scales, inner, num_bits, nics, Range(range), float_scale,
          Follow(follow)};
}

static int64_t quantize_fixed_at(uintptr_t in, uintptr_t out, int64_t size, int dtype, uintptr_t scales,
                                 int64_t num_scales, int64_t inner, int num_bits, bool nics, int range,
                                 bool float_scale, int follow, int rounding, uint64_t key) {
  const Span span{reinterpret_cast<const void*>(in), reinterpret_cast<void*>(out), size, Dtype(dtype)};
  const Scaling scaling = scaling_at(scales, num_scales, inner, num_bits, nics, range, float_scale, follow);
  if (size < kLarge) return quantize(span, scaling, Rounding(rounding), key);
  nb::gil_scoped_release released;
  return quantize(span, scaling, Rounding(rounding), key);
}

static void mark_beyond_at(uintptr_t in, int64_t size, uintptr_t scales, int64_t num_scales, int64_t inner,
                           int num_bits, uintptr_t bits) {
  const Scaling scaling = scaling_at(scales, num_scales, inner, num_bits, false, 0, false, 0);
  each_run(size, scaling, [&](int64_t start, int64_t n, int64_t c) {
    const double scale = scaling.scales[c];
    ROUNDOFF_PICK(mark_beyond)(reinterpret_cast<const float*>(in) + start, n, float(scale + scaling.step(scale) / 2),
                               reinterpret_cast<uint8_t*>(bits), start);
  });
}

static void zero_marked_at(uintptr_t values, int64_t size, uintptr_t bits) {
  ROUNDOFF_PICK(zero_marked)(reinterpret_cast<float*>(values), size, reinterpret_cast<const uint8_t*>(bits));
}

void bind_fixed(nb::module_& m) {
  m.def("quantize_fixed", &quantize_fixed_at, "Follow the data with the scales, then round to them; `out` may be 0.");
  m.def("mark_beyond", &mark_beyond_at, "Set the bits of fp32 elements beyond their scale by more than half a step.");
  m.def("zero_marked", &zero_marked_at, "Write zero where the bit is set.");
}

}  // namespace roundoff
