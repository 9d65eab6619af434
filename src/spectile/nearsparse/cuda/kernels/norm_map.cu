// Norm map: Frobenius norms of the B x B blocks of a matrix (Eq. 2), one pass over memory.
//
// A warp sums a strip of 32 rows, 16 bytes per lane and row, so that each load of a warp is 512 contiguous bytes; the
// lanes that share a block are reduced by shuffles, the warps that share one through shared memory.
//
//   for each strip of 128 rows, a warp for 32 of them:
//     sum[block] = sum of x^2                                  # read once, as a stream
//     norm[block] = sqrt(sum[block]);  where that left the range and an entry is not 0: anew, scaled by a power of two
//
// Invariant: a norm is no smaller than that of the entries but by NORM_SLACK of bounds.py, whatever their size; NaN and
// infinity stay.  The first block sets the counters of what follows to zero.
#include "norms.cuh"
#include "ptx.cuh"

constexpr int kVector = 16 / sizeof(Element);                            // elements of one 16-byte load
constexpr int kStripColumns = 32 * kVector;                              // columns of a warp's row segment
constexpr int kStrips = kStripColumns >= 128 ? 1 : 128 / kStripColumns;  // so that a CTA covers a 128-block
constexpr int kColumns = kStrips * kStripColumns;                        // columns of a CTA
constexpr int kRows = 128;                                               // rows of a CTA, 32 a warp

struct NormTask {
    const Element* matrix;
    Norm* norms;
    long long stride_matrix;  // elements from one matrix of a batch to the next
    long long stride_norms;
    long long leading;  // elements from row to row
    int rows, columns;
    int norm_rows, norm_columns;
    int batches;     // matrices of the batch
    int transposed;  // write norms[column block][row block]: the product reads both maps along k
    int aligned;     // base and rows are multiples of 16 bytes
};

struct NormTasks {
    NormTask task[2];
    unsigned* counter;  // eight words for what follows, tiles drawn and such: reset here to save launches
    int log2_block;
};

// Eight or fewer elements of a matrix that is read once: past the L1, 256 bytes at a time from memory to the L2.
__device__ __forceinline__ uint4 stream(const Element* from) {
    uint4 raw;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "l"(from));
    return raw;
}

#if INPUT_BITS > 16
constexpr bool kMayLeaveRange = true;  // squares of small or large entries underflow or overflow
#else
constexpr bool kMayLeaveRange = false;
#endif

// Nonzero where an entry is, whatever its square is.
__device__ __forceinline__ unsigned magnitude(const uint4& raw) {
    return sizeof(Element) == 8 ? raw.x | raw.z | (raw.y | raw.w) << 1 : (raw.x | raw.y | raw.z | raw.w) << 1;
}

// Whether a sum of squares has neither overflowed nor lost more than its rounding to underflow.
__device__ __forceinline__ bool in_range(Square sum) {
    return sizeof(Square) == 8 ? sum > Square(0x1p-960) && sum < Square(0x1p1020) : sum > Square(0x1p-100) && sum < Square(0x1p127);
}

// The norm of a block whose sum of squares is not in range, by one thread: scaled by a power of two meanwhile.  Where the
// norm has fewer digits than a normal number, it is rounded up: bounds must not be too small.
__device__ __noinline__ Norm scaled_norm(const Element* block, long long leading, int rows, int columns) {
    double largest = 0, sum = 0;
    bool numbers = true;
    // Several loads under way: one thread reads all of the block.
    for (int r = 0; r < rows; ++r)
#pragma unroll 8
        for (int c = 0; c < columns; ++c) {
            const double x = fabs(static_cast<double>(block[r * leading + c]));
            numbers &= x == x;
            largest = fmax(largest, x);
        }
    if (!numbers) return static_cast<Norm>(nan(""));
    if (largest == 0 || isinf(largest)) return static_cast<Norm>(largest);
    const int exponent = ilogb(largest);
    const int half = -exponent / 2;
    const double first = scalbn(1.0, half), second = scalbn(1.0, -exponent - half);
    for (int r = 0; r < rows; ++r)
#pragma unroll 8
        for (int c = 0; c < columns; ++c) {
            const double x = static_cast<double>(block[r * leading + c]) * first * second;
            sum += x * x;
        }
    const double root = sqrt(sum);
    const Norm norm = static_cast<Norm>(scalbn(root, exponent));
    const bool low = sizeof(Norm) == 8 ? norm < Norm(0x1p-1022) : norm < Norm(0x1p-126);
    return low && scalbn(static_cast<double>(norm), -exponent) < root ? nextafter(norm, Norm(1)) : norm;
}

__device__ __forceinline__ Square square_sum(const uint4& raw) {
    const Element* value = reinterpret_cast<const Element*>(&raw);
    Square sum = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
        const Square x = static_cast<Square>(value[i]);
        sum += x * x;
    }
    return sum;
}

__device__ __forceinline__ Square square_sum(const Element* row, int column, int columns, unsigned& bits) {
    Square sum = 0;
    for (int i = 0; i < kVector && column + i < columns; ++i) {
        const Square x = static_cast<Square>(row[column + i]);
        if (kMayLeaveRange && x != 0) bits = 1;
        sum += x * x;
    }
    return sum;
}

