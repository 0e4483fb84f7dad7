// Normalisation joined with the residual sum: src/ops/norm.rs. One warp per row.
#include "norm.cuh"

template <int V> __device__ inline void add_to(float* sums, const float (&x)[V]) {
    float y[V];
    load<V>(sums, y);
#pragma unroll
    for (int i = 0; i < V; i++) y[i] += x[i];
    store<V>(sums, y);
}

// Forward: s = x + dropout(h + bias), y = norm(s). Without x, it counts as 0; without h, s is x and not written; without y
// there is no norm. Stores μ and the normalising factor of every row. Shared memory: one row of floats per warp.
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
            float v[V] = {};
            if (x != nullptr) load<V>(x + at + j, v);
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
        const float mean = norm.mean(warp_sum(sum), d);
        float squares = 0;
        for (unsigned j = lane * V; j < d; j += WARP * V) {
            float v[V];
            load<V>(z + j, v);
#pragma unroll
            for (int i = 0; i < V; i++) squares += (v[i] - mean) * (v[i] - mean);
        }
        const float factor = norm.factor(warp_sum(squares), d);
        for (unsigned j = lane * V; j < d; j += WARP * V) {
            float gamma[V], beta[V], v[V];
            load<V>(norm.gamma + j, gamma);
            norm.load_beta<V>(j, beta);
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
            mean_t = norm.mean(warp_sum(mean_t), d);
            mean_tz = warp_sum(mean_tz) / norm.divisor(factor, d);
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

// The same for rows of at most 256·K numbers, a multiple of eight, of which a lane holds K runs of eight in registers.
constexpr int RUN = 8;

template <int K> struct Run {
    unsigned lane, d;
    __device__ Run(unsigned d) : lane(threadIdx.x % WARP), d(d) {}
    __device__ unsigned at(int k) const { return (k * WARP + lane) * RUN; }
    __device__ bool is_there(int k) const { return at(k) < d; }
};

template <class T, int K>
__device__ void add_norm_held(T* y, T* s, float* statistics, const T* x, const T* h, const float* bias, const Norm& norm,
                              const Dropout& dropout, const unsigned* padded, unsigned rows, unsigned d) {
    const Run<K> run(d);
    const unsigned warps = blockDim.x / WARP;
    for (unsigned row = blockIdx.x * warps + threadIdx.x / WARP; row < rows; row += gridDim.x * warps) {
        const size_t at = size_t(row) * d;
        float v[K][RUN] = {}, sum = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (x != nullptr && run.is_there(k)) load<RUN>(x + at + run.at(k), v[k]);
        }
        if (h != nullptr) {
            float u[K][RUN] = {};
#pragma unroll
            for (int k = 0; k < K; k++) {
                if (run.is_there(k)) load<RUN>(h + at + run.at(k), u[k]);
            }
            const unsigned base = dropout.threshold > 0 ? padded[row] * d : 0;
#pragma unroll
            for (int k = 0; k < K; k++) {
                if (!run.is_there(k)) continue;
                if (bias != nullptr) {
                    float b[RUN];
                    load<RUN>(bias + run.at(k), b);
#pragma unroll
                    for (int i = 0; i < RUN; i++) u[k][i] += b[i];
                }
                if (dropout.threshold > 0) {
#pragma unroll
                    for (int i = 0; i < RUN; i++) u[k][i] *= keep(dropout, base + run.at(k) + i);
                }
                // Rounded as it is stored, so that backward sees the same.
#pragma unroll
                for (int i = 0; i < RUN; i++) v[k][i] = rounded<T>(v[k][i] + u[k][i]);
                store<RUN>(s + at + run.at(k), v[k]);
            }
        }
        if (y == nullptr) continue;
#pragma unroll
        for (int k = 0; k < K; k++) {
#pragma unroll
            for (int i = 0; i < RUN; i++) sum += v[k][i];
        }
        const float mean = norm.mean(warp_sum(sum), d);
        float squares = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (!run.is_there(k)) continue;
#pragma unroll
            for (int i = 0; i < RUN; i++) squares += (v[k][i] - mean) * (v[k][i] - mean);
        }
        const float factor = norm.factor(warp_sum(squares), d);
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (!run.is_there(k)) continue;
            float gamma[RUN], beta[RUN];
            load<RUN>(norm.gamma + run.at(k), gamma);
            norm.load_beta<RUN>(run.at(k), beta);
#pragma unroll
            for (int i = 0; i < RUN; i++) v[k][i] = (v[k][i] - mean) * factor * gamma[i] + beta[i];
            store<RUN>(y + at + run.at(k), v[k]);
        }
        if (run.lane == 0) {
            statistics[2 * row] = mean;
            statistics[2 * row + 1] = factor;
        }
    }
}

