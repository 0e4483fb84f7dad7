// What the attention kernels on tensor cores share: matrices of a head in shared memory and in registers, and their products.
//
// A warp owns 16 rows and keeps them, or loads them, as left operands; right operands are read from tiles in shared memory,
// which lie row by row. Products that sum over a head's width read a tile as it is (`with_tile`), those that sum over its rows
// transpose it while loading (`add_tile`).
#pragma once
#include "attention.cuh"
#include "tiles.cuh"

// Rows of a matrix of heads in shared memory. A row is eight numbers longer than a head, so that the eight rows that are read
// together lie in different banks.
template <int D> struct Tile {
    static constexpr int STRIDE = D + 8;
    bf16* at;
    __device__ Tile after(unsigned rows) const { return {at + rows * STRIDE}; }
};

// Rows of a side that a block has in shared memory at a time, at most; its warps own no more. The same as in
// src/gpu/launch/attention.rs.
constexpr unsigned HELD_ROWS = 128;

__device__ inline unsigned round_up(unsigned n, unsigned to) { return (n + to - 1) / to * to; }

// Begins to copy the rows `first` to `first + count - 1` of a matrix to a tile; those beyond `rows` become zero. All threads of a
// block take part; `copies_done` and a barrier come before reading.
template <int D>
__device__ inline void fetch(const Tile<D>& tile, const bf16* from, size_t stride, unsigned first, unsigned rows, unsigned count) {
    constexpr unsigned PARTS_OF_ROW = D / 8;
    for (unsigned i = threadIdx.x; i < count * PARTS_OF_ROW; i += blockDim.x) {
        const unsigned row = i / PARTS_OF_ROW, column = i % PARTS_OF_ROW * 8;
        const bool is_there = first + row < rows;
        copy_async(tile.at + row * Tile<D>::STRIDE + column, is_there ? from + (first + row) * stride + column : from, is_there);
    }
}

// 16 rows of D numbers as left operands; rows beyond `rows` are zero.
template <int D> struct Rows {
    unsigned part[D / 16][4];
    __device__ Rows(const bf16* from, size_t stride, unsigned first, unsigned rows) {
        const unsigned lane = threadIdx.x % WARP, row = first + lane / 4, column = lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const unsigned r = row + j % 2 * 8, c = column + 16 * i + j / 2 * 8;
                part[i][j] = r < rows ? *reinterpret_cast<const unsigned*>(from + r * stride + c) : 0u;
            }
        }
    }
};

// 16 rows of a tile as left operands.
template <int D> __device__ inline void load_left_rows(unsigned (&a)[D / 16][4], const Tile<D>& tile) {
#pragma unroll
    for (int i = 0; i < D / 16; i++) load_left(a[i], tile.at + 16 * i, Tile<D>::STRIDE);
}

// out[16×8·N] += left[16×D]·tileᵀ, for 8·N rows of a tile. Column 8n + c of the result is c of out[n].
template <int N, int D>
__device__ inline void with_tile(float (&out)[N][4], const unsigned (&left)[D / 16][4], const Tile<D>& tile) {
    const unsigned lane = threadIdx.x % WARP;
    const bf16* at = tile.at + (lane / 16 * 8 + lane % 8) * Tile<D>::STRIDE + lane / 8 % 2 * 8;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            unsigned b[4];
            load_matrices<false>(b, at + 8 * n * Tile<D>::STRIDE + 16 * i);
            multiply_add(out[n], left[i], b[0], b[1]);
            multiply_add(out[n + 1], left[i], b[2], b[3]);
        }
    }
}

// acc[16×D] += left[16×16]·tile, for 16 rows of a tile.
template <int D> __device__ inline void add_rows(float (&acc)[D / 8][4], const unsigned (&left)[4], const Tile<D>& tile) {
    const unsigned lane = threadIdx.x % WARP;
    const bf16* at = tile.at + lane % 16 * Tile<D>::STRIDE + lane / 16 * 8;
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
        unsigned b[4];
        load_matrices<true>(b, at + 8 * n);
        multiply_add(acc[n], left, b[0], b[1]);
        multiply_add(acc[n + 1], left, b[2], b[3]);
    }
}

// Two neighbours of a product's result, rounded: it is spread over the lanes like a left operand of the next product.
__device__ inline void as_left(unsigned (&a)[4], const float (&low)[4], const float (&high)[4]) {
    a[0] = pair_of(low[0], low[1]), a[1] = pair_of(low[2], low[3]);
    a[2] = pair_of(high[0], high[1]), a[3] = pair_of(high[2], high[3]);
}

// acc[16×D] += weights[16×8·N]·tile.
template <int N, int D>
__device__ inline void add_tile(float (&acc)[D / 8][4], const float (&weights)[N][4], const Tile<D>& tile) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        unsigned a[4];
        as_left(a, weights[n], weights[n + 1]);
        add_rows(acc, a, tile.after(8 * n));
    }
}

// Over the four lanes that together hold a row.
__device__ inline float row_sum(float x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}
__device__ inline float row_max(float x) {
    x = fmaxf(x, shuffle_xor(x, 1));
    return fmaxf(x, shuffle_xor(x, 2));
}

// Writes those of the warp's 16 rows that are below `rows`, each times its factor. They pass through 16 rows of shared memory
// that no other warp uses, so that whole rows are written at a time.
template <int D>
__device__ inline void put_rows(bf16* to, size_t stride, unsigned first, unsigned rows, const float (&acc)[D / 8][4],
                                float factor, float factor_below, const Tile<D>& own) {
    sync_warp();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float by = half ? factor_below : factor;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            *reinterpret_cast<unsigned*>(own.at + row_of(2 * half) * Tile<D>::STRIDE + column_of(n, 0)) =
                pair_of(acc[n][2 * half] * by, acc[n][2 * half + 1] * by);
        }
    }
    sync_warp();
    constexpr unsigned PARTS_OF_ROW = D / 8;
#pragma unroll
    for (unsigned start = 0; start < 16 * PARTS_OF_ROW; start += WARP) {
        const unsigned i = start + threadIdx.x % WARP, row = i / PARTS_OF_ROW, column = i % PARTS_OF_ROW * 8;
        if (first + row >= rows) continue;
        *reinterpret_cast<uint4*>(to + (first + row) * stride + column) =
            *reinterpret_cast<const uint4*>(own.at + row * Tile<D>::STRIDE + column);
    }
}

// Adds to products what belongs to their distances. Their rows are the queries from `query` on and their columns the keys from
// `key` on, or the reverse.
template <bool ROWS_ARE_QUERIES = true, int N>
__device__ inline void add_by_distance(float (&x)[N][4], const Place& place, const AttentionShape& shape, unsigned query,
                                       unsigned key) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const unsigned row = row_of(i), column = column_of(n, i);
            x[n][i] += place.by_distance(shape, query + (ROWS_ARE_QUERIES ? row : column), key + (ROWS_ARE_QUERIES ? column : row));
        }
    }
}

// Where the matrices of the sentence and head begin.
struct Matrices {
    size_t q, k, v, out;
    __device__ Matrices(const AttentionShape& shape, const Place& place) {
        q = size_t(place.q_first) * shape.q_stride + place.head * shape.d_k;
        k = size_t(place.k_first) * shape.k_stride + place.head * shape.d_k;
        v = size_t(place.k_first) * shape.k_stride + place.head * shape.d_v;
        out = size_t(place.q_first) * shape.out_stride + place.head * shape.d_v;
    }
};
