#pragma once

/// Functions that the CPU code, the CUDA kernels and the tests share.
#ifdef __CUDACC__
#define KVLAB_HD __host__ __device__
#else
#define KVLAB_HD
#endif
