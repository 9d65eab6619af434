// Sums over the terms of the recurrence, made beside its step: to each total_k are added some of the latest terms.
//
// A kernel has these terms in registers when it writes W: W as it was, V, and W as it becomes, or one more where a sweep does
// two steps.  A sum that takes part in every third step costs no more than its own reading and writing there.
//
// Set by the launch code: SERIES (terms at hand; 0: the kernel makes no sums).

template <int BYTES>
struct word_of;  // so many bytes, read and written at once
template <>
struct word_of<4> {
    typedef unsigned type;
};
template <>
struct word_of<8> {
    typedef uint2 type;
};
template <>
struct word_of<16> {
    typedef uint4 type;
};

#if SERIES
constexpr int MOST_SUMS = 16;

struct Series {
    long long count;                     // sums that take part in this step, one at least
    real* total[MOST_SUMS];              // each in the layout of V and W
    real weights[MOST_SUMS][SERIES][2];  // of the terms, the oldest first: real and imaginary parts
};

#define SERIES_PARAMETER , const __grid_constant__ Series series
#define SERIES_REFERENCE , const Series& series
#define SERIES_ARGUMENT , series

// The piece of a sum whose first number has this place; it is read once a step.
template <class Piece>
static __device__ __forceinline__ Piece piece_of(const Series& series, int sum, long long place) {
    typedef typename word_of<int(sizeof(Piece))>::type word;
    const word bits = __ldcs(reinterpret_cast<const word*>(series.total[sum] + place * PARTS));
    Piece total;
    memcpy(&total, &bits, sizeof(word));
    return total;
}

// Adds to the piece of every sum; `total` is that of the first one.  Adjacent real numbers are real and imaginary part, also
// where V and W are real: imaginary weights are for vectors in such pairs alone.
template <class Piece>
static __device__ __forceinline__ void add_terms(const Series& series, long long place, Piece total, const Piece (&pieces)[SERIES]) {
    typedef typename word_of<int(sizeof(Piece))>::type word;
    constexpr int REALS = int(sizeof(Piece) / sizeof(real));
    real terms[SERIES][REALS];
#pragma unroll
    for (int t = 0; t < SERIES; ++t) memcpy(terms[t], &pieces[t], sizeof(Piece));
    for (int k = 0;;) {
        real sum[REALS];
        memcpy(sum, &total, sizeof(Piece));
#pragma unroll
        for (int t = 0; t < SERIES; ++t) {
            const real x = series.weights[k][t][0], y = series.weights[k][t][1];
#pragma unroll
            for (int n = 0; n < REALS; ++n) {
                sum[n] += x * terms[t][n];
                if (REALS > 1) sum[n] += n % 2 ? y * terms[t][n - 1] : -y * terms[t][REALS > 1 ? n + 1 : 0];
            }
        }
        word bits;
        memcpy(&bits, sum, sizeof(word));
        __stcs(reinterpret_cast<word*>(series.total[k] + place * PARTS), bits);
        if (++k == series.count) break;
        total = piece_of<Piece>(series, k, place);
    }
}
#else
#define SERIES_PARAMETER
#define SERIES_REFERENCE
#define SERIES_ARGUMENT
#endif
