// Products of bf16 matrices that are so small that a library's call takes longer than the product: the host queues a kernel in
// half the time, and many weight gradients as one.
#include "product.cuh"

// Writes a block that has been computed. `end` says what becomes of it: `end.read(row, column)` gives what two neighbours of the
// result need, which does not depend on the row unless END::OF_ROWS, and `end.write(row, column, x, read)` writes them. Everything is
// read before anything is written: otherwise each load would wait for the store before it. With END::SUMS, also the sums of a's
// rows are added to those at `end.sums`, where there are any.
template <class B, class End> __device__ inline void finish(const B& block, unsigned m, unsigned n, const End& end) {
    float* sums_at = nullptr;
    if constexpr (End::SUMS) sums_at = block.first_column + column_of(0, 0) == 0 ? end.sums : nullptr;
    constexpr int LINES = End::OF_ROWS ? 2 : 1;
    float2 read[LINES][4];
    float sum[2] = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const unsigned r = block.row_at(half);
        if (half < LINES) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const unsigned c = block.column_at(j);
                const bool is_there = c < n && (r < m || !End::OF_ROWS);
                read[half][j] = is_there ? end.read(r, c) : float2{0.0f, 0.0f};
            }
        }
        if (sums_at != nullptr && r < m) sum[half] = sums_at[r];
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const unsigned r = block.row_at(half);
        if (r >= m) continue;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 x = {block.acc[j][2 * half], block.acc[j][2 * half + 1]};
            const unsigned c = block.column_at(j);
            if (c < n) end.write(r, c, x, read[half % LINES][j]);
        }
        if (sums_at != nullptr) sums_at[r] = sum[half] + block.sums[2 * half];
    }
}

template <bool TERMS_LAST_A, bool TERMS_LAST_B, unsigned GROUPS, class End>
__device__ inline void multiply(const SmallProduct& p, unsigned number, const End& end) {
    Block<64, 64, TERMS_LAST_A, TERMS_LAST_B, GROUPS> block(p, number);
    block.begin(p);
    const bool sums_up = End::SUMS && block.first_column == 0;
    block.multiply(sums_up);
    block.join(sums_up);
    finish(block, p.m, p.n, end);
}

// c = a·bᵀ + bias, or dropout(max(0, c)) of that if `relu`: b lies [n, k].
template <class T> struct Projected {
    static constexpr bool OF_ROWS = false, SUMS = false;
    T* c;
    const T* bias;
    size_t stride;
    bool relu;
    Dropout dropout;
    const unsigned* padded;
    unsigned width;
    __device__ float2 read(unsigned, unsigned column) const {
        return bias != nullptr ? load_pair(bias + column) : float2{0.0f, 0.0f};
    }
    __device__ void write(unsigned row, unsigned column, float2 x, float2 bias) const {
        x.x += bias.x, x.y += bias.y;
        if (relu) {
            x.x = positive_part(x.x), x.y = positive_part(x.y);
            if (dropout.threshold > 0) {
                const unsigned at = padded[row] * width + column;
                x.x *= keep(dropout, at), x.y *= keep(dropout, at + 1);
            }
        }
        store_pair(c + row * stride + column, x);
    }
};

