/* What a shared library offers to be measured beside ours: the square of a sparse matrix (docs/rivals.md). */
#ifndef SPECTILE_SQUARE_H
#define SPECTILE_SQUARE_H

#include <stdint.h>

/* Raised when a function or a layout changes; a library tells the one that it was made for. */
#define SPECTILE_SQUARE_INTERFACE 1

#ifdef __cplusplus
extern "C" {
#endif

/* A square matrix in compressed sparse rows: row i has the columns indices[indptr[i]] to indices[indptr[i + 1] - 1],
   counted from 0, each once, and the values beside them. */
typedef struct {
    int64_t rows;          /* and columns */
    int64_t entries;       /* indptr[rows] */
    const int32_t* indptr; /* rows + 1 */
    const int32_t* indices;
    const void* values; /* float or double, as spectile_square_value_bytes says */
} spectile_square_csr;

int32_t spectile_square_interface(void);   /* SPECTILE_SQUARE_INTERFACE */
const char* spectile_square_version(void); /* name, version and commit, for the record */
int32_t spectile_square_value_bytes(void); /* 4: float, 8: double */
int32_t spectile_square_on_device(void);   /* 1: arrays in memory of the current CUDA device, 0: of the host */

/* Square a, whose rows are sorted, into arrays of the library's own, with allocations and until the device is done.
   Return 0, or a status that spectile_square_message explains; then c holds nothing to release. */
int32_t spectile_square(const spectile_square_csr* a, spectile_square_csr* c);
const char* spectile_square_message(int32_t status);
void spectile_square_release(spectile_square_csr* c);

/* Most bytes that the last call held at a time beside its input, its result included; -1: not counted. */
int64_t spectile_square_most_bytes(void);

#ifdef __cplusplus
}
#endif
#endif
