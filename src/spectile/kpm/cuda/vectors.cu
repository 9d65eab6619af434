// What comes before and beside the recurrence, for any matrix and any width: storage formats, start vectors, and the
// sums of scalar products.
//
// Set by the launch code: REAL (float, double), COMPLEX (0, 1), WIDE (64-bit row pointers).
#include "random.cuh"

// The slots of each slice of 32 rows, as long as the longest of them and one at least.  A thread a row.
extern "C" __global__ void slice_slots(const entry* __restrict__ pointer, long long rows, long long* __restrict__ slots) {
    const long long row = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (row / 32 * 32 >= rows) return;
    const int length = row < rows ? int(pointer[row + 1] - pointer[row]) : 0;
    const int width = __reduce_max_sync(0xffffffffu, length);
    if (threadIdx.x % 32 == 0) slots[row / 32] = 32ll * max(1, width);
}

// Where parts of so many items begin, and at last where they end: one block sums `slots` in its order.
extern "C" __global__ void __launch_bounds__(1024) running_sum(const long long* __restrict__ slots, long long* __restrict__ start,
                                                               long long chunks) {
    __shared__ long long sums[32];
    const int thread = threadIdx.x % 32, warp = threadIdx.x / 32;
    long long before = 0;
    for (long long from = 0; from < chunks; from += 1024) {
        const long long chunk = from + threadIdx.x, mine = chunk < chunks ? slots[chunk] : 0;
        long long sum = mine;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const long long other = __shfl_up_sync(0xffffffffu, sum, distance);
            if (thread >= distance) sum += other;
        }
        if (thread == 31) sums[warp] = sum;
        __syncthreads();
        if (warp == 0) {
            long long total = sums[thread];
#pragma unroll
            for (int distance = 1; distance < 32; distance *= 2) {
                const long long other = __shfl_up_sync(0xffffffffu, total, distance);
                if (thread >= distance) total += other;
            }
            sums[thread] = total;
        }
        __syncthreads();
        if (chunk < chunks) start[chunk] = before + (warp ? sums[warp - 1] : 0) + sum - mine;
        before += sums[31];
        __syncthreads();
    }
    if (threadIdx.x == 0) start[chunks] = before;
}

// Where slices of the same number of slots begin.
extern "C" __global__ void even_starts(long long* __restrict__ starts, long long slots, long long size) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < size) starts[i] = i * slots;
}

// Numbers that 32 bits hold.
extern "C" __global__ void narrowed(const long long* __restrict__ from, int* __restrict__ to, long long size) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < size) to[i] = int(from[i]);
}

// Entries into the slots of their slices, from start[slice] on; fill-in is a zero in the row's own column.
extern "C" __global__ void slice_fill(const entry* __restrict__ pointer, const int* __restrict__ indices, const number* __restrict__ data,
                                      long long rows, const long long* __restrict__ start, int* __restrict__ slot_indices,
                                      number* __restrict__ slot_data) {
    const long long row = blockIdx.x * (long long)blockDim.x + threadIdx.x, chunk = row / 32;
    if (chunk * 32 >= rows) return;
    const entry at = row < rows ? pointer[row] : 0;
    const int length = row < rows ? int(pointer[row + 1] - at) : 0;
    long long slot = start[chunk] + row % 32;
    for (int k = 0; slot < start[chunk + 1]; ++k, slot += 32) {
        slot_indices[slot] = k < length ? indices[at + k] : int(row < rows ? row : rows - 1);
        slot_data[slot] = k < length ? data[at + k] : zero();
    }
}

// Of each chunk of 32 rows those of more than `most` entries, in the upper 32 bits, and the pieces of as many (csr).
extern "C" __global__ void cut_counts(const entry* __restrict__ pointer, long long rows, int most, long long* __restrict__ counts) {
    const long long row = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (row / 32 * 32 >= rows) return;
    const entry length = row < rows ? pointer[row + 1] - pointer[row] : 0;
    const int pieces = length > most ? int((length + most - 1) / most) : 0;
    const unsigned cut = __ballot_sync(0xffffffffu, pieces > 0);
    const unsigned total = __reduce_add_sync(0xffffffffu, unsigned(pieces));
    if (threadIdx.x % 32 == 0) counts[row / 32] = (long long)__popc(cut) << 32 | total;
}

// These rows, the first piece of each, and where pieces begin and end; start: the running sum of the counts.
extern "C" __global__ void cut_rows(const entry* __restrict__ pointer, long long rows, int most, const long long* __restrict__ start,
                                    int* __restrict__ row_of, int* __restrict__ first_of, entry* __restrict__ begin,
                                    entry* __restrict__ until) {
    const long long row = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (row / 32 * 32 >= rows) return;
    const int lane = threadIdx.x % 32;
    const entry at = row < rows ? pointer[row] : 0, length = row < rows ? pointer[row + 1] - at : 0;
    const int pieces = length > most ? int((length + most - 1) / most) : 0;
    const unsigned cut = __ballot_sync(0xffffffffu, pieces > 0);
    int before = pieces;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, before, distance);
        if (lane >= distance) before += other;
    }
    if (!pieces) return;
    const long long place = start[row / 32];
    const long long number = (place >> 32) + __popc(cut & ((1u << lane) - 1)), first = (place & 0xffffffff) + before - pieces;
    row_of[number] = int(row), first_of[number] = int(first);
    for (int k = 0; k < pieces; ++k) {
        begin[first + k] = at + entry(k) * most;
        until[first + k] = min(at + entry(k + 1) * most, at + length);
    }
}