#define DEFINE(T, name)                                                                                                 \
    KERNEL_OF(PRODUCT_THREADS) multiply_##name(SmallProduct p, unsigned relu, Dropout dropout, const unsigned* padded) { \
        const Projected<T> end = {static_cast<T*>(p.c), static_cast<const T*>(p.bias), p.c_stride, relu != 0,           \
                                  dropout,              padded,                        p.n};                            \
        multiply<true, true, 1>(p, blockIdx.x, end);                                                                       \
    }                                                                                                                   \
    LAUNCHABLE(multiply_##name)
FOR_NUMBERS(DEFINE)
#undef DEFINE

// The same as in src/gpu/launch/product.rs.
constexpr unsigned MOST_SMALL_PRODUCTS = 56;

struct SmallProducts {
    SmallProduct each[MOST_SMALL_PRODUCTS];
};

// The product that a block belongs to. `block` becomes its number among that product's.
__device__ inline SmallProduct product_of(const SmallProducts& all, unsigned& block) {
    const unsigned which = part_of(all.each, block);
    if (which > 0) block -= all.each[which - 1].end;
    return all.each[which];
}

// c = a·bᵀ + bias, of many products.
KERNEL_OF(PRODUCT_THREADS) multiply_all(GRID_CONSTANT const SmallProducts all) {
    unsigned block = blockIdx.x;
    const SmallProduct p = product_of(all, block);
    const Projected<bf16> end = {static_cast<bf16*>(p.c), static_cast<const bf16*>(p.bias), p.c_stride, false, {}, nullptr, p.n};
    multiply<true, true, 1>(p, block, end);
}
LAUNCHABLE(multiply_all)

// c = a·b, or c += a·b.
struct Back {
    static constexpr bool OF_ROWS = true, SUMS = false;
    bf16* c;
    size_t stride;
    bool accumulate;
    __device__ float2 read(unsigned row, unsigned column) const {
        return accumulate ? load_pair(c + row * stride + column) : float2{0.0f, 0.0f};
    }
    __device__ void write(unsigned row, unsigned column, float2 x, float2 before) const {
        store_pair(c + row * stride + column, float2{x.x + before.x, x.y + before.y});
    }
};

KERNEL_OF(PRODUCT_THREADS) multiply_back(SmallProduct p, unsigned accumulate) {
    const Back end = {static_cast<bf16*>(p.c), p.c_stride, accumulate != 0};
    multiply<true, false, 1>(p, blockIdx.x, end);
}
LAUNCHABLE(multiply_back)

// c = Σ a·b of products of the same size.
KERNEL_OF(PRODUCT_THREADS) multiply_back_sum(GRID_CONSTANT const SmallProducts all, unsigned count) {
    const SmallProduct& first = all.each[0];
    Block<64, 64, true, false> block(first, blockIdx.x);
    block.begin(first);
    block.multiply();
    for (unsigned which = 1; which < count; which++) {
        // All have read the last factors.
        __syncthreads();
        block.begin(all.each[which]);
        block.multiply();
    }
    block.join();
    finish(block, first.m, first.n, Back{static_cast<bf16*>(first.c), first.c_stride, false});
}
LAUNCHABLE(multiply_back_sum)

// c = scale·a·b where relu was positive, else 0: `p.bias` is the hidden layer, which lies like c.
struct BackThroughRelu {
    static constexpr bool OF_ROWS = true, SUMS = false;
    bf16* c;
    const bf16* hidden;
    size_t stride;
    float scale;
    __device__ float2 read(unsigned row, unsigned column) const { return load_pair(hidden + row * stride + column); }
    __device__ void write(unsigned row, unsigned column, float2 x, float2 hidden) const {
        const float2 factor = {hidden.x > 0.0f ? scale : 0.0f, hidden.y > 0.0f ? scale : 0.0f};
        store_pair(c + row * stride + column, float2{x.x * factor.x, x.y * factor.y});
    }
};

KERNEL_OF(PRODUCT_THREADS) multiply_back_relu(SmallProduct p, float scale) {
    const BackThroughRelu end = {static_cast<bf16*>(p.c), static_cast<const bf16*>(p.bias), p.c_stride, scale};
    multiply<true, false, 1>(p, blockIdx.x, end);
}
LAUNCHABLE(multiply_back_relu)

// c += aᵀ·b in float32, of many products: a lies [k, m].
struct AddedToWeights {
    static constexpr bool OF_ROWS = true, SUMS = true;
    float* c;
    size_t stride;
    float* sums;
    __device__ float2 read(unsigned row, unsigned column) const { return load_pair(c + row * stride + column); }
    __device__ void write(unsigned row, unsigned column, float2 x, float2 before) const {
        store_pair(c + row * stride + column, float2{x.x + before.x, x.y + before.y});
    }
};

KERNEL_OF(PRODUCT_THREADS) multiply_weights(GRID_CONSTANT const SmallProducts all) {
    unsigned block = blockIdx.x;
    const SmallProduct p = product_of(all, block);
    const AddedToWeights end = {static_cast<float*>(p.c), p.c_stride, static_cast<float*>(p.bias)};
    multiply<false, false, 2>(p, block, end);
}
LAUNCHABLE(multiply_weights)
