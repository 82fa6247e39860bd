#include "base/allocator.h"

#include <malloc.h>

namespace kvlab {

void keep_memory_low() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 8 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
#endif
}

}  // namespace kvlab
