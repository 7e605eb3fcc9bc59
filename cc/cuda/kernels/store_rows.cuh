// How accumulators leave for an NCHW target: staged in shared memory, then whole rows in bulk.
#ifndef TRANSCONV_CUDA_KERNELS_STORE_ROWS_CUH_
#define TRANSCONV_CUDA_KERNELS_STORE_ROWS_CUH_

#include <cstdint>

#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda {

// One row of a strip: where its sixteen channels' values of one warp belong.
struct StripRow {
  int64_t offset;   // elements, of the warp's first channel and column 0
  int64_t channel;  // elements from one channel to the next
  int channels;     // of the sixteen that exist
  int width;        // columns of the target
  int origin;       // column of the first value; negative where a strip begins before the row
  int step, residues;
  int index, strips, strip, lead;  // which strip, of how many; columns between two; 0: no cutting
  bool pairs = false;              // one residue, and every row and origin is aligned to pairs
};

// Eight channels, the first or the second half of a warp's, are staged, residues interleaved, and
// each then leaves as one bulk copy of its 16-byte-aligned middle. Strips are cut where the address
// is a multiple of 32 bytes, if the target starts at one: partial sectors halve the store rate.
// `value(residue, i)` is what the lane has of its channel: columns 8 * (i / 2) + 2 * (lane % 4) +
// i % 2, as in a m64nN fragment; `staging` has eight rows of `pitch` elements.
template <typename T, int N, int RES, typename Value>
__device__ __forceinline__ void StoreStripHalf(const Value& value, const StripRow& row, int half,
                                               T* target, T* staging, int pitch, int lane) {
  constexpr int kAlign = 16 / sizeof(T);   // elements of one 16-byte piece
  constexpr int kSector = 32 / sizeof(T);  // elements of one 32-byte sector
  const int quad = lane % 4, channel_lane = lane / 4;
  const int64_t first = row.offset + 8 * half * row.channel;
  // A slice of a buffer may start between two pieces.
  const int past = static_cast<int>(reinterpret_cast<uintptr_t>(target) / sizeof(T) % kAlign);
  if (lane < 8) ptx::BulkWaitRead<0>();
  __syncwarp();
  // Staged column 0 is where the address of the origin was last aligned.
  const int phase =
      static_cast<int>((first + channel_lane * row.channel + row.origin + past) & (kAlign - 1));
  T* out = staging + channel_lane * pitch + phase;
  if (RES == 1 && row.pairs) {
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
      *reinterpret_cast<Pair<T>*>(out + 8 * j + 2 * quad) =
          RoundPair<T>(value(0, 2 * j), value(0, 2 * j + 1));
    }
  }
#pragma unroll
  for (int r = 0; r < RES; ++r) {
    if (r < row.residues && !(RES == 1 && row.pairs)) {
#pragma unroll
      for (int j = 0; j < N / 8; ++j) {
        const int v = 8 * j + 2 * quad;
        out[v * row.step + r] = Round<T>(value(r, 2 * j));
        out[(v + 1) * row.step + r] = Round<T>(value(r, 2 * j + 1));
      }
    }
  }
  ptx::FenceAsync();
  __syncwarp();
  if (lane < 8 && 8 * half + lane < row.channels) {
    const int64_t offset = first + lane * row.channel;
    int lo = max(row.origin, 0), hi = min(row.origin + N * row.step, row.width);
    if (row.lead > 0) {
      const int cut = row.index * row.strip;
      const int sector = static_cast<int>((offset + cut) & (kSector - 1));
      lo = row.index == 0 ? 0 : cut - sector;
      hi = row.index + 1 == row.strips ? row.width : cut + row.strip - sector;
    }
    T* const to = target + offset;
    const T* const from = staging + lane * pitch +
                          static_cast<int>((offset + row.origin + past) & (kAlign - 1)) -
                          row.origin;
    // The first and last column whose 16-byte piece lies wholly inside.
    const int skew = static_cast<int>((offset + past) & (kAlign - 1));
    int begin = ((lo + skew + kAlign - 1) & ~(kAlign - 1)) - skew;
    int end = ((hi + skew) & ~(kAlign - 1)) - skew;
    if (begin >= end) begin = end = max(lo, hi);
    for (int x = lo; x < min(begin, hi); ++x) to[x] = from[x];
    for (int x = end; x < hi; ++x) to[x] = from[x];
    if (begin < end) {
      ptx::BulkStore(to + begin, ptx::SharedAddress(from + begin),
                     (end - begin) * static_cast<int>(sizeof(T)));
    }
    ptx::BulkCommit();
  }
}

// Both halves. `value(residue, half, i)` is accumulator i of a m64nN fragment.
template <typename T, int N, int RES, typename Value>
__device__ __forceinline__ void StoreStripRow(const Value& value, const StripRow& row, T* target,
                                              T* staging, int pitch, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto of_half = [&](int r, int i) {
      return value(r, half, 4 * (i / 2) + 2 * half + i % 2);
    };
    StoreStripHalf<T, N, RES>(of_half, row, half, target, staging, pitch, lane);
  }
}

// Elements between two staged channels: so many words past a multiple of 32, that the eight
// channels of a fragment hit different banks. Twelve; pairs of two words each need 24.
inline int StagingPitch(int columns, int element_bytes, int past = 12) {
  const int words = (columns * element_bytes + 16 + 3) / 4;
  return ((words + 31 - past) / 32 * 32 + past) * 4 / element_bytes;
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_KERNELS_STORE_ROWS_CUH_
