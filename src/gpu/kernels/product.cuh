// What kernels of products of bf16 matrices share: blocks of the result, computed on tensor cores. Sums are in float32, in an order
// that depends on the sizes alone.
#pragma once
#include "tiles.cuh"

// Terms of the sums that are in shared memory at a time, how many times that at most, and the bytes that there are for them: the
// same as in src/gpu/launch/product.rs.
constexpr unsigned DEPTH = 32, MOST_STAGES = 4, SHARED_BYTES = 48 << 10;
// Neighbours in memory that a thread reads or writes at once.
constexpr int PIECE = 8;
constexpr unsigned PRODUCT_WARPS = 8, PRODUCT_THREADS = PRODUCT_WARPS * WARP;

// c [m, n] = a [m, k] · b [k, n], or added to c.
struct SmallProduct {
    const bf16 *a, *b;
    void* c;
    // May be missing. What is added to every row of c; of weight gradients, what the sums of their left factor's rows are added to;
    // some kernels take another matrix here.
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

// A block of a product: ROWS×COLUMNS numbers, each of its eight warps 16×32 of them, over DEPTH terms of the sums at a time;
// meanwhile the factors of the next terms are on their way to shared memory. With two GROUPS of warps, for long sums, each adds
// up half of the terms of twice the rows, so that fewer warps load the same factors from shared memory.
//
// A kernel calls `begin`, reads what else it needs, calls `multiply` and `put`, and then takes the result in pieces of eight
// neighbours, a row by neighbouring threads: so all it reads and writes are whole pieces of 16 bytes, side by side.
template <unsigned ROWS, unsigned COLUMNS, bool A_TERMS_LAST, bool B_TERMS_LAST, unsigned GROUPS = 1> struct Block {
    typedef Part<ROWS, A_TERMS_LAST> A;
    typedef Part<COLUMNS, B_TERMS_LAST> B;
    static constexpr unsigned SIZE = A::SIZE + B::SIZE, ROOM = SHARED_BYTES / sizeof(bf16) / SIZE;
    static constexpr unsigned STAGES = ROOM < MOST_STAGES ? ROOM : MOST_STAGES, ACROSS = COLUMNS / 32;
    static constexpr unsigned GROUP = PRODUCT_THREADS / GROUPS;
    static_assert(ROWS * COLUMNS == PRODUCT_WARPS * 16 * 32 && GROUP / WARP % ACROSS == 0 && DEPTH / 16 % GROUPS == 0, "all warps");
    // Of the result in shared memory: four rows of a warp's numbers lie in different banks. Behind it are the sums of a's rows.
    static constexpr unsigned STRIDE = COLUMNS + 8, SUMS = ROWS * STRIDE;
    static_assert(STAGES * SIZE * sizeof(bf16) >= (SUMS + ROWS) * sizeof(float), "room for the result");
    // Pieces of a row, and of a thread.
    static constexpr unsigned PIECES = COLUMNS / PIECE, ROUNDS = ROWS * PIECES / PRODUCT_THREADS;

    // Where the block begins in the result, and the warp in the block.
    unsigned first_row, first_column, row, column;
    A a;
    B b;
    unsigned steps;
    // The warp's numbers, 16×8 at a time as `multiply_add` has them, over its group's terms; if asked for, the sums of a's rows.
    float acc[GROUPS][4][4] = {}, sums[GROUPS][4] = {};

    __device__ Block(const SmallProduct& p, unsigned block)
        : row(threadIdx.x % GROUP / WARP / ACROSS * 16 * GROUPS), column(threadIdx.x / WARP % ACROSS * 32) {
        // A division of integers takes as long as twenty other instructions.
        const unsigned down = p.across == 1 ? block : block / p.across;
        first_row = down * ROWS;
        first_column = (block - down * p.across) * COLUMNS;
    }

    // Starts to copy a product's factors.
    __device__ void begin(const SmallProduct& p) {
        steps = (p.k + DEPTH - 1) / DEPTH;
        a.begin(p.a, p.a_stride, first_row, p.m, p.k);
        b.begin(p.b, p.b_stride, first_column, p.n, p.k);
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
        const unsigned group = threadIdx.x / GROUP;
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
                for (int i = 0; i < GROUPS; i++) A::left(left[i], of_a, row + 16 * i, term);
#pragma unroll
                for (int i = 0; i < 2; i++) B::right(right[i], of_b, column + 16 * i, term);
#pragma unroll
                for (int i = 0; i < GROUPS; i++) {
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

    // Where the result is in shared memory.
    __device__ float* result() const {
        DYNAMIC_SHARED(float, shared);
        return shared;
    }

    // The result goes to shared memory, after the last product.
    __device__ void put(bool sums_up = false) {
        float* const result = this->result();
#pragma unroll
        for (unsigned group = 0; group < GROUPS; group++) {
            // All have read the last factors, and the group before has put its part.
            __syncthreads();
            if (threadIdx.x / GROUP != group) continue;
#pragma unroll
            for (int i = 0; i < 2 * GROUPS; i++) {
                const unsigned r = row + 16 * (i / 2) + row_of(i % 2 * 2);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float2& at = *reinterpret_cast<float2*>(result + r * STRIDE + column + column_of(j, 0));
                    const float *const x = acc[i / 2][j] + i % 2 * 2, before[2] = {group > 0 ? at.x : 0.0f, group > 0 ? at.y : 0.0f};
                    at = float2{before[0] + x[0], before[1] + x[1]};
                }
                if (sums_up && threadIdx.x % 4 == 0) {
                    result[SUMS + r] = (group > 0 ? result[SUMS + r] : 0.0f) + sums[i / 2][i % 2 * 2];
                }
            }
        }
        __syncthreads();
    }

    // The column of the thread's pieces in the result, and the row of each.
    __device__ unsigned column_of_pieces() const { return first_column + threadIdx.x % PIECES * PIECE; }
    __device__ unsigned row_of_piece(unsigned i) const { return first_row + threadIdx.x / PIECES + i * (PRODUCT_THREADS / PIECES); }

    // A piece of the result.
    __device__ void get(float (&x)[PIECE], unsigned i) const {
        const unsigned of_block = threadIdx.x / PIECES + i * (PRODUCT_THREADS / PIECES);
        load<PIECE>(result() + of_block * STRIDE + threadIdx.x % PIECES * PIECE, x);
    }
};

// A piece as it comes from memory, zeros if it is not there: whatever is computed with it can wait until it is.
template <class T> struct Raw {
    uint4 bits[sizeof(T) * PIECE / sizeof(uint4)];
    __device__ Raw() : bits{} {}
    __device__ Raw(const T* from, bool is_there) : bits{} {
        if (!is_there) return;
#pragma unroll
        for (unsigned i = 0; i < sizeof(bits) / sizeof(uint4); i++) bits[i] = reinterpret_cast<const uint4*>(from)[i];
    }
    __device__ void get(float (&x)[PIECE]) const;
};
template <> __device__ inline void Raw<bf16>::get(float (&x)[PIECE]) const {
    const unsigned words[4] = {bits[0].x, bits[0].y, bits[0].z, bits[0].w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = __uint_as_float(words[i] << 16);
        x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}
template <> __device__ inline void Raw<float>::get(float (&x)[PIECE]) const {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        x[4 * i] = __uint_as_float(bits[i].x), x[4 * i + 1] = __uint_as_float(bits[i].y);
        x[4 * i + 2] = __uint_as_float(bits[i].z), x[4 * i + 3] = __uint_as_float(bits[i].w);
    }
}
