// Products of bf16 matrices that are so small that a library's call takes longer than the product: the host queues a kernel in
// half the time, and many weight gradients as one. Sums are in float32, in an order that depends on the sizes alone.
//
// A block computes 64×64 numbers of the result, each of its four warps 32×32 of them, over 32 terms of the sums at a time; meanwhile
// the factors of the next terms are on their way to shared memory.
#include "tiles.cuh"

constexpr unsigned SIDE = 64, DEPTH = 32, STAGES = 4;
constexpr unsigned PRODUCT_THREADS = 4 * WARP;
// The same as in src/gpu/launch/product.rs.
constexpr unsigned MOST_SMALL_PRODUCTS = 56;

// c [m, n] = a [m, k] · b [k, n], or added to c.
struct SmallProduct {
    const bf16 *a, *b;
    void* c;
    // May be missing: what is added to every row of c; of weight gradients, what the sums of their left factor's rows are added to.
    void* bias;
    unsigned m, n, k;
    // From one row to the next, as the matrices lie.
    unsigned a_stride, b_stride, c_stride;
    // Blocks side by side.
    unsigned across;
    // Number of blocks for this product and all before it.
    unsigned end;
};

struct SmallProducts {
    SmallProduct each[MOST_SMALL_PRODUCTS];
};

// What is in shared memory of a factor: SIDE of its rows or columns, and DEPTH terms of the sums, which are neighbours in memory
// if TERMS_LAST. A row is eight numbers longer than needed, so that eight rows at a time lie in different banks.
template <bool TERMS_LAST> struct Part {
    static constexpr unsigned ROWS = TERMS_LAST ? SIDE : DEPTH, COLUMNS = TERMS_LAST ? DEPTH : SIDE;
    static constexpr unsigned STRIDE = COLUMNS + 8, SIZE = ROWS * STRIDE;

    // Begins to copy the lines from `first` on, of `lines`, and the terms from `term` on, of `terms`; others become zero.
    static __device__ void fetch(bf16* to, const bf16* from, size_t stride, unsigned first, unsigned lines, unsigned term, unsigned terms) {
        constexpr unsigned PIECES = COLUMNS / 8;
#pragma unroll
        for (unsigned start = 0; start < ROWS * PIECES; start += PRODUCT_THREADS) {
            const unsigned i = start + threadIdx.x, row = i / PIECES, column = i % PIECES * 8;
            const unsigned line = first + (TERMS_LAST ? row : column), of_sum = term + (TERMS_LAST ? column : row);
            const bool is_there = line < lines && of_sum < terms;
            const size_t at = TERMS_LAST ? line * stride + of_sum : of_sum * stride + line;
            copy_async(to + row * STRIDE + column, is_there ? from + at : from, is_there);
        }
    }

    // 16 lines from `line` on, and 16 terms, as the operand of a product.
    static __device__ void left(unsigned (&x)[4], const bf16* part, unsigned line, unsigned term) {
        if (TERMS_LAST) {
            load_left(x, part + line * STRIDE + term, STRIDE);
        } else {
            load_left_transposed(x, part + term * STRIDE + line, STRIDE);
        }
    }
    static __device__ void right(unsigned (&x)[4], const bf16* part, unsigned line, unsigned term) {
        if (TERMS_LAST) {
            load_right_transposed(x, part + line * STRIDE + term, STRIDE);
        } else {
            load_right(x, part + term * STRIDE + line, STRIDE);
        }
    }
};

