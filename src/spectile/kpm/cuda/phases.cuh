// Entries of random vectors: the bits of spectile.kpm.reference.phase_bits.

static __device__ __forceinline__ unsigned long long mix(unsigned long long z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

static __device__ __forceinline__ unsigned long long phase_bits(unsigned long long seed, unsigned long long row,
                                                                unsigned long long vector) {
    return mix(mix(seed + vector * 0x9E3779B97F4A7C15ull) + row * 0xD1B54A32D192ED03ull);
}
