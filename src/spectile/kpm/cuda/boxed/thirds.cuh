// Products of float32 numbers in TF32 on the tensor core: a number is the sum of its leading and its trailing bits, and of the
// four products of two such sums three are taken.

// A number rounded to TF32, and the rest, of which the tensor core leaves out what lies 2^-23 below.
struct Parts {
    unsigned high, low;
};

static __device__ __forceinline__ Parts parts_of(float x) {
    const unsigned high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    return {high, __float_as_uint(x - __uint_as_float(high))};
}

static __device__ __forceinline__ Parts minus(Parts x) { return {x.high ^ 0x80000000u, x.low ^ 0x80000000u}; }

// C += [[a0, a2], [a1, a3]] [b0, b1], the small products first.
static __device__ __forceinline__ void multiply(float (&c)[4], Parts a0, Parts a1, Parts a2, Parts a3, Parts b0, Parts b1) {
    const unsigned high_a[4] = {a0.high, a1.high, a2.high, a3.high}, low_a[4] = {a0.low, a1.low, a2.low, a3.low};
    const unsigned high_b[2] = {b0.high, b1.high}, low_b[2] = {b0.low, b1.low};
    mma_tf32(c, low_a, high_b);
    mma_tf32(c, high_a, low_b);
    mma_tf32(c, high_a, high_b);
}
