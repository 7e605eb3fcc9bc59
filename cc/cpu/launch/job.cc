// Plans and kernels joined into jobs.
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

class GatherJob : public Job {
 public:
  explicit GatherJob(const Call& call) : kernels_(Kernels()), dtype_(static_cast<int>(call.dtype)) {
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
      kernels_.pack_weight[dtype_](plan_.view, item);
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

bool Handles(Algorithm algorithm, const Problem& p) {
  if (algorithm == Algorithm::kCpuTiled) return true;
  return algorithm == Algorithm::kCpuDepthwise && p.in_per_group() == 1;
}

}  // namespace

int64_t WorkspaceBytes(Pass pass, Algorithm algorithm, const Problem& problem, DType dtype) {
  if (!Handles(algorithm, problem)) return -1;
  const int64_t elements = pass == Pass::kGradWeight ? WeightGradWorkspace(problem, dtype)
                                                     : GatherWorkspace(problem);
  return (CheckedSize(elements) * CheckedSize(dtype == DType::kF64 ? 8 : 4)).value();
}

std::shared_ptr<Job> MakeJob(const Call& call) {
  if (!Handles(call.algorithm, call.problem)) return nullptr;
  if (call.pass == Pass::kGradWeight) return std::make_shared<WeightGradJob>(call);
  return std::make_shared<GatherJob>(call);
}

}  // namespace transconv::cpu
