// The core of attention in bf16 on tensor cores, for heads of 16, 32, 64 or 128 numbers: attention.cu says what is computed.
//
// A warp owns 16 rows (of queries, or of keys in the last kernel) and keeps them in registers as the left operands of
// products; the rows of the other side are read through shared memory in tiles of TILE rows, as right operands. Tiles are
// stored row by row: products that sum over a head's width read pairs of neighbours (`pair_at`), those that sum over the
// tile's rows transpose it while loading. Sums are in float and in a fixed order, so results are the same in every run.
#include "attention.cuh"

constexpr int TILE = 32;
constexpr int TILE_WARPS = 4;

// A tile of a matrix of heads. A row is eight numbers longer than a head, so that the lanes of a warp read different banks.
template <int D> struct Tile {
    static constexpr int STRIDE = D + 8;
    bf16* at;
    __device__ unsigned pair_at(unsigned row, unsigned column) const {
        return *reinterpret_cast<const unsigned*>(at + row * STRIDE + column);
    }
};

// Fills two tiles with the rows `first` to `first + TILE - 1` of two matrices; rows beyond `rows` are zero. A thread has four
// reads on their way at a time, or two where it has no more registers.
template <int D>
__device__ inline void fill(const Tile<D>& a, const bf16* from_a, size_t stride_a, const Tile<D>& b, const bf16* from_b,
                            size_t stride_b, unsigned first, unsigned rows) {
    constexpr unsigned PARTS_OF_ROW = D / 8, PARTS = TILE * PARTS_OF_ROW, AT_ONCE = D > 64 ? 1 : 2;
    for (unsigned start = threadIdx.x; start < PARTS; start += AT_ONCE * blockDim.x) {
        uint4 numbers[AT_ONCE][2];
#pragma unroll
        for (unsigned j = 0; j < AT_ONCE; j++) {
            const unsigned i = start + j * blockDim.x, row = first + i / PARTS_OF_ROW, column = i % PARTS_OF_ROW * 8;
            numbers[j][0] = numbers[j][1] = make_uint4(0, 0, 0, 0);
            if (i < PARTS && row < rows) {
                numbers[j][0] = *reinterpret_cast<const uint4*>(from_a + row * stride_a + column);
                numbers[j][1] = *reinterpret_cast<const uint4*>(from_b + row * stride_b + column);
            }
        }
#pragma unroll
        for (unsigned j = 0; j < AT_ONCE; j++) {
            const unsigned i = start + j * blockDim.x, place = i / PARTS_OF_ROW * Tile<D>::STRIDE + i % PARTS_OF_ROW * 8;
            if (i < PARTS) {
                *reinterpret_cast<uint4*>(a.at + place) = numbers[j][0];
                *reinterpret_cast<uint4*>(b.at + place) = numbers[j][1];
            }
        }
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

// 16×TILE products with the rows of a tile: out[n][i] are the lane's elements of columns 8n to 8n + 7.
template <int D>
__device__ inline void with_tile(float (&out)[TILE / 8][4], const Rows<D>& rows, const Tile<D>& tile) {
    const unsigned lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) out[n][i] = 0;
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            const unsigned row = 8 * n + lane / 4, column = 16 * i + lane % 4 * 2;
            multiply_add(out[n], rows.part[i], tile.pair_at(row, column), tile.pair_at(row, column + 8));
        }
    }
}

// acc[16×D] += weights[16×TILE]·tile.
template <int D>
__device__ inline void add_tile(float (&acc)[D / 8][4], const float (&weights)[TILE / 8][4], const Tile<D>& tile) {
    const unsigned lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) {
        // A result of one product is spread over the lanes like a left operand of the next.
        const unsigned a[4] = {pair_of(weights[2 * k][0], weights[2 * k][1]), pair_of(weights[2 * k][2], weights[2 * k][3]),
                               pair_of(weights[2 * k + 1][0], weights[2 * k + 1][1]),
                               pair_of(weights[2 * k + 1][2], weights[2 * k + 1][3])};
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            unsigned b0, b1;
            load_transposed(b0, b1, tile.at + (16 * k + lane % 16) * Tile<D>::STRIDE + 8 * n);
            multiply_add(acc[n], a, b0, b1);
        }
    }
}

