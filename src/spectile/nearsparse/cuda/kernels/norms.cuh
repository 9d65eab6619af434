// Types of norms, beside those of the operands.
#include "elements.cuh"

using Square = Accumulator;  // squares and their sums: a half above 255 would overflow its own square
#if INPUT_BITS == 16
using Norm = float;
#else
using Norm = double;  // the norms of float32 and their products stay in its range, whatever the entries are
#endif
