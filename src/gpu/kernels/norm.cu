// Normalisation joined with the residual sum: src/ops/norm.rs. One warp per row.
#include "common.cuh"

struct Norm {
    const float *gamma, *beta;
    float eps;
    // 0: √(σ² + ε), 1: σ + ε with the unbiased σ.
    unsigned kind;
};

template <int V> __device__ inline void add_to(float* sums, const float (&x)[V]) {
    float y[V];
    load<V>(sums, y);
#pragma unroll
    for (int i = 0; i < V; i++) y[i] += x[i];
    store<V>(sums, y);
}

// Forward: s = x + dropout(h + bias), y = norm(s). Without h, s is x and not written; without y there is no norm. Stores μ
// and the normalising factor of every row. Shared memory: one row of floats per warp.
template <class T, int V>
__device__ void add_norm(T* y, T* s, float* statistics, const T* x, const T* h, const float* bias, Norm norm,
                         Dropout dropout, const unsigned* padded, unsigned rows, unsigned d) {
    DYNAMIC_SHARED(float, shared);
    const unsigned lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    // Every lane writes and reads its own elements only.
    float* z = shared + (threadIdx.x / WARP) * d;
    for (unsigned row = blockIdx.x * warps + threadIdx.x / WARP; row < rows; row += gridDim.x * warps) {
        const size_t at = size_t(row) * d;
        float sum = 0;
        for (unsigned j = lane * V; j < d; j += WARP * V) {
            float v[V];
            load<V>(x + at + j, v);
            if (h != nullptr) {
                float u[V];
                load<V>(h + at + j, u);
                if (bias != nullptr) {
                    float b[V];
                    load<V>(bias + j, b);
#pragma unroll
                    for (int i = 0; i < V; i++) u[i] += b[i];
                }
                if (dropout.threshold > 0) {
                    const unsigned base = padded[row] * d + j;
#pragma unroll
                    for (int i = 0; i < V; i++) u[i] *= keep(dropout, base + i);
                }
                // Rounded as it is stored, so that backward sees the same.
#pragma unroll
                for (int i = 0; i < V; i++) v[i] = rounded<T>(v[i] + u[i]);
                store<V>(s + at + j, v);
            }
            store<V>(z + j, v);
#pragma unroll
            for (int i = 0; i < V; i++) sum += v[i];
        }
        if (y == nullptr) continue;
        const float mean = warp_sum(sum) / d;
        float squares = 0;
        for (unsigned j = lane * V; j < d; j += WARP * V) {
            float v[V];
            load<V>(z + j, v);
#pragma unroll
            for (int i = 0; i < V; i++) squares += (v[i] - mean) * (v[i] - mean);
        }
        squares = warp_sum(squares);
        const float factor = norm.kind == 0 ? 1.0f / sqrtf(squares / d + norm.eps)
                                            : 1.0f / (sqrtf(squares / fmaxf(d - 1.0f, 1.0f)) + norm.eps);
        for (unsigned j = lane * V; j < d; j += WARP * V) {
            float gamma[V], beta[V], v[V];
            load<V>(norm.gamma + j, gamma);
            load<V>(norm.beta + j, beta);
            load<V>(z + j, v);
#pragma unroll
            for (int i = 0; i < V; i++) v[i] = (v[i] - mean) * factor * gamma[i] + beta[i];
            store<V>(y + at + j, v);
        }
        if (lane == 0) {
            statistics[2 * row] = mean;
            statistics[2 * row + 1] = factor;
        }
    }
}

