// Plans and kernels joined into jobs.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "core/checked_math.h"
#include "cpu/isa.h"
#include "cpu/launch.h"
#include "cpu/plan.h"
#include "cpu/runner.h"

namespace transconv::cpu {
namespace {

// Scratch of one thread, kept for its next item: tiles are sized for the L2 cache, so this stays
// within a few hundred kilobytes but for extreme shapes.
class Scratch {
 public:
  ~Scratch() { std::free(data_); }

  void* Get(int64_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      const size_t rounded = (static_cast<size_t>(bytes) + 4095) / 4096 * 4096;
      data_ = std::aligned_alloc(4096, rounded);
      size_ = data_ == nullptr ? 0 : static_cast<int64_t>(rounded);
      // What lies between packed rows is multiplied, though never stored; zeros can't be slow.
      for (int64_t i = 0; i < size_; ++i) static_cast<char*>(data_)[i] = 0;
    }
    return data_;
  }

 private:
  void* data_ = nullptr;
  int64_t size_ = 0;
};

void* ThreadScratch(int64_t bytes) {
  thread_local Scratch scratch;
  return scratch.Get(bytes);
}

// Below this many multiply-adds, waking another thread costs more than it saves.
constexpr double kTinyWork = 2e5;

double MultiplyAdds(const Problem& p) {
  return static_cast<double>(p.batch) * static_cast<double>(p.in_channels) *
         static_cast<double>(p.out_per_group()) * static_cast<double>(p.taps()) *
         static_cast<double>(p.h.in) * static_cast<double>(p.w.in);
}

// What forward and grad_input do instead when the weights turn out not to be finite.
class DirectFallback {
 public:
  explicit DirectFallback(const Call& call) {
    const Problem& p = call.problem;
    const bool forward = call.pass == Pass::kForward;
    view_.forward = forward;
    view_.channels_last = p.layout == Layout::kNHWC;
    view_.batch = p.batch;
    view_.groups = p.groups;
    view_.reduced = forward ? p.in_per_group() : p.out_per_group();
    view_.produced = forward ? p.out_per_group() : p.in_per_group();
    view_.h = {p.h.in, p.h.out, p.h.kernel, p.h.stride, p.h.dilation, p.h.crop_lo};
    view_.w = {p.w.in, p.w.out, p.w.kernel, p.w.stride, p.w.dilation, p.w.crop_lo};
    const int64_t of_in = p.out_per_group() * p.taps();
    view_.weight_reduced = forward ? of_in : p.taps();
    view_.weight_produced = forward ? p.taps() : of_in;
    view_.weight_group = p.in_per_group() * of_in;
    view_.src = forward ? call.x : call.y;
    view_.dst = forward ? call.y : call.x;
    view_.weight = call.w;
    view_.bias = forward ? call.vector : nullptr;
    rows_ = p.batch * p.groups * view_.produced * (forward ? p.h.out : p.h.in);
  }

  // Set while packing; the end of that stage orders it before every Needed().
  void Need() { needed_.store(true, std::memory_order_relaxed); }
  bool Needed() const { return needed_.load(std::memory_order_relaxed); }

  const DirectView& view() const { return view_; }

  // One of `items` equal shares.
  void Run(const KernelTable& kernels, int dtype, int64_t item, int64_t items) const {
    const int64_t share = CeilDiv(rows_, items), begin = std::min(rows_, item * share);
    kernels.direct[dtype](view_, begin, std::min(rows_, begin + share));
  }

 private:
  DirectView view_{};
  int64_t rows_ = 0;
  std::atomic<bool> needed_{false};
};

class GatherJob : public Job {
 public:
  explicit GatherJob(const Call& call)
      : kernels_(Kernels()), dtype_(static_cast<int>(call.dtype)), direct_(call) {
    const int64_t threads = MultiplyAdds(call.problem) < kTinyWork ? 1 : call.threads;
    PlanGather(call.pass, call.problem, call.dtype, threads, &plan_);
    GatherView& v = plan_.view;
    const bool forward = call.pass == Pass::kForward;
    v.src = forward ? call.x : call.y;
    v.dst = forward ? call.y : call.x;
    v.weight = call.w;
    v.bias = forward ? call.vector : nullptr;
    v.packed_weight = call.workspace;
    if (plan_.items > 0) {
      scratch_bytes_ = kernels_.gather_scratch[dtype_](v);
      AddStage(0, plan_.pack_items);
      AddStage(1, plan_.items);
    }
    SetWorkers(threads);
  }

 private:
  bool RunItem(int stage, int64_t item) override {
    if (stage == 0) {
      if (!kernels_.pack_weight[dtype_](plan_.view, item)) direct_.Need();
      return true;
    }
    if (direct_.Needed()) {
      direct_.Run(kernels_, dtype_, item, plan_.items);
      return true;
    }
    void* scratch = ThreadScratch(scratch_bytes_);
    if (scratch == nullptr) return false;
    kernels_.gather[dtype_](plan_.view, item, scratch);
    return true;
  }

