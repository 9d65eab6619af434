// Norm map: Frobenius norms of the B x B blocks of a matrix (Eq. 2), one pass over memory.
//
// A warp sums a strip of 32 rows, 16 bytes per lane and row, so that each load of a warp is 512 contiguous bytes; the
// lanes that share a block are reduced by shuffles, the warps that share one through shared memory.
//
//   for each strip of 128 rows, a warp for 32 of them:
//     sum[block] = sum of x^2                                  # read once, as a stream
//     norm[block] = sqrt(sum[block]);  where that left the range and an entry is not 0: anew, scaled
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

constexpr bool kMayLeaveRange = INPUT_BITS == 64;  // squares of small or large entries underflow or overflow

// Nonzero where an entry of float64 is, whatever its square is.
__device__ __forceinline__ unsigned magnitude(const uint4& raw) { return raw.x | raw.z | (raw.y | raw.w) << 1; }

// Whether a sum of squares has neither overflowed nor lost more than its rounding to underflow.
__device__ __forceinline__ bool in_range(double sum) { return sum > 0x1p-960 && sum < 0x1p1020; }

// A norm from the root of a sum of squares over 4^exponent.  Where it has fewer digits than a normal number, it is rounded
// up: bounds must not be too small.
__device__ __forceinline__ Norm rescaled(double root, int exponent) {
    const double norm = scalbn(root, exponent);
    return static_cast<Norm>(norm < 0x1p-1022 && scalbn(norm, -exponent) < root ? nextafter(norm, 1.0) : norm);
}

