// Column sums in two stages: the gradients of biases and norms. Stage one writes a row of partial sums per block, stage two
// adds these in a fixed order, so that a result is the same in every run. Also other work on rows, column by column: biases
// and activations.
#include "common.cuh"

constexpr unsigned COLUMN_WARPS = 8;

// Stage one for rows of any kind: `row(r, j, x)` fills x with V numbers of row r from column j on; those beyond the width are
// ignored. A block takes 32·V columns of every gridDim.y-th run of eight rows.
template <int V, class Row>
__device__ void sum_columns(float* partial, unsigned rows, unsigned width, Row row) {
    __shared__ float sums[COLUMN_WARPS * WARP * V];
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, j = (blockIdx.x * WARP + lane) * V;
    float total[V] = {};
    if (j < width) {
        for (unsigned r = blockIdx.y * COLUMN_WARPS + warp; r < rows; r += gridDim.y * COLUMN_WARPS) {
            float x[V];
            row(r, j, x);
#pragma unroll
            for (int i = 0; i < V; i++) total[i] += x[i];
        }
    }
#pragma unroll
    for (int i = 0; i < V; i++) sums[(warp * V + i) * WARP + lane] = total[i];
    __syncthreads();
    if (warp == 0 && j < width) {
#pragma unroll
        for (int i = 0; i < V; i++) {
            total[i] = 0;
            for (unsigned w = 0; w < COLUMN_WARPS; w++) total[i] += sums[(w * V + i) * WARP + lane];
        }
        float* to = partial + size_t(blockIdx.y) * width + j;
        if (width % V == 0) {
            store<V>(to, total);
        } else {
#pragma unroll
            for (int i = 0; i < V; i++) {
                if (j + i < width) to[i] = total[i];
            }
        }
    }
}

template <class T, int V> struct PlainRow {
    const T* g;
    unsigned stride;
    __device__ void operator()(unsigned r, unsigned j, float (&x)[V]) const { load<V>(g + size_t(r) * stride + j, x); }
};

// √(2/π), and the factor of x³ in the approximation of Φ by tanh.
constexpr float ROOT_2_OVER_PI = 0.7978846f, CUBIC = 0.044715f;

__device__ inline float twice_inner(float x) { return 2.0f * ROOT_2_OVER_PI * (x + CUBIC * x * x * x); }

// x·Φ(x) and the like: src/ops/feed_forward.rs.
template <unsigned KIND> __device__ inline float activation(float x) {
    static_assert(KIND <= 3, "an activation that is not written yet");
    if (KIND == 0) return positive_part(x);
    if (KIND == 1) return x * 0.5f * (1.0f + erff(x * 0.70710678f));
    return x / (1.0f + expf(KIND == 2 ? -x : -twice_inner(x)));
}

template <unsigned KIND> __device__ inline float derivative(float x) {
    static_assert(KIND <= 3, "an activation whose derivative is not written yet");
    if (KIND == 0) return x > 0.0f ? 1.0f : 0.0f;
    if (KIND == 1) return 0.5f * (1.0f + erff(x * 0.70710678f)) + x * 0.39894228f * expf(-0.5f * x * x);
    const float s = 1.0f / (1.0f + expf(KIND == 2 ? -x : -twice_inner(x)));
    const float slope = KIND == 2 ? 1.0f : (3.0f * CUBIC * x * x + 1.0f) * 2.0f * ROOT_2_OVER_PI;
    return s * (1.0f + x * (1.0f - s) * slope);
}

// a = dropout(activation(u)); a may be u.
template <class T, int V, unsigned KIND>
__device__ void activate(T* a, const T* u, Dropout dropout, const unsigned* padded, unsigned rows, unsigned width) {
    const size_t all = size_t(rows) * width, stride = size_t(gridDim.x) * blockDim.x * V;
    for (size_t at = (size_t(blockIdx.x) * blockDim.x + threadIdx.x) * V; at < all; at += stride) {
        float x[V];
        load<V>(u + at, x);
#pragma unroll
        for (int i = 0; i < V; i++) x[i] = activation<KIND>(x[i]);
        if (dropout.threshold > 0) {
            const unsigned row = unsigned(at / width), base = padded[row] * width + unsigned(at % width);
#pragma unroll
            for (int i = 0; i < V; i++) x[i] *= keep(dropout, base + i);
        }
        store<V>(a + at, x);
    }
}

