// difference for Python: two addresses in, one row of doubles out.
#include <nanobind/nanobind.h>

#include "difference.h"

namespace nb = nanobind;

namespace roundoff {

static void difference_at(uintptr_t first, int first_dtype, uintptr_t second, int second_dtype, int64_t size,
                          uintptr_t row) {
  const Side sides[2] = {{reinterpret_cast<const char*>(first), Dtype(first_dtype)},
                         {reinterpret_cast<const char*>(second), Dtype(second_dtype)}};
  nb::gil_scoped_release released;
  ROUNDOFF_PICK(difference)(sides[0], sides[1], size, reinterpret_cast<double*>(row));
}

void bind_difference(nb::module_& m) {
  m.def("difference", &difference_at, nb::arg("first"), nb::arg("first_dtype"), nb::arg("second"),
        nb::arg("second_dtype"), nb::arg("size"), nb::arg("row"),
        "Write how far two contiguous tensors are apart to the address `row`.");
}

}  // namespace roundoff
