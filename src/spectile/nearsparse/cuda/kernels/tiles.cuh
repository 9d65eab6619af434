// How the tiles of C are numbered, and the bins of work in which tiles are put by their length; choose.py counts alike.

constexpr int kWorkBins = WORK_BINS;

struct TilePlace {
    int row, column;  // in tiles
};

// Neighbouring tiles form bands of so many rows of tiles, taken column by column, so that their panels stay in the L2.
__device__ __forceinline__ TilePlace tile_place(int index, int tiles_m, int tiles_n, int band_rows) {
    const int band = index / (band_rows * tiles_n);
    const int height = min(band_rows, tiles_m - band * band_rows);
    const int within = index - band * band_rows * tiles_n;
    const int row = band * band_rows + within % height, column = within / height;
    return {row, column};
}

// Bin 0 holds the tiles of most work.
__device__ __forceinline__ int falling_bin(unsigned count, int steps) {
    return kWorkBins - 1 - static_cast<int>(static_cast<long long>(count) * (kWorkBins - 1) / max(steps, 1));
}
