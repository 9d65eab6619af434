// Entries of long rows of C with a wide window: bitmap of the whole window, a block a row, or `shares` of them.
//
//   for each row of the block bin, or of hub rows:  clear the bitmap;  set the bit of each product's column;  entries = bits set
//
// Invariant: the bitmap, in shared memory or global, has as many words as the widest window of the bin.  Blocks that share a row
// find it clear, each counts the bits that it was the first to set, and the last one writes the sum.

#include "rows/rows.cuh"

namespace {

template <bool SHARED>
__device__ void symbolic_block(int bin, int rows, int nnz, const int* lists, const int* ptr_a, const int* idx_a, const int* ptr_b,
                               const int* idx_b, const int* low, const int* span, int* entries, const int* head, u32* scratch,
                               int scratch_words, int shares) {
    extern __shared__ u64 shared[];
    __shared__ int total, s_first[256], s_last[256];
    if (invalid(head)) return;
    const int groups = gridDim.x / shares, group = blockIdx.x / shares, share = blockIdx.x % shares;
    u32* bits = SHARED ? (u32*)shared : scratch + (long long)group * scratch_words;
    const int count = head[SYMBOLIC + bin], width = 1 << lanes_of(mean_row(head, nnz));
    const int* list = list_of(lists, bin, rows, count);
    for (int item = group; item < count; item += groups) {
        const int row = list[item], start = low[row], words = words_of(span[row]);
        const int begin = ptr_a[row], end = ptr_a[row + 1], each = max((end - begin + shares - 1) / shares, int(blockDim.x));
        const int from = int(min(begin + (long long)share * each, (long long)end)), to = min(end, from + min(each, end - from));
        if (shares == 1)
            for (int w = threadIdx.x; w < words; w += blockDim.x) bits[w] = 0;
        if (threadIdx.x == 0) total = 0;
        __syncthreads();
        int sum = 0;
        const auto met_at = [&](int at) { return row_met(at, to, idx_a, ptr_b); };
        block_columns<256>(from, to, width, met_at, idx_b, s_first, s_last, [&](int column) {
            const int offset = column - start;
            const u32 bit = 1u << (offset & 31);
            if (SHARED) set_bit(&bits[offset >> 5], offset);
            else if (shares > 1) sum += (atomicOr(&bits[offset >> 5], bit) & bit) == 0;
            else atomicOr(&bits[offset >> 5], bit);  // nobody waits for it, as for a look
        });
        __syncthreads();
        if (shares == 1)
            for (int w = threadIdx.x; w < words; w += blockDim.x) sum += __popc(bits[w]);
        sum = __reduce_add_sync(ALL, sum);
        if ((threadIdx.x & 31) == 0 && sum) atomicAdd(&total, sum);
        __syncthreads();
        if (threadIdx.x == 0) {
            if (shares == 1) entries[row] = total;
            else {
                // In 64 bits: blocks that have ended above the sum, which is below 2^31.
                u64* const told = (u64*)(scratch + (long long)groups * scratch_words) + group;
                const u64 mine = (1ull << 32) + u32(total), all = atomicAdd(told, mine) + mine;
                if (int(all >> 32) == shares) entries[row] = int(u32(all));
            }
        }
        __syncthreads();
    }
}

}  // namespace

// Bitmaps in shared memory, a block a row.
extern "C" __global__ void __launch_bounds__(256) symbolic_block_shared(int bin, int rows, int nnz, const int* lists, const int* ptr_a,
                                                                        const int* idx_a, const int* ptr_b, const int* idx_b,
                                                                        const int* low, const int* span, int* entries, const int* head) {
    symbolic_block<true>(bin, rows, nnz, lists, ptr_a, idx_a, ptr_b, idx_b, low, span, entries, head, nullptr, 0, 1);
}

// Bitmaps of so many words, an even number, in global memory, and behind them two words for each, in which blocks that share it
// sum; these are as many groups as there are rows, and find both zero.
extern "C" __global__ void __launch_bounds__(256) symbolic_block_global(int bin, int rows, int nnz, const int* lists, const int* ptr_a,
                                                                        const int* idx_a, const int* ptr_b, const int* idx_b,
                                                                        const int* low, const int* span, int* entries, const int* head,
                                                                        u32* scratch, int scratch_words, int shares) {
    symbolic_block<false>(bin, rows, nnz, lists, ptr_a, idx_a, ptr_b, idx_b, low, span, entries, head, scratch, scratch_words, shares);
}

// The same by a table of the columns, of rows whose products `entries` holds before.
extern "C" __global__ void __launch_bounds__(256) symbolic_block_table(int bin, int rows, int nnz, const int* lists, const int* ptr_a,
                                                                       const int* idx_a, const int* ptr_b, const int* idx_b, int* entries,
                                                                       const int* head) {
    __shared__ int keys[BLOCK_TABLE], total, s_first[256], s_last[256];
    if (invalid(head)) return;
    const int count = head[SYMBOLIC + bin], width = 1 << lanes_of(mean_row(head, nnz));
    const int* list = list_of(lists, bin, rows, count);
    for (int item = blockIdx.x; item < count; item += gridDim.x) {
        const int row = list[item], products = entries[row];
        int log = 10, found = 0;
        while (3 << log < 4 * products) ++log;
        for (int t = threadIdx.x; t < 1 << log; t += blockDim.x) keys[t] = -1;
        if (threadIdx.x == 0) total = 0;
        __syncthreads();
        const int end = ptr_a[row + 1];
        const auto met_at = [&](int at) { return row_met(at, end, idx_a, ptr_b); };
        block_columns<256>(ptr_a[row], end, width, met_at, idx_b, s_first, s_last, [&](int column) {
            bool added = false;
            insert(keys, log, column, added);
            found += added;
        });
        found = __reduce_add_sync(ALL, found);
        if ((threadIdx.x & 31) == 0 && found) atomicAdd(&total, found);
        __syncthreads();
        if (threadIdx.x == 0) entries[row] = total;
        __syncthreads();
    }
}
