// What follows from the entries of each row: the row pointer, and the bins of the numeric phase.
//
//   for each block of SCAN_ROWS rows, in the order of tickets:
//       before = the sum of the entries of all earlier blocks (single-pass scan with look-back)
//       for each of its rows:  ptr[row] = before;  before += entries[row];  append row to the list of its `numeric_bin`
//
// Hub rows whose products are sorted go to no bin.  Where it is not known yet how they are counted, nothing is written:
// the lists still hold them.
//
// The block that ends last writes the counters to memory of the host, and after them the number that the host waits for.
//
// Invariant: a block waits for blocks with smaller tickets alone, and these have begun: the scan ends.

#include "rows/bins.cuh"

namespace {

// Bin of a row for the numeric phase, and the shared memory that it needs in a block bin.
__device__ int numeric_bin(int entries, int span, int slot, bool sorted, int shared_bytes, int* need) {
    *need = 0;
    if (entries == 0 || (slot == HUB_ROW && sorted) || slot == FEW_ROW) return NO_BIN;
    if (slot <= SORTED_ROW) return NUMERIC_FIRST_SORT + SORTED_ROW - slot;
    const int bin = slot >= 0                                  ? numeric_window_bin(span, entries)
                    : slot == MANY_PRODUCTS || slot == HUB_ROW ? NO_BIN
                                                               : numeric_table_bin(entries);
    if (bin != NO_BIN) return bin;
    const long long words = 8LL * words_of(span), sums = (long long)entries * sizeof(VALUE);
    *need = int(min(words + sums, (long long)shared_bytes));
    if (words + sums <= BLOCK_SMALL_BYTES) return NUMERIC_BLOCK_SMALL;
    if (const long long held = 8LL * words_of(words_of(span)) + 8LL * entries + sums; words > 32LL * entries && held <= shared_bytes) {
        *need = int(held);
        return held <= BLOCK_SPARSE_BYTES ? NUMERIC_BLOCK_SPARSE : NUMERIC_BLOCK_SPARSE_LARGE;
    }
    if (words + sums <= shared_bytes) return NUMERIC_BLOCK_LARGE;
    // Of parts two blocks share a multiprocessor.
    *need = words <= shared_bytes ? int(words) : shared_bytes / 20 * 8;
    return NUMERIC_BLOCK_PARTS;
}

// Writes the counters to the host; called by all threads of one block, when no other changes them.
__device__ void tell(const int* head, int* host, int call) {
    for (int i = threadIdx.x; i < HEAD_WORDS; i += blockDim.x) ((volatile int*)host)[i] = ((volatile const int*)head)[i];
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) *(volatile int*)(host + HEAD_WORDS) = call;
}

}  // namespace

// Row pointer of C by a single-pass scan with look-back (SCAN_ROWS rows a block), and the numeric bins.
extern "C" __global__ void __launch_bounds__(256) place(int rows, int shared_bytes, const int* entries, const int* span, const int* slot,
                                                        int* ptr_c, int* lists, int* head, u64* state, u64 hubs, int* host, u64 call) {
    __shared__ int s_ticket;
    __shared__ bool s_last;
    if (invalid(head) || (hubs == HUBS_OPEN && head[SYMBOLIC + SYMBOLIC_HUB])) {
        if (blockIdx.x == 0) tell(head, host, int(call));
        return;
    }
    if (threadIdx.x == 0) s_ticket = atomicAdd(&head[TICKET], 1);
    __syncthreads();
    const int ticket = s_ticket, first = ticket * SCAN_ROWS + threadIdx.x * 8;
    int held[8];
    u64 sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        held[i] = first + i < rows ? entries[first + i] : 0;
        sum += held[i];
    }
    u64 block_sum, before = scan_block(sum, block_sum);
    before += sum_before(ticket, block_sum, state);
    if (ticket == (rows - 1) / SCAN_ROWS && threadIdx.x == 255) {
        *(u64*)&head[ENTRIES] = before + sum;
        ptr_c[rows] = int(before + sum);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int row = first + i;
        int bin = NO_BIN, need = 0;
        if (row < rows) {
            ptr_c[row] = int(before);
            before += held[i];
            if (held[i]) bin = numeric_bin(held[i], span[row], slot[row], hubs == HUBS_SORTED, shared_bytes, &need);
        }
        if (!__syncthreads_or(bin != NO_BIN)) continue;  // of hypersparse matrices most rows are empty
        append<NUMERIC_BINS>(row, bin, rows, head + NUMERIC, lists);
        if (need) atomicMax(&head[MAX_BYTES + bin - NUMERIC_FIRST_BLOCK], need);
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) s_last = atomicAdd(&head[ENDED], 1) == int(gridDim.x) - 1;
    __syncthreads();
    if (s_last) tell(head, host, int(call));
}
