// KPM on a stored matrix and one vector (gather.cu's operation): a warp takes 32 rows, whose entries lie one after
// another, multiplies them side by side, UNROLL entries a thread at a time, and each thread adds up its row's products.
// So every read of the matrix is coalesced, whatever the lengths of its rows, and all reads of V are in flight together.
#include "block.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    stream(const entry *__restrict__ pointer, const int *__restrict__ indices, const number *__restrict__ data,
           const number *__restrict__ v, number *__restrict__ w, double *__restrict__ partial, long long first_row,
           long long rows, long long chunk, int width, double scale_, double shift_, double keep_) {
    const real scale = scale_, shift = shift_, keep = keep_;
    __shared__ number products[WARPS][32 * UNROLL];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    number *const mine = products[warp];
    double even[1] = {0}, odd[1] = {0};
    const long long start_row = first_row + blockIdx.x * chunk;
    rows = min(rows, start_row + chunk);
    const int step = WARPS * 32;
    long long row = start_row + warp * 32 + lane;
    entry begin = 0, end = 0;
    if (row - lane < rows) begin = pointer[min(row, rows)], end = pointer[min(row + 1, rows)];
    for (; row - lane < rows; row += step) {
        const bool live = row < rows;
        const entry start = __shfl_sync(0xffffffffu, begin, 0), stop = __shfl_sync(0xffffffffu, end, 31);
        number own = zero(), old = zero();
        if (MODE > 0 && live) own = v[row], old = load_stream(w + row);
        entry next_begin = 0, next_end = 0;
        if (row - lane + step < rows)
            next_begin = pointer[min(row + step, rows)], next_end = pointer[min(row + step + 1, rows)];
        number sum = zero();
        for (entry chunk = start; chunk < stop; chunk += 32 * UNROLL) {
            int index[UNROLL];
            number value[UNROLL], other[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const entry e = chunk + u * 32 + lane;
                index[u] = -1;
                if (e < stop) index[u] = __ldcs(indices + e), value[u] = load_stream(data + e);
            }
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
                if (index[u] >= 0) other[u] = v[index[u]];
            __syncwarp();
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                number product = zero();
                if (index[u] >= 0) multiply_add(product, value[u], other[u]);
                mine[u * 32 + lane] = product;
            }
            __syncwarp();
            const int low = int(max(begin, chunk) - chunk), high = int(min(end, chunk + 32 * UNROLL) - chunk);
            for (int e = low; e < high; ++e) {
                sum.x += mine[e].x;
#if COMPLEX
                sum.y += mine[e].y;
#endif
            }
        }
        if (live) {
            const number fresh = advanced(sum, own, old, scale, shift, keep, even[0], odd[0]);
            store_stream(w + row, fresh);
        }
        begin = next_begin, end = next_end;
    }
#if MODE == 2
    __shared__ double sums[WARPS * 2];
    sum_rows(even, odd);
    if (lane == 0) sums[2 * warp] = even[0], sums[2 * warp + 1] = odd[0];
    __syncthreads();
    sum_warps(sums, WARPS, partial, width);
#endif
}
