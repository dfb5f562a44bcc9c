// Blocks of fp32 kept as codes of 4 or 8 bits, each code standing for a number of a map, times the scale of its block.
//
// The code of a number is looked up by its sign and the upper half of its bits: `cells` holds for every such cell the
// code at its lower end, and from which lower half on the next code applies. kernels/block_codes.py makes the cells and
// computes the same bits.
#pragma once

#include <cstdint>

#include "isa.h"

namespace roundoff {

constexpr int64_t kLongestBlock = 2048;

struct CodeBlocks {
  int64_t size;   // number of values; the last block may be short, but its codes are complete
  int64_t block;  // values in a block: a multiple of 128, at most kLongestBlock
  int bits;       // of a code: 4 or 8
  uint8_t* codes;  // with 4 bits, byte j of a block holds the value j in its low half and j + block / 2 in its high half
  float* scales;   // of each block; NaN if a value is not finite
};

struct CodeCells {
  const uint32_t* cells;  // code | falls << 8 | lower half << 9; those of negative numbers after the others
  int32_t first, count;   // smaller and larger numbers have the codes of the first and last cell
  float largest;          // what the largest magnitude of a block is mapped to
};

ROUNDOFF_EACH_LEVEL(void pack_blocks(const float* in, const CodeCells& cells, const CodeBlocks& blocks))
ROUNDOFF_EACH_LEVEL(void unpack_blocks(const CodeBlocks& blocks, const float* values, float* out))

}  // namespace roundoff
