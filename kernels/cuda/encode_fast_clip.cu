#include "fast_kernel.cuh"

namespace kvlab::kernels::cuda {

template void launch_fast<true, Product::none, true>(const EncodeWork& work, Sides sides,
                                                     bool single, Stream stream);
template void launch_fast<false, Product::none, true>(const EncodeWork& work, Sides sides,
                                                      bool single, Stream stream);
template void launch_fast<true, Product::signs, true>(const EncodeWork& work, Sides sides,
                                                      bool single, Stream stream);
template void launch_fast<false, Product::signs, true>(const EncodeWork& work, Sides sides,
                                                       bool single, Stream stream);
template void launch_fast<true, Product::dense, true>(const EncodeWork& work, Sides sides,
                                                      bool single, Stream stream);
template void launch_fast<false, Product::dense, true>(const EncodeWork& work, Sides sides,
                                                       bool single, Stream stream);

}  // namespace kvlab::kernels::cuda
