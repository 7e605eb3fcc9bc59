// The tile kernel for Hopper on the CPU, thread by thread as on a GPU: packing, producers, matrix
// products, stores, against the definition. Every problem is packed once and run in several ways.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "definition.h"
#include "guarded_tensor.h"
#include "sm90_emulation.h"
#include "sm90_products.h"
// After the emulation.
#include "cuda/launch/sm90_tile_programme.cuh"

namespace transconv {
namespace {

namespace tile = cuda::sm90_tile;
using cuda::Call;
using tile::Programme;
using tile::Shape;
using tile::TileParams;
using tile::Use;

constexpr Shape kShapes[] = {
#define TRANSCONV_SHAPE(...) {__VA_ARGS__},
    TRANSCONV_SM90_TILE_SINGLE(TRANSCONV_SHAPE) TRANSCONV_SM90_TILE_TRIPLE(TRANSCONV_SHAPE)
#undef TRANSCONV_SHAPE
};

std::mt19937 random_bits(7);
int Pick(int lo, int hi) {
  return lo + static_cast<int>(random_bits() % static_cast<unsigned>(hi - lo + 1));
}

[[noreturn]] void Fail(const char* what) {
  std::printf("tile_kernel_test: %s\n", what);
  std::exit(1);
}

// How often a feature was met; those that were only looked for have a zero.
std::map<std::string, int> counts;

// As the launcher does, on so many multiprocessors.
template <typename T, int PRODUCTS>
void Launch(const TileParams& p, const Programme& g, unsigned blocks) {
  const auto bytes = static_cast<size_t>(g.shared_bytes);
#define TRANSCONV_RUN_IF(N, RES, ROWS, COUNT)                                             \
  if constexpr (COUNT == PRODUCTS) {                                                      \
    if (g.shape.n == N && g.shape.res == RES && g.shape.rows == ROWS) {                   \
      return emulation::LaunchSm90(blocks, tile::kThreads, bytes,                         \
                                   [&] { tile::TileKernel<T, N, RES, ROWS, COUNT>(p); }); \
    }                                                                                     \
  }
  TRANSCONV_SM90_TILE_SINGLE(TRANSCONV_RUN_IF)
  TRANSCONV_SM90_TILE_TRIPLE(TRANSCONV_RUN_IF)
#undef TRANSCONV_RUN_IF
  Fail("there is no such shape");
}

constexpr int64_t kMostSteps = 350;  // of the consumers, for the time that it takes

// Integers have exact results. Of the others, none is so small that float16 loses its digits.
enum class Values { kIntegers, kFractions, kMagnitudes };

// Of slabs of channels, in binades: further apart than the exponent's window.
constexpr int kZeros = 100;
constexpr int kMagnitudes[] = {0, 25, kZeros, -25, 60, -90};

template <typename T, int PRODUCTS>
class Case {
 public:
  Case(const Problem& q, Pass pass, Values values)
      : q_(q),
        forward_(pass == Pass::kForward),
        source_group_(forward_ ? q.in_per_group() : q.out_per_group()),
        channels_(forward_ ? q.out_channels : q.in_channels),
        values_(values),
        weight_(definition::WeightSize(q), Start(), NAN),
        bias_(static_cast<size_t>(channels_), Start(), NAN) {
    call_.pass = pass;
    call_.dtype = kType;
    call_.w = weight_.data();
    // Target channels have scales of their own.
    const bool scaled = sizeof(T) == 4 && values_ != Values::kIntegers;
    std::vector<int> scales(static_cast<size_t>(channels_));
    for (int& scale : scales) scale = scaled ? Pick(-12, 12) : 0;
    const int64_t taps = q.taps(), m = q.out_per_group();
    for (size_t i = 0; i < weight_.size(); ++i) {
      const int64_t in = static_cast<int64_t>(i) / taps / m;
      const int64_t out = in / q.in_per_group() * m + static_cast<int64_t>(i) / taps % m;
      const int scale = scales[static_cast<size_t>(forward_ ? out : in)];
      weight_.data()[i] = static_cast<T>(std::ldexp(Draw(), scale));
    }
    for (size_t i = 0; i < bias_.size(); ++i) bias_.data()[i] = static_cast<T>(Draw());
  }