// Turns the gradient of the hidden layer into that of its input u, in place. With relu, u may be the hidden layer itself:
// what was dropped is 0 there.
template <class T, int V, unsigned KIND> struct ActivatedRow {
    T* g;
    const T* u;
    Dropout dropout;
    const unsigned* padded;
    unsigned width;
    __device__ void operator()(unsigned r, unsigned j, float (&x)[V]) const {
        const size_t at = size_t(r) * width + j;
        float v[V];
        load<V>(g + at, x);
        load<V>(u + at, v);
#pragma unroll
        for (int i = 0; i < V; i++) x[i] *= derivative<KIND>(v[i]);
        if (dropout.threshold > 0) {
            const unsigned base = padded[r] * width + j;
#pragma unroll
            for (int i = 0; i < V; i++) x[i] *= keep(dropout, base + i);
        }
        store<V>(g + at, x);
    }
};

template <class T, int V, unsigned KIND>
__device__ void activate_backward(T* g, float* partial, const T* u, Dropout dropout, const unsigned* padded,
                                  unsigned rows, unsigned width) {
    const ActivatedRow<T, V, KIND> row = {g, u, dropout, padded, width};
    sum_columns<V>(partial, rows, width, row);
}

// a = dropout(activation(u₁)·u₂), where u₁ and u₂ are the halves of each row of u.
template <class T, int V, unsigned KIND>
__device__ void gate(T* a, const T* u, Dropout dropout, const unsigned* padded, unsigned rows, unsigned width) {
    const size_t all = size_t(rows) * width, stride = size_t(gridDim.x) * blockDim.x * V;
    for (size_t at = (size_t(blockIdx.x) * blockDim.x + threadIdx.x) * V; at < all; at += stride) {
        const unsigned row = unsigned(at / width), j = unsigned(at % width);
        const T* first = u + size_t(row) * 2 * width + j;
        float x[V], y[V];
        load<V>(first, x);
        load<V>(first + width, y);
#pragma unroll
        for (int i = 0; i < V; i++) x[i] = activation<KIND>(x[i]) * y[i];
        if (dropout.threshold > 0) {
#pragma unroll
            for (int i = 0; i < V; i++) x[i] *= keep(dropout, padded[row] * width + j + i);
        }
        store<V>(a + at, x);
    }
}

// du from the gradient g of the hidden layer a. Both are [N, width], u and du twice as wide.
template <class T, int V, unsigned KIND> struct GatedRow {
    T* du;
    const T *g, *u;
    Dropout dropout;
    const unsigned* padded;
    unsigned width;
    __device__ void operator()(unsigned r, unsigned j, float (&x)[V]) const {
        const bool is_second = j >= width;
        const unsigned column = is_second ? j - width : j;
        const T* first = u + size_t(r) * 2 * width + column;
        float v[V], w[V];
        load<V>(g + size_t(r) * width + column, x);
        load<V>(first, v);
        load<V>(first + width, w);
#pragma unroll
        for (int i = 0; i < V; i++) x[i] *= is_second ? activation<KIND>(v[i]) : derivative<KIND>(v[i]) * w[i];
        if (dropout.threshold > 0) {
#pragma unroll
            for (int i = 0; i < V; i++) x[i] *= keep(dropout, padded[r] * width + column + i);
        }
        store<V>(du + size_t(r) * 2 * width + j, x);
    }
};

template <class T, int V, unsigned KIND>
__device__ void gate_backward(T* du, const T* g, float* partial, const T* u, Dropout dropout, const unsigned* padded,
                              unsigned rows, unsigned width) {
    const GatedRow<T, V, KIND> row = {du, g, u, dropout, padded, width};
    sum_columns<V>(partial, rows, 2 * width, row);
}

// Stage two, of many sums at once: adds the columns of `partial` [blocks, Σ widths] to three targets, any of which may be
// missing. There are hundreds of blocks but few columns, so each warp loads several rows at a time.
constexpr unsigned PARTIAL_WARPS = 32, PARTIAL_LOADS = 8;
// The same as in src/gpu/launch/columns.rs.
constexpr unsigned MOST_PARTIAL_SUMS = 48;

struct PartialSum {
    float* targets[3];
    const float* partial;
    unsigned widths[3];
    unsigned blocks;
    // Number of thread blocks for this sum and all before it.
    unsigned end;
};

struct PartialSums {
    PartialSum each[MOST_PARTIAL_SUMS];
};

