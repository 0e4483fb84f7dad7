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

// What is in shared memory of a factor: SIDE of its rows or columns, its lines, and DEPTH terms of the sums, which are neighbours
// in memory if TERMS_LAST. A row is eight numbers longer than needed, so that eight rows at a time lie in different banks.
template <bool TERMS_LAST> struct Part {
    static constexpr unsigned ROWS = TERMS_LAST ? SIDE : DEPTH, COLUMNS = TERMS_LAST ? DEPTH : SIDE;
    static constexpr unsigned STRIDE = COLUMNS + 8, SIZE = ROWS * STRIDE;
    static constexpr unsigned PIECES = COLUMNS / 8, COPIES = ROWS * PIECES / PRODUCT_THREADS;

    // The thread's pieces of eight numbers: where the next ones come from, and where they go.
    const bf16* from[COPIES];
    unsigned to[COPIES];
    // Terms from there on; none of lines beyond the last.
    int terms[COPIES];
    size_t step;

    // The lines of a matrix from `first` on, of `lines`, with sums of `count` terms.
    __device__ Part(const bf16* matrix, size_t stride, unsigned first, unsigned lines, unsigned count)
        : step(TERMS_LAST ? DEPTH : DEPTH * stride) {
#pragma unroll
        for (unsigned n = 0; n < COPIES; n++) {
            const unsigned i = n * PRODUCT_THREADS + threadIdx.x, row = i / PIECES, column = i % PIECES * 8;
            const unsigned line = first + (TERMS_LAST ? row : column), term = TERMS_LAST ? column : row;
            const bool is_there = line < lines;
            from[n] = matrix + (is_there ? (TERMS_LAST ? line * stride + term : term * stride + line) : 0);
            to[n] = row * STRIDE + column;
            terms[n] = is_there ? int(count) - int(term) : 0;
        }
    }

    // Begins to copy the next DEPTH terms; what is beyond the matrix becomes zero.
    __device__ void fetch(bf16* part) {
#pragma unroll
        for (unsigned n = 0; n < COPIES; n++) {
            copy_async(part + to[n], from[n], terms[n] > 0);
            from[n] += step;
            terms[n] -= int(DEPTH);
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

// Neighbours in memory.
__device__ inline float2 load_pair(const float* from) { return *reinterpret_cast<const float2*>(from); }
__device__ inline float2 load_pair(const bf16* from) {
    Pair pair;
    pair.bits = *reinterpret_cast<const unsigned*>(from);
    return float2{to_float(pair.half[0]), to_float(pair.half[1])};
}
__device__ inline void store_pair(float* to, float2 x) { *reinterpret_cast<float2*>(to) = x; }
__device__ inline void store_pair(bf16* to, float2 x) { *reinterpret_cast<unsigned*>(to) = pair_of(x.x, x.y); }

// Computes a block of the product. `end` says what becomes of it: `end.read(row, column)` gives what two neighbours of the result
// need, which does not depend on the row unless END::OF_ROWS, and `end.write(row, column, x, read)` writes them. Everything is
// read before anything is written: otherwise each load would wait for the store before it. With END::SUMS, also the sums of a's
// rows are added to those at `end.sums`, where there are any.
template <bool A_TERMS_LAST, bool B_TERMS_LAST, class End>
__device__ inline void multiply(const SmallProduct& p, unsigned block, const End& end) {
    typedef Part<A_TERMS_LAST> A;
    typedef Part<B_TERMS_LAST> B;
    DYNAMIC_SHARED(bf16, shared);
    const unsigned first_row = block / p.across * SIDE, first_column = block % p.across * SIDE;
    const unsigned steps = (p.k + DEPTH - 1) / DEPTH, m = p.m, n = p.n;
    A a(p.a, p.a_stride, first_row, m, p.k);
    B b(p.b, p.b_stride, first_column, n, p.k);
    const auto fetch = [&](unsigned step) {
        bf16* const to = shared + step % STAGES * (A::SIZE + B::SIZE);
        if (step < steps) {
            a.fetch(to);
            b.fetch(to + A::SIZE);
        }
        end_group_of_copies();
    };
    for (unsigned step = 0; step < STAGES - 1; step++) fetch(step);

    const unsigned warp = threadIdx.x / WARP, row = warp / 2 * 32, column = warp % 2 * 32;
    const bool sums_up = End::SUMS && first_column + column == 0;
    float acc[2][4][4] = {}, sums[2][4] = {};
    for (unsigned step = 0; step < steps; step++) {
        groups_done_but<STAGES - 2>();
        // All copies of this step are there, and nobody reads the part that the next ones overwrite.
        __syncthreads();
        fetch(step + STAGES - 1);
        const bf16 *const of_a = shared + step % STAGES * (A::SIZE + B::SIZE), *const of_b = of_a + A::SIZE;
#pragma unroll
        for (unsigned term = 0; term < DEPTH; term += 16) {
            unsigned left[2][4], right[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                A::left(left[i], of_a, row + 16 * i, term);
                B::right(right[i], of_b, column + 16 * i, term);
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

    const auto row_at = [&](int i, int half) { return first_row + row + 16 * i + row_of(2 * half); };
    const auto column_at = [&](int j) { return first_column + column + column_of(j, 0); };
    float* sums_at = nullptr;
    if constexpr (End::SUMS) sums_at = sums_up && column_of(0, 0) == 0 ? end.sums : nullptr;
    constexpr int LINES = End::OF_ROWS ? 2 : 1;
    float2 read[LINES][LINES][4];
    float sum[2][2] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const unsigned r = row_at(i, half);
            if (i < LINES && half < LINES) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const bool is_there = column_at(j) < n && (r < m || !End::OF_ROWS);
                    read[i][half][j] = is_there ? end.read(r, column_at(j)) : float2{0.0f, 0.0f};
                }
            }
            if (sums_at != nullptr && r < m) sum[i][half] = sums_at[r];
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const unsigned r = row_at(i, half);
            if (r >= m) continue;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float2 x = {acc[i][j][2 * half], acc[i][j][2 * half + 1]};
                if (column_at(j) < n) end.write(r, column_at(j), x, read[i % LINES][half % LINES][j]);
            }
            if (sums_at != nullptr) sums_at[r] = sum[i][half] + sums[i][2 * half];
        }
    }
}

// c = a·bᵀ + bias, and max(0, c) if `relu`: b lies [n, k].
template <class T> struct Projected {
    static constexpr bool OF_ROWS = false, SUMS = false;
    T* c;
    const T* bias;
    size_t stride;
    bool relu;
    __device__ float2 read(unsigned, unsigned column) const {
        return bias != nullptr ? load_pair(bias + column) : float2{0.0f, 0.0f};
    }
    __device__ void write(unsigned row, unsigned column, float2 x, float2 bias) const {
        x.x += bias.x, x.y += bias.y;
        if (relu) x.x = positive_part(x.x), x.y = positive_part(x.y);
        store_pair(c + row * stride + column, x);
    }
};

#define DEFINE(T, name)                                                                                                 \
    KERNEL_OF(PRODUCT_THREADS) multiply_##name(SmallProduct p, unsigned relu) {                                         \
        const Projected<T> end = {static_cast<T*>(p.c), static_cast<const T*>(p.bias), p.c_stride, relu != 0};          \
        multiply<true, true>(p, blockIdx.x, end);                                                                       \
    }                                                                                                                   \
    LAUNCHABLE(multiply_##name)
FOR_NUMBERS(DEFINE)
#undef DEFINE

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
    multiply<true, false>(p, blockIdx.x, end);
}
LAUNCHABLE(multiply_back)

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
    multiply<true, false>(p, blockIdx.x, end);
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
    // How many products end before this block; those that are not there end beyond the grid.
    unsigned which = 0;
#pragma unroll
    for (unsigned half = 32; half > 0; half /= 2) {
        if (which + half <= MOST_SMALL_PRODUCTS && all.each[which + half - 1].end <= blockIdx.x) which += half;
    }
    const unsigned begin = which > 0 ? all.each[which - 1].end : 0;
    const SmallProduct p = all.each[which];
    const AddedToWeights end = {static_cast<float*>(p.c), p.c_stride, static_cast<float*>(p.bias)};
    multiply<false, false>(p, blockIdx.x - begin, end);
}
LAUNCHABLE(multiply_weights)
