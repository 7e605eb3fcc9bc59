// What Hopper's kernels need beside cuda_emulation.h, in place of primitives/ptx.cuh and
// primitives/wgmma.cuh: barriers in shared memory, 16-bit floats, products of operands there.
// Include it before the kernel's header; it needs -fno-strict-aliasing, as the kernels' own
// conversions do on a CPU.
//
// Every address is checked: loads against the images that a test names, shared ones against the
// block's size. A product reads its operands when it is called, and nobody gives back what a lane
// of the warp has still to read.
#ifndef TRANSCONV_TESTS_HOPPER_EMULATION_H_
#define TRANSCONV_TESTS_HOPPER_EMULATION_H_

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "cuda_emulation.h"

#define __noinline__

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

template <typename To, typename From>
To BitsAs(From from) {
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}
inline float __int_as_float(int bits) { return BitsAs<float>(bits); }
inline int __float_as_int(float v) { return BitsAs<int>(v); }
inline uint32_t __float_as_uint(float v) { return BitsAs<uint32_t>(v); }

struct __half {
  uint16_t bits;
};
struct __half2 {
  __half x, y;
};
struct __nv_bfloat16 {
  uint16_t bits;
};

namespace transconv::emulation {

[[noreturn]] inline void Stop(const char* what) {
  std::printf("emulation: %s\n", what);
  std::exit(1);
}

inline float OfHalf(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  float v;
  if (exponent == 31) {
    v = fraction == 0 ? std::numeric_limits<float>::infinity()
                      : std::numeric_limits<float>::quiet_NaN();
  } else {
    v = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                      : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  }
  return bits & 0x8000 ? -v : v;
}
inline const std::vector<float>& Halves() {
  static const std::vector<float> values = [] {
    std::vector<float> all(1 << 16);
    for (size_t i = 0; i < all.size(); ++i) all[i] = OfHalf(static_cast<uint16_t>(i));
    return all;
  }();
  return values;
}
// To the nearest, ties to even.
inline uint16_t ToHalf(float v) {
  const uint16_t sign = std::signbit(v) ? 0x8000 : 0;
  const float a = std::fabs(v);
  if (std::isnan(v)) return 0x7fff;
  if (a >= 65520.f) return sign | 0x7c00;
  const int exponent = a == 0.f ? -14 : std::max(std::ilogb(a), -14);
  // A carry into the exponent is what the format makes of it.
  const int units = static_cast<int>(std::nearbyint(std::ldexp(a, 10 - exponent)));
  return static_cast<uint16_t>(sign + ((exponent + 14) << 10) + units);
}

// Bytes that kernels may load.
inline std::vector<std::pair<const char*, size_t>> loadable;
inline void CheckLoad(const void* p, size_t bytes) {
  const char* const at = static_cast<const char*>(p);
  if (reinterpret_cast<uintptr_t>(p) % bytes != 0) Stop("a load is not aligned");
  for (const auto& [begin, size] : loadable) {
    if (at >= begin && at + bytes <= begin + size) return;
  }
  Stop("a load lies outside of the images");
}

constexpr uint32_t kSharedBase = 1024;  // no address of shared memory is zero
inline char* Shared(uint32_t address, uint32_t bytes) {
  if (address < kSharedBase || address % bytes != 0 ||
      address - kSharedBase + bytes > block.shared.size() * 8) {
    Stop("an access to shared memory is outside of it or not aligned");
  }
  return reinterpret_cast<char*>(block.shared.data()) + (address - kSharedBase);
}

inline void Yield() { swapcontext(&block.turns[::threadIdx.x].context, &block.scheduler); }
inline Warp& ThisWarp() { return block.warps[::threadIdx.x / kWarp]; }

// Every lane's value, seen by all.
template <typename F>
uint32_t OfWarp(uint32_t value, const F& f) {
  Warp& warp = ThisWarp();
  warp.slots[::threadIdx.x % kWarp] = value;
  Wait(&warp.barrier);
  const uint32_t result = f(warp.slots);
  Wait(&warp.barrier);
  return result;
}

struct MBarrier {
  uint16_t expected, arrived;
  uint32_t phase;
};

inline Barrier named[16];

}  // namespace transconv::emulation

inline float __low2float(__half2 v) { return transconv::emulation::OfHalf(v.x.bits); }
inline float __high2float(__half2 v) { return transconv::emulation::OfHalf(v.y.bits); }
inline __half __float2half_rn(float v) { return {transconv::emulation::ToHalf(v)}; }
__nv_bfloat16 __float2bfloat16_rn(float v);  // named, not called

// Bytes of both, the first one's first, by four digits of `which`.
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t which) {
  const uint64_t both = a | static_cast<uint64_t>(b) << 32;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(both >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  }
  return result;
}

inline int __shfl_sync(unsigned, int value, int lane) {
  return static_cast<int>(transconv::emulation::OfWarp(
      static_cast<uint32_t>(value),
      [lane](const uint64_t* all) { return static_cast<uint32_t>(all[lane]); }));
}
inline uint32_t __reduce_max_sync(unsigned, uint32_t value) {
  return transconv::emulation::OfWarp(value, [](const uint64_t* all) {
    return static_cast<uint32_t>(*std::max_element(all, all + transconv::emulation::kWarp));
  });
}
inline void __syncwarp() { transconv::emulation::Wait(&transconv::emulation::ThisWarp().barrier); }