// `write(row, column, x, y)` gets two neighbours of the result; `sum(row, x)` the sums of a's rows, if SUMS.
template <bool A_TERMS_LAST, bool B_TERMS_LAST, bool SUMS, class Write, class Sum>
__device__ inline void multiply(const SmallProduct& p, unsigned block, Write write, Sum sum) {
    typedef Part<A_TERMS_LAST> A;
    typedef Part<B_TERMS_LAST> B;
    DYNAMIC_SHARED(bf16, shared);
    const unsigned first_row = block / p.across * SIDE, first_column = block % p.across * SIDE;
    const unsigned steps = (p.k + DEPTH - 1) / DEPTH;
    const auto fetch = [&](unsigned step) {
        bf16* const to = shared + step % STAGES * (A::SIZE + B::SIZE);
        if (step < steps) {
            A::fetch(to, p.a, p.a_stride, first_row, p.m, step * DEPTH, p.k);
            B::fetch(to + A::SIZE, p.b, p.b_stride, first_column, p.n, step * DEPTH, p.k);
        }
        end_group_of_copies();
    };
    for (unsigned step = 0; step < STAGES - 1; step++) fetch(step);

    const unsigned warp = threadIdx.x / WARP, row = warp / 2 * 32, column = warp % 2 * 32;
    const bool sums_up = SUMS && first_column + column == 0;
    float acc[2][4][4] = {}, sums[2][4] = {};
    for (unsigned step = 0; step < steps; step++) {
        groups_done_but<STAGES - 2>();
        // All copies of this step are there, and nobody reads the part that the next ones overwrite.
        __syncthreads();
        fetch(step + STAGES - 1);
        const bf16 *const a = shared + step % STAGES * (A::SIZE + B::SIZE), *const b = a + A::SIZE;
#pragma unroll
        for (unsigned term = 0; term < DEPTH; term += 16) {
            unsigned left[2][4], right[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                A::left(left[i], a, row + 16 * i, term);
                B::right(right[i], b, column + 16 * i, term);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) multiply_add(acc[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
                // Times ones.
                if (sums_up) multiply_add(sums[i], left[i], 0x3f803f80u, 0x3f803f80u);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const unsigned r = first_row + row + 16 * i + row_of(2 * half);
            if (r >= p.m) continue;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const unsigned c = first_column + column + column_of(j, 0);
                if (c < p.n) write(r, c, acc[i][j][2 * half], acc[i][j][2 * half + 1]);
            }
            if (sums_up && column_of(0, 0) == 0) sum(r, sums[i][2 * half]);
        }
    }
}

__device__ inline void store_pair(bf16* to, float x, float y) { *reinterpret_cast<unsigned*>(to) = pair_of(x, y); }
__device__ inline void store_pair(float* to, float x, float y) { *reinterpret_cast<float2*>(to) = float2{x, y}; }

struct NoSums {
    __device__ void operator()(unsigned, float) const {}
};

// c = a·bᵀ + bias, and max(0, c) if `relu`: b lies [n, k].
template <class T> __device__ inline void multiply_forward(const SmallProduct& p, unsigned relu) {
    T* const c = static_cast<T*>(p.c);
    const T* const bias = static_cast<const T*>(p.bias);
    multiply<true, true, false>(p, blockIdx.x, [&](unsigned row, unsigned column, float x, float y) {
        if (bias != nullptr) x += to_float(bias[column]), y += to_float(bias[column + 1]);
        if (relu != 0) x = positive_part(x), y = positive_part(y);
        store_pair(c + row * size_t(p.c_stride) + column, x, y);
    }, NoSums());
}

#define DEFINE(T, name)                                                                                                 \
    KERNEL_OF(PRODUCT_THREADS) multiply_##name(SmallProduct product, unsigned relu) { multiply_forward<T>(product, relu); } \
    LAUNCHABLE(multiply_##name)
FOR_NUMBERS(DEFINE)
#undef DEFINE

// c = a·b, or c += a·b.
KERNEL_OF(PRODUCT_THREADS) multiply_back(SmallProduct product, unsigned accumulate) {
    bf16* const c = static_cast<bf16*>(product.c);
    multiply<true, false, false>(product, blockIdx.x, [&](unsigned row, unsigned column, float x, float y) {
        bf16* const to = c + row * size_t(product.c_stride) + column;
        if (accumulate != 0) x += to_float(to[0]), y += to_float(to[1]);
        store_pair(to, x, y);
    }, NoSums());
}
LAUNCHABLE(multiply_back)

// c = scale·a·b where relu was positive, else 0: `product.bias` is the hidden layer, which lies like c.
KERNEL_OF(PRODUCT_THREADS) multiply_back_relu(SmallProduct product, float scale) {
    bf16* const c = static_cast<bf16*>(product.c);
    const bf16* const hidden = static_cast<const bf16*>(product.bias);
    multiply<true, false, false>(product, blockIdx.x, [&](unsigned row, unsigned column, float x, float y) {
        const size_t at = row * size_t(product.c_stride) + column;
        x *= to_float(hidden[at]) > 0.0f ? scale : 0.0f;
        y *= to_float(hidden[at + 1]) > 0.0f ? scale : 0.0f;
        store_pair(c + at, x, y);
    }, NoSums());
}
LAUNCHABLE(multiply_back_relu)

// c += aᵀ·b in float32, of many products: a lies [k, m].
KERNEL_OF(PRODUCT_THREADS) multiply_weights(GRID_CONSTANT const SmallProducts all) {
    unsigned which = 0, begin = 0;
    for (; blockIdx.x >= all.each[which].end; which++) begin = all.each[which].end;
    const SmallProduct& p = all.each[which];
    float* const c = static_cast<float*>(p.c);
    float* const bias = static_cast<float*>(p.bias);
    multiply<false, false, true>(p, blockIdx.x - begin, [&](unsigned row, unsigned column, float x, float y) {
        float* const to = c + row * size_t(p.c_stride) + column;
        store_pair(to, to[0] + x, to[1] + y);
    }, [&](unsigned row, float x) {
        if (bias != nullptr) bias[row] += x;
    });
}
LAUNCHABLE(multiply_weights)
