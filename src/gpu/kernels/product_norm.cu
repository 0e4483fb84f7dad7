// Small products joined with the residual sums and norms after them, forward and back, for rows of at most 128 numbers, which a
// block computes whole: one launch instead of two, and what is between them never leaves the registers.
#include "norm.cuh"
#include "product.cuh"

constexpr unsigned ROWS_WITH_NORM = 32, WIDEST_WITH_NORM = 128;

// What a thread has of two numbers in each of a block's rows and columns: of rows in halves of 16, of neighbours in columns.
typedef float2 OfBlock[2][4];

// f(half, row) for each of the thread's rows.
template <class B, class F> __device__ inline void each_row(const B& block, F f) {
#pragma unroll
    for (int half = 0; half < 2; half++) f(half, block.row_at(half));
}

// f(half, j, row, column) for each pair of the thread's numbers.
template <class B, class F> __device__ inline void each_pair(const B& block, F f) {
    each_row(block, [&](int half, unsigned row) {
#pragma unroll
        for (int j = 0; j < 4; j++) f(half, j, row, block.column_at(j));
    });
}

// Reads the thread's numbers of a matrix [m, n]; those that are not there are zero.
template <class B> __device__ inline void read_block(OfBlock& x, const B& block, const bf16* from, unsigned m, unsigned n) {
    each_pair(block, [&](int half, int j, unsigned row, unsigned column) {
        const bool is_there = from != nullptr && row < m && column < n;
        x[half][j] = is_there ? load_pair(from + row * n + column) : float2{0.0f, 0.0f};
    });
}

template <class B> __device__ inline void write_block(bf16* to, const B& block, const OfBlock& x, unsigned m, unsigned n) {
    each_pair(block, [&](int half, int j, unsigned row, unsigned column) {
        if (row < m && column < n) store_pair(to + row * n + column, x[half][j]);
    });
}

// Where the mask of the thread's rows begins.
template <class B>
__device__ inline void read_bases(unsigned (&bases)[2], const B& block, const Dropout& dropout, const unsigned* padded, unsigned m, unsigned n) {
    each_row(block, [&](int half, unsigned row) { bases[half] = dropout.threshold > 0 && row < m ? padded[row] * n : 0; });
}

// Multiplies the thread's numbers by its part of the mask.
template <class B> __device__ inline void drop(OfBlock& x, const B& block, const Dropout& dropout, const unsigned (&bases)[2]) {
    if (dropout.threshold == 0) return;
    each_row(block, [&](int half, unsigned) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const unsigned at = bases[half] + block.column_at(j);
            x[half][j].x *= keep(dropout, at);
            x[half][j].y *= keep(dropout, at + 1);
        }
    });
}

// Reads the thread's columns of a vector.
template <class B> __device__ inline void read_columns(float2 (&x)[4], const B& block, const float* from, unsigned n) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const bool is_there = from != nullptr && block.column_at(j) < n;
        x[j] = is_there ? load_pair(from + block.column_at(j)) : float2{0.0f, 0.0f};
    }
}

// Parts of COUNT sums over rows.
constexpr unsigned WARPS_ACROSS = WIDEST_WITH_NORM / 32;
template <int COUNT> struct PartsOfRows {
    float of_warp[WARPS_ACROSS][ROWS_WITH_NORM][COUNT];
};

// Turns each thread's part of sums over rows into the whole sums. `parts` is shared memory that nobody has used before.
template <class B, int COUNT>
__device__ inline void sum_rows(PartsOfRows<COUNT>& parts, const B& block, float (&sums)[2][COUNT]) {
    const unsigned first = block.first_row - block.row;
    each_row(block, [&](int half, unsigned row) {
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            float& sum = sums[half][k];
            // A row of a warp lies in four neighbouring lanes.
            sum += shuffle_xor(sum, 1);
            sum += shuffle_xor(sum, 2);
            if (threadIdx.x % 4 == 0) parts.of_warp[block.column / 32][row - first][k] = sum;
        }
    });
    __syncthreads();
    each_row(block, [&](int half, unsigned row) {
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            float sum = 0;
#pragma unroll
            for (unsigned warp = 0; warp < WARPS_ACROSS; warp++) sum += parts.of_warp[warp][row - first][k];
            sums[half][k] = sum;
        }
    });
}

