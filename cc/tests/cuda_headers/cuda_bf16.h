// In place of CUDA's header; the two types' stand-ins are one.
#include "cuda_fp16.h"
