// Packs and unpacks blocks: a block's largest magnitude is found, then its codes are made while it is in the L1 cache.
#include "block_codes.h"

#include "lanes.h"

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

constexpr int64_t kLanes = kBytes / 4;
constexpr float kSmallestScale = 0x1p-126f;
constexpr uint32_t kNaN = 0x7fc00000u;

ROUNDOFF_INLINE U32 gather(const void* table, U32 index) {
#if defined(__AVX512F__)
  return (U32)_mm512_i32gather_epi32((__m512i)index, table, 4);
#elif defined(__AVX2__)
  return (U32)_mm256_i32gather_epi32(static_cast<const int*>(table), (__m256i)index, 4);
#else
  U32 found;
  for (int64_t i = 0; i < kLanes; ++i) found[i] = static_cast<const uint32_t*>(table)[index[i]];
  return found;
#endif
}

// The bytes from `from` on, one in every lane. (Compilers turn a plain conversion into one move per lane.)
ROUNDOFF_INLINE U32 widen_bytes(const uint8_t* from) {
#if defined(__AVX512F__)
  return (U32)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(__AVX2__)
  return (U32)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#else
  return __builtin_convertvector(load<U8Of32>(from), U32);
#endif
}

ROUNDOFF_INLINE uint32_t largest_magnitude(const float* in, int64_t n) {
  I32 most{};
  for (int64_t i = 0; i < n; i += kLanes) {
    const I32 magnitude = (I32)(load<U32>(in + i) & 0x7fffffffu);
    most = magnitude > most ? magnitude : most;
  }
  int32_t lanes[kLanes], found = 0;
  store(lanes, most);
  for (int32_t lane : lanes) found = lane > found ? lane : found;
  return uint32_t(found);
}

ROUNDOFF_INLINE U32 code_of(F32 x, const CodeCells& cells) {
  const U32 bits = (U32)x;
  I32 cell = (I32)((bits & 0x7fffffffu) >> 16) - cells.first;
  cell = cell < 0 ? I32{} : cell;
  cell = cell >= cells.count ? I32{} + (cells.count - 1) : cell;
  const U32 found = gather(cells.cells, (U32)(cell + ((I32)(bits >> 31) * cells.count)));
  const I32 is_next = (I32)(bits & 0xffffu) >= (I32)(found >> 9);  // -1 if so
  const I32 step = 1 - ((I32)(found >> 7) & 2);
  return (found & 0xffu) + (U32)(is_next & step);
}

template <int kBits>
ROUNDOFF_INLINE void write_codes(const float* in, int64_t n, float scale, const CodeCells& cells, uint8_t* codes) {
  constexpr int kPlanes = 8 / kBits;
  const int64_t stride = n / kPlanes;
  for (int64_t j = 0; j < stride; j += kLanes) {
    U32 packed{};
    for (int plane = 0; plane < kPlanes; ++plane)
      packed |= code_of(load<F32>(in + plane * stride + j) / scale, cells) << (plane * kBits);
    store(codes + j, bytes_of(packed));
  }
}

template <int kBits>
void pack(const float* in, const CodeCells& cells, const CodeBlocks& blocks) {
  const int64_t n = blocks.block;
  float padded[kLongestBlock];
  for (int64_t b = 0; b * n < blocks.size; ++b) {
    const float* block = in + b * n;
    const int64_t left = blocks.size - b * n;
    if (left < n) {
      std::memcpy(padded, block, left * sizeof(float));
      std::memset(padded + left, 0, (n - left) * sizeof(float));
      block = padded;
    }
    uint8_t* codes = blocks.codes + b * n * kBits / 8;
    const uint32_t largest = largest_magnitude(block, n);
    float scale = bits_of<float>(largest) / cells.largest;
    const bool is_finite = largest < kInf32;
    if (is_finite && scale >= kSmallestScale) {
      write_codes<kBits>(block, n, scale, cells, codes);
    } else {
      scale = is_finite ? 0.0f : bits_of<float>(kNaN);
      const int zero = int(cells.cells[0] & 0xffu);
      std::memset(codes, kBits == 4 ? zero * 0x11 : zero, n * kBits / 8);
    }
    blocks.scales[b] = scale;
  }
}

template <int kBits>
ROUNDOFF_INLINE void read_codes(const uint8_t* codes, int64_t n, float scale, const float* values, float* out) {
  constexpr int kPlanes = 8 / kBits;
  const int64_t stride = n / kPlanes;
  for (int64_t j = 0; j < stride; j += kLanes) {
    const U32 packed = widen_bytes(codes + j);
    for (int plane = 0; plane < kPlanes; ++plane) {
      const U32 code = packed >> (plane * kBits) & ((1u << kBits) - 1);
      store(out + plane * stride + j, (F32)gather(values, code) * scale);
    }
  }
}

template <int kBits>
void unpack(const CodeBlocks& blocks, const float* values, float* out) {
  const int64_t n = blocks.block;
  float padded[kLongestBlock];
  for (int64_t b = 0; b * n < blocks.size; ++b) {
    const uint8_t* codes = blocks.codes + b * n * kBits / 8;
    const int64_t left = blocks.size - b * n;
    read_codes<kBits>(codes, n, blocks.scales[b], values, left < n ? padded : out + b * n);
    if (left < n) std::memcpy(out + b * n, padded, left * sizeof(float));
  }
}

}  // namespace

void pack_blocks(const float* in, const CodeCells& cells, const CodeBlocks& blocks) {
  if (blocks.bits == 4) return pack<4>(in, cells, blocks);
  return pack<8>(in, cells, blocks);
}

void unpack_blocks(const CodeBlocks& blocks, const float* values, float* out) {
  if (blocks.bits == 4) return unpack<4>(blocks, values, out);
  return unpack<8>(blocks, values, out);
}

}  // namespace ROUNDOFF_ISA
}  // namespace roundoff
