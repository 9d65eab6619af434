// One look at a matrix: its form, its adjoint, its bounds.
//
// Set by the launch code: REAL (float, double), COMPLEX (0, 1), WIDE (64-bit row pointers).
#include "number.cuh"

// Doubles in the order of unsigned integers, so that atomicMax finds the largest; zero is below all of them.
static __device__ __forceinline__ unsigned long long ordered(double x) {
    const long long bits = __double_as_longlong(x);
    return bits < 0 ? ~bits : bits | 1ull << 63;
}

static __device__ __forceinline__ void raise_to(unsigned long long* target, unsigned long long value) {
#pragma unroll
    for (int distance = 16; distance; distance /= 2) value = max(value, __shfl_xor_sync(0xffffffffu, value, distance));
    if (threadIdx.x % 32 == 0 && value > *target) atomicMax(target, value);
}

static __device__ __forceinline__ double magnitude(number a) {
#if COMPLEX
    return hypot(double(a.x), double(a.y));
#else
    return fabs(double(a.x));
#endif
}

// |a - conj(b)|
static __device__ __forceinline__ double from_adjoint(number a, number b) {
#if COMPLEX
    return hypot(double(a.x) - b.x, double(a.y) + b.y);
#else
    return fabs(double(a.x) - b.x);
#endif
}

// What threads find in the rows that they look at.
struct Found {
    unsigned long long flags = 0, unpaired = 0;
    double difference = 0, largest = 0, low = __longlong_as_double(0x7ff0000000000000), high = -low;
    // Where partners of entries lay in their rows: a thread's last one, or those of a lane's columns in the row before.
    entry even = 0, odd = 0;
};

// Looks at a row with LANES threads of a warp, of which this is number `lane`.
template <int LANES>
static __device__ __forceinline__ void look(const entry* __restrict__ pointer, const int* __restrict__ indices,
                                            const number* __restrict__ data, long long rows, int all, long long row, entry begin, entry end,
                                            int lane, Found& found) {
    double radius = 0, center = 0;
    bool second = false;
    for (entry at = begin + lane; at < end; at += LANES, second = LANES > 1 && !second) {
        const int column = indices[at];
        const number value = data[at];
        const double size = magnitude(value);
        if (column < 0 || column >= rows || at > begin && column <= indices[at - 1]) found.flags |= 1;
        if (!isfinite(size)) found.flags |= 2;
        found.largest = fmax(found.largest, size);
        if (column == row) {
            center += value.x;
            found.difference = fmax(found.difference, from_adjoint(value, value));
            continue;
        }
        radius += size;
        found.unpaired -= column < row;
        if (!all && column < row || column < 0 || column >= rows) continue;
        // The partner in the other row: where it is likely, as in dense blocks, else by halving.
        const entry first = pointer[column], likely = second ? found.odd : found.even;
        entry low_at = first, high_at = pointer[column + 1];
        entry middle = likely < high_at - first ? first + likely : first + (high_at - first) / 2;
        bool exists = false;
        while (low_at < high_at) {
            const int there = indices[middle];
            if (there == row) {
                low_at = middle, exists = true;
                break;
            }
            if (there < row) low_at = middle + 1;
            else high_at = middle;
            middle = low_at + (high_at - low_at) / 2;
        }
        if (exists) {
            const entry place = low_at - first + (LANES > 1);
            if (second) found.odd = place;
            else found.even = place;
            found.unpaired += column > row;
        }
        found.difference = fmax(found.difference, exists ? from_adjoint(value, data[low_at]) : size);
    }
#pragma unroll
    for (int distance = LANES / 2; distance; distance /= 2) {
        radius += __shfl_xor_sync(0xffffffffu, radius, distance);
        center += __shfl_xor_sync(0xffffffffu, center, distance);
    }
    found.low = fmin(found.low, center - radius), found.high = fmax(found.high, center + radius);
}

// Entries of a row from which a warp looks at it instead of a thread.
#define LONG 16

// One pass over a CSR matrix, a warp for 32 rows.  seen, as `ordered` numbers but for the first and the last four: 1 where
// the columns of a row do not ascend, + 2 where an entry is not finite;  largest difference from the adjoint;  largest
// entry;  minus the lowest and the highest energy of Gershgorin's circles;  entries of the longest row;  how many entries
// above the diagonal have a partner, less how many are below;  slots where every 32 rows are as long as the longest of them;
// rows whose length or first column is not that of the row before.  Only entries above look for their partner: where
// seen[6] is zero, all below have one, else only `all` finds the largest difference.
extern "C" __global__ void __launch_bounds__(256, 4) inspect(const entry* __restrict__ pointer, const int* __restrict__ indices,
                                                             const number* __restrict__ data, long long rows, int all,
                                                             unsigned long long* seen) {
    const int lane = threadIdx.x % 32;
    unsigned long long longest = 0, slots = 0, unlike = 0;
    Found found;
    for (long long chunk = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32; chunk * 32 < rows;
         chunk += gridDim.x * (long long)blockDim.x / 32) {
        const long long row = chunk * 32 + lane;
        const bool here = row < rows;
        const entry begin = here ? pointer[row] : 0, end = here ? pointer[row + 1] : 0, before = here && row ? pointer[row - 1] : 0;
        const entry length = end - begin;
        if (here) unlike += row == 0 || length != begin - before || begin < end && indices[begin] != indices[before];
        const int most = __reduce_max_sync(0xffffffffu, int(length));  // entries of the longest row of the chunk
        longest = max(longest, (unsigned long long)most);
        if (lane == 0) slots += 32ull * max(1, most);
        if (here && length < LONG) look<1>(pointer, indices, data, rows, all, row, begin, end, 0, found);
        for (unsigned left = __ballot_sync(0xffffffffu, length >= LONG); left; left &= left - 1) {
            const int one = __ffs(left) - 1;
            const entry first = __shfl_sync(0xffffffffu, begin, one), last = __shfl_sync(0xffffffffu, end, one);
            look<32>(pointer, indices, data, rows, all, chunk * 32 + one, first, last, lane, found);
        }
    }
    unsigned long long flags = found.flags, unpaired = found.unpaired;
#pragma unroll
    for (int distance = 16; distance; distance /= 2) {
        flags |= __shfl_xor_sync(0xffffffffu, flags, distance);
        unpaired += __shfl_xor_sync(0xffffffffu, unpaired, distance);
        unlike += __shfl_xor_sync(0xffffffffu, unlike, distance);
    }
    if (lane == 0 && flags) atomicOr(seen, flags);
    raise_to(seen + 1, ordered(found.difference));
    raise_to(seen + 2, ordered(found.largest));
    raise_to(seen + 3, ordered(-found.low));
    raise_to(seen + 4, ordered(found.high));
    raise_to(seen + 5, longest);
    if (lane == 0 && unpaired) atomicAdd(seen + 6, unpaired);
    if (lane == 0) atomicAdd(seen + 7, slots);
    if (lane == 0) atomicAdd(seen + 8, unlike);
}
