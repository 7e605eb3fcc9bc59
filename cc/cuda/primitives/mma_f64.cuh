// The float64 matrix instruction of compute capability 8.0 and later; a header of its own, so that
// an emulation can replace it.
#ifndef TRANSCONV_CUDA_PRIMITIVES_MMA_F64_CUH_
#define TRANSCONV_CUDA_PRIMITIVES_MMA_F64_CUH_

namespace transconv::cuda::mma_f64 {

// d (16 x 8) += a (16 x 8) b (8 x 8), by a warp, with the places of tf32::Multiply
// (cuda/primitives/tf32.cuh). Every product and sum is rounded as IEEE 754 says.
__device__ __forceinline__ void Multiply(double (&d)[4], const double (&a)[4], double b0,
                                         double b1) {
#if __CUDA_ARCH__ >= 900
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b0), "d"(b1));
#else
  const auto quarter = [](double& d0, double& d1, double a0, double b) {
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(d0), "+d"(d1)
        : "d"(a0), "d"(b));
  };
  quarter(d[0], d[1], a[0], b0);
  quarter(d[2], d[3], a[1], b0);
  quarter(d[0], d[1], a[2], b1);
  quarter(d[2], d[3], a[3], b1);
#endif
}

}  // namespace transconv::cuda::mma_f64

#endif  // TRANSCONV_CUDA_PRIMITIVES_MMA_F64_CUH_
