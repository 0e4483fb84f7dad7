// What kernels of products of bf16 matrices share: blocks of the result, computed on tensor cores. Sums are in float32, in an order
// that depends on the sizes alone.
#pragma once
#include "tiles.cuh"

// Terms of the sums that are in shared memory at a time, and how many times that there is room for, at most: the same as in
// src/gpu/launch/product.rs.
constexpr unsigned DEPTH = 32, MOST_STAGES = 4, SHARED_BYTES = 48 << 10;
// A block's warps are many and do little: what a small product takes is the time of its instructions one after the other.
constexpr unsigned PRODUCT_WARPS = 8, PRODUCT_THREADS = PRODUCT_WARPS * WARP;

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

// What is in shared memory of a factor: LINES of its rows or columns and DEPTH terms of the sums, which are neighbours in memory
// if TERMS_LAST. A row is eight numbers longer than needed, so that eight rows at a time lie in different banks.
template <unsigned LINES, bool TERMS_LAST> struct Part {
    static constexpr unsigned ROWS = TERMS_LAST ? LINES : DEPTH, COLUMNS = TERMS_LAST ? DEPTH : LINES;
    static constexpr unsigned STRIDE = COLUMNS + 8, SIZE = ROWS * STRIDE;
    static constexpr unsigned PIECES = COLUMNS / 8, ALL = ROWS * PIECES, COPIES = (ALL + PRODUCT_THREADS - 1) / PRODUCT_THREADS;
    static_assert(COPIES == 1 || ALL % PRODUCT_THREADS == 0, "either all threads copy as much or the first ones one piece each");

    // The thread's pieces of eight numbers: where the next ones come from, and where they go.
    const bf16* from[COPIES];
    unsigned to[COPIES];
    // Terms from there on; none of lines beyond the last.
    int terms[COPIES];
    size_t step;

    // The lines of a matrix from `first` on, of `lines`, with sums of `count` terms.
    __device__ void begin(const bf16* matrix, size_t stride, unsigned first, unsigned lines, unsigned count) {
        step = TERMS_LAST ? DEPTH : DEPTH * stride;
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

    // Starts to copy the next DEPTH terms; what is beyond the matrix becomes zero.
    __device__ void fetch(bf16* part) {
#pragma unroll
        for (unsigned n = 0; n < COPIES; n++) {
            if (ALL < PRODUCT_THREADS && threadIdx.x >= ALL) return;
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

// A block of a product: ROWS×COLUMNS numbers, each of its eight warps 16×32 of them, over DEPTH terms of the sums at a time;
// meanwhile the factors of the next terms are on their way to shared memory. With two GROUPS of warps, for long sums, each adds
// up half of the terms of twice the rows, so that fewer warps load the same factors from shared memory.
template <unsigned ROWS, unsigned COLUMNS, bool A_TERMS_LAST, bool B_TERMS_LAST, unsigned GROUPS = 1> struct Block {
    typedef Part<ROWS, A_TERMS_LAST> A;
    typedef Part<COLUMNS, B_TERMS_LAST> B;
    static constexpr unsigned SIZE = A::SIZE + B::SIZE, ROOM = SHARED_BYTES / sizeof(bf16) / SIZE;
    static constexpr unsigned STAGES = ROOM < MOST_STAGES ? ROOM : MOST_STAGES, ACROSS = COLUMNS / 32;
    static constexpr unsigned GROUP = PRODUCT_THREADS / GROUPS;
    static_assert(ROWS * COLUMNS == PRODUCT_WARPS * 16 * 32 && GROUP / WARP % ACROSS == 0, "all warps");
    static_assert(GROUPS == 1 || (GROUPS == 2 && STAGES * SIZE * sizeof(bf16) >= 20 * PRODUCT_THREADS * sizeof(float)), "room for `join`");

    // Where the warp's numbers begin, in the block and in the result.
    unsigned row, column, first_row, first_column;
    // The numbers, 16×8 at a time as `multiply_add` has them, and if they are asked for the sums of a's rows.
    float acc[4][4], sums[4];

    A a;
    B b;
    unsigned steps;
    // The same over the group's terms.
    float parts[GROUPS][4][4] = {}, parts_of_sums[GROUPS][4] = {};

    __device__ Block(const SmallProduct& p, unsigned block)
        : row((threadIdx.x % GROUP / WARP / ACROSS * GROUPS + threadIdx.x / GROUP) * 16), column(threadIdx.x / WARP % ACROSS * 32) {
        // A division takes as long as twenty other instructions.
        const unsigned down = p.across == 1 ? block : block / p.across;
        first_row = down * ROWS + row;
        first_column = (block - down * p.across) * COLUMNS + column;
    }

    // Rows and columns of the thread's numbers in the result.
    __device__ unsigned row_at(int half) const { return first_row + row_of(2 * half); }
    __device__ unsigned column_at(int j) const { return first_column + column_of(j, 0); }

    // Starts to copy a product's factors. What else a kernel reads is best read between this and `multiply`.
    __device__ void begin(const SmallProduct& p) {
        steps = (p.k + DEPTH - 1) / DEPTH;
        a.begin(p.a, p.a_stride, first_row - row, p.m, p.k);
        b.begin(p.b, p.b_stride, first_column - column, p.n, p.k);
        for (unsigned step = 0; step < STAGES; step++) fetch(step);
    }

    __device__ void fetch(unsigned step) {
        DYNAMIC_SHARED(bf16, shared);
        bf16* const to = shared + step % STAGES * SIZE;
        if (step < steps) {
            a.fetch(to);
            b.fetch(to + A::SIZE);
        }
        end_group_of_copies();
    }

    // Adds the product that has begun.
    __device__ void multiply(bool sums_up = false) {
        DYNAMIC_SHARED(bf16, shared);
        const unsigned group = threadIdx.x / GROUP, top = row - group * 16;
        for (unsigned step = 0; step < steps; step++) {
            groups_done_but<STAGES - 2>();
            // All copies of this step are there, and nobody reads the part of the last one any more.
            __syncthreads();
            if (step > 0) fetch(step + STAGES - 1);
            const bf16 *const of_a = shared + step % STAGES * SIZE, *const of_b = of_a + A::SIZE;
#pragma unroll
            for (unsigned n = 0; n < DEPTH / 16 / GROUPS; n++) {
                const unsigned term = (n * GROUPS + group) * 16;
                unsigned left[GROUPS][4], right[2][4];
#pragma unroll
                for (int i = 0; i < GROUPS; i++) A::left(left[i], of_a, top + 16 * i, term);
#pragma unroll
                for (int i = 0; i < 2; i++) B::right(right[i], of_b, column + 16 * i, term);
#pragma unroll
                for (int i = 0; i < GROUPS; i++) {
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        multiply_add(parts[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
                    }
                    // Times ones.
                    if (sums_up) multiply_add(parts_of_sums[i], left[i], 0x3f803f80u, 0x3f803f80u);
                }
            }
        }
    }

    // After the last product: the sums of all groups.
    __device__ void join(bool sums_up = false) {
        if constexpr (GROUPS == 1) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
#pragma unroll
                for (int j = 0; j < 4; j++) acc[j][k] = parts[0][j][k];
                sums[k] = parts_of_sums[0][k];
            }
        } else {
            // Each warp gives the other group's warp the rows that this one keeps.
            DYNAMIC_SHARED(float, given);
            float* const mine = given + threadIdx.x;
            const float* const others = given + (threadIdx.x ^ GROUP);
            const bool keeps_first = threadIdx.x < GROUP;
            // All have read the last factors.
            __syncthreads();
#pragma unroll
            for (int k = 0; k < 4; k++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    mine[(4 * j + k) * PRODUCT_THREADS] = keeps_first ? parts[1][j][k] : parts[0][j][k];
                    acc[j][k] = keeps_first ? parts[0][j][k] : parts[1][j][k];
                }
                if (sums_up) mine[(16 + k) * PRODUCT_THREADS] = keeps_first ? parts_of_sums[1][k] : parts_of_sums[0][k];
                sums[k] = keeps_first ? parts_of_sums[0][k] : parts_of_sums[1][k];
            }
            __syncthreads();
#pragma unroll
            for (int k = 0; k < 4; k++) {
#pragma unroll
                for (int j = 0; j < 4; j++) acc[j][k] += others[(4 * j + k) * PRODUCT_THREADS];
                if (sums_up) sums[k] += others[(16 + k) * PRODUCT_THREADS];
            }
        }
    }
};
