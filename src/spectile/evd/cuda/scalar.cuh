// The scalar of a unit: REAL is float or double, and COMPLEX is 0 or 1.
typedef REAL real_t;

#if COMPLEX
struct __align__(2 * sizeof(real_t)) scalar_t {
    real_t x, y;
};
__device__ __forceinline__ scalar_t make_scalar(real_t x, real_t y) {
    scalar_t r;
    r.x = x;
    r.y = y;
    return r;
}
__device__ __forceinline__ scalar_t operator+(scalar_t a, scalar_t b) { return make_scalar(a.x + b.x, a.y + b.y); }
__device__ __forceinline__ scalar_t operator-(scalar_t a, scalar_t b) { return make_scalar(a.x - b.x, a.y - b.y); }
__device__ __forceinline__ scalar_t operator*(real_t a, scalar_t b) { return make_scalar(a * b.x, a * b.y); }
__device__ __forceinline__ scalar_t conj(scalar_t a) { return make_scalar(a.x, -a.y); }
__device__ __forceinline__ real_t real_part(scalar_t a) { return a.x; }
__device__ __forceinline__ real_t imag_part(scalar_t a) { return a.y; }
__device__ __forceinline__ real_t square(scalar_t a) { return a.x * a.x + a.y * a.y; }
// a * b + c
__device__ __forceinline__ scalar_t fma_(scalar_t a, scalar_t b, scalar_t c) {
    return make_scalar(fma(-a.y, b.y, fma(a.x, b.x, c.x)), fma(a.y, b.x, fma(a.x, b.y, c.y)));
}
__device__ __forceinline__ scalar_t operator*(scalar_t a, scalar_t b) { return fma_(a, b, make_scalar(0, 0)); }
__device__ __forceinline__ scalar_t shuffle_xor(scalar_t a, int lanes) {
    return make_scalar(__shfl_xor_sync(0xffffffffu, a.x, lanes), __shfl_xor_sync(0xffffffffu, a.y, lanes));
}
__device__ __forceinline__ scalar_t shuffle(scalar_t a, int lane) {
    return make_scalar(__shfl_sync(0xffffffffu, a.x, lane), __shfl_sync(0xffffffffu, a.y, lane));
}
#else
typedef real_t scalar_t;
__device__ __forceinline__ scalar_t make_scalar(real_t x, real_t) { return x; }
__device__ __forceinline__ scalar_t conj(scalar_t a) { return a; }
__device__ __forceinline__ real_t real_part(scalar_t a) { return a; }
__device__ __forceinline__ real_t imag_part(scalar_t) { return 0; }
__device__ __forceinline__ real_t square(scalar_t a) { return a * a; }
__device__ __forceinline__ scalar_t fma_(scalar_t a, scalar_t b, scalar_t c) { return fma(a, b, c); }
__device__ __forceinline__ scalar_t shuffle_xor(scalar_t a, int lanes) { return __shfl_xor_sync(0xffffffffu, a, lanes); }
__device__ __forceinline__ scalar_t shuffle(scalar_t a, int lane) { return __shfl_sync(0xffffffffu, a, lane); }
#endif

__device__ __forceinline__ scalar_t zero() { return make_scalar(0, 0); }
__device__ __forceinline__ scalar_t one() { return make_scalar(1, 0); }
__device__ __forceinline__ scalar_t negative(scalar_t a) { return zero() - a; }

// Sum over the warp of each of the first 2 WIDTH values: lane l ends with that of value l mod 2 WIDTH over its own group of
// 2 WIDTH lanes, in part[0].
template <int WIDTH, int SIZE>
__device__ __forceinline__ void fold(scalar_t (&part)[SIZE], int lane) {
    const bool upper = lane & WIDTH;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
        const scalar_t keep = upper ? part[j + WIDTH] : part[j];
        const scalar_t give = upper ? part[j] : part[j + WIDTH];
        part[j] = keep + shuffle_xor(give, WIDTH);
    }
    if constexpr (WIDTH > 1) fold<WIDTH / 2>(part, lane);
}

// Below this a sum of squares has lost digits to underflow: the column is dropped (it is tiny next to the scaled matrix).
#define NEGLIGIBLE (sizeof(real_t) == 8 ? (real_t)1e-290 : (real_t)1e-30)

__device__ __forceinline__ double inverse_root(double x) { return rsqrt(x); }
__device__ __forceinline__ float inverse_root(float x) { return 1 / sqrtf(x); }

// Reflector H = I - tau v v^H with H^H x = beta e1, v = (1, x[1:] * scale), from x[0] and the squares of the tail.
struct Reflector {
    scalar_t tau, scale;
    real_t beta;
};
__device__ __forceinline__ Reflector make_reflector(scalar_t head, real_t tail) {
    Reflector h;
    real_t total = square(head) + tail;
    if ((tail == 0 && imag_part(head) == 0) || !(total >= NEGLIGIBLE)) {
        h.tau = h.scale = zero();
        h.beta = real_part(head);
        return h;
    }
    const real_t root = inverse_root(total), inverse = real_part(head) >= 0 ? -root : root;
    h.beta = total * inverse;
    h.tau = make_scalar((h.beta - real_part(head)) * inverse, -imag_part(head) * inverse);
    scalar_t difference = make_scalar(real_part(head) - h.beta, imag_part(head));
    h.scale = (1 / square(difference)) * conj(difference);
    return h;
}
