// What the tiles of a group's sweeps hold, for those who make them and those who apply them.

#include "messages.cuh"

#define GROUP 64
#define WIDTH 32  // sweeps of a tile
#define TILES (GROUP / WIDTH)
#define SPAN ((B + WIDTH) / 8)  // units of rows that a tile acts on
#define REACH (B / 8 + 1)       // of them, those of 8 neighbouring sweeps
#define PARTS (COMPLEX ? 2 : 1)
#define UNIT 64
// Units of a tile: Y, then -Y T; for complex numbers the real parts of both, then the imaginary ones.
#define TILE_PART ((8 * REACH + 6) * UNIT)
#define TILE (PARTS * TILE_PART)
#define WINDOW ((GROUP + B) / 8)  // C fragments
#define COLUMNS (16 / PARTS)      // of Z a warp
// Tiles arrive by bulk copies in a ring, where a block has shared memory for more than one: not in 99 KB.
#define RING (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)
#if RING
#define SLOTS (2 * TILES)  // tiles in shared memory
#else
#define SLOTS 1
#endif

// Whether rows 8 u ... 8 u + 7 of sweeps 8 v ... 8 v + 7 hold other than zeros, in Y and in Y T, and which unit they are.
__device__ constexpr bool in_y(int u, int v) { return u >= v && u < v + REACH; }
__device__ constexpr bool in_yt(int u, int v) { return u < v + REACH; }
__device__ constexpr int y_unit(int u, int v) { return v * REACH + u - v; }
__device__ constexpr int yt_unit(int u, int v) {
    const int past = u < REACH ? 0 : u - REACH + 1;
    return WIDTH / 8 * (REACH + u) + v - past * (past + 1) / 2;
}
