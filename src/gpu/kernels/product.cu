// Products of bf16 matrices that are so small that a library's call takes longer than the product: the host queues a kernel in
// half the time, and many weight gradients as one.
#include "product.cuh"

// Rows and columns of the result that a block computes.
constexpr unsigned SQUARE = 64;

struct NoMore {
    template <class B> __device__ void operator()(B&) const {}
};

// Computes a block. `end` says what becomes of it: `end.need(row, column, is_there)` is what a piece of the result needs besides
// the product, read while the factors are on their way or, if End::LATE, after long sums; `end.write(row, column, x, needed)` writes
// it. With End::SUMS, also the sums of a's rows are added to those at `end.sums`, if there are any. `more(block)` adds further
// products.
template <bool TERMS_LAST_A, bool TERMS_LAST_B, unsigned GROUPS = 1, class End, class More = NoMore>
__device__ inline void multiply(const SmallProduct& p, unsigned number, const End& end, const More& more = {}) {
    typedef Block<SQUARE, SQUARE, TERMS_LAST_A, TERMS_LAST_B, GROUPS> B;
    B block(p, number);
    block.begin(p);
    const unsigned column = block.column_of_pieces();
    typename End::Needed needed[B::ROUNDS];
    const auto read = [&] {
#pragma unroll
        for (unsigned i = 0; i < B::ROUNDS; i++) {
            const unsigned row = block.row_of_piece(i);
            needed[i] = end.need(row, column, row < p.m && column < p.n);
        }
    };
    if (!End::LATE) read();
    const bool sums_up = End::SUMS && block.first_column == 0;
    block.multiply(sums_up && block.column == 0);
    more(block);
    if (End::LATE) read();
    block.put(sums_up && block.column == 0);
#pragma unroll
    for (unsigned i = 0; i < B::ROUNDS; i++) {
        const unsigned row = block.row_of_piece(i);
        float x[PIECE];
        block.get(x, i);
        if (row < p.m && column < p.n) end.write(row, column, x, needed[i]);
    }
    if constexpr (End::SUMS) {
        const unsigned row = block.first_row + threadIdx.x;
        if (sums_up && end.sums != nullptr && threadIdx.x < SQUARE && row < p.m) end.sums[row] += block.result()[B::SUMS + threadIdx.x];
    }
}

// c = a·bᵀ + bias, or dropout(max(0, c)) of that if `relu`: b lies [n, k].
template <class T> struct Projected {
    static constexpr bool SUMS = false, LATE = false;
    struct Needed {
        Raw<T> bias;
        unsigned padded;
    };
    T* c;
    const T* bias;
    size_t stride;
    bool relu;
    Dropout dropout;
    const unsigned* padded;
    unsigned width;
    __device__ Needed need(unsigned row, unsigned column, bool is_there) const {
        return {Raw<T>(bias + column, bias != nullptr && is_there), relu && dropout.threshold > 0 && is_there ? padded[row] : 0};
    }
    __device__ void write(unsigned row, unsigned column, float (&x)[PIECE], const Needed& needed) const {
        const unsigned at = needed.padded * width + column;
        float bias[PIECE];
        needed.bias.get(bias);
#pragma unroll
        for (int i = 0; i < PIECE; i++) {
            x[i] += bias[i];
            if (relu) x[i] = positive_part(x[i]);
        }
        if (relu && dropout.threshold > 0) {
#pragma unroll
            for (int i = 0; i < PIECE; i++) x[i] *= keep(dropout, at + i);
        }
        store<PIECE>(c + row * stride + column, x);
    }
};

