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

// The first place in [first, last) of ascending indices that is not below `least`, or `last`.
__device__ __forceinline__ int place_from(const int* idx, int first, int last, int least) {
    while (first < last) {
        const int middle = first + (last - first) / 2;
        if (idx[middle] < least) first = middle + 1;
        else last = middle;
    }
    return first;
}

}  // namespace
