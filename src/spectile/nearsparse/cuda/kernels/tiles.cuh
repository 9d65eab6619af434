// How the tiles of C are numbered.

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