#define DEFINE(T, name)                                                                                                 \
    KERNEL_OF(PRODUCT_THREADS) multiply_##name(SmallProduct p, unsigned relu, Dropout dropout, const unsigned* padded) { \
        const Projected<T> end = {static_cast<T*>(p.c), static_cast<const T*>(p.bias), p.c_stride, relu != 0,           \
                                  dropout,              padded,                        p.n};                            \
        multiply<true, true>(p, blockIdx.x, end);                                                                       \
    }                                                                                                                   \
    LAUNCHABLE(multiply_##name)
FOR_NUMBERS(DEFINE)
#undef DEFINE

// The same as in src/gpu/launch/product.rs.
constexpr unsigned MOST_SMALL_PRODUCTS = 56;

struct SmallProducts {
    SmallProduct each[MOST_SMALL_PRODUCTS];
};

// c = a·bᵀ + bias, of many products.
KERNEL_OF(PRODUCT_THREADS) multiply_all(GRID_CONSTANT const SmallProducts all) {
    unsigned block = blockIdx.x;
    const SmallProduct p = all.each[part_of(all.each, block)];
    const Projected<bf16> end = {static_cast<bf16*>(p.c), static_cast<const bf16*>(p.bias), p.c_stride, false, {}, nullptr, p.n};
    multiply<true, true>(p, block, end);
}
LAUNCHABLE(multiply_all)

// c = a·b, or c += a·b; gradients OF_WEIGHTS have long sums, and also take the sums of a's rows.
template <class T, bool OF_WEIGHTS> struct Added {
    static constexpr bool SUMS = OF_WEIGHTS, LATE = OF_WEIGHTS;
    typedef Raw<T> Needed;
    T* c;
    size_t stride;
    bool accumulate;
    float* sums;
    __device__ Needed need(unsigned row, unsigned column, bool is_there) const {
        return Needed(c + row * stride + column, accumulate && is_there);
    }
    __device__ void write(unsigned row, unsigned column, float (&x)[PIECE], const Needed& needed) const {
        float before[PIECE];
        needed.get(before);
#pragma unroll
        for (int i = 0; i < PIECE; i++) x[i] += before[i];
        store<PIECE>(c + row * stride + column, x);
    }
};
typedef Added<bf16, false> Back;
typedef Added<float, true> AddedToWeights;

KERNEL_OF(PRODUCT_THREADS) multiply_back(SmallProduct p, unsigned accumulate) {
    const Back end = {static_cast<bf16*>(p.c), p.c_stride, accumulate != 0, nullptr};
    multiply<true, false>(p, blockIdx.x, end);
}
LAUNCHABLE(multiply_back)

// c = Σ a·b of products of the same size.
KERNEL_OF(PRODUCT_THREADS) multiply_back_sum(GRID_CONSTANT const SmallProducts all, unsigned count) {
    const SmallProduct& first = all.each[0];
    const Back end = {static_cast<bf16*>(first.c), first.c_stride, false, nullptr};
    multiply<true, false>(first, blockIdx.x, end, [&](auto& block) {
        for (unsigned which = 1; which < count; which++) {
            // All have read the last factors.
            __syncthreads();
            block.begin(all.each[which]);
            block.multiply();
        }
    });
}
LAUNCHABLE(multiply_back_sum)

// c = scale·a·b where relu was positive, else 0: `p.bias` is the hidden layer, which lies like c.
struct BackThroughRelu {
    static constexpr bool SUMS = false, LATE = false;
    typedef Raw<bf16> Needed;
    bf16* c;
    const bf16* hidden;
    size_t stride;
    float scale;
    __device__ Needed need(unsigned row, unsigned column, bool is_there) const {
        return Needed(hidden + row * stride + column, is_there);
    }
    __device__ void write(unsigned row, unsigned column, float (&x)[PIECE], const Needed& needed) const {
        float of_hidden[PIECE];
        needed.get(of_hidden);
#pragma unroll
        for (int i = 0; i < PIECE; i++) x[i] *= of_hidden[i] > 0.0f ? scale : 0.0f;
        store<PIECE>(c + row * stride + column, x);
    }
};

KERNEL_OF(PRODUCT_THREADS) multiply_back_relu(SmallProduct p, float scale) {
    const BackThroughRelu end = {static_cast<bf16*>(p.c), static_cast<const bf16*>(p.bias), p.c_stride, scale};
    multiply<true, false>(p, blockIdx.x, end);
}
LAUNCHABLE(multiply_back_relu)

// c += aᵀ·b in float32, of many products: a lies [k, m].
KERNEL_OF(PRODUCT_THREADS) multiply_weights(GRID_CONSTANT const SmallProducts all) {
    unsigned block = blockIdx.x;
    const SmallProduct p = all.each[part_of(all.each, block)];
    const AddedToWeights end = {static_cast<float*>(p.c), p.c_stride, true, static_cast<float*>(p.bias)};
    multiply<false, false, 2>(p, block, end);
}
LAUNCHABLE(multiply_weights)
