// Embedding: src/ops/embedding.rs. Forward: one warp per row. Backward: one block per token and run of columns.
#include "common.cuh"

// out = dropout(scale·table[id] + positions[place]).
template <class T, int V>
__device__ void embed(T* out, const float* table, const float* positions, const unsigned* ids, const unsigned* places,
                      const unsigned* padded, float scale, Dropout dropout, unsigned rows, unsigned d) {
    const unsigned lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    for (unsigned row = blockIdx.x * warps + threadIdx.x / WARP; row < rows; row += gridDim.x * warps) {
        const float* entry = table + size_t(ids[row]) * d;
        const unsigned base = padded[row] * d;
        for (unsigned j = lane * V; j < d; j += WARP * V) {
            float x[V];
            load<V>(entry + j, x);
#pragma unroll
            for (int i = 0; i < V; i++) x[i] *= scale;
            if (positions != nullptr) {
                float p[V];
                load<V>(positions + size_t(places[row]) * d + j, p);
#pragma unroll
                for (int i = 0; i < V; i++) x[i] += p[i];
            }
            if (dropout.threshold > 0) {
#pragma unroll
                for (int i = 0; i < V; i++) x[i] *= keep(dropout, base + j + i);
            }
            store<V>(out + size_t(row) * d + j, x);
        }
    }
}

constexpr unsigned EMBED_WARPS = 8;
// Rows that a warp loads together, so that they do not wait for each other.
constexpr unsigned EMBED_ROWS = 4;

// gradient[token] += scale·Σ mask·g over the rows of one token, `order[starts[k]]` to `order[starts[k + 1] - 1]`. Each warp
// takes every eighth of them, and the warps' sums are added in their order: the result is the same in every run.
template <class T, int V>
__device__ void embed_backward(float* gradient, const T* g, const unsigned* order, const unsigned* starts,
                               const unsigned* tokens, const unsigned* padded, float scale, Dropout dropout, unsigned d) {
    __shared__ float sums[EMBED_WARPS * WARP * V];
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const unsigned segment = blockIdx.x, j = (blockIdx.y * WARP + lane) * V;
    float total[V] = {};
    if (j < d) {
        const unsigned end = starts[segment + 1];
        for (unsigned k = starts[segment] + warp; k < end; k += EMBED_WARPS * EMBED_ROWS) {
            float x[EMBED_ROWS][V] = {};
            unsigned bases[EMBED_ROWS] = {};
#pragma unroll
            for (unsigned r = 0; r < EMBED_ROWS; r++) {
                if (k + r * EMBED_WARPS >= end) continue;
                const unsigned row = order[k + r * EMBED_WARPS];
                load<V>(g + size_t(row) * d + j, x[r]);
                bases[r] = padded[row] * d + j;
            }
#pragma unroll
            for (unsigned r = 0; r < EMBED_ROWS; r++) {
#pragma unroll
                for (int i = 0; i < V; i++) total[i] += dropout.threshold > 0 ? x[r][i] * keep(dropout, bases[r] + i) : x[r][i];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < V; i++) sums[(warp * V + i) * WARP + lane] = total[i];
    __syncthreads();
    if (warp == 0 && j < d) {
        float* target = gradient + size_t(tokens[segment]) * d + j;
        float old[V];
        load<V>(target, old);
#pragma unroll
        for (int i = 0; i < V; i++) {
            float sum = 0;
            for (unsigned w = 0; w < EMBED_WARPS; w++) sum += sums[(w * V + i) * WARP + lane];
            total[i] = old[i] + scale * sum;
        }
        store<V>(target, total);
    }
}

#define DEFINE(T, V, name)                                                                                              \
    KERNEL embed_##name(T* out, const float* table, const float* positions, const unsigned* ids,                        \
                        const unsigned* places, const unsigned* padded, float scale, Dropout dropout, unsigned rows,    \
                        unsigned d) {                                                                                   \
        embed<T, V>(out, table, positions, ids, places, padded, scale, dropout, rows, d);                               \
    }                                                                                                                   \
    LAUNCHABLE(embed_##name)                                                                                            \
    KERNEL embed_backward_##name(float* gradient, const T* g, const unsigned* order, const unsigned* starts,            \
                                 const unsigned* tokens, const unsigned* padded, float scale, Dropout dropout,          \
                                 unsigned d) {                                                                          \
        embed_backward<T, V>(gradient, g, order, starts, tokens, padded, scale, dropout, d);                            \
    }                                                                                                                   \
    LAUNCHABLE(embed_backward_##name)
FOR_NUMBERS_AND_WIDTHS(DEFINE)
#undef DEFINE
