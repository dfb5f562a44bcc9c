// Rounds a tensor to fixed point: whole multiples of a step, between a lowest and a highest code.
#include "rounding.h"
#include "small_float.h"
#include "sweep.h"

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

struct Single {
  using U = U32;
  using I = I32;
  using F = F32;
  using Counter = U32;
  using Real = float;
  static constexpr uint32_t kSign = 1u << 31, kInf = kInf32;
  static constexpr float kMagic = 0x1p23f;  // adding it rounds to a whole number
  static ROUNDOFF_INLINE I carries(F part, U32 random) {
    return (I)((U)__builtin_convertvector(part * 0x1p31f, I) + random) < 0;
  }
};

struct Double {
  using U = U64;
  using I = I64;
  using F = F64;
  using Counter = U32Of64;
  using Real = double;
  static constexpr uint64_t kSign = 1ull << 63, kInf = kInf64;
  static constexpr double kMagic = 0x1p52;
  static ROUNDOFF_INLINE I carries(F part, U32Of64 random) {
    return part * 0x1p31 >= 0x1p31 - __builtin_convertvector(random, F);
  }
};

// A step that is a power of two is multiplied by its inverse: the same quotient, sooner.
template <class Lanes, Rounding kRounding, bool kPowerOfTwo>
struct ToStep {
  using U = typename Lanes::U;
  using I = typename Lanes::I;
  using F = typename Lanes::F;
  using Real = typename Lanes::Real;
  Real step, per_step, lowest, highest;

  ROUNDOFF_INLINE ToStep(double step, const Fixed& fixed)
      : step(Real(step)), per_step(1 / Real(step)), lowest(Real(fixed.lowest)), highest(Real(fixed.highest)) {}

  ROUNDOFF_INLINE F whole_number(F count, U a, U sign, typename Lanes::Counter counter) const {
    const F nearest = (count + Lanes::kMagic) - Lanes::kMagic;
    if constexpr (kRounding == Rounding::nearest) return nearest;
    const F whole = nearest > count ? nearest - 1 : nearest;
    if constexpr (kRounding == Rounding::stochastic)
      return Lanes::carries(count - whole, random_31(counter)) ? whole + 1 : whole;
    if constexpr (kRounding == Rounding::toward_zero) return whole;
    const I is_away = kRounding == Rounding::up ? sign == 0 : sign != 0;
    // A quotient that underflowed is still not zero.
    const I is_between = (count > whole) | ((count == 0) & (a != 0));
    return is_away & is_between ? whole + 1 : whole;
  }

  ROUNDOFF_INLINE U operator()(U bits, typename Lanes::Counter counter) const {
    const U a = bits & ~Lanes::kSign, sign = bits & Lanes::kSign;
    const F limit = sign != 0 ? F{} - lowest : F{} + highest;
    F count = kPowerOfTwo ? (F)a * per_step : (F)a / step;
    count = count < limit ? count : limit;
    F whole = whole_number(count, a, sign, counter);
    whole = whole < limit ? whole : limit;
    const U r = whole > 0 ? (U)(whole * step) | sign : U{};  // fixed point has one zero
    return (I)a >= (I)(U{} + Lanes::kInf) ? bits : r;
  }
};

// Half dtypes may not hold a multiple of the step: the nearest number they do hold is the result.
template <class Step, bool kHasSubnormals>
struct ThenNarrow {
  Step step;
  Quick<Rounding::nearest, kHasSubnormals> narrow;
  ROUNDOFF_INLINE U32 operator()(U32 bits, U32 counter) const { return narrow(step(bits, counter), counter); }
};

template <class Step>
void round_run(const Span& span, const Fixed& fixed, double step, uint64_t first, uint64_t key) {
  const Step round(step, fixed);
  if constexpr (sizeof(typename Step::Real) == 8) {
    sweep<Fp64In64, U32Of64>(span.in, span.out, span.size, first, key, round);
  } else if (span.dtype == Dtype::f32) {
    sweep<Fp32In32, U32>(span.in, span.out, span.size, first, key, round);
  } else if (span.dtype == Dtype::bf16) {
    const Quick<Rounding::nearest, false> narrow(Grid{7, -126, 0x1.fep127, Overflow::infinity, true});
    sweep<Bf16In32, U32>(span.in, span.out, span.size, first, key, ThenNarrow<Step, false>{round, narrow});
  } else {
    const Quick<Rounding::nearest, true> narrow(Grid{10, -14, 65504, Overflow::infinity, true});
    sweep<Fp16In32, U32>(span.in, span.out, span.size, first, key, ThenNarrow<Step, true>{round, narrow});
  }
}

bool is_power_of_two(double step, bool single) {
  const uint64_t bits = bits_of<uint64_t>(step);
  const int exponent = int(bits >> 52) - 1023;
  const int most = single ? 120 : 1000;
  return bits << 12 == 0 && exponent >= -most && exponent <= most;
}

template <Rounding kRounding>
void round_runs(const Span& span, const Fixed& fixed, uint64_t key) {
  const bool single = span.dtype != Dtype::f64;
  const int64_t width = span.dtype == Dtype::f64 ? 8 : span.dtype == Dtype::f32 ? 4 : 2;
  for (int64_t i = 0, row = 0; i < span.size; i += fixed.inner, ++row) {
    const int64_t left = span.size - i;
    const Span run{static_cast<const char*>(span.in) + i * width, static_cast<char*>(span.out) + i * width,
                   left < fixed.inner ? left : fixed.inner, span.dtype};
    const double step = fixed.steps[row % fixed.num_steps];
    const bool power = is_power_of_two(step, single);
    if (single && power) round_run<ToStep<Single, kRounding, true>>(run, fixed, step, uint64_t(i), key);
    if (single && !power) round_run<ToStep<Single, kRounding, false>>(run, fixed, step, uint64_t(i), key);
    if (!single && power) round_run<ToStep<Double, kRounding, true>>(run, fixed, step, uint64_t(i), key);
    if (!single && !power) round_run<ToStep<Double, kRounding, false>>(run, fixed, step, uint64_t(i), key);
  }
}

}  // namespace

void round_fixed(const Span& span, const Fixed& fixed, Rounding rounding, uint64_t key) {
  switch (rounding) {
    case Rounding::nearest: return round_runs<Rounding::nearest>(span, fixed, key);
    case Rounding::stochastic: return round_runs<Rounding::stochastic>(span, fixed, key);
    case Rounding::toward_zero: return round_runs<Rounding::toward_zero>(span, fixed, key);
    case Rounding::up: return round_runs<Rounding::up>(span, fixed, key);
    case Rounding::down: return round_runs<Rounding::down>(span, fixed, key);
  }
}

}  // namespace ROUNDOFF_ISA
}  // namespace roundoff
