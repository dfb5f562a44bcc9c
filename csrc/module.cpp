// The Python module roundoff.kernels._compiled: it takes addresses and plain numbers, and knows nothing of torch.
#include <nanobind/nanobind.h>

#include <cstdlib>
#include <cstring>

#include "isa.h"

namespace nb = nanobind;

namespace roundoff {

static Level detect() {
#ifdef ROUNDOFF_X86_LEVELS
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                  __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("lzcnt") &&
                  __builtin_cpu_supports("movbe");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  const char* requested = std::getenv("ROUNDOFF_ISA");
  if (requested && !std::strcmp(requested, "plain")) return Level::plain;
  if (requested && !std::strcmp(requested, "v3") && v3) return Level::v3;
  return v4 ? Level::v4 : v3 ? Level::v3 : Level::plain;
#else
  return Level::plain;
#endif
}

Level level() {
  static const Level found = detect();
  return found;
}

void bind_summarize(nb::module_& m);
void bind_rounding(nb::module_& m);
void bind_difference(nb::module_& m);
void bind_packing(nb::module_& m);
void bind_fixed(nb::module_& m);
void bind_group_codes(nb::module_& m);
void bind_block_codes(nb::module_& m);
void bind_crash(nb::module_& m);
void bind_json_lines(nb::module_& m);

}  // namespace roundoff

NB_MODULE(_compiled, m) {
  m.doc() = "One-pass loops over tensor memory.";
  m.def("level", [] {
    switch (roundoff::level()) {
      case roundoff::Level::v4: return "x86-64-v4";
      case roundoff::Level::v3: return "x86-64-v3";
      default: return "plain";
    }
  }, "The instruction set in use.");
  roundoff::bind_summarize(m);
  roundoff::bind_rounding(m);
  roundoff::bind_difference(m);
  roundoff::bind_packing(m);
  roundoff::bind_fixed(m);
  roundoff::bind_group_codes(m);
  roundoff::bind_block_codes(m);
  roundoff::bind_crash(m);
  roundoff::bind_json_lines(m);
}
