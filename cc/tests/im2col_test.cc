// The im2col kernels on the CPU, thread by thread as on a GPU, against the definition.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/geometry.h"
#include "core/im2col_box.h"
#include "cuda_emulation.h"
// After the emulation.
#include "cuda/kernels/im2col_stage.cuh"

namespace {

using transconv::Axis;
using transconv::BoxForm;
using transconv::BoxShape;
using transconv::Im2colBox;
using transconv::Layout;
using transconv::Problem;

// float32 to TF32 as the instruction rounds: to nearest, ties away from zero.
float ToTf32(float v) {
  if (std::isnan(v) || std::isinf(v)) return v;
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof v);
  bits = (bits + 0x1000) & ~uint32_t{0x1fff};
  std::memcpy(&v, &bits, sizeof v);
  return v;
}

struct Single {
  using Type = float;
  static float Load(float v) { return ToTf32(v); }
  static float Widen(float v) { return v; }
  static float Round(float v) { return v; }
  static constexpr float kPoison = -12345;
};

// In place of the GPU's 16-bit types: 64ths, as which all is exact.
struct Narrow {
  using Type = int16_t;
  static float Load(int16_t v) { return static_cast<float>(v) / 64; }
  static float Widen(int16_t v) { return Load(v); }
  static int16_t Round(float v) { return static_cast<int16_t>(v * 64); }
  static constexpr int16_t kPoison = std::numeric_limits<int16_t>::min();
};

size_t At(const Problem& q, bool is_x, int64_t n, int64_t c, int64_t y, int64_t x) {
  const Axis &h = q.h, &w = q.w;
  const int64_t channels = is_x ? q.in_channels : q.out_channels;
  const int64_t height = is_x ? h.in : h.out, width = is_x ? w.in : w.out;
  return static_cast<size_t>(q.layout == Layout::kNCHW
                                 ? ((n * channels + c) * height + y) * width + x
                                 : ((n * height + y) * width + x) * channels + c);
}

// Every element of a box is the image's or zero, wherever its origin is.
void CheckBox(std::mt19937* random) {
  const auto pick = [&](int lo, int hi) {
    return lo + static_cast<int>((*random)() % static_cast<unsigned>(hi - lo + 1));
  };
  Problem q;
  q.batch = 1;
  q.layout = pick(0, 1) == 0 ? Layout::kNCHW : Layout::kNHWC;
  q.groups = pick(1, 2);
  q.in_channels = q.out_channels = q.groups * pick(1, 9);
  q.h.in = q.h.out = pick(1, 9);
  q.w.in = q.w.out = pick(1, 20);
  const int per_group = static_cast<int>(q.in_per_group());
  BoxShape shape;
  shape.rows = pick(1, 9);
  shape.columns = pick(1, 40);
  shape.channels = pick(0, 1) == 0 ? per_group : pick(1, per_group);
  shape.unit_h = pick(1, 3);
  shape.unit_w = std::max(pick(-2, 3), 1);
  shape.most_vector = 1 << pick(0, 2);
  shape.row_pad = pick(0, 2);
  shape.channel_pad = pick(0, 2);
  shape.column_pad = pick(0, 2);
  const Im2colBox box = transconv::MakeIm2colBox(q, true, shape);
  const int group = pick(0, static_cast<int>(q.groups) - 1);
  const int row = pick(-12, 12), column = pick(-30, 30);
  const int channel =
      shape.channels == per_group ? 0 : pick(0, per_group / shape.channels) * shape.channels;
  std::vector<float> image(static_cast<size_t>(q.in_channels * q.h.in * q.w.in));
  for (float& v : image) v = static_cast<float>(pick(-999, 999));
  std::vector<float> got;
  const int shift = box.Shift(column);
  transconv::emulation::Launch(
      1, transconv::kBoxThreads, static_cast<size_t>(box.size) * sizeof(float), [&] {
        float* const to = reinterpret_cast<float*>(transconv::cuda::SharedMemory());
        transconv::cuda::im2col::StageBox<Single>(
            to, image.data() + At(q, true, 0, group * per_group, 0, 0), box, row, column, channel);
        __syncthreads();
        if (threadIdx.x == 0) got.assign(to, to + box.size);
      });
  for (int c = 0; c < shape.channels; ++c) {
    for (int r = 0; r < shape.rows; ++r) {
      for (int x = 0; x < shape.columns; ++x) {
        const int y_at = row + r * shape.unit_h, x_at = column + x * shape.unit_w;
        const bool inside =
            channel + c < per_group && y_at >= 0 && y_at < q.h.in && x_at >= 0 && x_at < q.w.in;
        const float want =
            inside ? image[At(q, true, 0, group * per_group + channel + c, y_at, x_at)] : 0.0f;
        const int place = shift + r * box.row + x * box.column + c * box.channel;
        if (place < box.size && got[static_cast<size_t>(place)] == want) continue;
        std::printf("im2col_test: a box is wrong: form %d vector %d\n", static_cast<int>(box.form),
                    box.vector);
        std::exit(1);
      }
    }
  }
}

}  // namespace

int main() {
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) CheckBox(&random);
  std::printf("im2col_test: boxes\n");
  return 0;
}
