// What kernels of products of bf16 matrices share: blocks of the result, computed on tensor cores. Sums are in float32, in an order
// that depends on the sizes alone.
#pragma once
#include "tiles.cuh"

// Terms of the sums that are in shared memory at a time, and how many times that there is room for, at most: the same as in
// src/gpu/launch/product.rs.
constexpr unsigned DEPTH = 32, MOST_STAGES = 4, SHARED_BYTES = 48 << 10;
constexpr unsigned PRODUCT_THREADS = 4 * WARP;

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

// A block of a product: ROWS×COLUMNS numbers, each of its four warps 32×32 of them, over DEPTH terms of the sums at a time;
// meanwhile the factors of the next terms are on their way to shared memory.
template <unsigned ROWS, unsigned COLUMNS, bool A_TERMS_LAST, bool B_TERMS_LAST> struct Block {
    typedef Part<ROWS, A_TERMS_LAST> A;
    typedef Part<COLUMNS, B_TERMS_LAST> B;
    static constexpr unsigned SIZE = A::SIZE + B::SIZE, ROOM = SHARED_BYTES / sizeof(bf16) / SIZE;
    static constexpr unsigned STAGES = ROOM < MOST_STAGES ? ROOM : MOST_STAGES, ACROSS = COLUMNS / 32;
    static_assert(ROWS * COLUMNS == 4 * 32 * 32, "four warps");

    // Where the warp's numbers begin, in the block and in the result.
    unsigned row, column, first_row, first_column;
    // The numbers, 16×8 at a time as `multiply_add` has them, and if they are asked for the sums of a's rows.
    float acc[2][4][4] = {}, sums[2][4] = {};

    __device__ Block(const SmallProduct& p, unsigned block)
        : row(threadIdx.x / WARP / ACROSS * 32),
          column(threadIdx.x / WARP % ACROSS * 32),
          first_row(block / p.across * ROWS + row),
          first_column(block % p.across * COLUMNS + column) {}

    // Rows and columns of the thread's numbers in the result.
    __device__ unsigned row_at(int i, int half) const { return first_row + 16 * i + row_of(2 * half); }
    __device__ unsigned column_at(int j) const { return first_column + column_of(j, 0); }

    __device__ void multiply(const SmallProduct& p, bool sums_up = false) {
        DYNAMIC_SHARED(bf16, shared);
        const unsigned steps = (p.k + DEPTH - 1) / DEPTH;
        A a(p.a, p.a_stride, first_row - row, p.m, p.k);
        B b(p.b, p.b_stride, first_column - column, p.n, p.k);
        const auto fetch = [&](unsigned step) {
            bf16* const to = shared + step % STAGES * SIZE;
            if (step < steps) {
                a.fetch(to);
                b.fetch(to + A::SIZE);
            }
            end_group_of_copies();
        };
        for (unsigned step = 0; step < STAGES - 1; step++) fetch(step);
        for (unsigned step = 0; step < steps; step++) {
            groups_done_but<STAGES - 2>();
            // All copies of this step are there, and nobody reads the part that the next ones overwrite.
            __syncthreads();
            fetch(step + STAGES - 1);
            const bf16 *const of_a = shared + step % STAGES * SIZE, *const of_b = of_a + A::SIZE;
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
                    for (int j = 0; j < 4; j++) {
                        multiply_add(acc[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
                    }
                    // Times ones.
                    if (sums_up) multiply_add(sums[i], left[i], 0x3f803f80u, 0x3f803f80u);
                }
            }
        }
    }
};