// The row of one of a lane's four elements among the warp's 16, and its column among a tile's.
__device__ inline unsigned row_of(int i) { return threadIdx.x % WARP / 4 + i / 2 * 8; }
__device__ inline unsigned column_of(int n, int i) { return 8 * n + threadIdx.x % 4 * 2 + i % 2; }

// Over the four lanes that together hold a row.
__device__ inline float row_sum(float x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}
__device__ inline float row_max(float x) {
    x = fmaxf(x, shuffle_xor(x, 1));
    return fmaxf(x, shuffle_xor(x, 2));
}

// Writes those of the warp's 16 rows that are below `rows`, each times its factor.
template <int D>
__device__ inline void put_rows(bf16* to, size_t stride, unsigned first, unsigned rows, const float (&acc)[D / 8][4],
                                float factor, float factor_below) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const unsigned row = first + row_of(2 * half);
        const float by = half ? factor_below : factor;
        if (row >= rows) continue;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            *reinterpret_cast<unsigned*>(to + row * stride + column_of(n, 0)) =
                pair_of(acc[n][2 * half] * by, acc[n][2 * half + 1] * by);
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

// How many keys the warp that owns the 16 queries from `first` on looks at: later tiles hold nothing for it.
__device__ inline unsigned seen_by_warp(const AttentionShape& shape, const Place& place, unsigned first) {
    return first < place.queries ? place.visible(shape, min(first + 16, place.queries) - 1) : 0;
}

template <int D>
__device__ void attend_tiles(bf16* out, float* log_sums, const bf16* q, const bf16* k, const bf16* v, AttentionShape shape) {
    __shared__ __align__(16) bf16 shared[2 * TILE * Tile<D>::STRIDE];
    const Place place(shape);
    const Matrices at(shape, place);
    const unsigned of_block = blockIdx.z * (blockDim.x / WARP) * 16;
    // The same for all threads of a block, since they fill tiles together.
    if (of_block >= place.queries) return;
    const unsigned first = of_block + threadIdx.x / WARP * 16;
    const Tile<D> keys = {shared}, values = {shared + TILE * Tile<D>::STRIDE};
    const Rows<D> queries(q + at.q, shape.q_stride, first, place.queries);
    const unsigned last = min(of_block + blockDim.x / WARP * 16, place.queries) - 1;
    const unsigned visible = place.visible(shape, last), seen = seen_by_warp(shape, place, first);
    // For powers of two in place of exponentials.
    const float scale = shape.scale * LOG2_E;
    float acc[D / 8][4] = {}, largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
    for (unsigned start = 0; start < visible; start += TILE) {
        __syncthreads();
        fill(keys, k + at.k, shape.k_stride, values, v + at.v, shape.k_stride, start, place.keys);
        __syncthreads();
        if (start >= seen) continue;
        float x[TILE / 8][4], most[2] = {largest[0], largest[1]};
        with_tile(x, queries, keys);
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const unsigned query = first + row_of(i), key = start + column_of(n, i);
                x[n][i] = key < place.visible(shape, query) ? x[n][i] * scale : -INFINITY;
                most[i / 2] = fmaxf(most[i / 2], x[n][i]);
            }
        }
        float shrink[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            most[half] = row_max(most[half]);
            // `most` is finite: every query sees a key of the first tile.
            shrink[half] = exp2_fast(largest[half] - most[half]);
            largest[half] = most[half];
            total[half] *= shrink[half];
        }
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float p = exp2_fast(x[n][i] - most[i / 2]);
                total[i / 2] += p;
                x[n][i] = p;
                if (shape.dropout.threshold > 0) {
                    x[n][i] *= keep(shape.dropout, place.mask_index(shape, first + row_of(i), start + column_of(n, i)));
                }
            }
        }
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) acc[n][i] *= shrink[i / 2];
        }
        add_tile(acc, x, values);
    }
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        total[half] = row_sum(total[half]);
        factor[half] = total[half] > 0 ? 1.0f / total[half] : 0.0f;
        const unsigned query = first + row_of(2 * half);
        if (threadIdx.x % 4 == 0 && query < place.queries) {
            log_sums[place.statistics(shape, query)] = total[half] > 0 ? largest[half] * LN_2 + logf(total[half]) : 0.0f;
        }
    }
    put_rows<D>(out + at.out, shape.out_stride, first, place.queries, acc, factor[0], factor[1]);
}

