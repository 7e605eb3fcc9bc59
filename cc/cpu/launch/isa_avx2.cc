// The kernels for AVX2, FMA and F16C.
#define TRANSCONV_ISA avx2
#define TRANSCONV_VECTOR_BYTES 32
#define TRANSCONV_MAX_ROWS 4
#define TRANSCONV_ACCUMULATORS 12
#include "cpu/kernels/table.h"
