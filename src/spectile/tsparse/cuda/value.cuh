// Complex values of a product, whose operations are written as those of real ones, and what tells the two apart.

template <class REAL>
struct alignas(8) Complex {
    REAL x, y;
    Complex() = default;
    __device__ __forceinline__ Complex(REAL real, REAL imaginary = 0) : x(real), y(imaginary) {}
    template <class OTHER>
    __device__ __forceinline__ explicit Complex(const Complex<OTHER>& z) : x(REAL(z.x)), y(REAL(z.y)) {}
};

template <class REAL>
__device__ __forceinline__ Complex<REAL> operator+(const Complex<REAL>& a, const Complex<REAL>& b) {
    return {a.x + b.x, a.y + b.y};
}

template <class REAL>
__device__ __forceinline__ Complex<REAL> __shfl_sync(unsigned int mask, const Complex<REAL>& value, int lane, int width = 32) {
    return {__shfl_sync(mask, value.x, lane, width), __shfl_sync(mask, value.y, lane, width)};
}

template <class T>
struct Parts {
    using Real = T;
    static constexpr bool COMPLEX = false;
};
template <class REAL>
struct Parts<Complex<REAL>> {
    using Real = REAL;
    static constexpr bool COMPLEX = true;
};

// sum + a b.  Real ones are rounded once; of complex ones the product is rounded before it is added, within 2 units of its
// size.  The same bits whichever kernel adds, with columns known or not, and those of b a, or for conj(a) conj(b) their
// conjugate, so that a product with an adjoint is Hermitian to the bit.
__device__ __forceinline__ float add_product(float a, float b, float sum) { return __fmaf_rn(a, b, sum); }
__device__ __forceinline__ double add_product(double a, double b, double sum) { return __fma_rn(a, b, sum); }
__device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double times(double a, double b) { return __dmul_rn(a, b); }
template <class REAL>
__device__ __forceinline__ Complex<REAL> add_product(const Complex<REAL>& a, const Complex<REAL>& b, const Complex<REAL>& sum) {
    return sum + Complex<REAL>(add_product(-a.y, b.y, times(a.x, b.x)), times(a.x, b.y) + times(a.y, b.x));
}

// What matrices hold, where it is another type.
#ifndef STORED
#define STORED VALUE
#endif
