// Types of norms, beside those of the operands.
#include "elements.cuh"

// Squares and their sums, and norms, whose products stay in range: a half above 255 would overflow its own square, and
// squares of float32 would leave that of float32.
#if INPUT_BITS == 16
using Square = float;
#else
using Square = double;
#endif
using Norm = Square;