// s = x + dropout(a·bᵀ + bias), y = norm(s), and the statistics: `p.c` is s, `p.bias` in float32, and n is D. Without y there is
// no norm.
KERNEL_OF(PRODUCT_THREADS)
multiply_add_norm(SmallProduct p, bf16* y, float* statistics, const bf16* x, Norm norm, Dropout dropout, const unsigned* padded) {
    __shared__ PartsOfRows<1> of_sums, of_squares;
    const unsigned m = p.m, n = p.n;
    Block<ROWS_WITH_NORM, WIDEST_WITH_NORM, true, true> block(p, blockIdx.x);
    OfBlock v, residual;
    float2 bias[4], gamma[4], beta[4];
    unsigned bases[2];
    // Between the two, so that all of it is on its way at the same time.
    block.begin(p);
    read_block(residual, block, x, m, n);
    read_columns(bias, block, static_cast<const float*>(p.bias), n);
    read_columns(gamma, block, y != nullptr ? norm.gamma : nullptr, n);
    read_columns(beta, block, y != nullptr ? norm.beta : nullptr, n);
    read_bases(bases, block, dropout, padded, m, n);
    block.multiply();
    block.join();
    each_pair(block, [&](int half, int j, unsigned, unsigned) {
        v[half][j] = {block.acc[j][2 * half] + bias[j].x, block.acc[j][2 * half + 1] + bias[j].y};
    });
    drop(v, block, dropout, bases);
    float sums[2][1] = {}, squares[2][1] = {};
    each_pair(block, [&](int half, int j, unsigned, unsigned column) {
        float2& at = v[half][j];
        // Rounded as it is stored, so that backward sees the same.
        at.x = rounded<bf16>(residual[half][j].x + at.x);
        at.y = rounded<bf16>(residual[half][j].y + at.y);
        if (column < n) sums[half][0] += at.x + at.y;
    });
    write_block(static_cast<bf16*>(p.c), block, v, m, n);
    if (y == nullptr) return;

    sum_rows(of_sums, block, sums);
    // A division takes as long as ten multiplications.
    const float share = 1.0f / n;
    each_pair(block, [&](int half, int j, unsigned, unsigned column) {
        const float mean = sums[half][0] * share;
        float2& at = v[half][j];
        at.x -= mean, at.y -= mean;
        if (column < n) squares[half][0] += at.x * at.x + at.y * at.y;
    });
    sum_rows(of_squares, block, squares);
    each_row(block, [&](int half, unsigned row) {
        const float factor = norm.factor(squares[half][0], n);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float2& at = v[half][j];
            at.x = at.x * factor * gamma[j].x + beta[j].x;
            at.y = at.y * factor * gamma[j].y + beta[j].y;
        }
        if (block.column_at(0) == 0 && row < m) {
            store_pair(statistics + 2 * row, float2{sums[half][0] * share, factor});
        }
    });
    write_block(y, block, v, m, n);
}
LAUNCHABLE(multiply_add_norm)