  const KernelTable& kernels_;
  int dtype_;
  GatherPlan plan_;
  DirectFallback direct_;
  int64_t scratch_bytes_ = 0;
};

class WeightGradJob : public Job {
 public:
  explicit WeightGradJob(const Call& call)
      : kernels_(Kernels()), dtype_(static_cast<int>(call.dtype)) {
    PlanWeightGrad(call.problem, call.dtype, &plan_);
    WeightGradView& v = plan_.view;
    v.x = call.x;
    v.dy = call.y;
    v.dw = call.w;
    v.db = call.vector;
    // A single partial sum in the type of the result is the result.
    const bool direct = v.slices == 1 && (call.dtype == DType::kF32 || call.dtype == DType::kF64);
    v.partial = direct ? call.w : call.workspace;
    bias_items_ = v.db == nullptr ? 0 : plan_.bias_items;
    scratch_bytes_ = kernels_.weight_grad_scratch[dtype_](v);
    AddStage(0, plan_.items + bias_items_);
    if (!direct) AddStage(1, plan_.reduce_items);
    SetWorkers(MultiplyAdds(call.problem) < kTinyWork ? 1 : call.threads);
  }

 private:
  bool RunItem(int stage, int64_t item) override {
    if (stage == 1) {
      kernels_.weight_grad_reduce[dtype_](plan_.view, item);
      return true;
    }
    if (item >= plan_.items) {
      kernels_.bias_grad[dtype_](plan_.view, item - plan_.items);
      return true;
    }
    void* scratch = ThreadScratch(scratch_bytes_);
    if (scratch == nullptr) return false;
    kernels_.weight_grad[dtype_](plan_.view, item, scratch);
    return true;
  }

  const KernelTable& kernels_;
  int dtype_;
  WeightGradPlan plan_;
  int64_t bias_items_ = 0;
  int64_t scratch_bytes_ = 0;
};

// Forward and grad_input of depthwise problems with rows of one channel.
class DepthwiseRowsJob : public Job {
 public:
  // Null when PlanDepthwiseRows leaves the problem to others.
  static std::shared_ptr<Job> Make(const Call& call) {
    auto job = std::make_shared<DepthwiseRowsJob>(call);
    return job->planned_ ? job : nullptr;
  }

  explicit DepthwiseRowsJob(const Call& call)
      : kernels_(Kernels()), dtype_(static_cast<int>(call.dtype)) {
    const int64_t threads = MultiplyAdds(call.problem) < kTinyWork ? 1 : call.threads;
    planned_ = PlanDepthwiseRows(call.pass, call.problem, threads, &plan_);
    if (!planned_) return;
    DepthwiseRowsView& v = plan_.view;
    v.direct = DirectFallback(call).view();
    v.src = v.direct.src;
    v.dst = v.direct.dst;
    v.weight = v.direct.weight;
    v.bias = v.direct.bias;
    scratch_bytes_ = kernels_.depthwise_rows_scratch[dtype_](v);
    AddStage(0, plan_.items);
    SetWorkers(threads);
  }

 private:
  bool RunItem(int, int64_t item) override {
    void* scratch = ThreadScratch(scratch_bytes_);
    if (scratch == nullptr) return false;
    kernels_.depthwise_rows[dtype_](plan_.view, item, scratch);
    return true;
  }

  const KernelTable& kernels_;
  int dtype_;
  bool planned_ = false;
  DepthwiseRowsPlan plan_;
  int64_t scratch_bytes_ = 0;
};

// Forward and grad_input of depthwise problems with channels last.
class DepthwiseJob : public Job {
 public:
  explicit DepthwiseJob(const Call& call)
      : kernels_(Kernels()), dtype_(static_cast<int>(call.dtype)) {
    const int64_t threads = MultiplyAdds(call.problem) < kTinyWork ? 1 : call.threads;
    PlanDepthwise(call.pass, call.problem, threads, &plan_);
    DepthwiseView& v = plan_.view;
    const bool forward = call.pass == Pass::kForward;
    v.src = forward ? call.x : call.y;
    v.dst = forward ? call.y : call.x;
    v.weight = call.w;
    v.bias = forward ? call.vector : nullptr;
    v.packed = call.workspace;
    if (plan_.items > 0) {
      AddStage(0, plan_.pack_items);
      AddStage(1, plan_.items);
    }
    SetWorkers(threads);
  }

 private:
  bool RunItem(int stage, int64_t item) override {
    (stage == 0 ? kernels_.depthwise_pack : kernels_.depthwise)[dtype_](plan_.view, item);
    return true;
  }

  const KernelTable& kernels_;
  int dtype_;
  DepthwisePlan plan_;
};

// grad_weight of the same; the sums over slices and the bias are those of WeightGradJob.
class DepthwiseGradJob : public Job {
 public:
  explicit DepthwiseGradJob(const Call& call)
      : kernels_(Kernels()), dtype_(static_cast<int>(call.dtype)) {
    PlanDepthwise(call.pass, call.problem, 1, &plan_);
    plan_.view.src = call.y;
    plan_.view.weight = call.x;
    plan_.view.packed = call.workspace;
    PlanWeightGrad(call.problem, call.dtype, &rest_);
    rest_.view.slices = plan_.view.slices;
    rest_.view.partial = call.workspace;
    rest_.view.dy = call.y;
    rest_.view.dw = call.w;
    rest_.view.db = call.vector;
    AddStage(0, plan_.view.slices + (call.vector == nullptr ? 0 : rest_.bias_items));
    AddStage(1, rest_.reduce_items);
    SetWorkers(MultiplyAdds(call.problem) < kTinyWork ? 1 : call.threads);
  }

