// Numbers of a matrix and of block vectors, real or complex: REAL (float, double), COMPLEX (0, 1), WIDE (64-bit row
// pointers).

typedef REAL real;
#if WIDE
typedef long long entry;  // position of a matrix entry
#else
typedef int entry;
#endif
#if COMPLEX
struct alignas(2 * sizeof(real)) number {
    real x, y;
};
#else
struct number {
    real x;
};
#endif

static __device__ __forceinline__ number zero() {
    number n;
    n.x = 0;
#if COMPLEX
    n.y = 0;
#endif
    return n;
}
