// VECTOR adjacent numbers of a row of V or W, read and written at once.

struct alignas(VECTOR * sizeof(number)) piece {
    number n[VECTOR];
};
static_assert(COLUMNS == PIECES * VECTOR, "");

typedef word_of<VECTOR* int(sizeof(number))>::type word;

static __device__ __forceinline__ piece from_bits(const word& bits) {
    piece x;
    memcpy(&x, &bits, sizeof(word));
    return x;
}

static __device__ __forceinline__ piece load_once(const number* p) { return from_bits(__ldcs(reinterpret_cast<const word*>(p))); }

static __device__ __forceinline__ piece load(const number* p) { return from_bits(__ldg(reinterpret_cast<const word*>(p))); }

static __device__ __forceinline__ piece load_kept(const number* p) { return from_bits(__ldcg(reinterpret_cast<const word*>(p))); }

static __device__ __forceinline__ word bits_of(const piece& x) {
    word bits;
    memcpy(&bits, &x, sizeof(word));
    return bits;
}

static __device__ __forceinline__ void store_once(number* p, const piece& x) { __stcs(reinterpret_cast<word*>(p), bits_of(x)); }

static __device__ __forceinline__ void store(number* p, const piece& x) { *reinterpret_cast<word*>(p) = bits_of(x); }
