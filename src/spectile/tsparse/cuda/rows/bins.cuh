// How rows go to bins, before and after their entries are counted.
//
//   for each row: bin = the first that holds it (bins.py); place = the bin's counter++; list of the bin[place] = row
//
// Invariant: every row that is not empty is in the list of one bin, and a bin's counter is the length of its list.

#include "rows/rows.cuh"

namespace {

// What the symbolic phase leaves of a row: the place of its kept bitmap if it is not negative, or one of these.
constexpr int NO_BITMAP = -1;
constexpr int MANY_PRODUCTS = -2;
constexpr int HUB_ROW = -3;
constexpr int FEW_ROW = -4;
constexpr int SORTED_ROW = -5;  // and below: the bins of rows that lanes sort

// Write `row` to the list of its bin; one global atomic a block and bin.  Called by all threads; bin < 0 writes nothing.
template <int BINS>
__device__ int append(int row, int bin, int rows, int* counters, int* lists) {
    __shared__ int local[BINS], base[BINS];
    __syncthreads();
    if (threadIdx.x < BINS) local[threadIdx.x] = 0;
    __syncthreads();
    int place = 0;
    if (bin >= 0) place = atomicAdd(&local[bin], 1);
    __syncthreads();
    if (threadIdx.x < BINS && local[threadIdx.x]) base[threadIdx.x] = atomicAdd(&counters[threadIdx.x], local[threadIdx.x]);
    __syncthreads();
    if (bin < 0) return -1;
    place += base[bin];
    lists[(long long)(bin >> 1) * rows + (bin & 1 ? rows - 1 - place : place)] = row;
    return place;
}

}  // namespace
