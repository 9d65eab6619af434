// What the kernels and the host share: counters, flags, bins.  The host reads the numbers from this file (counters.py).

#include "scan.cuh"

namespace {

constexpr int ANALYSTS = 512;          // threads of a block of the analysis
constexpr int SCAN_ROWS = 2048;        // rows that a block of the prefix scan takes
constexpr int HEAVY = 16384;           // products from which a block gathers the row, however narrow it is
constexpr int MOST_KEPT = 2147482624;  // words of kept bitmaps that a slot can name, and add 256 to
constexpr int GROUPED = 768;           // products or columns of a row up to which a group of lanes counts it
constexpr int EMPTY = -1048576;        // exponent of a row or column without a nonzero

// The head: counters that a call clears before and the host reads between the phases.
constexpr int HEAD = 64;  // words
enum Head {
    SYMBOLIC = 0,       // rows in each symbolic bin
    NUMERIC = 12,       // rows in each numeric bin (16)
    FLAGS = 28,         // bad input of A and of B, see Flag
    MAX_SPAN = 30,      // widest window among the rows of the symbolic block bin
    MAX_BYTES = 32,     // most shared memory among the rows of each numeric block bin; of the last, most words (4)
    TICKET = 31,
    PRODUCTS = 36,      // 64 bits
    ENTRIES = 38,       // 64 bits: stored entries of C
    DESCENTS = 40,      // places in A and in B where a column is not above the one before, less those at a row's start
    KEPT = 42,          // 64 bits: words of the bitmaps that the rows of the window bins keep
};
enum Flag { BAD_INDEX = 1, NOT_FINITE = 4, HALF_RANGE = 8, FLOAT_RANGE = 16, LOST = 32, BAD_POINTER = 64, OTHER_PATTERN = 128 };
enum Rounding { KEEP = 0, TF32 = 1, HALF = 2 };

// Mean lengths of the rows of B from which more lanes take a row.
constexpr int MIDDLE_MEAN = 10;
constexpr int LONG_MEAN = 24;

constexpr int SORTED = 128;            // products of a row up to which they are sorted
constexpr int SORTED_SPAN = 33554432;  // columns of a window that a word holds beside the number of a product

// Bins of the symbolic phase: window 2048, window 8192, hash 32, 64, 256, 1024, block, sorted 16, 32, 64, 128.
constexpr int BINS_SYMBOLIC = 11;
constexpr int BLOCK_BIN = 6;
constexpr int SORT_BIN = 7;

// Bins of the numeric phase; their kernels stand in counters.py, each a unit of its own.
constexpr int BINS_NUMERIC = 16;
constexpr int GROUP_THREADS = 128;  // of the kernels that give a row to a group of lanes

// Words of the bitmap of `span` columns, of which there may be nearly 2^31.
__device__ __forceinline__ int words_of(int span) { return int((u32(span) + 31) >> 5); }

// The rows of a bin.  Two bins share room for all rows, one from its beginning, one from its end: no row is in both.
__device__ __forceinline__ const int* list_of(const int* lists, int bin, int rows, int count) {
    return lists + (long long)(bin >> 1) * rows + (bin & 1 ? rows - count : 0);
}

// Whether the check of the factors found what the kernels must not walk.
__device__ __forceinline__ bool invalid(const int* head) {
    return head[FLAGS] | head[FLAGS + 1] | head[DESCENTS] | head[DESCENTS + 1];
}

}  // namespace
