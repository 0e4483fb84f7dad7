// Rotary positions: src/ops/rotary.rs. One thread per pair.
#include "common.cuh"

// Turns the first `heads` heads of each row, in place, by its position in the sentence; `sign` -1 turns back.
template <class T>
__device__ void turn(T* x, const float* table, const unsigned* places, unsigned rows, unsigned stride, unsigned heads,
                     unsigned d_k, float sign, unsigned halves) {
    const unsigned half = d_k / 2;
    const size_t pairs = size_t(rows) * heads * half;
    for (size_t n = size_t(blockIdx.x) * blockDim.x + threadIdx.x; n < pairs; n += size_t(gridDim.x) * blockDim.x) {
        const unsigned i = unsigned(n % half), head = unsigned(n / half % heads), row = unsigned(n / half / heads);
        const float* angles = table + size_t(places[row]) * d_k;
        const float cosine = angles[i], sine = sign * angles[half + i];
        T* first = x + size_t(row) * stride + head * d_k + (halves ? i : 2 * i);
        T* second = first + (halves ? half : 1);
        const float a = to_float(*first), b = to_float(*second);
        *first = from_float<T>(a * cosine - b * sine);
        *second = from_float<T>(a * sine + b * cosine);
    }
}

#define DEFINE(T, name)                                                                                                 \
    KERNEL turn_##name(T* x, const float* table, const unsigned* places, unsigned rows, unsigned stride,                \
                       unsigned heads, unsigned d_k, float sign, unsigned halves) {                                     \
        turn<T>(x, table, places, rows, stride, heads, d_k, sign, halves);                                              \
    }                                                                                                                   \
    LAUNCHABLE(turn_##name)
FOR_NUMBERS(DEFINE)
#undef DEFINE