// The norm of a block of up to 32 columns whose sum of squares is not in range, by a warp: scaled by a power of two
// meanwhile.
__device__ __noinline__ Norm scaled_norm(const Element* block, long long leading, int rows, int columns) {
    const bool inside = static_cast<int>(threadIdx.x % 32) < columns;
    block += inside ? threadIdx.x % 32 : 0;
    double largest = 0, sum = 0;
    bool numbers = true;
#pragma unroll 8
    for (int r = 0; r < rows; ++r) {
        const double x = fabs(static_cast<double>(block[r * leading]));
        numbers &= x == x;
        largest = fmax(largest, x);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) largest = fmax(largest, __shfl_xor_sync(~0u, largest, offset));
    if (__ballot_sync(~0u, !numbers)) return static_cast<Norm>(nan(""));
    if (largest == 0 || isinf(largest)) return static_cast<Norm>(largest);
    const int exponent = ilogb(largest), half = -exponent / 2;
    const double first = scalbn(1.0, half), second = scalbn(1.0, -exponent - half);
#pragma unroll 8
    for (int r = 0; r < rows; ++r) {
        const double x = inside ? static_cast<double>(block[r * leading]) * first * second : 0;
        sum += x * x;
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    return rescaled(sqrt(sum), exponent);
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

// A lane's elements of a row that is not aligned, or ends; zeros behind it.
__device__ __forceinline__ uint4 gathered(const Element* row, int columns) {
    uint4 raw = {0, 0, 0, 0};
    Element* value = reinterpret_cast<Element*>(&raw);
#pragma unroll
    for (int i = 0; i < kVector; ++i)
        if (i < columns) value[i] = row[i];
    return raw;
}

// Sum the squares of a strip of up to 32 rows: the lane j gets the sum of the j-th 32 columns, and a bit for each 32
// columns says whether an entry is not 0.  Loads are in flight together, no test between those of whole rows that are
// aligned.  The order of the sums is the same for all: parts of a matrix have the norms that they have in the whole.
template <bool kWhole>
__device__ __forceinline__ Square sum_strip(const Element* from, long long leading, int rows, int columns, unsigned& occupied) {
    constexpr int kLanes = 32 / kVector, kDepth = kWhole ? 16 : 8;
    const int lane = threadIdx.x % 32;
    from += lane * kVector, columns -= lane * kVector;
    Square sum = 0;
    unsigned bits = 0;
#pragma unroll
    for (int first = 0; first < 32; first += kDepth) {
        uint4 raw[kDepth];
#pragma unroll
        for (int r = 0; r < kDepth; ++r) {
            const Element* row = from + (first + r) * leading;
            raw[r] = kWhole ? stream(row) : gathered(row, first + r < rows ? columns : 0);
        }
#pragma unroll
        for (int r = 0; r < kDepth; ++r) {
            sum += square_sum(raw[r]);
            if (kMayLeaveRange) bits |= magnitude(raw[r]);
        }
    }
    occupied = 0;
    if (kMayLeaveRange) {
        const unsigned lanes = __ballot_sync(~0u, bits != 0);
#pragma unroll
        for (int j = 0; j < kVector; ++j)
            if (lanes >> j * kLanes & ((1u << kLanes) - 1)) occupied |= 1u << j;
    }
    return __shfl_sync(~0u, sum_lanes(sum), lane * kLanes % 32);
}

// The norm of each lane's block from its sum of squares: of those that are not in range, `out`, anew.  Blocks begin at
// the lanes' columns of a strip.
__device__ __forceinline__ Norm norm_of(Square sum, bool out, const Element* strip, long long leading, int column, int rows, int columns,
                                        int width) {
    Norm norm = static_cast<Norm>(sqrt(sum));
    if (!kMayLeaveRange) return norm;
    for (unsigned left = __ballot_sync(~0u, out && !in_range(sum)); left; left &= left - 1) {
        const int lane = __ffs(left) - 1, first = __shfl_sync(~0u, column, lane);
        const Norm anew = scaled_norm(strip + first, leading, rows, min(width, columns - first));
        if (static_cast<int>(threadIdx.x % 32) == lane) norm = anew;
    }
    return norm;
}

struct Partial {
    Norm norms[4][kColumns / 32];
};

// The norm of a block of span x span pieces from theirs.
__device__ __forceinline__ Norm joined(const Partial& pieces, int row, int column, int span) {
    double largest = 0, sum = 0;
    for (int r = row; r < row + span; ++r)
        for (int s = column; s < column + span; ++s) largest = fmax(largest, static_cast<double>(pieces.norms[r][s]));
    const int exponent = INPUT_BITS == 64 && largest > 0 && !isinf(largest) ? ilogb(largest) : 0;
    for (int r = row; r < row + span; ++r)
        for (int s = column; s < column + span; ++s) {
            const double norm = scalbn(static_cast<double>(pieces.norms[r][s]), -exponent);
            sum += norm * norm;
        }
    return rescaled(sqrt(sum), exponent);
}

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
    STATIC_SHARED(Partial, partial);

    // More matrices than a grid has layers for: each block takes several.
    for (int batch = blockIdx.z >> 1; batch < task.batches; batch += gridDim.z >> 1) {
        const int first = row0 + 32 * warp;
        const Element* matrix = task.matrix + batch * task.stride_matrix;
        Norm* norms = task.norms + batch * task.stride_norms;
        auto store = [&](int block_row, int block_column, Norm norm) {
            if (block_row >= task.norm_rows || block_column >= task.norm_columns) return;
            norms[task.transposed ? static_cast<long long>(block_column) * task.norm_rows + block_row
                                  : static_cast<long long>(block_row) * task.norm_columns + block_column] = norm;
        };
        for (int strip = 0; strip < kStrips; ++strip) {
            const int column = column0 + strip * kStripColumns, columns = task.columns - column;
            const Element* from = matrix + first * task.leading + column;
            if (unit == 32) {
                unsigned occupied;
                const bool whole = task.aligned && first + 32 <= task.rows && columns >= kStripColumns;
                const int rows = min(32, task.rows - first);
                const Square sum = whole ? sum_strip<true>(from, task.leading, rows, columns, occupied)
                                         : sum_strip<false>(from, task.leading, rows, columns, occupied);
                const bool out = lane < kVector && (occupied >> lane & 1);
                const Norm norm = norm_of(sum, out, from, task.leading, 32 * lane, rows, columns, 32);
                if (lane < kVector) {
                    if (block == 32) store(first / 32, column / 32 + lane, norm);
                    else partial.norms[warp][strip * kVector + lane] = norm;
                }
            } else {
                for (int group = 0; group < 32; group += unit) {
                    const int rows = min(unit, task.rows - first - group);
                    const Element* piece = from + group * task.leading;
                    Square sum = 0;
                    unsigned bits = 0;
                    for (int r = 0; r < rows; ++r) sum += square_sum(piece + r * task.leading, lane * kVector, columns, bits);
                    for (int offset = lanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
                    if (kMayLeaveRange) bits = __ballot_sync(~0u, bits != 0) >> (lane & ~(lanes - 1)) & ((1u << lanes) - 1);
                    const bool leads = lane % lanes == 0;
                    const Norm norm = norm_of(sum, leads && bits, piece, task.leading, lane * kVector, rows, columns, unit);
                    if (leads) store((first + group) / block, (column + lane * kVector) / block, norm);
                }
            }
        }
        if (block > 32) {
            __syncthreads();
            const int span = block / 32;  // 2 or 4 pieces on a side
            const int wide = kColumns / 32 / span;
            if (static_cast<int>(threadIdx.x) < wide * (4 / span)) {
                const int i = threadIdx.x / wide, j = threadIdx.x % wide;
                store(row0 / block + i, column0 / block + j, joined(partial, i * span, j * span, span));
            }
            __syncthreads();
        }
    }
}
