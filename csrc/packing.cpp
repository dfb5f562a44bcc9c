// Packs and unpacks eight codes at a time: three steps bring their bits together, or apart.
#include "packing.h"

#include <cstring>

#include "lanes.h"

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

constexpr uint64_t k8In16 = 0x00ff00ff00ff00ffull, k16In32 = 0x0000ffff0000ffffull, k32In64 = 0x00000000ffffffffull;

// `mask` in every lane of `kWidth` bits.
template <int kWidth>
constexpr uint64_t in_every_lane(uint64_t mask) {
  for (int at = kWidth; at < 64; at *= 2) mask |= mask << at;
  return mask;
}

template <int kBits>
ROUNDOFF_INLINE uint64_t together(uint64_t x) {
  x &= in_every_lane<8>((1ull << kBits) - 1);
  x = (x & k8In16) | (x >> 8 & k8In16) << kBits;
  x = (x & k16In32) | (x >> 16 & k16In32) << 2 * kBits;
  return (x & k32In64) | (x >> 32) << 4 * kBits;
}

template <int kBits>
ROUNDOFF_INLINE uint64_t apart(uint64_t x) {
  constexpr uint64_t kFour = (1ull << 4 * kBits) - 1;
  constexpr uint64_t kTwo = in_every_lane<32>((1ull << 2 * kBits) - 1);
  constexpr uint64_t kOne = in_every_lane<16>((1ull << kBits) - 1);
  x = (x & kFour) | (x >> 4 * kBits & kFour) << 32;
  x = (x & kTwo) | (x >> 2 * kBits & kTwo) << 16;
  return (x & kOne) | (x >> kBits & kOne) << 8;
}

template <int kBits>
void pack_codes(const uint8_t* codes, int64_t n, uint8_t* packed) {
  uint64_t x;
  for (; n >= 8; n -= 8, codes += 8, packed += kBits) {
    std::memcpy(&x, codes, 8);
    x = together<kBits>(x);
    std::memcpy(packed, &x, kBits);
  }
  if (n == 0) return;
  x = 0;
  std::memcpy(&x, codes, n);
  x = together<kBits>(x);
  std::memcpy(packed, &x, (n * kBits + 7) / 8);
}

template <int kBits>
void unpack_codes(const uint8_t* packed, int64_t n, uint8_t* codes) {
  uint64_t x = 0;
  for (; n >= 8; n -= 8, codes += 8, packed += kBits) {
    x = 0;
    std::memcpy(&x, packed, kBits);
    x = apart<kBits>(x);
    std::memcpy(codes, &x, 8);
  }
  if (n == 0) return;
  x = 0;
  std::memcpy(&x, packed, (n * kBits + 7) / 8);
  x = apart<kBits>(x);
  std::memcpy(codes, &x, n);
}

}  // namespace

void pack(const uint8_t* codes, int64_t n, int bits, uint8_t* packed) {
  switch (bits) {
    case 1: return pack_codes<1>(codes, n, packed);
    case 2: return pack_codes<2>(codes, n, packed);
    case 3: return pack_codes<3>(codes, n, packed);
    case 4: return pack_codes<4>(codes, n, packed);
    case 5: return pack_codes<5>(codes, n, packed);
    case 6: return pack_codes<6>(codes, n, packed);
    case 7: return pack_codes<7>(codes, n, packed);
    default: std::memcpy(packed, codes, n);
  }
}

void unpack(const uint8_t* packed, int64_t n, int bits, uint8_t* codes) {
  switch (bits) {
    case 1: return unpack_codes<1>(packed, n, codes);
    case 2: return unpack_codes<2>(packed, n, codes);
    case 3: return unpack_codes<3>(packed, n, codes);
    case 4: return unpack_codes<4>(packed, n, codes);
    case 5: return unpack_codes<5>(packed, n, codes);
    case 6: return unpack_codes<6>(packed, n, codes);
    case 7: return unpack_codes<7>(packed, n, codes);
    default: std::memcpy(codes, packed, n);
  }
}

}  // namespace ROUNDOFF_ISA
}  // namespace roundoff