  // Of what the weights do not depend on.
  void SetImages(const Problem& q) {
    q_ = call_.problem = q;
    call_.vector = values_ != Values::kMagnitudes && Pick(0, 3) != 0 ? bias_.data() : nullptr;
    source_ = Tensor<T>(definition::Size(q, forward_), Start(), NAN);
    magnitudes_.resize(static_cast<size_t>(q.batch * q.groups * slabs()));
    const bool apart = values_ == Values::kMagnitudes;
    for (int& m : magnitudes_) m = apart ? kMagnitudes[Pick(0, std::size(kMagnitudes) - 1)] : 0;
    const size_t image = source_.size() / static_cast<size_t>(q.batch);
    for (size_t i = 0; i < source_.size(); ++i) {
      const int64_t channel = ChannelOf(i, forward_);
      const int magnitude = MagnitudeOf(static_cast<int64_t>(i / image), channel / source_group_,
                                        channel % source_group_ / tile::kSlabChannels);
      const float v = magnitude == kZeros ? 0.f : std::ldexp(Draw(), magnitude);
      source_.data()[i] = static_cast<T>(v);
    }
    want_.assign(definition::Size(q, !forward_), 0.0);
    sums_ = want_;
    definition::ForAll(q, [&](size_t x, size_t w, size_t y) {
      const double product = Value(source_, forward_ ? x : y) * Value(weight_, w);
      want_[forward_ ? y : x] += product;
      sums_[forward_ ? y : x] += std::fabs(product);
    });
    for (size_t i = 0; i < want_.size() && call_.vector != nullptr; ++i) {
      const double b = Value(bias_, static_cast<size_t>(ChannelOf(i, !forward_)));
      want_[i] += b;
      sums_[i] += std::fabs(b);
    }
  }

  // Returns whether there is a programme, and not too large a one.
  bool Run(const Shape& shape, const Use& use) {
    Programme g;
    if (tile::MakeProgramme(q_, call_.pass, kType, shape, use, &g) != nullptr) return false;
    if (g.tiles * g.slabs * (g.plan.max_taps + 4) > kMostSteps) return false;
    Tensor<T> target(want_.size(), Start(), 7.f);
    std::memset(static_cast<void*>(target.data()), 0xff, target.bytes());
    if (workspace_ == nullptr) {
      workspace_ =
          std::make_unique<Tensor<float>>(static_cast<size_t>(g.workspace_bytes) / 4, 0, NAN);
      std::memset(workspace_->data(), 0xff, workspace_->bytes());
    }
    call_.workspace = workspace_->data();
    call_.x = forward_ ? source_.data() : target.data();
    call_.y = forward_ ? target.data() : source_.data();
    emulation::readable = emulation::writable = {};
    emulation::readable.Allow(source_.data(), source_.bytes());
    emulation::readable.Allow(workspace_->data(), workspace_->bytes(), true);
    emulation::writable.Allow(target.data(), target.bytes());
    if (!packed_) {
      const auto pack = cuda::PackParamsOf(call_, g.plan, g.packed);
      emulation::LaunchSm90(cuda::PackBlocks(q_, g.packed), cuda::kPackThreads, 64,
                            [&] { cuda::PackWeightsKernel<T, PRODUCTS>(pack); });
      packed_ = true;
    }
    TileParams p;
    tile::FillParams(call_, g, &p);
    if (shape.res <= 2 && Pick(0, 1) == 0) p.turns = !p.turns;
    const int blocks = static_cast<int>(std::min<int64_t>(Pick(1, 3), g.tiles));
    Cover(g, p, blocks);
    Launch<T, PRODUCTS>(p, g, static_cast<unsigned>(blocks));
    Check(g, &target);
    return true;
  }

