// The backward pass of attention in bf16 on tensor cores, of sentences that fit into shared memory: attention.cu says what is
// computed. One block per sentence and head computes the weights once, where attention_tiles.cu, for longer sentences, computes
// them for the queries and again for the keys.
//
// Queries, gradients of outputs, and keys are in shared memory. A warp owns 16 keys: it adds up their dk and dv over all
// queries, and leaves the gradients of the scores in shared memory. Then it owns 16 queries, and adds up their dq over all keys.
#include "attention_tiles.cuh"

// The most rows of either side, and warps of a block: the same as in src/gpu/launch/attention.rs.
constexpr unsigned MOST_ROWS = 128, MOST_WARPS = MOST_ROWS / 16;

template <int D>
__device__ void attend_whole_backward(bf16* dq, bf16* dk, bf16* dv, const float* log_sums, const bf16* dout, const bf16* out,
                                      const bf16* q, const bf16* k, const bf16* v, const AttentionShape& shape) {
    DYNAMIC_SHARED(bf16, shared);
    const Place place(shape);
    const Matrices at(shape, place);
    // Room is for the longest sentences.
    const unsigned room = round_up(shape.queries, 16), room_of_keys = round_up(shape.keys, 16), score_stride = room + 8;
    const Tile<D> queries = {shared}, gradients = queries.after(room), keys = gradients.after(room);
    bf16* const scores = keys.after(room_of_keys).at;
    // Queries beyond the last get weights of zero.
    float* const log_sums_of = reinterpret_cast<float*>(scores + room_of_keys * score_stride);
    float* const deltas_of = log_sums_of + room;

    const unsigned count = round_up(place.queries, 16), count_of_keys = round_up(place.keys, 16);
    fetch(keys, k + at.k, shape.k_stride, 0, place.keys, count_of_keys);
    fetch(queries, q + at.q, shape.q_stride, 0, place.queries, count);
    fetch(gradients, dout + at.out, shape.out_stride, 0, place.queries, count);
    const unsigned first = threadIdx.x / WARP * 16;
    const Rows<D> values(v + at.v, shape.k_stride, first, place.keys);
    if (first < place.queries) {
        const Rows<D> a(dout + at.out, shape.out_stride, first, place.queries), b(out + at.out, shape.out_stride, first, place.queries);
        float delta[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) delta[j % 2] += product_of_pairs(a.part[i][j], b.part[i][j]);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            delta[half] = row_sum(delta[half]);
            const unsigned query = first + row_of(2 * half);
            if (threadIdx.x % 4 != 0) continue;
            const bool is_there = query < place.queries;
            log_sums_of[query] = is_there ? log_sums[place.statistics(shape, query)] * LOG2_E : INFINITY;
            deltas_of[query] = delta[half];
        }
    }
    copies_done();
    __syncthreads();

    if (first < place.keys) {
        const float scale = shape.scale * LOG2_E;
        float acc_k[D / 8][4] = {}, acc_v[D / 8][4] = {};
        // Under the causal mask earlier queries see none of the warp's keys.
        for (unsigned start = shape.causal ? first : 0; start < count; start += 16) {
            float x[2][4] = {}, dp[2][4] = {};
            {
                unsigned left[D / 16][4];
                load_left_rows(left, keys.after(first));
                with_tile(x, left, queries.after(start));
            }
            with_tile(dp, values.part, gradients.after(start));
#pragma unroll
            for (int n = 0; n < 2; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const unsigned key = first + row_of(i), query = start + column_of(n, i);
                    float p = exp2_fast(x[n][i] * scale - log_sums_of[query]), factor = 1;
                    if (key >= place.visible(shape, query)) p = 0;
                    if (shape.dropout.threshold > 0) factor = keep(shape.dropout, place.mask_index(shape, query, key));
                    x[n][i] = p * (dp[n][i] * factor - deltas_of[query]);
                    dp[n][i] = p * factor;
                }
            }
            unsigned of_scores[4], weights[4];
            as_left(of_scores, x[0], x[1]);
            as_left(weights, dp[0], dp[1]);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                bf16* const to = scores + (first + row_of(j % 2 * 2)) * score_stride + start + column_of(j / 2, 0);
                *reinterpret_cast<unsigned*>(to) = of_scores[j];
            }
            add_rows(acc_k, of_scores, queries.after(start));
            add_rows(acc_v, weights, gradients.after(start));
        }
        put_rows<D>(dk + at.k, shape.k_stride, first, place.keys, acc_k, shape.scale, shape.scale);
        put_rows<D>(dv + at.v, shape.k_stride, first, place.keys, acc_v, 1.0f, 1.0f);
    }
    __syncthreads();
    if (first >= place.queries) return;
    float acc[D / 8][4] = {};
    // Under the causal mask later keys are not seen by the warp's queries.
    const unsigned end = shape.causal ? min(count_of_keys, first + 16) : count_of_keys;
    for (unsigned start = 0; start < end; start += 16) {
        unsigned left[4];
        load_left_transposed(left, scores + start * score_stride + first, score_stride);
        add_rows(acc, left, keys.after(start));
    }
    put_rows<D>(dq + at.q, shape.q_stride, first, place.queries, acc, shape.scale, shape.scale);
}

#define DEFINE(D)                                                                                                       \
    KERNEL_OF(MOST_WARPS * WARP, 2) attend_whole_backward_##D(                                                          \
        bf16* dq, bf16* dk, bf16* dv, const float* log_sums, const bf16* dout, const bf16* out, const bf16* q,          \
        const bf16* k, const bf16* v, AttentionShape shape) {                                                           \
        attend_whole_backward<D>(dq, dk, dv, log_sums, dout, out, q, k, v, shape);                                      \
    }                                                                                                                   \
    LAUNCHABLE(attend_whole_backward_##D)
DEFINE(16)
DEFINE(32)
DEFINE(64)
#undef DEFINE