// Back over such a joint, from dy = before + a·b: ds = norm'(dy) + addend, dh = mask·ds, and the column sums [dγ, dβ, dbias] of
// every block, 3·D wide. `p.c` is ds, and `p.bias` what is there before the product, if anything; n is D. Without dh, h's gradient
// is ds. ds may be `before` or `addend`.
KERNEL_OF(PRODUCT_THREADS)
multiply_norm_backward(SmallProduct p, bf16* dh, float* partial, const bf16* addend, const bf16* s, const float* statistics,
                       Norm norm, Dropout dropout, const unsigned* padded) {
    __shared__ PartsOfRows<2> of_sums;
    const unsigned m = p.m, n = p.n;
    Block<ROWS_WITH_NORM, WIDEST_WITH_NORM, true, false> block(p, blockIdx.x);
    OfBlock t, z, out;
    float2 gamma[4], d_gamma[4] = {}, d_beta[4] = {}, d_bias[4] = {};
    // Mean and factor of the thread's rows.
    float2 of_rows[2];
    unsigned bases[2];
    // Between the two, so that all of it is on its way at the same time.
    block.begin(p);
    read_block(t, block, static_cast<const bf16*>(p.bias), m, n);
    read_block(z, block, s, m, n);
    read_block(out, block, addend, m, n);
    read_columns(gamma, block, norm.gamma, n);
    read_bases(bases, block, dropout, padded, m, n);
    // Of rows and columns that are not there, all of it is zero.
    each_row(block, [&](int half, unsigned row) {
        of_rows[half] = row < m ? load_pair(statistics + 2 * row) : float2{0.0f, 0.0f};
    });
    block.multiply();
    block.join();
    float sums[2][2] = {};
    each_row(block, [&](int half, unsigned) {
        const float2 of_row = of_rows[half];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 g = {t[half][j].x + block.acc[j][2 * half], t[half][j].y + block.acc[j][2 * half + 1]};
            float2& normal = z[half][j];
            normal.x = (normal.x - of_row.x) * of_row.y, normal.y = (normal.y - of_row.x) * of_row.y;
            d_beta[j].x += g.x, d_beta[j].y += g.y;
            d_gamma[j].x += g.x * normal.x, d_gamma[j].y += g.y * normal.y;
            const float2 product = {g.x * gamma[j].x, g.y * gamma[j].y};
            t[half][j] = product;
            sums[half][0] += product.x + product.y;
            sums[half][1] += product.x * normal.x + product.y * normal.y;
        }
    });
    sum_rows(of_sums, block, sums);
    const float share = 1.0f / n;
    each_row(block, [&](int half, unsigned) {
        const float factor = of_rows[half].y, mean_t = sums[half][0] * share;
        const float mean_tz = sums[half][1] * (norm.kind == 0 ? share : 1.0f / norm.divisor(factor, n));
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 normal = z[half][j], product = t[half][j];
            out[half][j].x += factor * (product.x - mean_t - normal.x * mean_tz);
            out[half][j].y += factor * (product.y - mean_t - normal.y * mean_tz);
        }
    });
    write_block(static_cast<bf16*>(p.c), block, out, m, n);
    drop(out, block, dropout, bases);
    if (dh != nullptr) write_block(dh, block, out, m, n);
    each_pair(block, [&](int half, int j, unsigned, unsigned) {
        d_bias[j].x += out[half][j].x, d_bias[j].y += out[half][j].y;
    });
    // Of the lower rows of the block, then of all.
    __shared__ float2 of_lower[3][WIDEST_WITH_NORM / 2];
    float2* const all[3] = {d_gamma, d_beta, d_bias};
    const auto each_sum = [&](const auto& use) {
#pragma unroll
        for (int k = 0; k < 3; k++) {
#pragma unroll
            for (int j = 0; j < 4; j++) use(k, all[k][j], block.column_at(j));
        }
    };
    each_sum([&](int k, float2& sum, unsigned column) {
        // A column of a warp lies in every fourth lane.
#pragma unroll
        for (unsigned lanes = 4; lanes < WARP; lanes *= 2) {
            sum.x += shuffle_xor(sum.x, lanes);
            sum.y += shuffle_xor(sum.y, lanes);
        }
        if (block.row > 0 && threadIdx.x % WARP < 4) of_lower[k][column / 2] = sum;
    });
    __syncthreads();
    if (block.row > 0 || threadIdx.x % WARP >= 4) return;
    each_sum([&](int k, float2& sum, unsigned column) {
        const float2 lower = of_lower[k][column / 2];
        sum.x += lower.x, sum.y += lower.y;
        if (column < n) store_pair(partial + (size_t(blockIdx.x) * 3 + k) * n + column, sum);
    });
}
LAUNCHABLE(multiply_norm_backward)
