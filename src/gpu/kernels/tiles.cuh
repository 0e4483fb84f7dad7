// Operands of products on tensor cores, from matrices in shared memory whose rows lie `stride` numbers apart: `multiply_add` in
// common.cuh says how they are spread over the lanes of a warp.
#pragma once
#include "common.cuh"

// 16×16 numbers from `at` on as left operand, or as that of the transposed matrix.
__device__ inline void load_left(unsigned (&a)[4], const bf16* at, unsigned stride) {
    const unsigned lane = threadIdx.x % WARP;
    load_matrices<false>(a, at + lane % 16 * stride + lane / 16 * 8);
}
__device__ inline void load_left_transposed(unsigned (&a)[4], const bf16* at, unsigned stride) {
    const unsigned lane = threadIdx.x % WARP;
    load_matrices<true>(a, at + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8);
}

// 16×16 numbers from `at` on as two right operands: b[0] and b[1] for the first eight columns, b[2] and b[3] for the others; or
// as those of the transposed matrix.
__device__ inline void load_right(unsigned (&b)[4], const bf16* at, unsigned stride) {
    const unsigned lane = threadIdx.x % WARP;
    load_matrices<true>(b, at + lane % 16 * stride + lane / 16 * 8);
}
__device__ inline void load_right_transposed(unsigned (&b)[4], const bf16* at, unsigned stride) {
    const unsigned lane = threadIdx.x % WARP;
    load_matrices<false>(b, at + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8);
}

// The row of one of a lane's four elements of a result among the warp's 16, and its column if it is in the n-th eight columns.
__device__ inline unsigned row_of(int i) { return threadIdx.x % WARP / 4 + i / 2 * 8; }
__device__ inline unsigned column_of(int n, int i) { return 8 * n + threadIdx.x % 4 * 2 + i % 2; }