namespace transconv::cuda::ptx {

namespace emulation = transconv::emulation;

inline uint32_t SharedAddress(const void* p) {
  return emulation::kSharedBase +
         static_cast<uint32_t>(static_cast<const unsigned char*>(p) - SharedMemory());
}

inline emulation::MBarrier& BarrierAt(uint32_t address) {
  return *reinterpret_cast<emulation::MBarrier*>(emulation::Shared(address, 8));
}
inline void BarrierInit(uint32_t barrier, uint32_t arrivals) {
  BarrierAt(barrier) = {static_cast<uint16_t>(arrivals), 0, 0};
}
inline void BarrierInitFence() {}
inline void BarrierArrive(uint32_t barrier) {
  emulation::MBarrier& b = BarrierAt(barrier);
  if (++b.arrived < b.expected) return;
  b.arrived = 0;
  ++b.phase;
  emulation::block.moved = true;
}
// For the end of a phase of this parity: the present one is another.
inline void BarrierWait(uint32_t barrier, uint32_t parity) {
  while (BarrierAt(barrier).phase % 2 == parity) emulation::Yield();
}
template <int kBarrier, int kThreads>
void NamedBarrier() {
  emulation::named[kBarrier].expected = kThreads;
  emulation::Wait(&emulation::named[kBarrier]);
}
inline void FenceAsync() {}
template <int kRegisters>
void RegistersUp() {}
template <int kRegisters>
void RegistersDown() {}

inline void StoreShared16(uint32_t shared, uint32_t v) {
  const uint16_t half = static_cast<uint16_t>(v);
  std::memcpy(emulation::Shared(shared, 2), &half, 2);
}
inline void StoreShared128(uint32_t shared, uint4 v) {
  std::memcpy(emulation::Shared(shared, 16), &v, 16);
}

inline void StoreShared128If(uint32_t shared, uint4 v, bool wanted) {
  if (wanted) StoreShared128(shared, v);
}

template <typename T>
T LoadIf(const T* p, uint32_t wanted) {
  if (wanted == 0) return 0;
  emulation::CheckLoad(p, sizeof(T));
  return *p;
}
inline const char* Advance(const char* p, uint32_t k, uint32_t bytes) {
  return p + static_cast<uint64_t>(k) * bytes;
}

inline uint32_t PackHalf2(float lo, float hi) {
  return emulation::ToHalf(lo) | static_cast<uint32_t>(emulation::ToHalf(hi)) << 16;
}
inline uint32_t MaxAbsHalf2(uint32_t a, uint32_t b) {
  const auto larger = [](uint32_t v, uint32_t w) {
    v &= 0x7fff;
    w &= 0x7fff;
    if (v > 0x7c00) return w;  // NaN
    return w > 0x7c00 ? v : std::max(v, w);
  };
  return larger(a & 0xffff, b & 0xffff) | larger(a >> 16, b >> 16) << 16;
}

}  // namespace transconv::cuda::ptx
#define TRANSCONV_CUDA_PRIMITIVES_PTX_CUH_

namespace transconv::cuda::wgmma {

inline uint64_t Descriptor(uint32_t chunk, uint32_t stride) {
  return static_cast<uint64_t>(chunk >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32;
}
inline void Fence() {}
inline void Commit() {}
template <int kPending>
void Wait() {
  transconv::emulation::Wait(&transconv::emulation::ThisWarp().barrier);
}
template <int N>
void Pin(float (&)[N]) {}

// Element (r, k) of an MN-major operand.
inline float Element(uint64_t descriptor, int r, int k) {
  const auto field = [&](int bit) {
    return static_cast<uint32_t>(descriptor >> bit & 0x3fff) << 4;
  };
  if ((descriptor >> 14 & 3) != 0) transconv::emulation::Stop("a descriptor's start is too large");
  const uint32_t at = field(0) + 2 * (r % 8) + r / 8 * field(32) + k % 8 * 16 + k / 8 * field(16);
  uint16_t bits;
  std::memcpy(&bits, transconv::emulation::Shared(at, 2), 2);
  return transconv::emulation::Halves()[bits];
}

// This thread's part of D[64 x N] += A B.
template <typename Operand, int N>
struct MultiplyRows {
  static void Run(float (&d)[N / 2], uint64_t A, uint64_t B) {
    const int lane = threadIdx.x % 32, first = threadIdx.x % 128 / 32 * 16 + lane / 4;
    float rows[2][16];
    for (int k = 0; k < 16; ++k) {
      for (int i = 0; i < 2; ++i) rows[i][k] = Element(A, first + 8 * i, k);
    }
    for (int block = 0; block < N / 8; ++block) {
      for (int e = 0; e < 2; ++e) {
        const int column = 8 * block + 2 * (lane % 4) + e;
        double sums[2] = {};
        for (int k = 0; k < 16; ++k) {
          const double b = Element(B, column, k);
          for (int i = 0; i < 2; ++i) sums[i] += rows[i][k] * b;
        }
        for (int i = 0; i < 2; ++i) {
          float& to = d[4 * block + 2 * i + e];
          to = static_cast<float>(to + sums[i]);
        }
      }
    }
  }
};

}  // namespace transconv::cuda::wgmma
#define TRANSCONV_CUDA_PRIMITIVES_WGMMA_CUH_

#endif  // TRANSCONV_TESTS_HOPPER_EMULATION_H_