#ifndef SUM_LANES  // the study brings the reductions of the paper
// Sum over the lanes of a 32-block, 32 / kVector neighbours; the first of them gets it.
__device__ __forceinline__ Square sum_lanes(Square sum) {
    constexpr int kLanes = 32 / kVector;
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    return sum;
}
#endif

extern "C" __global__ void __launch_bounds__(128) norm_map(const NormTasks tasks) {
    const NormTask& task = tasks.task[blockIdx.z & 1];
    // The product may start while this kernel runs; it waits itself for the norms.
    launch_dependents();
    if (blockIdx.x == 0 && blockIdx.z == 0 && threadIdx.x < 8 && tasks.counter) tasks.counter[threadIdx.x] = 0;
    // All thread blocks lie along x, where a grid has the most.
    const unsigned across = max((task.columns + kColumns - 1) / kColumns, 1);
    const unsigned down = (task.rows + kRows - 1) / kRows;
    if (task.columns == 0 || blockIdx.x / across >= down) return;
    const int column0 = blockIdx.x % across * kColumns, row0 = blockIdx.x / across * kRows;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int block = 1 << tasks.log2_block;
    const int unit = block < 32 ? block : 32;  // rows and columns summed by one warp
    const int lanes = unit / kVector;          // lanes that share a block (a power of two)
    const Element* matrix;
    Norm* norms;
    __shared__ Square partial[4][kColumns / 32];
    __shared__ unsigned partial_bits[4][kColumns / 32];

    // `bits` is nonzero where an entry of the block is.
    auto store = [&](int block_row, int block_column, Square sum, unsigned bits) {
        if (block_row >= task.norm_rows || block_column >= task.norm_columns) return;
        Norm norm = static_cast<Norm>(sqrt(sum));
        if (kMayLeaveRange && bits && !in_range(sum)) {
            const int row = block_row * block, column = block_column * block;
            norm = scaled_norm(matrix + row * task.leading + column, task.leading, min(block, task.rows - row),
                               min(block, task.columns - column));
        }
        norms[task.transposed ? static_cast<long long>(block_column) * task.norm_rows + block_row
                              : static_cast<long long>(block_row) * task.norm_columns + block_column] = norm;
    };

    // More matrices than a grid has layers for: each block takes several.
    for (int batch = blockIdx.z >> 1; batch < task.batches; batch += gridDim.z >> 1) {
        matrix = task.matrix + batch * task.stride_matrix;
        norms = task.norms + batch * task.stride_norms;
        const int first = row0 + 32 * warp;
#pragma unroll
        for (int strip = 0; strip < kStrips; ++strip) {
            const int column = column0 + strip * kStripColumns + lane * kVector;
            if (unit == 32) {
                Square sum = 0;
                unsigned bits = 0;
                if (task.aligned && first + 32 <= task.rows && column - lane * kVector + kStripColumns <= task.columns) {
                    // Sixteen loads in flight a lane, no test between them.
#pragma unroll
                    for (int half = 0; half < 32; half += 16) {
                        uint4 raw[16];
#pragma unroll
                        for (int r = 0; r < 16; ++r) raw[r] = stream(matrix + (first + half + r) * task.leading + column);
#pragma unroll
                        for (int r = 0; r < 16; ++r) {
                            sum += square_sum(raw[r]);
                            if (kMayLeaveRange) bits |= magnitude(raw[r]);
                        }
                    }
                } else {
                    for (int r = first; r < min(first + 32, task.rows); ++r)
                        sum += square_sum(matrix + r * task.leading, column, task.columns, bits);
                }
                sum = sum_lanes(sum);
                if (kMayLeaveRange) bits = __ballot_sync(~0u, bits != 0) >> (lane & ~(32 / kVector - 1)) & ((1u << 32 / kVector) - 1);
                if (lane % (32 / kVector) == 0) {
                    const int segment = strip * (kStripColumns / 32) + lane / (32 / kVector);
                    if (block == 32) store(first / 32, column / 32, sum, bits);
                    else partial[warp][segment] = sum, partial_bits[warp][segment] = bits;
                }
            } else {
                for (int group = 0; group < 32; group += unit) {
                    Square sum = 0;
                    unsigned bits = 0;
                    for (int r = first + group; r < first + group + unit && r < task.rows; ++r)
                        sum += square_sum(matrix + r * task.leading, column, task.columns, bits);
                    for (int offset = lanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
                    if (kMayLeaveRange) bits = __ballot_sync(~0u, bits != 0) >> (lane & ~(lanes - 1)) & ((1u << lanes) - 1);
                    if (lane % lanes == 0) store((first + group) / block, column / block, sum, bits);
                }
            }
        }
        if (block > 32) {
            __syncthreads();
            const int span = block / 32;  // 2 or 4 units on a side
            const int across = kColumns / 32 / span, down = 4 / span;
            if (threadIdx.x < across * down) {
                const int i = threadIdx.x / across, j = threadIdx.x % across;
                Square sum = 0;
                unsigned bits = 0;
                for (int r = 0; r < span; ++r)
                    for (int s = 0; s < span; ++s) {
                        sum += partial[i * span + r][j * span + s];
                        if (kMayLeaveRange) bits |= partial_bits[i * span + r][j * span + s];
                    }
                store(row0 / block + i, column0 / block + j, sum, bits);
            }
            __syncthreads();
        }
    }
}
