// Plans: how a pass is cut into tiles. Pure host arithmetic, tested without kernels.
//
// Forward and grad_input are the same operation, a gather: each element of the destination is a sum
// over (tap, channel) of a source element times a weight. The tensor on the side of y is split into
// stride_h * stride_w planes by residue. Counting from the uncropped result, tap k lies in plane
// d*k mod s at distance tau = d*k / s, so all planes hit by equally many taps share their shifts:
// those planes are rows of one matrix product, and the source is loaded once for all of them. That
// is what makes one-channel groups, where the planes are the only rows there are, run well.
// (geometry.h counts residues from the cropped result, which is the same split seen from another
// origin; there the shifts of different residues differ.)
#ifndef TRANSCONV_CPU_PLAN_H_
#define TRANSCONV_CPU_PLAN_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "core/dtypes.h"
#include "core/geometry.h"
#include "cpu/views.h"

namespace transconv::cpu {

// Owns what the views point into. Not copyable, because the views hold addresses.
struct PlanStorage {
  PlanStorage() = default;
  PlanStorage(const PlanStorage&) = delete;
  PlanStorage& operator=(const PlanStorage&) = delete;

  const int64_t* Keep(std::vector<int64_t> values) {
    arrays.push_back(std::move(values));
    return arrays.back().data();
  }

  std::deque<std::vector<int64_t>> arrays;
  std::deque<std::vector<AxisClassView>> axis_classes;
  std::vector<ClassView> classes;
};

struct GatherPlan : PlanStorage {
  GatherView view{};
  int64_t pack_items = 0;
  int64_t items = 0;
};

struct WeightGradPlan : PlanStorage {
  WeightGradView view{};
  int64_t items = 0;
  int64_t reduce_items = 0;
  int64_t bias_items = 0;
};

struct DepthwisePlan : PlanStorage {
  DepthwiseView view{};
  int64_t pack_items = 0;
  int64_t items = 0;
  std::vector<PhaseView> phases_h, phases_w;
};

struct DepthwiseRowsPlan : PlanStorage {
  DepthwiseRowsView view{};
  int64_t items = 0;
  std::vector<PhaseView> phases_h;
  std::vector<RowTapsView> phases_w;
};

// Elements of workspace, in the compute type; -1 on overflow.
int64_t GatherWorkspace(const Problem& problem);
int64_t WeightGradWorkspace(const Problem& problem, DType dtype);

// The destination is y for forward and x for grad_input. `threads` decides only how work is cut.
void PlanGather(Pass pass, const Problem& problem, DType dtype, int64_t threads, GatherPlan* plan);
// How positions are cut into partial sums depends on the problem alone: the result is the same to
// the bit for any number of threads.
void PlanWeightGrad(const Problem& problem, DType dtype, WeightGradPlan* plan);

// Depthwise with channels last. For grad_weight the destination is x, and items are slices.
bool IsChannelsLastDepthwise(const Problem& problem);
int64_t DepthwiseSlices(const Problem& problem);
void PlanDepthwise(Pass pass, const Problem& problem, int64_t threads, DepthwisePlan* plan);

// Depthwise with rows of one channel. False if the problem is not one for it: it keeps whole rows
// in the cache, and leaves problems of a few long rows to the tiles of PlanGather.
bool PlanDepthwiseRows(Pass pass, const Problem& problem, int64_t threads, DepthwiseRowsPlan* plan);

}  // namespace transconv::cpu

#endif  // TRANSCONV_CPU_PLAN_H_
