// Blocks as codes, for Python: addresses and plain numbers.
#include <nanobind/nanobind.h>

#include "block_codes.h"

namespace nb = nanobind;

namespace roundoff {

static CodeBlocks blocks_at(int64_t size, int64_t block, int bits, uintptr_t codes, uintptr_t scales) {
  return {size, block, bits, reinterpret_cast<uint8_t*>(codes), reinterpret_cast<float*>(scales)};
}

static void pack_at(uintptr_t in, uintptr_t cells, int first, int count, float largest, int64_t size, int64_t block,
                    int bits, uintptr_t codes, uintptr_t scales) {
  nb::gil_scoped_release released;
  ROUNDOFF_PICK(pack_blocks)(reinterpret_cast<const float*>(in),
                             {reinterpret_cast<const uint32_t*>(cells), first, count, largest},
                             blocks_at(size, block, bits, codes, scales));
}

static void unpack_at(uintptr_t codes, uintptr_t scales, int64_t size, int64_t block, int bits, uintptr_t values,
                      uintptr_t out) {
  nb::gil_scoped_release released;
  ROUNDOFF_PICK(unpack_blocks)(blocks_at(size, block, bits, codes, scales), reinterpret_cast<const float*>(values),
                               reinterpret_cast<float*>(out));
}

void bind_block_codes(nb::module_& m) {
  m.def("pack_blocks", &pack_at, "Write codes and scales of blocks of fp32.");
  m.def("unpack_blocks", &unpack_at, "Write the values of all blocks as fp32.");
}

}  // namespace roundoff
