// Type of norms, beside those of the operands.
#include "elements.cuh"

using Norm = Accumulator;  // squares, their sums, and norms: a half above 255 would overflow its own square
