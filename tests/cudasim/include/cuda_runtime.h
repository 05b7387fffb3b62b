// What a .cu sees as cuda_runtime.h in the simulator: the toolkit's own header, for types and
// prototypes, then the kernel language.
#include_next <cuda_runtime.h>
#include "cudasim.h"
