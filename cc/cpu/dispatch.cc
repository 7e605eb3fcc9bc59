// Which instruction set to use, decided once.
#include <cstdlib>
#include <cstring>

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

const KernelTables& BuiltKernels() {
  static constexpr KernelTables tables = {
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

namespace {

bool Runs(int table) {
#ifdef TRANSCONV_HAVE_AVX512
  if (table == 2) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
#endif
#ifdef TRANSCONV_HAVE_AVX2
  // Every processor with AVX2 and FMA has F16C.
  if (table == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return table == 0;
}

const KernelTable* Pick() {
  // For tests, and to rule an instruction set out when hunting a bug.
  const char* most = std::getenv("TRANSCONV_CPU_ISA");
  for (int i = kNumKernelTables - 1; i > 0; --i) {
    const KernelTable* table = BuiltKernels()[i];
    if (table == nullptr || !Runs(i)) continue;
    if (most == nullptr || std::strcmp(most, table->name) == 0) return table;
  }
  return BuiltKernels()[0];
}

}  // namespace

const KernelTable& Kernels() {
  static const KernelTable* const best = Pick();
  return *best;
}

}  // namespace transconv::cpu
