// How accumulators leave for an NCHW target: staged in shared memory, then whole rows in bulk.
#ifndef TRANSCONV_CUDA_KERNELS_STORE_ROWS_CUH_
#define TRANSCONV_CUDA_KERNELS_STORE_ROWS_CUH_

#include <cstdint>

#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda {

// Strips that are narrow, or whose residues are interleaved, are never cut.
constexpr bool MayCutStrips(int columns, int residues) { return residues == 1 && columns >= 64; }

// One row of a strip: where its sixteen channels' values of one warp belong.
struct StripRow {
  int64_t offset;   // elements, of the warp's first channel and column 0
  int64_t channel;  // elements from one channel to the next
  int channels;     // of the sixteen that exist
  int width;        // columns of the target
  int origin;       // column of the first value; negative where a strip begins before the row
  int step, residues;
  int index, strips, strip, lead;  // which strip, of how many; columns between two; 0: no cutting
  int granule;  // elements: strips are cut where offsets in the target are multiples of it
  bool pairs;   // one residue, and every row and origin is aligned to pairs
};

// Eight channels, the first or the second half of a warp's, are staged, residues interleaved, and
// each then leaves as one bulk copy of its 16-byte-aligned middle. Strips are cut at multiples of a
// granule: 16 bytes, or a sector of 32, of which parts are slow to store. `value(residue, i)` is
// what the lane has of its channel: columns 8 * (i / 2) + 2 * (lane % 4) + i % 2, as in a m64nN
// fragment; `staging` has eight rows of `pitch` elements.
template <typename T, int N, int RES, typename Value>
__device__ __forceinline__ void StoreStripHalf(const Value& value, const StripRow& row, int half,
                                               T* target, T* staging, int pitch, int lane) {
  constexpr int kAlign = 16 / sizeof(T);  // elements of one 16-byte piece
  const int quad = lane % 4, channel_lane = lane / 4;
  const int64_t first = row.offset + 8 * half * row.channel;
  // A slice of a buffer may start between two pieces.
  const int past = static_cast<int>(reinterpret_cast<uintptr_t>(target) / sizeof(T) % kAlign);
  if (lane == 0) ptx::BulkWaitRead<0>();
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
  // Four lanes a channel.
  const int channel = lane % 8;
  const int64_t offset = first + channel * row.channel;
  int lo = max(row.origin, 0), hi = min(row.origin + N * row.step, row.width);
  if (MayCutStrips(N, RES) && row.lead > 0) {
    const int cut = row.index * row.strip;
    const int past_cut = static_cast<int>((offset + cut) & (row.granule - 1));
    lo = row.index == 0 ? 0 : cut - past_cut;
    hi = row.index + 1 == row.strips ? row.width : cut + row.strip - past_cut;
  }
  if (8 * half + channel >= row.channels) hi = lo;
  T* const to = target + offset;
  // The first and last column whose 16-byte piece lies wholly inside.
  const int skew = static_cast<int>((offset + past) & (kAlign - 1));
  const T* const from =
      staging + channel * pitch + ((skew + row.origin) & (kAlign - 1)) - row.origin;
  int begin = ((lo + skew + kAlign - 1) & ~(kAlign - 1)) - skew;
  int end = ((hi + skew) & ~(kAlign - 1)) - skew;
  if (begin >= end) begin = end = max(lo, hi);
  // One lane sends all middles, with what the lanes of each channel say: a bulk copy takes uniform
  // registers, so that lanes would take turns anyway, and slower.
  const uint64_t middle = reinterpret_cast<uint64_t>(to + begin);
  const uint32_t pieces =
      static_cast<uint32_t>(end - begin) / kAlign << 16 | ptx::SharedAddress(from + begin) / 16;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint64_t of_channel = __shfl_sync(0xffffffffu, middle, i);
    const uint32_t which = __shfl_sync(0xffffffffu, pieces, i);
    if (lane == 0 && which >> 16 != 0) {
      ptx::BulkStore(reinterpret_cast<void*>(of_channel), (which & 0xffff) * 16,
                     (which >> 16) * 16);
    }
  }
  if (lane == 0) ptx::BulkCommit();
  // What is left at both ends: two of them at a time, so that no load waits for a store.
  const int left = begin - lo, ends = left + hi - end;
#pragma unroll 1
  for (int n = lane / 8; n < ends; n += 8) {
    const int x = n < left ? lo + n : end + n - left;
    const int y = n + 4 < left ? lo + n + 4 : end + n + 4 - left;
    const T of_x = from[x], of_y = from[y < hi ? y : x];
    to[x] = of_x;
    if (y < hi) to[y] = of_y;
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
