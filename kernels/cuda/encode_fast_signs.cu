#include "fast_kernel.cuh"

namespace kvlab::kernels::cuda {

template void launch_fast<true, Product::signs, false>(const EncodeWork& work, Sides sides,
                                                       bool single, Stream stream);
template void launch_fast<false, Product::signs, false>(const EncodeWork& work, Sides sides,
                                                        bool single, Stream stream);

}  // namespace kvlab::kernels::cuda
