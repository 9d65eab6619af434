// Types of the operands and of what is computed from them, by the bits of A and B and of C.
#include <cuda_fp16.h>

#if INPUT_BITS == 16
using Element = __half;
using Accumulator = float;
#elif INPUT_BITS == 32
using Element = float;
using Accumulator = float;
#else
using Element = double;
using Accumulator = double;
#endif
using Norm = Accumulator;   // squares, their sums, and norms: a half above 255 would overflow its own square
