// The kernels for the compiler's baseline.
#define TRANSCONV_ISA generic
#define TRANSCONV_VECTOR_BYTES 16
#define TRANSCONV_MAX_ROWS 4
#define TRANSCONV_ACCUMULATORS 12
#include "cpu/kernels/table.h"