// Shared memory: three rows of floats per warp.
template <class T, int K>
__device__ void add_norm_backward_held(T* ds, T* dh, float* partial, const T* dy, const T* addend, const T* s,
                                       const float* statistics, const Norm& norm, const Dropout& dropout,
                                       const unsigned* padded, unsigned rows, unsigned d) {
    DYNAMIC_SHARED(float, shared);
    const Run<K> run(d);
    const unsigned warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    float d_gamma[K][RUN] = {}, d_beta[K][RUN] = {}, d_bias[K][RUN] = {};
    for (unsigned row = blockIdx.x * warps + warp; row < rows; row += gridDim.x * warps) {
        const size_t at = size_t(row) * d;
        float out[K][RUN] = {};
        if (addend != nullptr) {
#pragma unroll
            for (int k = 0; k < K; k++) {
                if (run.is_there(k)) load<RUN>(addend + at + run.at(k), out[k]);
            }
        }
        if (dy != nullptr) {
            float normal[K][RUN] = {}, t[K][RUN] = {}, mean_t = 0, mean_tz = 0;
#pragma unroll
            for (int k = 0; k < K; k++) {
                if (!run.is_there(k)) continue;
                load<RUN>(s + at + run.at(k), normal[k]);
                load<RUN>(dy + at + run.at(k), t[k]);
            }
            const float mean = statistics[2 * row], factor = statistics[2 * row + 1];
#pragma unroll
            for (int k = 0; k < K; k++) {
                if (!run.is_there(k)) continue;
                float gamma[RUN];
                load<RUN>(norm.gamma + run.at(k), gamma);
#pragma unroll
                for (int i = 0; i < RUN; i++) {
                    const float g = t[k][i], z = (normal[k][i] - mean) * factor;
                    d_beta[k][i] += g;
                    d_gamma[k][i] += g * z;
                    normal[k][i] = z;
                    t[k][i] = g * gamma[i];
                    mean_t += t[k][i];
                    mean_tz += t[k][i] * z;
                }
            }
            mean_t = norm.mean(warp_sum(mean_t), d);
            mean_tz = warp_sum(mean_tz) / norm.divisor(factor, d);
#pragma unroll
            for (int k = 0; k < K; k++) {
#pragma unroll
                for (int i = 0; i < RUN; i++) out[k][i] += factor * (t[k][i] - mean_t - normal[k][i] * mean_tz);
            }
        }
        const unsigned base = dropout.threshold > 0 ? padded[row] * d : 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (!run.is_there(k)) continue;
            store<RUN>(ds + at + run.at(k), out[k]);
            if (dropout.threshold > 0) {
#pragma unroll
                for (int i = 0; i < RUN; i++) out[k][i] *= keep(dropout, base + run.at(k) + i);
            }
            if (dh != nullptr) store<RUN>(dh + at + run.at(k), out[k]);
#pragma unroll
            for (int i = 0; i < RUN; i++) d_bias[k][i] += out[k][i];
        }
    }
    float* sums = shared + warp * 3 * d;
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (!run.is_there(k)) continue;
        store<RUN>(sums + run.at(k), d_gamma[k]);
        store<RUN>(sums + d + run.at(k), d_beta[k]);
        store<RUN>(sums + 2 * d + run.at(k), d_bias[k]);
    }
    __syncthreads();
    for (unsigned j = threadIdx.x; j < 3 * d; j += blockDim.x) {
        float sum = 0;
        for (unsigned w = 0; w < warps; w++) sum += shared[w * 3 * d + j];
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

// Blocks of four warps, as many at once as the registers allow: the same numbers as in src/gpu/launch/norm.rs.
constexpr unsigned HELD_THREADS = 4 * WARP;

#define DEFINE_HELD(T, K, blocks, name)                                                                                 \
    KERNEL_OF(HELD_THREADS) add_norm_##name(T* y, T* s, float* statistics, const T* x, const T* h, const float* bias,   \
                                            Norm norm, Dropout dropout, const unsigned* padded, unsigned rows,          \
                                            unsigned d) {                                                               \
        add_norm_held<T, K>(y, s, statistics, x, h, bias, norm, dropout, padded, rows, d);                              \
    }                                                                                                                   \
    LAUNCHABLE(add_norm_##name)                                                                                         \
    KERNEL_OF(HELD_THREADS, blocks) add_norm_backward_##name(T* ds, T* dh, float* partial, const T* dy, const T* addend,\
                                                             const T* s, const float* statistics, Norm norm,            \
                                                             Dropout dropout, const unsigned* padded, unsigned rows,    \
                                                             unsigned d) {                                              \
        add_norm_backward_held<T, K>(ds, dh, partial, dy, addend, s, statistics, norm, dropout, padded, rows, d);       \
    }                                                                                                                   \
    LAUNCHABLE(add_norm_backward_##name)
#define DEFINE(T, name) DEFINE_HELD(T, 1, 6, name##_held1) DEFINE_HELD(T, 2, 4, name##_held2) DEFINE_HELD(T, 4, 2, name##_held4)
FOR_NUMBERS(DEFINE)
#undef DEFINE
#undef DEFINE_HELD
