// The kernels for AVX-512 F, BW, DQ and VL.
#define TRANSCONV_ISA avx512
#define TRANSCONV_VECTOR_BYTES 64
#define TRANSCONV_MAX_ROWS 8
#define TRANSCONV_ACCUMULATORS 24
#include "cpu/kernels/table.h"