 private:
  static constexpr DType kType = sizeof(T) == 4              ? DType::kF32
                                 : std::is_same_v<T, __half> ? DType::kF16
                                                             : DType::kBF16;
  static constexpr const char* kName = sizeof(T) == 2  ? kType == DType::kF16 ? "f16" : "bf16"
                                       : PRODUCTS == 3 ? "f32x3"
                                                       : "f32";
  // Elements behind a multiple of 16 bytes.
  static size_t Start() { return Pick(0, 2) == 0 ? 0 : static_cast<size_t>(Pick(1, 7)); }
  static double Value(Tensor<T>& from, size_t i) {
    return static_cast<double>(static_cast<float>(from.data()[i]));
  }
  float Draw() const {
    if (values_ == Values::kIntegers) return static_cast<float>(Pick(-4, 4));
    return (Pick(0, 1) == 0 ? -1.f : 1.f) * static_cast<float>(Pick(1 << 18, 1 << 20)) * 0x1p-20f;
  }
  int64_t ChannelOf(size_t i, bool of_x) const {
    const int64_t all = of_x ? q_.in_channels : q_.out_channels;
    const int64_t pixels = of_x ? q_.h.in * q_.w.in : q_.h.out * q_.w.out;
    return static_cast<int64_t>(i) / (q_.layout == Layout::kNCHW ? pixels : 1) % all;
  }
  int& MagnitudeOf(int64_t image, int64_t group, int64_t slab) {
    return magnitudes_[static_cast<size_t>((image * q_.groups + group) * slabs() + slab)];
  }
  int64_t slabs() const { return CeilDiv(source_group_, int64_t{tile::kSlabChannels}); }

  void Check(const Programme& g, Tensor<T>* target) {
    const double tolerance = PRODUCTS == 3 ? 1e-6 : kType == DType::kBF16 ? 4e-3 : 1.1e-3;
    for (size_t i = 0; i < want_.size(); ++i) {
      const double got = Value(*target, i);
      const double exact = static_cast<float>(static_cast<T>(static_cast<float>(want_[i])));
      const bool right = values_ == Values::kIntegers
                             ? got == exact
                             : std::fabs(got - want_[i]) <= tolerance * sums_[i];
      if (right) continue;
      std::printf("%zu of %zu: got %g, want %g\n", i, want_.size(), got, want_[i]);
      Fail(g, "a target is wrong");
    }
    if (!target->Kept() || !workspace_->Kept()) Fail(g, "something is written outside");
  }
  [[noreturn]] void Fail(const Programme& g, const char* what) {
    definition::Describe(q_);
    std::printf("%s, %s, shape %d %d %d, blocks %d%s\n", kName, forward_ ? "forward" : "grad_input",
                g.shape.n, g.shape.res, g.shape.rows, g.use.blocks, g.use.folded ? ", folded" : "");
    transconv::Fail(what);
  }