// dq, and δ of every query.
template <int D>
__device__ void attend_tiles_backward_queries(bf16* dq, float* deltas, const float* log_sums, const bf16* dout,
                                              const bf16* out, const bf16* q, const bf16* k, const bf16* v,
                                              AttentionShape shape) {
    __shared__ __align__(16) bf16 shared[2 * TILE * Tile<D>::STRIDE];
    const Place place(shape);
    const Matrices at(shape, place);
    const unsigned of_block = blockIdx.z * (blockDim.x / WARP) * 16;
    if (of_block >= place.queries) return;
    const unsigned first = of_block + threadIdx.x / WARP * 16;
    const Tile<D> keys = {shared}, values = {shared + TILE * Tile<D>::STRIDE};
    const Rows<D> queries(q + at.q, shape.q_stride, first, place.queries);
    const Rows<D> gradients(dout + at.out, shape.out_stride, first, place.queries);
    float delta[2] = {0, 0}, log_sum[2] = {0, 0};
    {
        const Rows<D> outputs(out + at.out, shape.out_stride, first, place.queries);
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                Pair a, b;
                a.bits = gradients.part[i][j], b.bits = outputs.part[i][j];
                delta[j % 2] += to_float(a.half[0]) * to_float(b.half[0]) + to_float(a.half[1]) * to_float(b.half[1]);
            }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        delta[half] = row_sum(delta[half]);
        const unsigned query = first + row_of(2 * half);
        if (query < place.queries) {
            log_sum[half] = log_sums[place.statistics(shape, query)] * LOG2_E;
            if (threadIdx.x % 4 == 0) deltas[place.statistics(shape, query)] = delta[half];
        }
    }
    const unsigned last = min(of_block + blockDim.x / WARP * 16, place.queries) - 1;
    const unsigned visible = place.visible(shape, last), seen = seen_by_warp(shape, place, first);
    const float scale = shape.scale * LOG2_E;
    float acc[D / 8][4] = {};
    for (unsigned start = 0; start < visible; start += TILE) {
        __syncthreads();
        fill(keys, k + at.k, shape.k_stride, values, v + at.v, shape.k_stride, start, place.keys);
        __syncthreads();
        if (start >= seen) continue;
        float x[TILE / 8][4], dp[TILE / 8][4];
        with_tile(x, queries, keys);
        with_tile(dp, gradients, values);
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const unsigned query = first + row_of(i), key = start + column_of(n, i);
                float g = dp[n][i];
                if (shape.dropout.threshold > 0) g *= keep(shape.dropout, place.mask_index(shape, query, key));
                const float p = exp2_fast(x[n][i] * scale - log_sum[i / 2]);
                x[n][i] = key < place.visible(shape, query) ? p * (g - delta[i / 2]) : 0.0f;
            }
        }
        add_tile(acc, x, keys);
    }
    put_rows<D>(dq + at.q, shape.q_stride, first, place.queries, acc, shape.scale, shape.scale);
}

