// The backward pass of attention in bf16 on tensor cores, of sentences that fit into shared memory: attention.cu says what is
// computed. One block per sentence and head computes the weights once, where attention_tiles.cu, for longer sentences, computes
// them for the queries and again for the keys.
//
// All of them are in shared memory. A warp owns 16 keys: it adds up their dk and dv over all queries, and leaves the gradients of
// the scores in shared memory. Then it owns 16 queries, and adds up their dq over all keys.
#include "attention_tiles.cuh"

template <int D>
__device__ void attend_whole_backward(bf16* dq, bf16* dk, bf16* dv, const float* log_sums, const bf16* dout, const bf16* out,
                                      const bf16* q, const bf16* k, const bf16* v, const AttentionShape& shape) {
    DYNAMIC_SHARED(bf16, shared);
    const Place place(shape);
    const Matrices at(shape, place);
    // Room is for the longest sentence.
    const unsigned room = round_up(max(shape.queries, shape.keys), 16), score_stride = max(room, unsigned(D)) + 8;
    const Tile<D> queries = {shared}, gradients = queries.after(room), keys = gradients.after(room);
    bf16* const scores = keys.after(room).at;
    // Their place is the scores' later.
    const Tile<D> values = {scores};
    // Queries beyond the last get weights of zero.
    float* const log_sums_of = reinterpret_cast<float*>(scores + room * score_stride);
    float* const deltas_of = log_sums_of + room;

    const unsigned count = round_up(place.queries, 16), count_of_keys = round_up(place.keys, 16);
    fetch(gradients, dout + at.out, shape.out_stride, 0, place.queries, count);
    fetch(values, v + at.v, shape.k_stride, 0, place.keys, count_of_keys);
    fetch(keys, k + at.k, shape.k_stride, 0, place.keys, count_of_keys);
    fetch(queries, q + at.q, shape.q_stride, 0, place.queries, count);
    const unsigned lane = threadIdx.x % WARP, first = threadIdx.x / WARP * 16;
    // The warp's queries, a few rows in each step.
    constexpr unsigned PARTS_OF_ROW = D / 8, STEPS = 16 * PARTS_OF_ROW / WARP;
    const auto row_in_step = [&](unsigned step) { return first + (step * WARP + lane) / PARTS_OF_ROW; };
    const unsigned column = lane % PARTS_OF_ROW * 8;
    uint4 outputs[STEPS];
#pragma unroll
    for (unsigned step = 0; step < STEPS; step++) {
        const unsigned query = row_in_step(step);
        outputs[step] = make_uint4(0, 0, 0, 0);
        if (query < place.queries) outputs[step] = *reinterpret_cast<const uint4*>(out + at.out + query * shape.out_stride + column);
    }
    copies_done();
    __syncthreads();
    if (first < place.queries) {
#pragma unroll
        for (unsigned step = 0; step < STEPS; step++) {
            const unsigned query = row_in_step(step);
            const uint4 a = outputs[step], b = *reinterpret_cast<const uint4*>(gradients.after(query).at + column);
            float delta = product_of_pairs(a.x, b.x) + product_of_pairs(a.y, b.y) + product_of_pairs(a.z, b.z) + product_of_pairs(a.w, b.w);
#pragma unroll
            for (unsigned lanes = PARTS_OF_ROW / 2; lanes > 0; lanes /= 2) delta += shuffle_xor(delta, lanes);
            if (lane % PARTS_OF_ROW != 0) continue;
            log_sums_of[query] = query < place.queries ? log_sums[place.statistics(shape, query)] * LOG2_E : INFINITY;
            deltas_of[query] = delta;
        }
    }
    unsigned left_values[D / 16][4];
    if (first < place.keys) load_left_rows(left_values, values.after(first));
    __syncthreads();

    float acc_k[D / 8][4] = {}, acc_v[D / 8][4] = {};
    if (first < place.keys) {
        const float scale = shape.scale * LOG2_E;
        // Under the causal mask earlier queries see none of the warp's keys.
        for (unsigned start = shape.causal ? first : 0; start < count; start += 16) {
            float x[2][4] = {}, dp[2][4] = {};
            {
                unsigned left[D / 16][4];
                load_left_rows(left, keys.after(first));
                with_tile(x, left, queries.after(start));
            }
            with_tile(dp, left_values, gradients.after(start));
            if (shape.by_distance != nullptr) add_by_distance<false>(x, place, shape, start, first);
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
    }
    __syncthreads();
    // From here on nobody reads the queries.
    const Tile<D> own = queries.after(first);
    if (first < place.keys) {
        put_rows(dk + at.k, shape.k_stride, first, place.keys, acc_k, shape.scale, shape.scale, own);
        put_rows(dv + at.v, shape.k_stride, first, place.keys, acc_v, 1.0f, 1.0f, own);
    }
    if (first >= place.queries) return;
    float acc[D / 8][4] = {};
    // Under the causal mask later keys are not seen by the warp's queries.
    const unsigned end = shape.causal ? min(count_of_keys, first + 16) : count_of_keys;
    for (unsigned start = 0; start < end; start += 16) {
        unsigned left[4];
        load_left_transposed(left, scores + start * score_stride + first, score_stride);
        add_rows(acc, left, keys.after(start));
    }
    put_rows(dq + at.q, shape.q_stride, first, place.queries, acc, shape.scale, shape.scale, own);
}

#define DEFINE(D)                                                                                                       \
    KERNEL_OF(HELD_ROWS / 16 * WARP, 2) attend_whole_backward_##D(                                                          \
        bf16* dq, bf16* dk, bf16* dv, const float* log_sums, const bf16* dout, const bf16* out, const bf16* q,          \
        const bf16* k, const bf16* v, AttentionShape shape) {                                                           \
        attend_whole_backward<D>(dq, dk, dv, log_sums, dout, out, q, k, v, shape);                                      \
    }                                                                                                                   \
    LAUNCHABLE(attend_whole_backward_##D)
DEFINE(16)
DEFINE(32)
DEFINE(64)
#undef DEFINE
