// Which instruction set to use, decided once.
#include "cpu/isa.h"

namespace transconv::cpu {

namespace generic {
extern const KernelTable kTable;
}
#ifdef TRANSCONV_HAVE_AVX2
namespace avx2 {
extern const KernelTable kTable;
}
#endif
#ifdef TRANSCONV_HAVE_AVX512
namespace avx512 {
extern const KernelTable kTable;
}
#endif

const KernelTable* const (&BuiltKernels())[kNumKernelTables] {
  static const KernelTable* const tables[kNumKernelTables] = {
      &generic::kTable,
#ifdef TRANSCONV_HAVE_AVX2
      &avx2::kTable,
#else
      nullptr,
#endif
#ifdef TRANSCONV_HAVE_AVX512
      &avx512::kTable,
#else
      nullptr,
#endif
  };
  return tables;
}

const KernelTable& Kernels() {
  static const KernelTable& best = []() -> const KernelTable& {
#ifdef TRANSCONV_HAVE_AVX512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      return avx512::kTable;
    }
#endif
#ifdef TRANSCONV_HAVE_AVX2
    // Every processor with AVX2 and FMA has F16C.
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2::kTable;
#endif
    return generic::kTable;
  }();
  return best;
}

}  // namespace transconv::cpu
