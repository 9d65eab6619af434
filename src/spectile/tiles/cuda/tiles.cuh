// An entry of a tile: REAL is float or double, and COMPLEX is 0 or 1; set by the launch code.
typedef REAL real;
#if COMPLEX
struct __align__(2 * sizeof(real)) value {
    real x, y;
};
__device__ __forceinline__ value zero() { return value{0, 0}; }
__device__ __forceinline__ value number(double x, double y) { return value{real(x), real(y)}; }
__device__ __forceinline__ value conjugate(value a) { return value{a.x, -a.y}; }
__device__ __forceinline__ value sum(value a, value b) { return value{a.x + b.x, a.y + b.y}; }
__device__ __forceinline__ value difference(value a, value b) { return value{a.x - b.x, a.y - b.y}; }
__device__ __forceinline__ value scaled(value a, real factor) { return value{a.x * factor, a.y * factor}; }
__device__ __forceinline__ double real_part(value a) { return a.x; }
// An entry of the diagonal with a shift, real where the matrix is Hermitian.
__device__ __forceinline__ value on_diagonal(value a, real shift, bool hermitian) { return value{a.x + shift, hermitian ? real(0) : a.y}; }
__device__ __forceinline__ value multiply_add(value a, value b, value c) {
    return value{fma(-a.y, b.y, fma(a.x, b.x, c.x)), fma(a.y, b.x, fma(a.x, b.y, c.y))};
}
__device__ __forceinline__ double product_x(value a, value b) { return double(a.x) * b.x + double(a.y) * b.y; }
__device__ __forceinline__ double product_y(value a, value b) { return double(a.x) * b.y - double(a.y) * b.x; }
__device__ __forceinline__ double largest_part(value a) { return fmax(fabs(double(a.x)), fabs(double(a.y))); }
__device__ __forceinline__ double modulus(value a) { return hypot(double(a.x), double(a.y)); }
__device__ __forceinline__ double square(value a, double scale) {
    const double x = a.x * scale, y = a.y * scale;
    return x * x + y * y;
}
#else
typedef real value;
__device__ __forceinline__ value zero() { return 0; }
__device__ __forceinline__ value number(double x, double) { return real(x); }
__device__ __forceinline__ value conjugate(value a) { return a; }
__device__ __forceinline__ value sum(value a, value b) { return a + b; }
__device__ __forceinline__ value difference(value a, value b) { return a - b; }
__device__ __forceinline__ value scaled(value a, real factor) { return a * factor; }
__device__ __forceinline__ double real_part(value a) { return a; }
__device__ __forceinline__ value on_diagonal(value a, real shift, bool) { return a + shift; }
__device__ __forceinline__ value multiply_add(value a, value b, value c) { return fma(a, b, c); }
__device__ __forceinline__ double product_x(value a, value b) { return double(a) * b; }
__device__ __forceinline__ double product_y(value, value) { return 0; }
__device__ __forceinline__ double largest_part(value a) { return fabs(double(a)); }
__device__ __forceinline__ double modulus(value a) { return fabs(double(a)); }
__device__ __forceinline__ double square(value a, double scale) {
    const double x = a * scale;
    return x * x;
}
#endif
