// Small products joined with the residual sums and norms after them, forward and back, for rows of at most 128 numbers, which a
// block computes whole: one launch instead of two, and what is between them never leaves the multiprocessor.
#include "norm.cuh"
#include "product.cuh"

constexpr unsigned ROWS_WITH_NORM = 32, WIDEST_WITH_NORM = 128;

// A block has a few whole rows, each in the pieces of neighbouring lanes of one warp.
template <bool B_TERMS_LAST> using RowsBlock = Block<ROWS_WITH_NORM, WIDEST_WITH_NORM, true, B_TERMS_LAST>;
constexpr unsigned LANES_OF_ROW = WIDEST_WITH_NORM / PIECE, ROW_ROUNDS = RowsBlock<true>::ROUNDS;

// The sum over the lanes of a row.
__device__ inline float sum_of_row(float x) {
#pragma unroll
    for (unsigned lanes = 1; lanes < LANES_OF_ROW; lanes *= 2) x += shuffle_xor(x, lanes);
    return x;
}

// Multiplies a piece by its part of the mask.
__device__ inline void drop(float (&x)[PIECE], const Dropout& dropout, unsigned at) {
    if (dropout.threshold == 0) return;
#pragma unroll
    for (int k = 0; k < PIECE; k++) x[k] *= keep(dropout, at + k);
}

// s = x + dropout(a·bᵀ + bias), y = norm(s), and the statistics: `p.c` is s, `p.bias` in float32, and n is D. Without y there is
// no norm.
KERNEL_OF(PRODUCT_THREADS)
multiply_add_norm(SmallProduct p, bf16* y, float* statistics, const bf16* x, Norm norm, Dropout dropout, const unsigned* padded) {
    const unsigned m = p.m, n = p.n;
    RowsBlock<true> block(p, blockIdx.x);
    block.begin(p);
    const unsigned column = block.column_of_pieces();
    const float* const all_bias = static_cast<const float*>(p.bias);
    const Raw<float> of_bias(all_bias + column, all_bias != nullptr && column < n);
    const bool has_norm = y != nullptr && column < n;
    const Raw<float> of_gamma(norm.gamma + column, has_norm), of_beta(norm.beta + column, has_norm && norm.beta != nullptr);
    Raw<bf16> of_x[ROW_ROUNDS];
    unsigned places[ROW_ROUNDS] = {};
    bool is_there[ROW_ROUNDS];
#pragma unroll
    for (unsigned i = 0; i < ROW_ROUNDS; i++) {
        const unsigned row = block.row_of_piece(i);
        is_there[i] = row < m && column < n;
        of_x[i] = Raw<bf16>(x + row * n + column, is_there[i]);
        if (dropout.threshold > 0 && is_there[i]) places[i] = padded[row] * n + column;
    }
    block.multiply();
    block.put();
    float v[ROW_ROUNDS][PIECE], means[ROW_ROUNDS] = {}, squares[ROW_ROUNDS] = {}, bias[PIECE];
    of_bias.get(bias);
#pragma unroll
    for (unsigned i = 0; i < ROW_ROUNDS; i++) {
        float residual[PIECE];
        block.get(v[i], i);
        of_x[i].get(residual);
#pragma unroll
        for (int k = 0; k < PIECE; k++) v[i][k] += bias[k];
        drop(v[i], dropout, places[i]);
#pragma unroll
        for (int k = 0; k < PIECE; k++) {
            // Rounded as it is stored, so that backward sees the same. In columns that are not there, zero.
            v[i][k] = rounded<bf16>(residual[k] + v[i][k]);
            means[i] += v[i][k];
        }
        if (is_there[i]) store<PIECE>(static_cast<bf16*>(p.c) + block.row_of_piece(i) * n + column, v[i]);
    }
    if (y == nullptr) return;
    float gamma[PIECE], beta[PIECE];
    of_gamma.get(gamma), of_beta.get(beta);
    // A division of floats takes as long as ten multiplications.
    const float share = 1.0f / n;
    // All rows step by step: what one waits for, another one does.
#pragma unroll
    for (unsigned i = 0; i < ROW_ROUNDS; i++) means[i] = norm.mean_by(sum_of_row(means[i]), share);
#pragma unroll
    for (unsigned i = 0; i < ROW_ROUNDS; i++) {
#pragma unroll
        for (int k = 0; k < PIECE; k++) {
            v[i][k] -= means[i];
            squares[i] += v[i][k] * v[i][k];
        }
    }
#pragma unroll
    for (unsigned i = 0; i < ROW_ROUNDS; i++) squares[i] = sum_of_row(column < n ? squares[i] : 0.0f);
#pragma unroll
    for (unsigned i = 0; i < ROW_ROUNDS; i++) {
        const unsigned row = block.row_of_piece(i);
        const float factor = norm.factor(squares[i], n);
#pragma unroll
        for (int k = 0; k < PIECE; k++) v[i][k] = v[i][k] * factor * gamma[k] + beta[k];
        if (!is_there[i]) continue;
        store<PIECE>(y + row * n + column, v[i]);
        if (column == 0) reinterpret_cast<float2*>(statistics)[row] = float2{means[i], factor};
    }
}
LAUNCHABLE(multiply_add_norm)