// Backward: ds = norm'(dy) + addend, dh = mask·ds, and the column sums [dγ, dβ, dbias] of every block, 3·D wide. Without dy
// there was no norm; without dh, h's gradient is ds. Shared memory: four rows of floats per warp.
template <class T, int V>
__device__ void add_norm_backward(T* ds, T* dh, float* partial, const T* dy, const T* addend, const T* s,
                                  const float* statistics, Norm norm, Dropout dropout, const unsigned* padded,
                                  unsigned rows, unsigned d) {
    DYNAMIC_SHARED(float, shared);
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    float* z = shared + warp * 4 * d;
    float* sums = z + d;
    for (unsigned j = lane * V; j < d; j += WARP * V) {
        const float none[V] = {};
        for (int k = 0; k < 3; k++) store<V>(sums + k * d + j, none);
    }
    for (unsigned row = blockIdx.x * warps + warp; row < rows; row += gridDim.x * warps) {
        const size_t at = size_t(row) * d;
        float mean = 0, factor = 0, mean_t = 0, mean_tz = 0;
        if (dy != nullptr) {
            mean = statistics[2 * row];
            factor = statistics[2 * row + 1];
            float divisor = d;
            if (norm.kind != 0) divisor = fmaxf((d - 1.0f) * (1.0f - norm.eps * factor), 1.17549435e-38f);
            for (unsigned j = lane * V; j < d; j += WARP * V) {
                float v[V], g[V], gamma[V];
                load<V>(s + at + j, v);
                load<V>(dy + at + j, g);
                load<V>(norm.gamma + j, gamma);
                add_to<V>(sums + d + j, g);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    const float normal = (v[i] - mean) * factor, t = g[i] * gamma[i];
                    v[i] = g[i] * normal;
                    g[i] = t;
                    mean_t += t;
                    mean_tz += t * normal;
                }
                add_to<V>(sums + j, v);
                store<V>(z + j, g);
            }
            mean_t = warp_sum(mean_t) / d;
            mean_tz = warp_sum(mean_tz) / divisor;
        }
        for (unsigned j = lane * V; j < d; j += WARP * V) {
            float out[V] = {};
            if (addend != nullptr) load<V>(addend + at + j, out);
            if (dy != nullptr) {
                float v[V], t[V];
                load<V>(s + at + j, v);
                load<V>(z + j, t);
#pragma unroll
                for (int i = 0; i < V; i++) out[i] += factor * (t[i] - mean_t - (v[i] - mean) * factor * mean_tz);
            }
            store<V>(ds + at + j, out);
            if (dropout.threshold > 0) {
                const unsigned base = padded[row] * d + j;
#pragma unroll
                for (int i = 0; i < V; i++) out[i] *= keep(dropout, base + i);
            }
            if (dh != nullptr) store<V>(dh + at + j, out);
            add_to<V>(sums + 2 * d + j, out);
        }
    }
    __syncthreads();
    for (unsigned j = threadIdx.x; j < 3 * d; j += blockDim.x) {
        float sum = 0;
        for (unsigned w = 0; w < warps; w++) sum += shared[w * 4 * d + d + j];
        partial[size_t(blockIdx.x) * 3 * d + j] = sum;
    }
}

#define DEFINE(T, V, name)                                                                                              \
    KERNEL add_norm_##name(T* y, T* s, float* statistics, const T* x, const T* h, const float* bias, Norm norm,         \
                           Dropout dropout, const unsigned* padded, unsigned rows, unsigned d) {                        \
        add_norm<T, V>(y, s, statistics, x, h, bias, norm, dropout, padded, rows, d);                                   \
    }                                                                                                                   \
    LAUNCHABLE(add_norm_##name)                                                                                         \
    KERNEL add_norm_backward_##name(T* ds, T* dh, float* partial, const T* dy, const T* addend, const T* s,             \
                                    const float* statistics, Norm norm, Dropout dropout, const unsigned* padded,        \
                                    unsigned rows, unsigned d) {                                                        \
        add_norm_backward<T, V>(ds, dh, partial, dy, addend, s, statistics, norm, dropout, padded, rows, d);            \
    }                                                                                                                   \
    LAUNCHABLE(add_norm_backward_##name)
FOR_NUMBERS_AND_WIDTHS(DEFINE)
#undef DEFINE
