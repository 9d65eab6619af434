// The search for the row that an entry belongs to, and its like.

namespace {

// The last place in [low, high] of ascending numbers whose number is at most `most`; the first is.
__device__ __forceinline__ int last_at(const int* numbers, int low, int high, unsigned most) {
    while (low < high) {
        const int middle = low + (high - low + 1) / 2;
        if (unsigned(numbers[middle]) <= most) low = middle;
        else high = middle - 1;
    }
    return low;
}

}  // namespace
