// Types of the operands and of sums of their products, by the bits of an operand (INPUT_BITS).
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