 private:
  bool RunItem(int stage, int64_t item) override {
    if (stage == 1) {
      kernels_.weight_grad_reduce[dtype_](rest_.view, item);
    } else if (item < plan_.view.slices) {
      kernels_.depthwise_grad[dtype_](plan_.view, item);
    } else {
      kernels_.bias_grad[dtype_](rest_.view, item - plan_.view.slices);
    }
    return true;
  }

  const KernelTable& kernels_;
  int dtype_;
  DepthwisePlan plan_;
  WeightGradPlan rest_;
};

bool ChannelsLastDepthwise(Algorithm algorithm, const Problem& p) {
  return algorithm == Algorithm::kCpuDepthwise && IsChannelsLastDepthwise(p);
}

bool Handles(Algorithm algorithm, const Problem& p) {
  if (algorithm == Algorithm::kCpuTiled) return true;
  return algorithm == Algorithm::kCpuDepthwise && p.in_per_group() == 1;
}

}  // namespace

int64_t WorkspaceBytes(Pass pass, Algorithm algorithm, const Problem& problem, DType dtype) {
  if (!Handles(algorithm, problem)) return -1;
  int64_t elements = 0;
  if (pass != Pass::kGradWeight) {
    elements = GatherWorkspace(problem);
  } else if (ChannelsLastDepthwise(algorithm, problem)) {
    elements =
        CheckedProduct({problem.in_channels, problem.taps(), DepthwiseSlices(problem)}).value();
  } else {
    elements = WeightGradWorkspace(problem, dtype);
  }
  return (CheckedSize(elements) * CheckedSize(dtype == DType::kF64 ? 8 : 4)).value();
}

const char* Supports(Pass pass, Algorithm algorithm, const Problem& problem, DType dtype) {
  if (!Handles(algorithm, problem)) {
    return algorithm == Algorithm::kCpuDepthwise
               ? "the depthwise kernel needs one input channel per group"
               : "not an algorithm of the CPU module";
  }
  if (ChannelsLastDepthwise(algorithm, problem)) return nullptr;
  // Each thread holds one packed tile. It fits the L2 cache, unless the taps lie so far apart that
  // the halo dwarfs the tile.
  constexpr int64_t kMostScratch = int64_t{64} << 20;
  int64_t scratch = 0;
  if (pass == Pass::kGradWeight) {
    WeightGradPlan plan;
    PlanWeightGrad(problem, dtype, &plan);
    scratch = Kernels().weight_grad_scratch[static_cast<int>(dtype)](plan.view);
  } else {
    GatherPlan plan;
    PlanGather(pass, problem, dtype, 2, &plan);
    if (plan.items > 0) scratch = Kernels().gather_scratch[static_cast<int>(dtype)](plan.view);
  }
  return scratch > kMostScratch ? "the dilated kernel is too large for a packed tile" : nullptr;
}

// Images of one pixel that meet every tap once are a plain matrix product: its rows are the images,
// and every (channel, tap) of y is a channel. As positions of one image they fill vectors.
bool IsOnePixelProduct(const Call& call) {
  const Problem& p = call.problem;
  const auto whole = [](const Axis& a) {
    return a.in == 1 && a.out == a.kernel && a.crop_lo == 0 && (a.dilation == 1 || a.kernel == 1);
  };
  return call.pass != Pass::kGradWeight && p.groups == 1 && p.layout == Layout::kNCHW &&
         whole(p.h) && whole(p.w) && call.vector == nullptr;
}

Call OnePixelProduct(Call call) {
  Problem& p = call.problem;
  p.out_channels *= p.taps();
  p.layout = Layout::kNHWC;
  p.h = {1, 1, 1, 1, 1, 0};
  p.w = {p.batch, p.batch, 1, 1, 1, 0};
  p.batch = 1;
  return call;
}

std::shared_ptr<Job> MakeJob(const Call& call) {
  if (!Handles(call.algorithm, call.problem)) return nullptr;
  if (ChannelsLastDepthwise(call.algorithm, call.problem)) {
    if (call.pass == Pass::kGradWeight) return std::make_shared<DepthwiseGradJob>(call);
    return std::make_shared<DepthwiseJob>(call);
  }
  if (call.pass == Pass::kGradWeight) return std::make_shared<WeightGradJob>(call);
  if (call.algorithm == Algorithm::kCpuDepthwise) {
    if (std::shared_ptr<Job> job = DepthwiseRowsJob::Make(call)) return job;
  }
  return std::make_shared<GatherJob>(IsOnePixelProduct(call) ? OnePixelProduct(call) : call);
}

}  // namespace transconv::cpu
