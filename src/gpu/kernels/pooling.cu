// The vector of each sentence: src/model/pooling.rs.
#include "common.cuh"

// Added to the variance of a sentence's states: VARIANCE_EPS of pooling.rs.
constexpr float VARIANCE_EPS = 1e-12f;

// The sum of all threads' numbers. All threads get it.
__device__ inline float sum_of_block(float mine) {
    __shared__ float sums[WARP];
    return warp_sum(of_warps(sums, warp_sum(mine), 0.0f));
}

// sum += weight·x, or weight·(x − mean)/σ with mean and σ of all numbers of the sentence. One block per sentence.
template <class T, int V>
__device__ void mix(float* sum, const T* x, const unsigned* starts, float weight, unsigned normalised, unsigned d) {
    const size_t first = size_t(starts[blockIdx.x]) * d, end = size_t(starts[blockIdx.x + 1]) * d;
    const size_t begin = first + threadIdx.x * V, step = size_t(blockDim.x) * V;
    float mean = 0, scale = weight;
    // The same for all threads.
    if (normalised) {
        const float count = float(end - first);
        float total = 0, squares = 0;
        for (size_t j = begin; j < end; j += step) {
            float y[V];
            load<V>(x + j, y);
#pragma unroll
            for (int i = 0; i < V; i++) total += y[i];
        }
        mean = sum_of_block(total) / count;
        for (size_t j = begin; j < end; j += step) {
            float y[V];
            load<V>(x + j, y);
#pragma unroll
            for (int i = 0; i < V; i++) squares += (y[i] - mean) * (y[i] - mean);
        }
        scale = weight / sqrtf(sum_of_block(squares) / count + VARIANCE_EPS);
    }
    for (size_t j = begin; j < end; j += step) {
        float y[V], old[V];
        load<V>(x + j, y);
        load<V>(sum + j, old);
#pragma unroll
        for (int i = 0; i < V; i++) old[i] += scale * (y[i] - mean);
        store<V>(sum + j, old);
    }
}

#define DEFINE(T, V, name)                                                                                              \
    KERNEL mix_##name(float* sum, const T* x, const unsigned* starts, float weight, unsigned normalised, unsigned d) {  \
        mix<T, V>(sum, x, starts, weight, normalised, d);                                                               \
    }                                                                                                                   \
    LAUNCHABLE(mix_##name)
FOR_NUMBERS_AND_WIDTHS(DEFINE)
#undef DEFINE

// The vector of each sentence from the states of its rows. `pooling` is a place in Pooling. 0: the mean, 1: the largest
// numbers, 2: the first row. One thread per number.
KERNEL pool(float* vectors, const float* states, const unsigned* starts, unsigned pooling, unsigned d) {
    const unsigned sentence = blockIdx.x, j = blockIdx.y * blockDim.x + threadIdx.x;
    if (j >= d) return;
    const unsigned first = starts[sentence], end = pooling == 2 ? first + 1 : starts[sentence + 1];
    float result = states[size_t(first) * d + j];
    for (unsigned row = first + 1; row < end; row++) {
        const float x = states[size_t(row) * d + j];
        // What is not a number stays so.
        result = pooling == 0 ? result + x : result < x || x != x ? x : result;
    }
    vectors[size_t(sentence) * d + j] = pooling == 0 ? result / (end - first) : result;
}
LAUNCHABLE(pool)
