// The geometry of a transposed convolution: pure C++, no XLA, no CUDA runtime, no Python.
//
// Per spatial axis, with stride s, dilation d and a crop of `lo` leading positions of the full
// result, input position i and tap k meet the output position
//
//     o = s*i + d*k - lo.
//
// Write o = s*v + m with 0 <= m < s. Then tap k has the fixed residue m_k and shift tau_k of
//
//     d*k - lo = s*tau_k + m_k          (floor division, also for negative values)
//
// and the three passes are dense sums over (tap, position), with no zero ever multiplied:
//
//     forward      y[s*v + m]  += x[v - tau_k] * w[k]            over taps with m_k == m
//     grad_input   dx[i]       += dy[s*(i + tau_k) + m_k] * w[k]
//     grad_weight  dw[k]       += x[i] * dy[s*(i + tau_k) + m_k]
//
// Out-of-range positions read as zero. A residue without taps holds the bias alone.
#ifndef TRANSCONV_CORE_GEOMETRY_H_
#define TRANSCONV_CORE_GEOMETRY_H_

#include <cstdint>

#ifdef __CUDACC__
#define TRANSCONV_HOST_DEVICE __host__ __device__
#else
#define TRANSCONV_HOST_DEVICE
#endif

namespace transconv {

enum class Pass : int32_t { kForward = 0, kGradInput = 1, kGradWeight = 2 };

// Memory order of x and y. Weights are always (in_channels, out_channels / groups, kh, kw).
enum class Layout : int32_t { kNCHW = 0, kNHWC = 1 };

// What a float32 product may lose; see `Precision` in jax_transconv/spec.py.
enum class Precision : int32_t { kDefault = 0, kHigh = 1, kHighest = 2 };

TRANSCONV_HOST_DEVICE constexpr int64_t FloorDiv(int64_t a, int64_t b) {
  return a / b - ((a % b != 0 && (a % b < 0) != (b < 0)) ? 1 : 0);
}

TRANSCONV_HOST_DEVICE constexpr int64_t CeilDiv(int64_t a, int64_t b) {
  return FloorDiv(a + b - 1, b);
}

// One tap of one axis: reaches output residue `residue` at a distance of `shift` input positions.
struct Tap {
  int64_t shift;
  int64_t residue;
};

// One spatial axis.
struct Axis {
  int64_t in = 0;
  int64_t out = 0;
  int64_t kernel = 0;
  int64_t stride = 1;
  int64_t dilation = 1;
  int64_t crop_lo = 0;

  TRANSCONV_HOST_DEVICE constexpr Tap TapOf(int64_t k) const {
    const int64_t offset = dilation * k - crop_lo;
    const int64_t shift = FloorDiv(offset, stride);
    return {shift, offset - stride * shift};
  }
  // How many output positions have the given residue.
  TRANSCONV_HOST_DEVICE constexpr int64_t ResidueExtent(int64_t residue) const {
    return out > residue ? CeilDiv(out - residue, stride) : 0;
  }
};

// A whole problem, as every kernel launcher receives it.
struct Problem {
  int64_t batch = 0;
  int64_t in_channels = 0;
  int64_t out_channels = 0;
  int64_t groups = 1;
  Axis h;
  Axis w;
  Layout layout = Layout::kNCHW;
  Precision precision = Precision::kDefault;

  TRANSCONV_HOST_DEVICE constexpr int64_t in_per_group() const { return in_channels / groups; }
  TRANSCONV_HOST_DEVICE constexpr int64_t out_per_group() const { return out_channels / groups; }
  TRANSCONV_HOST_DEVICE constexpr int64_t taps() const { return h.kernel * w.kernel; }
};

}  // namespace transconv

#endif  // TRANSCONV_CORE_GEOMETRY_H_