KERNEL_OF(PARTIAL_WARPS * WARP) add_partial_sums(GRID_CONSTANT const PartialSums all) {
    __shared__ float sums[PARTIAL_WARPS * WARP];
    unsigned block = blockIdx.x;
    const PartialSum& sum = all.each[part_of(all.each, block)];
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, j = block * WARP + lane;
    const unsigned width = sum.widths[0] + sum.widths[1] + sum.widths[2];
    float total = 0;
    if (j < width) {
        for (unsigned b = warp; b < sum.blocks; b += PARTIAL_LOADS * PARTIAL_WARPS) {
            float x[PARTIAL_LOADS];
#pragma unroll
            for (unsigned i = 0; i < PARTIAL_LOADS; i++) {
                const unsigned row = b + i * PARTIAL_WARPS;
                x[i] = row < sum.blocks ? sum.partial[size_t(row) * width + j] : 0.0f;
            }
#pragma unroll
            for (unsigned i = 0; i < PARTIAL_LOADS; i++) total += x[i];
        }
    }
    sums[warp * WARP + lane] = total;
    __syncthreads();
    if (warp == 0 && j < width) {
        total = 0;
#pragma unroll
        for (unsigned w = 0; w < PARTIAL_WARPS; w++) total += sums[w * WARP + lane];
        unsigned which = 0, at = j;
        for (; at >= sum.widths[which]; which++) at -= sum.widths[which];
        if (sum.targets[which] != nullptr) sum.targets[which][at] += total;
    }
}
LAUNCHABLE(add_partial_sums)

// Adds a bias to rows that lie `stride` apart, where the product's epilogue could not do it.
template <class T> __device__ void add_bias(T* y, const T* bias, unsigned relu, unsigned rows, unsigned width, unsigned stride) {
    const size_t all = size_t(rows) * width;
    for (size_t at = size_t(blockIdx.x) * blockDim.x + threadIdx.x; at < all; at += size_t(gridDim.x) * blockDim.x) {
        const size_t row = at / width, j = at % width;
        const float x = to_float(y[row * stride + j]) + to_float(bias[j]);
        y[row * stride + j] = from_float<T>(relu != 0 ? positive_part(x) : x);
    }
}

#define DEFINE(T, name)                                                                                                 \
    KERNEL add_bias_##name(T* y, const T* bias, unsigned relu, unsigned rows, unsigned width, unsigned stride) {        \
        add_bias(y, bias, relu, rows, width, stride);                                                                   \
    }                                                                                                                   \
    LAUNCHABLE(add_bias_##name)
FOR_NUMBERS(DEFINE)
#undef DEFINE

#define DEFINE_ACTIVATION(T, V, name, KIND, kind)                                                                       \
    KERNEL kind##_##name(T* a, const T* u, Dropout dropout, const unsigned* padded, unsigned rows, unsigned width) {    \
        activate<T, V, KIND>(a, u, dropout, padded, rows, width);                                                       \
    }                                                                                                                   \
    LAUNCHABLE(kind##_##name)                                                                                           \
    KERNEL kind##_backward_##name(T* g, float* partial, const T* u, Dropout dropout, const unsigned* padded,            \
                                  unsigned rows, unsigned width) {                                                      \
        activate_backward<T, V, KIND>(g, partial, u, dropout, padded, rows, width);                                     \
    }                                                                                                                   \
    LAUNCHABLE(kind##_backward_##name)                                                                                  \
    KERNEL gate_##kind##_##name(T* a, const T* u, Dropout dropout, const unsigned* padded, unsigned rows,               \
                                unsigned width) {                                                                       \
        gate<T, V, KIND>(a, u, dropout, padded, rows, width);                                                           \
    }                                                                                                                   \
    LAUNCHABLE(gate_##kind##_##name)                                                                                    \
    KERNEL gate_##kind##_backward_##name(T* du, const T* g, float* partial, const T* u, Dropout dropout,                \
                                         const unsigned* padded, unsigned rows, unsigned width) {                       \
        gate_backward<T, V, KIND>(du, g, partial, u, dropout, padded, rows, width);                                     \
    }                                                                                                                   \
    LAUNCHABLE(gate_##kind##_backward_##name)

#define DEFINE(T, V, name)                                                                                              \
    KERNEL column_sums_##name(float* partial, const T* g, unsigned rows, unsigned width, unsigned stride) {             \
        const PlainRow<T, V> row = {g, stride};                                                                         \
        sum_columns<V>(partial, rows, width, row);                                                                      \
    }                                                                                                                   \
    LAUNCHABLE(column_sums_##name)                                                                                      \
    DEFINE_ACTIVATION(T, V, name, 0, relu)                                                                              \
    DEFINE_ACTIVATION(T, V, name, 1, gelu)                                                                              \
    DEFINE_ACTIVATION(T, V, name, 2, swish)                                                                             \
    DEFINE_ACTIVATION(T, V, name, 3, gelu_tanh)
FOR_NUMBERS_AND_WIDTHS(DEFINE)
#undef DEFINE
