// A function of CUDA's that is not supported. It looks at none of its arguments, so that CUDA's own
// declaration of it would be in the way; its answer is the number that the driver and the runtime
// have for that.

#pragma once

#define NOT_SUPPORTED(name) \
  int name() {              \
    return 801;             \
  }
