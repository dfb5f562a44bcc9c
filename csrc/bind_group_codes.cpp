// Groups as codes, for Python: addresses and plain numbers.
#include <nanobind/nanobind.h>

#include "group_codes.h"

namespace nb = nanobind;

namespace roundoff {

static Groups groups_at(int64_t size, int64_t group, int bits, uintptr_t heads, uintptr_t codes) {
  return {size, group, bits, reinterpret_cast<uint16_t*>(heads), reinterpret_cast<uint8_t*>(codes)};
}

static int64_t compress_at(uintptr_t in, int dtype, uint64_t key, int64_t size, int64_t group, int bits,
                           uintptr_t heads, uintptr_t codes) {
  nb::gil_scoped_release released;
  return ROUNDOFF_PICK(compress_groups)(reinterpret_cast<const void*>(in), Dtype(dtype), key,
                                        groups_at(size, group, bits, heads, codes));
}

static void expand_at(uintptr_t heads, uintptr_t codes, int64_t size, int64_t group, int bits, uintptr_t out,
                      int dtype) {
  nb::gil_scoped_release released;
  ROUNDOFF_PICK(expand_groups)(groups_at(size, group, bits, heads, codes), reinterpret_cast<void*>(out), Dtype(dtype));
}

void bind_group_codes(nb::module_& m) {
  m.def("compress_groups", &compress_at, "Write heads and codes; return how many groups were left without codes.");
  m.def("expand_groups", &expand_at, "Write the values of all groups as fp32 or bf16.");
}

}  // namespace roundoff