// Back over such a joint, from dy = before + a·b: ds = norm'(dy) + addend, dh = mask·ds, and the column sums [dγ, dβ, dbias] of
// every block, 3·D wide. `p.c` is ds, and `p.bias` what is there before the product, if anything; n is D. Without dh, h's gradient
// is ds. ds may be `before` or `addend`.
KERNEL_OF(PRODUCT_THREADS)
multiply_norm_backward(SmallProduct p, bf16* dh, float* partial, const bf16* addend, const bf16* s, const float* statistics,
                       Norm norm, Dropout dropout, const unsigned* padded) {
    const unsigned m = p.m, n = p.n;
    RowsBlock<false> block(p, blockIdx.x);
    block.begin(p);
    const unsigned column = block.column_of_pieces();
    const bf16* const all_before = static_cast<const bf16*>(p.bias);
    const Raw<float> of_gamma(norm.gamma + column, column < n);
    Raw<bf16> of_before[ROW_ROUNDS], of_s[ROW_ROUNDS], of_addend[ROW_ROUNDS];
    // Mean and factor of the rows. Of rows and columns that are not there, all is zero.
    float2 of_rows[ROW_ROUNDS] = {};
    unsigned places[ROW_ROUNDS] = {};
    bool is_there[ROW_ROUNDS];
#pragma unroll
    for (unsigned i = 0; i < ROW_ROUNDS; i++) {
        const unsigned row = block.row_of_piece(i), at = row * n + column;
        is_there[i] = row < m && column < n;
        of_s[i] = Raw<bf16>(s + at, is_there[i]);
        of_before[i] = Raw<bf16>(all_before + at, all_before != nullptr && is_there[i]);
        of_addend[i] = Raw<bf16>(addend + at, addend != nullptr && is_there[i]);
        if (is_there[i]) of_rows[i] = reinterpret_cast<const float2*>(statistics)[row];
        if (dropout.threshold > 0 && is_there[i]) places[i] = padded[row] * n + column;
    }
    block.multiply();
    block.put();
    float g[ROW_ROUNDS][PIECE], normal[ROW_ROUNDS][PIECE], means[ROW_ROUNDS][2] = {}, gamma[PIECE], sums[3][PIECE] = {};
    float(&d_gamma)[PIECE] = sums[0], (&d_beta)[PIECE] = sums[1], (&d_bias)[PIECE] = sums[2];
    of_gamma.get(gamma);
    const float share = 1.0f / n;
#pragma unroll
    for (unsigned i = 0; i < ROW_ROUNDS; i++) {
        float before[PIECE];
        block.get(g[i], i);
        of_before[i].get(before), of_s[i].get(normal[i]);
#pragma unroll
        for (int k = 0; k < PIECE; k++) {
            g[i][k] += before[k];
            normal[i][k] = (normal[i][k] - of_rows[i].x) * of_rows[i].y;
            d_beta[k] += g[i][k];
            d_gamma[k] += g[i][k] * normal[i][k];
            g[i][k] *= gamma[k];
            means[i][0] += g[i][k];
            means[i][1] += g[i][k] * normal[i][k];
        }
    }
    // All rows step by step: what one waits for, another one does.
#pragma unroll
    for (unsigned i = 0; i < ROW_ROUNDS; i++) {
        means[i][0] = norm.mean_by(sum_of_row(means[i][0]), share);
        means[i][1] = sum_of_row(means[i][1]) * norm.by_divisor(of_rows[i].y, n, share);
    }
#pragma unroll
    for (unsigned i = 0; i < ROW_ROUNDS; i++) {
        const unsigned at = block.row_of_piece(i) * n + column;
        float out[PIECE];
        of_addend[i].get(out);
#pragma unroll
        for (int k = 0; k < PIECE; k++) out[k] += of_rows[i].y * (g[i][k] - means[i][0] - normal[i][k] * means[i][1]);
        if (is_there[i]) store<PIECE>(static_cast<bf16*>(p.c) + at, out);
        drop(out, dropout, places[i]);
        if (is_there[i] && dh != nullptr) store<PIECE>(dh + at, out);
#pragma unroll
        for (int k = 0; k < PIECE; k++) d_bias[k] += out[k];
    }
    // The sums of a warp's rows, then of all.
    float* const of_warps = block.result();
    static_assert(PRODUCT_WARPS * 3 * WIDEST_WITH_NORM <= RowsBlock<false>::SUMS, "room where the result was");
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (int k = 0; k < 3; k++) {
#pragma unroll
        for (int j = 0; j < PIECE; j++) {
#pragma unroll
            for (unsigned lanes = LANES_OF_ROW; lanes < WARP; lanes *= 2) sums[k][j] += shuffle_xor(sums[k][j], lanes);
        }
    }
    // All have taken the result.
    __syncthreads();
    if (lane < LANES_OF_ROW) {
#pragma unroll
        for (int k = 0; k < 3; k++) store<PIECE>(of_warps + (warp * 3 + k) * WIDEST_WITH_NORM + lane * PIECE, sums[k]);
    }
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        const unsigned at = i * PRODUCT_THREADS + threadIdx.x;
        if (at >= 3 * WIDEST_WITH_NORM) break;
        float sum = 0;
#pragma unroll
        for (unsigned w = 0; w < PRODUCT_WARPS; w++) sum += of_warps[w * 3 * WIDEST_WITH_NORM + at];
        const unsigned k = at / WIDEST_WITH_NORM, j = at % WIDEST_WITH_NORM;
        if (j < n) partial[(blockIdx.x * 3 + k) * n + j] = sum;
    }
}
LAUNCHABLE(multiply_norm_backward)
