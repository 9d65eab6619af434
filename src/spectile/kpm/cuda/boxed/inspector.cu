// Inspector of boxed/kernel.cu: which boxes of BOX adjacent rows of V a tile of groups needs, and in which row of which box each of
// its columns lies.
//
// A warp takes a tile after the other, a lane walks through the columns of a group, which ascend, and through its rows: each
// box begins at the first row that no box before it holds.
//
// Set by the launch code: THREADS, TILE (groups of a tile at most), SLOTS (boxes of a tile at most), LENGTH (codes of a
// group: entries of the longest row and more), BOX, PIECES (of a row that lie apart in a box), WIDE (64-bit row pointers).

#if WIDE
typedef long long entry;
#else
typedef int entry;
#endif

constexpr int CODES = LENGTH + 8;  // a group's columns, and its own rows
constexpr int NONE = 0x7fffffff, WARPS = THREADS / 32;
constexpr unsigned ALL = 0xffffffffu;
static_assert(TILE <= 32 && CODES % 2 == 0, "");

struct alignas(16) Place {
    int begin;
    short rows, count;
    long long at;
};

// The first of `count` ascending numbers that is not below `wanted`.
static __device__ int lower_bound(const int* numbers, int count, int wanted) {
    int low = 0;
    while (count > 0) {
        const int half = count / 2;
        const bool below = numbers[low + half] < wanted;
        low += below ? half + 1 : 0;
        count = below ? count - half - 1 : half;
    }
    return low;
}

// edges: (tiles + 1) groups;  places: (tiles + 1, TILE);  starts: (tiles, SLOTS);  codes: (tiles, TILE, CODES);
// needed: (tiles) boxes, SLOTS + 1 where they are too many.
extern "C" __global__ void __launch_bounds__(THREADS) boxes_of(const int* __restrict__ first, const entry* __restrict__ pointer,
                                                               const int* __restrict__ indices, const int* __restrict__ edges, int tiles,
                                                               Place* places, int* starts, ushort2* codes, int* needed) {
    __shared__ Place groups_of[WARPS][TILE];
    __shared__ int starts_of[WARPS][SLOTS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Place* const group = groups_of[warp];
    int* const chosen = starts_of[warp];
    for (int tile = blockIdx.x * WARPS + warp; tile <= tiles; tile += gridDim.x * WARPS) {
        const int begin = edges[tile], groups = tile < tiles ? edges[tile + 1] - begin : 0;
        Place mine = {0, 0, 0, 0};
        if (lane < groups) {
            const int row = first[begin + lane];
            const entry at = pointer[row];
            mine = {row, short(first[begin + lane + 1] - row), short(pointer[row + 1] - at), at};
        }
        if (lane < TILE) places[(long long)tile * TILE + lane] = group[lane] = mine;
        if (tile == tiles) break;

        const int* const columns = indices + mine.at;
        const int end = mine.begin + mine.rows;
        int k = 0, row = mine.begin, count = 0;
        for (;; ++count) {
            int head = row < end ? row : NONE;
            if (k < mine.count) head = min(head, columns[k]);
            const int start = __reduce_min_sync(ALL, head);
            if (start == NONE || count > SLOTS) break;
            if (lane == 0 && count < SLOTS) chosen[count] = start;
            // Columns differ: no more than BOX of them lie in a box.
            k += lower_bound(columns + k, min(mine.count - k, BOX), start + BOX);
            row = max(row, start + BOX);
        }
        if (lane == 0) needed[tile] = count;
        __syncwarp();
        if (count <= SLOTS) {
            for (int n = lane; n < SLOTS; n += 32) starts[(long long)tile * SLOTS + n] = n < count ? chosen[n] : -1;
            for (int n = 0; n < TILE; ++n) {
                const Place place = group[n];
                auto code_of = [&](int k) {
                    int key = NONE;
                    if (k < place.count) key = indices[place.at + k];
                    if (k >= LENGTH && k - LENGTH < place.rows) key = place.begin + k - LENGTH;
                    if (key == NONE) return 0;
                    const int box = lower_bound(chosen, count, key + 1) - 1;
                    return box * BOX * PIECES + key - chosen[box];
                };
                for (int k = 2 * lane; k < CODES; k += 64)
                    codes[(((long long)tile * TILE + n) * CODES + k) / 2] =
                        make_ushort2((unsigned short)code_of(k), (unsigned short)code_of(k + 1));
            }
        }
        __syncwarp();
    }
}