  void Cover(const Programme& g, const TileParams& p, int blocks) {
    const bool first = q_.layout == Layout::kNCHW, rows = first && !g.use.folded;
    const auto count = [](const std::string& what, bool met) { counts[what] += met; };
    const auto between = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 != 0; };
    count("runs", true);
    for (const bool is_forward : {false, true}) {
      for (const bool is_first : {false, true}) {
        count(std::string(kName) + (is_first ? " NCHW" : " NHWC") + (is_forward ? " y" : " dx"),
              is_forward == forward_ && is_first == first);
      }
    }
    for (const Shape& s : kShapes) {
      const bool met = std::memcmp(&s, &g.shape, sizeof(s)) == 0;
      count("shape " + std::to_string(s.n) + "x" + std::to_string(s.res) + "x" +
                std::to_string(s.rows) + "x" + std::to_string(s.products),
            met);
    }
    for (int r = 1; r <= kMaxResidues; ++r) {
      count(std::to_string(r) + " column residues", g.plan.w.residues == r);
    }
    count("more residues than the problem's", g.shape.res > g.plan.w.residues);
    count("folded NCHW", first && g.use.folded);
    count("folded NHWC", !first && g.use.folded);
    count("vectors", g.use.folded && p.vectors);
    count("no vectors because of the start",
          g.use.folded && !p.vectors && g.lead == 0 && tile::StoresVectors(q_, g));
    count("pairs", rows && p.pairs);
    count("no pairs because of the start", rows && g.pairs && !p.pairs);
    count("pairs of blocks", g.use.blocks == 2 && g.m_blocks > 1);
    count("pairs without a second block", g.use.blocks == 2 && g.m_blocks % 2 != 0);
    const bool cut = g.lead > 0 && g.tiles_x > 1;
    const int sector = 32 / static_cast<int>(sizeof(T));
    count("strips cut at sectors", cut && g.granule == sector);
    count("strips cut at halves of sectors", cut && g.granule == sector / 2);
    count("strips as they are", rows && g.lead == 0 && g.tiles_x > 1);
    count("cut strips of a target between pieces", cut && between(p.target));
    count("targets between pieces", between(p.target));
    count("sources between pieces", between(p.source));
    count("ragged target channels", g.m_per_group % 16 != 0);
    count("ragged source channels", g.k_per_group % 8 != 0);
    count("turns", p.turns);
    count("no turns", !p.turns && g.shape.res <= 2);
    count("row residues without taps",
          std::adjacent_find(p.first_tap, p.first_tap + p.residues_h + 1) !=
              p.first_tap + p.residues_h + 1);
    count("column residues without taps", q_.w.kernel < g.plan.w.residues);
    count("several planes", g.plan.planes() > 1);
    count("dilation", q_.w.dilation > 1 && q_.w.kernel > 1);
    count("several chunks of taps", g.plan.max_taps > g.chunk_taps);
    count("stages of several slabs", g.depth > 1 && g.slabs > 1);
    count("stages of fewer slabs than the others", g.slabs > g.depth && g.slabs % g.depth != 0);
    count("several stages a tile", g.slabs > g.depth);
    count("several tiles a block", g.tiles > blocks);
    count("more stages than a ring has", CeilDiv(g.slabs, g.depth) * (g.tiles / blocks) > g.stages);
    count("two stages of weights", g.weight_stages == 2);
    count("no bias", p.bias == nullptr);
    if constexpr (sizeof(T) == 4) {
      // The tiles of one image and group follow one another.
      bool rises = false, falls = false, zeros = false;
      int before = 0;
      for (int64_t tiles = 0; tiles < q_.batch * q_.groups; ++tiles) {
        int most = -1000;
        for (int64_t slab = 0; slab < g.slabs; slab += g.depth) {
          int own = -1000;
          for (int64_t s = slab; s < std::min<int64_t>(slab + g.depth, g.slabs); ++s) {
            const int m = MagnitudeOf(tiles / q_.groups, tiles % q_.groups, s);
            if (m != kZeros) own = std::max(own, m);
          }
          zeros |= own == -1000;
          rises |= slab > 0 && most > -1000 && own > most + 19;
          falls |= slab == 0 && tiles > 0 && own > -1000 && own + 19 < before;
          most = std::max(most, own);
        }
        if (most > -1000) before = most;
      }
      const std::string of = std::string(kName) + " ";
      count(of + "exponents that rise within a tile", rises);
      count(of + "exponents that fall", falls && blocks == 1);
      count(of + "stages of zeros", zeros);
    }
  }