// dk and dv: the rows of a warp are keys, the tiles hold queries and the gradients of outputs.
template <int D>
__device__ void attend_tiles_backward_keys(bf16* dk, bf16* dv, const float* deltas, const float* log_sums, const bf16* dout,
                                           const bf16* q, const bf16* k, const bf16* v, AttentionShape shape) {
    __shared__ __align__(16) bf16 shared[2 * TILE * Tile<D>::STRIDE];
    // Of the tile's queries. Queries beyond the last get weights of zero.
    __shared__ float log_sums_of[TILE], deltas_of[TILE];
    const Place place(shape);
    const Matrices at(shape, place);
    const unsigned of_block = blockIdx.z * (blockDim.x / WARP) * 16;
    if (of_block >= place.keys) return;
    const unsigned first = of_block + threadIdx.x / WARP * 16;
    const Tile<D> queries = {shared}, gradients = {shared + TILE * Tile<D>::STRIDE};
    const Rows<D> keys(k + at.k, shape.k_stride, first, place.keys);
    const Rows<D> values(v + at.v, shape.k_stride, first, place.keys);
    const float scale = shape.scale * LOG2_E;
    float acc_k[D / 8][4] = {}, acc_v[D / 8][4] = {};
    // Under the causal mask earlier queries see none of the block's keys.
    for (unsigned start = shape.causal ? of_block / TILE * TILE : 0; start < place.queries; start += TILE) {
        __syncthreads();
        fill(queries, q + at.q, shape.q_stride, gradients, dout + at.out, shape.out_stride, start, place.queries);
        if (threadIdx.x < TILE) {
            const unsigned query = start + threadIdx.x;
            const bool is_there = query < place.queries;
            log_sums_of[threadIdx.x] = is_there ? log_sums[place.statistics(shape, query)] * LOG2_E : INFINITY;
            deltas_of[threadIdx.x] = is_there ? deltas[place.statistics(shape, query)] : 0.0f;
        }
        __syncthreads();
        // The warp has no keys, or none that a query of this tile sees.
        if (first >= place.keys || (shape.causal && start + TILE <= first)) continue;
        float x[TILE / 8][4], dp[TILE / 8][4];
        with_tile(x, keys, queries);
        with_tile(dp, values, gradients);
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                // The results of rows beyond the last key are not written.
                const unsigned column = column_of(n, i), key = first + row_of(i), query = start + column;
                float p = exp2_fast(x[n][i] * scale - log_sums_of[column]), factor = 1;
                if (shape.causal != 0 && key > query) p = 0;
                if (shape.dropout.threshold > 0) factor = keep(shape.dropout, place.mask_index(shape, query, key));
                x[n][i] = p * (dp[n][i] * factor - deltas_of[column]);
                dp[n][i] = p * factor;
            }
        }
        add_tile(acc_k, x, queries);
        add_tile(acc_v, dp, gradients);
    }
    put_rows<D>(dk + at.k, shape.k_stride, first, place.keys, acc_k, shape.scale, shape.scale);
    put_rows<D>(dv + at.v, shape.k_stride, first, place.keys, acc_v, 1.0f, 1.0f);
}

#define DEFINE(D)                                                                                                       \
    KERNEL attend_tiles_##D(bf16* out, float* log_sums, const bf16* q, const bf16* k, const bf16* v,                    \
                            AttentionShape shape) {                                                                     \
        attend_tiles<D>(out, log_sums, q, k, v, shape);                                                                 \
    }                                                                                                                   \
    LAUNCHABLE(attend_tiles_##D)                                                                                        \
    KERNEL attend_tiles_backward_queries_##D(bf16* dq, float* deltas, const float* log_sums, const bf16* dout,          \
                                             const bf16* out, const bf16* q, const bf16* k, const bf16* v,              \
                                             AttentionShape shape) {                                                    \
        attend_tiles_backward_queries<D>(dq, deltas, log_sums, dout, out, q, k, v, shape);                              \
    }                                                                                                                   \
    LAUNCHABLE(attend_tiles_backward_queries_##D)                                                                       \
    KERNEL attend_tiles_backward_keys_##D(bf16* dk, bf16* dv, const float* deltas, const float* log_sums,               \
                                          const bf16* dout, const bf16* q, const bf16* k, const bf16* v,                \
                                          AttentionShape shape) {                                                       \
        attend_tiles_backward_keys<D>(dk, dv, deltas, log_sums, dout, q, k, v, shape);                                  \
    }                                                                                                                   \
    LAUNCHABLE(attend_tiles_backward_keys_##D)
DEFINE(16)
DEFINE(32)
DEFINE(64)
DEFINE(128)
#undef DEFINE
