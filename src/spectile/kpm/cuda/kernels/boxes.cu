// Inspector of boxed.cu: which boxes of BOX adjacent rows of V a tile of groups needs, and in which row of which box each of
// its columns lies.
//
// A block takes a tile after the other.  It sorts the rows that the tile names, its own included, and lets each box begin at
// the first row that the one before does not hold.
//
// Set by the launch code: THREADS, TILE (groups of a tile at most), SLOTS (boxes of a tile at most), LENGTH (codes of a
// group: entries of the longest row and more), BOX, PIECES (of a row that lie apart in a box), WIDE (64-bit row pointers).

#if WIDE
typedef long long entry;
#else
typedef int entry;
#endif

constexpr int CODES = LENGTH + 8;  // a group's columns, and its own rows
constexpr int NONE = 0x7fffffff;
static __device__ constexpr int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }
constexpr int ROOM = power_of_two(TILE * CODES);

struct alignas(16) Place {
    int begin;
    short rows, count;
    long long at;
};

// The first of `count` ascending numbers that is not below `wanted`.
static __device__ int lower_bound(const int *numbers, int count, int wanted) {
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
extern "C" __global__ void __launch_bounds__(THREADS)
    boxes_of(const int *first, const entry *pointer, const int *indices, const int *edges, int tiles, Place *places,
             int *starts, unsigned short *codes, int *needed) {
    __shared__ int keys[ROOM];
    __shared__ int chosen[SLOTS];
    __shared__ int found;
    __shared__ Place group[TILE];
    for (int tile = blockIdx.x; tile <= tiles; tile += gridDim.x) {
        const int begin = edges[tile], groups = tile < tiles ? edges[tile + 1] - begin : 0;
        __syncthreads();
        for (int n = threadIdx.x; n < TILE; n += THREADS) {
            Place mine = {0, 0, 0, 0};
            if (n < groups) {
                const int number = begin + n, row = first[number];
                mine = {row, short(first[number + 1] - row), short(pointer[row + 1] - pointer[row]), pointer[row]};
            }
            places[(long long)tile * TILE + n] = group[n] = mine;
        }
        __syncthreads();
        if (tile == tiles) break;
        auto key_of = [&](int n) {
            const Place mine = group[n / CODES];
            const int k = n % CODES;
            if (k < mine.count) return indices[mine.at + k];
            return k >= LENGTH && k - LENGTH < mine.rows ? mine.begin + k - LENGTH : NONE;
        };
        for (int n = threadIdx.x; n < ROOM; n += THREADS) keys[n] = n < TILE * CODES ? key_of(n) : NONE;
        for (int run = 2; run <= ROOM; run *= 2)
            for (int distance = run / 2; distance > 0; distance /= 2) {
                __syncthreads();
                for (int n = threadIdx.x; n < ROOM / 2; n += THREADS) {
                    const int low = n / distance * 2 * distance + n % distance, high = low + distance;
                    const int a = keys[low], b = keys[high];
                    const bool ascending = (low & run) == 0;
                    if (a > b == ascending) keys[low] = b, keys[high] = a;
                }
            }
        __syncthreads();
        if (threadIdx.x == 0) {
            int count = 0;
            for (int at = 0; at < ROOM && keys[at] != NONE; ++count) {
                if (count == SLOTS) {
                    ++count;
                    break;
                }
                chosen[count] = keys[at];
                at += lower_bound(keys + at, ROOM - at, keys[at] + BOX);
            }
            needed[tile] = found = count;
        }
        __syncthreads();
        if (found > SLOTS) continue;
        for (int n = threadIdx.x; n < SLOTS; n += THREADS)
            starts[(long long)tile * SLOTS + n] = n < found ? chosen[n] : -1;
        for (int n = threadIdx.x; n < TILE * CODES; n += THREADS) {
            const int key = key_of(n);
            int code = 0;
            if (key != NONE) {
                const int box = lower_bound(chosen, found, key + 1) - 1;
                code = box * BOX * PIECES + key - chosen[box];
            }
            codes[(long long)tile * TILE * CODES + n] = (unsigned short)code;
        }
    }
}
