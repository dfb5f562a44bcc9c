// Bit packing for Python: addresses and plain numbers.
#include <nanobind/nanobind.h>

#include "packing.h"

namespace nb = nanobind;

namespace roundoff {

static void pack_at(uintptr_t codes, int64_t n, int bits, uintptr_t packed) {
  nb::gil_scoped_release released;
  ROUNDOFF_PICK(pack)(reinterpret_cast<const uint8_t*>(codes), n, bits, reinterpret_cast<uint8_t*>(packed));
}

static void unpack_at(uintptr_t packed, int64_t n, int bits, uintptr_t codes) {
  nb::gil_scoped_release released;
  ROUNDOFF_PICK(unpack)(reinterpret_cast<const uint8_t*>(packed), n, bits, reinterpret_cast<uint8_t*>(codes));
}

void bind_packing(nb::module_& m) {
  m.def("pack", &pack_at, "Pack `n` codes of `bits` bits each.");
  m.def("unpack", &unpack_at, "Unpack `n` codes of `bits` bits each.");
}

}  // namespace roundoff