  Problem q_;
  const bool forward_;
  const int64_t source_group_, channels_;  // channels: of one in the source, of the target
  const Values values_;
  Tensor<T> weight_, bias_, source_{0, 0, NAN};
  std::vector<double> want_, sums_;  // sums of magnitudes
  std::vector<int> magnitudes_;      // by image, group and slab
  std::unique_ptr<Tensor<float>> workspace_;
  bool packed_ = false;
  Call call_;
};

// What weights depend on. `residues`: column residues, or at most so many planes.
Problem DrawWeights(int products, bool forward, int residues) {
  Problem q;
  q.precision = products == 3 ? Precision::kHighest : Precision::kDefault;
  q.groups = Pick(0, 2) == 0 ? 2 : 1;
  const int source = Pick(0, 1) == 0 ? Pick(17, 80) : Pick(1, 30);
  const int target = q.groups == 1 && Pick(0, 2) == 0 ? Pick(65, 140) : Pick(1, 40);
  q.in_channels = q.groups * (forward ? source : target);
  q.out_channels = q.groups * (forward ? target : source);
  q.h = definition::MakeAxis(1, Pick(1, 3), Pick(1, 2), Pick(1, 2), Pick(-1, 1), 0);
  q.w = definition::MakeAxis(1, Pick(1, residues + 3), residues, Pick(1, 2), Pick(-2, 2), 0);
  return q;
}

// The rest, for what is to be met: strips that are cut, pixels in order, or folded tiles.
enum class Images { kStrips, kPixels, kFolded };
void DrawImages(bool forward, Images images, Problem* q) {
  const auto length = [](Axis* a, int in, int hi) {
    *a = definition::MakeAxis(in, a->kernel, a->stride, a->dilation, a->crop_lo, hi);
  };
  const bool strips = images == Images::kStrips;
  // Smaller ones rather, for the time that it takes.
  for (int i = 0; i < 20; ++i) {
    q->layout = images == Images::kPixels ? Layout::kNHWC : Layout::kNCHW;
    q->batch = Pick(0, 2) == 0 ? 2 : 1;
    length(&q->h, Pick(1, strips ? 2 : 4), Pick(-1, 1));
    const int targets = strips ? Pick(66, 220) : Pick(1, 64);
    length(&q->w, forward ? static_cast<int>(CeilDiv(targets, q->w.stride)) : targets, Pick(-2, 2));
    // Any, or of pairs and vectors.
    const int residues = static_cast<int>(forward ? q->w.stride : 1);
    const int unit = Pick(0, 1) == 0 ? 1 : strips ? 2 * residues : (2 << Pick(0, 3)) * residues;
    int64_t& target = forward ? q->w.out : q->w.in;
    target = CeilDiv(target, int64_t{unit}) * unit;
    const int64_t pixels = q->batch * q->h.in * q->w.in;
    if (pixels * q->taps() * q->in_channels * q->out_per_group() < 2'000'000) return;
  }
}

template <typename T, int PRODUCTS>
void CheckCase(bool forward, int residues, Values values) {
  static size_t next = 0;  // of the shapes
  Problem q = DrawWeights(PRODUCTS, forward, residues);
  Case<T, PRODUCTS> one(q, forward ? Pass::kForward : Pass::kGradInput, values);
  for (const Images images : {Images::kStrips, Images::kPixels, Images::kFolded}) {
    DrawImages(forward, images, &q);
    one.SetImages(q);
    const int most = images == Images::kPixels ? 1 : 2;
    int runs = 0;
    for (int i = 0; runs < most && i < 60; ++i) {
      const Shape& shape = kShapes[next++ % std::size(kShapes)];
      if (shape.products != PRODUCTS) continue;
      const bool folded = images == Images::kPixels ? Pick(0, 1) == 0 : images == Images::kFolded;
      runs += one.Run(shape, {Pick(1, 2), folded});
    }
  }
}

void CheckCases(int most) {
  int forwards = 0;
  for (int i = 0; i < most; ++i) {
    const int kind = i % 6, round = i / 6;
    const bool forward = (i + round) % 3 != 2;
    const int residues = !forward ? Pick(1, 3) : forwards++ % 3 == 0 ? 1 : 2 + forwards % 7;
    const Values exact_or_not{round % 2};
    switch (kind) {
      case 0:
        CheckCase<__half, 1>(forward, residues, exact_or_not);
        break;
      case 1:
        CheckCase<__nv_bfloat16, 1>(forward, residues, exact_or_not);
        break;
      case 2:
        CheckCase<float, 1>(forward, residues, exact_or_not);
        break;
      case 3:
        CheckCase<float, 1>(forward, residues, Values::kMagnitudes);
        break;
      case 4:
        CheckCase<float, 3>(forward, std::min(residues, 6), exact_or_not);
        break;
      default:
        CheckCase<float, 3>(forward, std::min(residues, 6), Values::kMagnitudes);
    }
  }
}

}  // namespace
}  // namespace transconv

int main(int argc, char** argv) {
  const int cases = argc > 1 ? std::atoi(argv[1]) : 24;
  transconv::CheckCases(cases);
  std::printf("tile_kernel_test: %d cases", cases);
  bool all = true;
  for (const auto& [what, count] : transconv::counts) {
    std::printf("; %d %s", count, what.c_str());
    all &= count > 0;
  }
  std::printf("\n");
  if (!all && argc == 1) transconv::Fail("a case is not met");
  return 0;
}
