// The core of attention in bf16 on tensor cores, for heads of 16, 32, 64 or 128 numbers: attention.cu says what is computed.
//
// A warp owns 16 rows (of queries, or of keys in the last kernel); the rows of the other side pass through shared memory. Sums
// are in float and in a fixed order, so results are the same in every run. attention_whole.cu has the backward pass of
// sentences that fit into shared memory.
#include "attention_tiles.cuh"

// Rows of the other side that a warp takes at a time.
constexpr int TILE = 32;

// How many keys the warp that owns the 16 queries from `first` on looks at: later tiles hold nothing for it.
__device__ inline unsigned seen_by_warp(const AttentionShape& shape, const Place& place, unsigned first) {
    return first < place.queries ? place.visible(shape, min(first + 16, place.queries) - 1) : 0;
}

template <int D>
__device__ void attend_tiles(bf16* out, float* log_sums, const bf16* q, const bf16* k, const bf16* v, AttentionShape shape) {
    DYNAMIC_SHARED(bf16, shared);
    const Place place(shape);
    const Matrices at(shape, place);
    const unsigned of_block = blockIdx.z * (blockDim.x / WARP) * 16;
    // The same for all threads of a block, since they fetch rows together.
    if (of_block >= place.queries) return;
    const unsigned first = of_block + threadIdx.x / WARP * 16, chunk = min(HELD_ROWS, round_up(shape.keys, TILE));
    const Tile<D> keys = {shared}, values = keys.after(chunk), queries = values.after(chunk);
    const unsigned last = min(of_block + blockDim.x / WARP * 16, place.queries) - 1;
    const unsigned visible = place.visible(shape, last), seen = seen_by_warp(shape, place, first);
    const auto fetch_from = [&](unsigned start) {
        const unsigned count = min(chunk, round_up(visible - start, TILE));
        fetch(keys, k + at.k, shape.k_stride, start, place.keys, count);
        fetch(values, v + at.v, shape.k_stride, start, place.keys, count);
    };
    fetch(queries, q + at.q, shape.q_stride, of_block, place.queries, blockDim.x / WARP * 16);
    fetch_from(0);
    // For powers of two in place of exponentials.
    const float scale = shape.scale * LOG2_E;
    float acc[D / 8][4] = {}, largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
    // Keys that all of the warp's queries see.
    const unsigned seen_by_all = place.visible(shape, first);
    for (unsigned begin = 0; begin < visible; begin += chunk) {
        if (begin > 0) {
            __syncthreads();
            fetch_from(begin);
        }
        copies_done();
        __syncthreads();
        for (unsigned start = begin; start < min(seen, begin + chunk); start += TILE) {
            float x[TILE / 8][4] = {}, most[2] = {largest[0], largest[1]};
            {
                unsigned left[D / 16][4];
                load_left_rows(left, queries.after(first - of_block));
                with_tile(x, left, keys.after(start - begin));
            }
            if (shape.by_distance != nullptr) add_by_distance(x, place, shape, first, start);
            if (start + TILE > seen_by_all) {
#pragma unroll
                for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        if (start + column_of(n, i) >= place.visible(shape, first + row_of(i))) x[n][i] = -INFINITY;
                    }
                }
            }
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) most[i / 2] = fmaxf(most[i / 2], x[n][i]);
            }
            float shrink[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                most[half] = row_max(most[half]);
                // `most` is finite: every query sees a key of the first tile.
                shrink[half] = exp2_fast((largest[half] - most[half]) * scale);
                largest[half] = most[half];
                most[half] *= scale;
                total[half] *= shrink[half];
            }
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float p = exp2_fast(x[n][i] * scale - most[i / 2]);
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
            add_tile(acc, x, values.after(start - begin));
        }
    }
    if (visible == 0) {
        // The results go through the queries' place, to which copies are still under way.
        copies_done();
        __syncthreads();
    }
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        total[half] = row_sum(total[half]);
        factor[half] = total[half] > 0 ? 1.0f / total[half] : 0.0f;
        const unsigned query = first + row_of(2 * half);
        if (threadIdx.x % 4 == 0 && query < place.queries) {
            log_sums[place.statistics(shape, query)] = total[half] > 0 ? largest[half] * shape.scale + logf(total[half]) : 0.0f;
        }
    }
    put_rows(out + at.out, shape.out_stride, first, place.queries, acc, factor[0], factor[1], queries.after(first - of_block));
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
                delta[j % 2] += product_of_pairs(gradients.part[i][j], outputs.part[i][j]);
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
        fetch(keys, k + at.k, shape.k_stride, start, place.keys, TILE);
        fetch(values, v + at.v, shape.k_stride, start, place.keys, TILE);
        copies_done();
        __syncthreads();
        if (start >= seen) continue;
        float x[TILE / 8][4] = {}, dp[TILE / 8][4] = {};
        with_tile(x, queries.part, keys);
        with_tile(dp, gradients.part, values);
        if (shape.by_distance != nullptr) add_by_distance(x, place, shape, first, start);
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
    __syncthreads();
    put_rows(dq + at.q, shape.q_stride, first, place.queries, acc, shape.scale, shape.scale, keys.after(threadIdx.x / WARP * 16));
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
        fetch(queries, q + at.q, shape.q_stride, start, place.queries, TILE);
        fetch(gradients, dout + at.out, shape.out_stride, start, place.queries, TILE);
        if (threadIdx.x < TILE) {
            const unsigned query = start + threadIdx.x;
            const bool is_there = query < place.queries;
            log_sums_of[threadIdx.x] = is_there ? log_sums[place.statistics(shape, query)] * LOG2_E : INFINITY;
            deltas_of[threadIdx.x] = is_there ? deltas[place.statistics(shape, query)] : 0.0f;
        }
        copies_done();
        __syncthreads();
        // The warp has no keys, or none that a query of this tile sees.
        if (first >= place.keys || (shape.causal && start + TILE <= first)) continue;
        float x[TILE / 8][4] = {}, dp[TILE / 8][4] = {};
        with_tile(x, keys.part, queries);
        with_tile(dp, values.part, gradients);
        if (shape.by_distance != nullptr) add_by_distance<false>(x, place, shape, start, first);
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
    __syncthreads();
    const Tile<D> own = queries.after(threadIdx.x / WARP * 16);
    put_rows(dk + at.k, shape.k_stride, first, place.keys, acc_k, shape.scale, shape.scale, own);
    put_rows(dv + at.v, shape.k_stride, first, place.keys, acc_v, 1.0f, 1.0f, own);
}

#define DEFINE(D)                                                                                                       \
    KERNEL_OF(HELD_ROWS / 16 * WARP, D > 64 ? 1 : 3) attend_tiles_##D(bf16* out, float* log_sums, const bf16* q, const bf16* k, const bf16* v,                    \
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
