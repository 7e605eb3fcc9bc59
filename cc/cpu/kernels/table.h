// Instantiates the kernels for one instruction set; included once by each launch/isa_*.cc.
#ifndef TRANSCONV_CPU_KERNELS_TABLE_H_
#define TRANSCONV_CPU_KERNELS_TABLE_H_

#include "cpu/isa.h"
#include "cpu/kernels/convert.h"
#include "cpu/kernels/depthwise.h"
#include "cpu/kernels/depthwise_rows.h"
#include "cpu/kernels/direct.h"
#include "cpu/kernels/gather.h"
#include "cpu/kernels/grad_item.h"
#include "cpu/kernels/pack_weight.h"
#include "cpu/kernels/weight_grad.h"
#include "cpu/kernels/weight_grad_wide.h"

#define TRANSCONV_STRING_(x) #x
#define TRANSCONV_STRING(x) TRANSCONV_STRING_(x)
#define TRANSCONV_EACH(fn) {&fn<F16>, &fn<BF16>, &fn<float>, &fn<double>}

namespace transconv::cpu::TRANSCONV_ISA {

template <typename T>
int64_t WeightGradScratch(const WeightGradView& v) {
  return v.wide ? WideScratch<T>(v) : NarrowScratch<T>(v);
}

template <typename T>
void WeightGrad(const WeightGradView& v, int64_t index, void* scratch) {
  const GradItem item = DecodeGradItem(v, index);
  v.wide ? WeightGradWide<T>(v, item, scratch) : WeightGradNarrow<T>(v, item, scratch);
}

extern const KernelTable kTable;
const KernelTable kTable = {
    TRANSCONV_STRING(TRANSCONV_ISA),  TRANSCONV_EACH(PackWeight),
    TRANSCONV_EACH(Gather),           TRANSCONV_EACH(GatherScratch),
    TRANSCONV_EACH(WeightGrad),       TRANSCONV_EACH(WeightGradScratch),
    TRANSCONV_EACH(WeightGradReduce), TRANSCONV_EACH(BiasGrad),
    TRANSCONV_EACH(DepthwisePack),    TRANSCONV_EACH(Depthwise),
    TRANSCONV_EACH(DepthwiseRows),    TRANSCONV_EACH(DepthwiseRowsScratch),
    TRANSCONV_EACH(DepthwiseGrad),    TRANSCONV_EACH(Direct),
};

}  // namespace transconv::cpu::TRANSCONV_ISA

#undef TRANSCONV_EACH

#endif  // TRANSCONV_CPU_KERNELS_TABLE_H_
