// summarize for Python: addresses, shapes and strides in, one row of doubles out.
#include <nanobind/nanobind.h>

#include "summarize.h"

namespace nb = nanobind;

namespace roundoff {

static Tables make_tables() {
  Tables t;
  for (uint64_t i = 0; i < kPeriod; ++i) {
    (i % 2 ? t.odd_weights : t.even_weights)[i / 2] = splitmix64(i) >> 32 | 1;
    t.channel_weights[i] = double(i + 1);
  }
  return t;
}

const Tables& tables() {
  static const Tables made = make_tables();
  return made;
}

uint64_t block_weight(uint64_t block) { return splitmix64(block + (3ull << 32)) | 1; }

static int64_t read_sizes(nb::tuple from, int64_t* to) {
  const size_t n = nb::len(from);
  for (size_t i = 0; i < n; ++i) to[i] = PyLong_AsLongLong(PyTuple_GetItem(from.ptr(), i));
  return int64_t(n);
}

static void summarize_at(uintptr_t data, int dtype, nb::tuple shape, nb::tuple stride, uintptr_t row,
                         uintptr_t histogram) {
  View view;
  if (nb::len(shape) > kMaxDims) throw nb::value_error("more than 64 dimensions");
  view.data = reinterpret_cast<const char*>(data);
  view.dtype = Dtype(dtype);
  view.num_dims = int(read_sizes(shape, view.shape));
  read_sizes(stride, view.stride);
  int64_t total = 1;
  for (int d = 0; d < view.num_dims; ++d) total *= view.shape[d];
  auto* to = reinterpret_cast<double*>(row);
  auto* counts = reinterpret_cast<uint32_t*>(histogram);
  if (total < 1 << 15) {
    ROUNDOFF_PICK(summarize)(view, to, counts);
  } else {
    nb::gil_scoped_release released;
    ROUNDOFF_PICK(summarize)(view, to, counts);
  }
}

void bind_summarize(nb::module_& m) {
  m.def("summarize", &summarize_at, nb::arg("data"), nb::arg("dtype"), nb::arg("shape"), nb::arg("stride"),
        nb::arg("row"), nb::arg("histogram") = 0,
        "Write the row of the tensor at `data` to the address `row`; 64 counts to `histogram` unless it is 0.");
}

}  // namespace roundoff
