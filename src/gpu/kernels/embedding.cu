// Embedding: src/ops/embedding.rs. Forward: one warp per row. Backward: one block, or one warp, per token and run of columns.
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

// total += Σ mask·g over V columns from j on of rows order[k], order[k + step], … before `end`.
template <class T, int V>
__device__ inline void add_rows_of_token(float (&total)[V], const T* g, const unsigned* order, const unsigned* padded,
                                         const Dropout& dropout, unsigned k, unsigned step, unsigned end, unsigned j, unsigned d) {
    for (; k < end; k += step * EMBED_ROWS) {
        float x[EMBED_ROWS][V] = {};
        unsigned bases[EMBED_ROWS] = {};
#pragma unroll
        for (unsigned r = 0; r < EMBED_ROWS; r++) {
            if (k + r * step >= end) continue;
            const unsigned row = order[k + r * step];
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

// gradient[token] += scale·Σ mask·g over the rows of one token, `order[starts[k]]` to `order[starts[k + 1] - 1]`. Each warp
// takes every eighth of them, and the warps' sums are added in their order: the result is the same in every run.
template <class T, int V>
__device__ void embed_backward(float* gradient, const T* g, const unsigned* order, const unsigned* starts,
                               const unsigned* tokens, const unsigned* padded, float scale, const Dropout& dropout, unsigned d,
                               unsigned first) {
    __shared__ float sums[EMBED_WARPS * WARP * V];
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const unsigned segment = first + blockIdx.x, j = (blockIdx.y * WARP + lane) * V;
    float total[V] = {};
    if (j < d) {
        add_rows_of_token(total, g, order, padded, dropout, starts[segment] + warp, EMBED_WARPS, starts[segment + 1], j, d);
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

// The same where a token has few rows, from segment `first` to `last` - 1: a warp takes them all, for a run of columns.
template <class T, int V>
__device__ void embed_backward_short(float* gradient, const T* g, const unsigned* order, const unsigned* starts,
                                     const unsigned* tokens, const unsigned* padded, float scale, const Dropout& dropout,
                                     unsigned d, unsigned first, unsigned last) {
    const unsigned columns = (d + WARP * V - 1) / (WARP * V), piece = blockIdx.x * EMBED_WARPS + threadIdx.x / WARP;
    const unsigned segment = first + piece / columns, j = (piece % columns * WARP + threadIdx.x % WARP) * V;
    if (segment >= last || j >= d) return;
    float total[V] = {}, old[V];
    float* target = gradient + size_t(tokens[segment]) * d + j;
    load<V>(target, old);
    add_rows_of_token(total, g, order, padded, dropout, starts[segment], 1, starts[segment + 1], j, d);
#pragma unroll
    for (int i = 0; i < V; i++) total[i] = old[i] + scale * total[i];
    store<V>(target, total);
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
                                 unsigned d, unsigned first, unsigned last) {                                           \
        embed_backward<T, V>(gradient, g, order, starts, tokens, padded, scale, dropout, d, first);                     \
    }                                                                                                                   \
    LAUNCHABLE(embed_backward_##name)                                                                                   \
    KERNEL embed_backward_short_##name(float* gradient, const T* g, const unsigned* order, const unsigned* starts,      \
                                       const unsigned* tokens, const unsigned* padded, float scale, Dropout dropout,    \
                                       unsigned d, unsigned first, unsigned last) {                                     \
        embed_backward_short<T, V>(gradient, g, order, starts, tokens, padded, scale, dropout, d, first, last);         \
    }                                                                                                                   \
    LAUNCHABLE(embed_backward_short_##name)
FOR_NUMBERS_AND_WIDTHS(DEFINE)
#undef DEFINE