// Where tiles of rows `first` to `last` begin and end, of as many entries and rows together each (flat): a thread an edge.
extern "C" __global__ void tile_rows(const entry* __restrict__ pointer, long long first, long long last, long long tiles,
                                     int* __restrict__ edges) {
    const long long tile = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (tile > tiles) return;
    const long long base = pointer[first], wanted = tile * (pointer[last] - base + last - first) / tiles;
    long long low = first, high = last;  // the first row before which there are so many lies between
    while (low < high) {
        const long long middle = low + (high - low) / 2;
        if (pointer[middle] - base + middle - first < wanted) low = middle + 1;
        else high = middle;
    }
    edges[tile] = int(low);
}

// Whether each row couples other columns than the row before it (boxed): a warp a row.
extern "C" __global__ void group_begins(const entry* __restrict__ pointer, const int* __restrict__ indices, long long rows,
                                        bool* __restrict__ begins) {
    const long long row = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32;
    if (row >= rows) return;
    const entry before = row ? pointer[row - 1] : 0, begin = pointer[row], end = pointer[row + 1];
    bool other = row == 0 || end - begin != begin - before;
    if (!other)
        for (entry at = begin + threadIdx.x % 32; at < end; at += 32) other |= indices[at] != indices[at - (begin - before)];
    other = __any_sync(0xffffffffu, other);
    if (threadIdx.x % 32 == 0) begins[row] = other;
}

// How many groups begin in each chunk of 32 rows; `long_run` is set where a group has more than `most` rows.
extern "C" __global__ void group_counts(const bool* __restrict__ begins, long long rows, int most, long long* __restrict__ counts,
                                        long long* long_run) {
    const long long row = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (row / 32 * 32 >= rows) return;
    const unsigned mask = __ballot_sync(0xffffffffu, row < rows && begins[row]);
    if (threadIdx.x % 32 == 0) counts[row / 32] = __popc(mask);
    if (row < most || row >= rows) return;
    bool any = false;
    for (int back = 0; back < most; ++back) any |= begins[row - back];
    if (!any) *long_run = 1;
}

// The first row of each group, of which those of a chunk begin at start[chunk], and at last the number of rows.
extern "C" __global__ void group_edges(const bool* __restrict__ begins, long long rows, const long long* __restrict__ start,
                                       int* __restrict__ first) {
    const long long row = blockIdx.x * (long long)blockDim.x + threadIdx.x, chunk = row / 32;
    if (chunk * 32 >= rows) return;
    const bool mine = row < rows && begins[row];
    const unsigned mask = __ballot_sync(0xffffffffu, mine);
    if (mine) first[start[chunk] + __popc(mask & ((1u << row % 32) - 1))] = int(row);
    if (row == rows - 1) first[start[chunk + 1]] = int(rows);
}

// etas[s][j] = sum over n of partial[s][n][j], in a fixed order: `count` blocks of each step, blockIdx.y = s.  `across` (a
// power of two up to 32) threads take adjacent j, and the others every so many n.
extern "C" __global__ void __launch_bounds__(1024) sum_partials(const double* __restrict__ partial, double* __restrict__ etas, int count,
                                                                int size, int across) {
    __shared__ double sums[1024];
    const int x = threadIdx.x % across, group = threadIdx.x / across, groups = blockDim.x / across;
    const int j = blockIdx.x * across + x;
    partial += (long long)blockIdx.y * count * size;
    double total = 0;
    if (j < size)
        for (int n = group; n < count; n += groups) total += partial[(long long)n * size + j];
    sums[threadIdx.x] = total;
    for (int half = groups / 2; half; half /= 2) {
        __syncthreads();
        if (group < half) sums[threadIdx.x] += sums[threadIdx.x + half * across];
    }
    if (group == 0 && j < size) etas[(long long)blockIdx.y * size + j] = sums[x];
}

// Element (row, column) of a row-major block, zero from column `held` on; `order` names the original row, or is null.
extern "C" __global__ void random_phases(number* __restrict__ block, const int* __restrict__ order, long long rows, int width, int held,
                                         unsigned long long seed, unsigned long long first) {
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < rows * width; i += (long long)gridDim.x * blockDim.x) {
        const unsigned long long row = order ? order[i / width] : i / width;
        block[i] = i % width < held ? random_phase(seed, row, first + i % width) : zero();
    }
}
