// One look at a matrix: its form, its adjoint, its bounds.
//
// Set by the launch code: REAL (float, double), COMPLEX (0, 1), WIDE (64-bit row pointers), LANES (of a row: 1, 32).
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

// One pass over a CSR matrix, LANES threads a row.  seen, as `ordered` numbers but for the first and the last four: 1 where
// the columns of a row do not ascend, + 2 where an entry is not finite;  largest difference from the adjoint;  largest
// entry;  minus the lowest and the highest energy of Gershgorin's circles;  entries of the longest row;  how many entries
// above the diagonal have a partner, less how many are below;  slots where every 32 rows are as long as the longest of them;
// rows whose length or first column is not that of the row before.  Only entries above look for their partner: where
// seen[6] is zero, all below have one, else only `all` finds the largest difference.
extern "C" __global__ void __launch_bounds__(256, 4) inspect(const entry* __restrict__ pointer, const int* __restrict__ indices,
                                                             const number* __restrict__ data, long long rows, int all,
                                                             unsigned long long* seen) {
    const int lane = threadIdx.x % 32;
    unsigned long long flags = 0, longest = 0, unpaired = 0, slots = 0, unlike = 0;
    double difference = 0, largest = 0, low = __longlong_as_double(0x7ff0000000000000), high = -low;
    // Where partners of entries lay in their rows: a thread's last one, or those of a lane's columns in the row before.
    entry even = 0, odd = 0;
    for (long long chunk = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32; chunk * 32 < rows;
         chunk += gridDim.x * (long long)blockDim.x / 32) {
        int most = 0;  // entries of the longest row of the chunk
        for (long long row = chunk * 32 + lane / LANES; row < min(rows, chunk * 32 + 32); row += 32 / LANES) {
            const entry begin = pointer[row], end = pointer[row + 1], before = row ? pointer[row - 1] : 0;
            most = max(most, int(end - begin));
            if (lane % LANES == 0) unlike += row == 0 || end - begin != begin - before || begin < end && indices[begin] != indices[before];
            double radius = 0, center = 0;
            bool second = false;
            for (entry at = begin + lane % LANES; at < end; at += LANES, second = LANES > 1 && !second) {
                const int column = indices[at];
                const number value = data[at];
                const double size = magnitude(value);
                if (column < 0 || column >= rows || at > begin && column <= indices[at - 1]) flags |= 1;
                if (!isfinite(size)) flags |= 2;
                largest = fmax(largest, size);
                if (column == row) {
                    center += value.x;
                    difference = fmax(difference, from_adjoint(value, value));
                    continue;
                }
                radius += size;
                unpaired -= column < row;
                if (!all && column < row || column < 0 || column >= rows) continue;
                // The partner in the other row: where it is likely, as in dense blocks, else by halving.
                const entry first = pointer[column], likely = second ? odd : even;
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
                    const entry found = low_at - first + (LANES > 1);
                    if (second) odd = found;
                    else even = found;
                    unpaired += column > row;
                }
                difference = fmax(difference, exists ? from_adjoint(value, data[low_at]) : size);
            }
#pragma unroll
            for (int distance = LANES / 2; distance; distance /= 2) {
                radius += __shfl_xor_sync(0xffffffffu, radius, distance);
                center += __shfl_xor_sync(0xffffffffu, center, distance);
            }
            low = fmin(low, center - radius), high = fmax(high, center + radius);
        }
        most = __reduce_max_sync(0xffffffffu, most);
        longest = max(longest, (unsigned long long)most);
        if (lane == 0) slots += 32ull * max(1, most);
    }
#pragma unroll
    for (int distance = 16; distance; distance /= 2) {
        flags |= __shfl_xor_sync(0xffffffffu, flags, distance);
        unpaired += __shfl_xor_sync(0xffffffffu, unpaired, distance);
        unlike += __shfl_xor_sync(0xffffffffu, unlike, distance);
    }
    if (lane == 0 && flags) atomicOr(seen, flags);
    raise_to(seen + 1, ordered(difference));
    raise_to(seen + 2, ordered(largest));
    raise_to(seen + 3, ordered(-low));
    raise_to(seen + 4, ordered(high));
    raise_to(seen + 5, longest);
    if (lane == 0 && unpaired) atomicAdd(seen + 6, unpaired);
    if (lane == 0) atomicAdd(seen + 7, slots);
    if (lane == 0) atomicAdd(seen + 8, unlike);
}
