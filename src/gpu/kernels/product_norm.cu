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

// Eight numbers of a vector from a column on; zeros if there is no vector or no column.
__device__ inline Raw<float> of_columns(const float* vector, unsigned column, unsigned n) {
    return vector != nullptr && column < n ? Raw<float>(vector + column) : Raw<float>();
}

// A piece of a matrix; zeros if it is not there.
__device__ inline Raw<bf16> of_matrix(const bf16* matrix, unsigned at, bool is_there) {
    return matrix != nullptr && is_there ? Raw<bf16>(matrix + at) : Raw<bf16>();
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
    const Raw<float> of_bias = of_columns(static_cast<const float*>(p.bias), column, n);
    const Raw<float> of_gamma = of_columns(y != nullptr ? norm.gamma : nullptr, column, n);
    const Raw<float> of_beta = of_columns(y != nullptr ? norm.beta : nullptr, column, n);
    Raw<bf16> of_x[ROW_ROUNDS];
    unsigned places[ROW_ROUNDS] = {};
#pragma unroll
    for (unsigned i = 0; i < ROW_ROUNDS; i++) {
        const unsigned row = block.row_of_piece(i);
        of_x[i] = of_matrix(x, row * n + column, row < m && column < n);
        if (dropout.threshold > 0 && row < m) places[i] = padded[row];
    }
    block.multiply();
    block.put();
    float bias[PIECE], gamma[PIECE], beta[PIECE];
    of_bias.get(bias), of_gamma.get(gamma), of_beta.get(beta);
    // A division takes as long as ten multiplications.
    const float share = 1.0f / n;
#pragma unroll
    for (unsigned i = 0; i < ROW_ROUNDS; i++) {
        const unsigned row = block.row_of_piece(i);
        const bool is_there = row < m && column < n;
        float v[PIECE], residual[PIECE], sum = 0, squares = 0;
        block.get(v, i);
        of_x[i].get(residual);
#pragma unroll
        for (int k = 0; k < PIECE; k++) v[k] += bias[k];
        drop(v, dropout, places[i] * n + column);
#pragma unroll
        for (int k = 0; k < PIECE; k++) {
            // Rounded as it is stored, so that backward sees the same. In columns that are not there, zero.
            v[k] = rounded<bf16>(residual[k] + v[k]);
            sum += v[k];
        }
        if (is_there) store<PIECE>(static_cast<bf16*>(p.c) + row * n + column, v);
        if (y == nullptr) continue;
        const float mean = sum_of_row(sum) * share;
#pragma unroll
        for (int k = 0; k < PIECE; k++) {
            v[k] -= mean;
            squares += v[k] * v[k];
        }
        const float factor = norm.factor(sum_of_row(column < n ? squares : 0.0f), n);
#pragma unroll
        for (int k = 0; k < PIECE; k++) v[k] = v[k] * factor * gamma[k] + beta[k];
        if (is_there) store<PIECE>(y + row * n + column, v);
        if (is_there && column == 0) reinterpret_cast<float2*>(statistics)[row] = float2{mean, factor};
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
    const Raw<float> of_gamma = of_columns(norm.gamma, column, n);
    Raw<bf16> of_before[ROW_ROUNDS], of_s[ROW_ROUNDS], of_addend[ROW_ROUNDS];
    // Mean and factor of the rows. Of rows and columns that are not there, all is zero.
    float2 of_rows[ROW_ROUNDS] = {};
    unsigned places[ROW_ROUNDS] = {};
#pragma unroll
    for (unsigned i = 0; i < ROW_ROUNDS; i++) {
        const unsigned row = block.row_of_piece(i), at = row * n + column;
        const bool is_there = row < m && column < n;
        of_before[i] = of_matrix(static_cast<const bf16*>(p.bias), at, is_there);
        of_s[i] = of_matrix(s, at, is_there);
        of_addend[i] = of_matrix(addend, at, is_there);
        if (is_there) of_rows[i] = reinterpret_cast<const float2*>(statistics)[row];
        if (dropout.threshold > 0 && row < m) places[i] = padded[row];
    }
    block.multiply();
    block.put();
    float gamma[PIECE], sums[3][PIECE] = {};
    float(&d_gamma)[PIECE] = sums[0], (&d_beta)[PIECE] = sums[1], (&d_bias)[PIECE] = sums[2];
    of_gamma.get(gamma);
    const float share = 1.0f / n;
#pragma unroll
    for (unsigned i = 0; i < ROW_ROUNDS; i++) {
        const unsigned row = block.row_of_piece(i);
        const bool is_there = row < m && column < n;
        const float mean = of_rows[i].x, factor = of_rows[i].y;
        float g[PIECE], normal[PIECE], out[PIECE], sum = 0, sum_of_products = 0;
        {
            float before[PIECE];
            block.get(g, i);
            of_before[i].get(before), of_s[i].get(normal), of_addend[i].get(out);
#pragma unroll
            for (int k = 0; k < PIECE; k++) {
                g[k] += before[k];
                normal[k] = (normal[k] - mean) * factor;
                d_beta[k] += g[k];
                d_gamma[k] += g[k] * normal[k];
                g[k] *= gamma[k];
                sum += g[k];
                sum_of_products += g[k] * normal[k];
            }
        }
        const float mean_g = sum_of_row(sum) * share;
        const float mean_product = sum_of_row(sum_of_products) * (norm.kind == 0 ? share : 1.0f / norm.divisor(factor, n));
#pragma unroll
        for (int k = 0; k < PIECE; k++) out[k] += factor * (g[k] - mean_g - normal[k] * mean_product);
        if (is_there) store<PIECE>(static_cast<bf16*>(p.c) + row * n + column, out);
        drop(out, dropout, places[i] * n + column);
        if (is_there && dh != nullptr) store<PIECE>(dh + row * n + column, out);
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
