// The core of attention, for every width and type: src/ops/attention.rs. One warp a query, or a key; the [T, S] weights are
// never stored, only log Σ e^x of every query. attention_tiles.cu is the fast form for bf16.
//
// With scores x = q·k/√K, weights p = softmax(x) and dropout's mask m, backward is
//   δ = Σ dout·out,  dv = Σ_t p·m·dout,  dx = p·(m·(dout·v) − δ)/√K,  dq = Σ_s dx·k,  dk = Σ_t dx·q.
#include "attention.cuh"

// Each kernel is made for heads of at most 32·PARTS numbers, of which a lane holds PARTS.
constexpr unsigned ATTENTION_WARPS = 4;

template <int V, class T> __device__ inline float dot(const float* a, const T* b, unsigned n) {
    float sum = 0;
    for (unsigned i = 0; i < n; i += V) {
        float x[V], y[V];
        load<V>(a + i, x);
        load<V>(b + i, y);
#pragma unroll
        for (int j = 0; j < V; j++) sum += x[j] * y[j];
    }
    return sum;
}

// acc[c] += Σ_j weight of lane j · row(j)[lane + 32c]. Four rows are on their way at a time.
template <class T, int PARTS, class Row>
__device__ inline void add_rows(float (&acc)[PARTS], float weight, Row row, unsigned count, unsigned d) {
    constexpr unsigned AHEAD = 4;
    const unsigned lane = threadIdx.x % WARP;
    for (unsigned j = 0; j < count; j += AHEAD) {
        T x[AHEAD][PARTS];
#pragma unroll
        for (unsigned a = 0; a < AHEAD; a++) {
            // Beyond the last row it is the last one again, for nothing.
            const T* from = row(min(j + a, count - 1));
#pragma unroll
            for (int c = 0; c < PARTS; c++) {
                if (lane + WARP * c < d) x[a][c] = from[lane + WARP * c];
            }
        }
#pragma unroll
        for (unsigned a = 0; a < AHEAD; a++) {
            if (j + a >= count) break;
            const float w = shuffle(weight, j + a);
#pragma unroll
            for (int c = 0; c < PARTS; c++) {
                if (lane + WARP * c < d) acc[c] += w * to_float(x[a][c]);
            }
        }
    }
}

// Rows that lie `stride` apart.
template <class T> struct Apart {
    const T* from;
    size_t stride;
    __device__ const T* operator()(unsigned j) const { return from + j * stride; }
};

template <class T, int PARTS> __device__ inline void put(T* to, const float (&acc)[PARTS], float factor, unsigned d) {
    const unsigned lane = threadIdx.x % WARP;
#pragma unroll
    for (int c = 0; c < PARTS; c++) {
        if (lane + WARP * c < d) to[lane + WARP * c] = from_float<T>(acc[c] * factor);
    }
}

template <class T> __device__ inline void fetch(float* to, const T* from, unsigned d) {
    for (unsigned i = threadIdx.x % WARP; i < d; i += WARP) to[i] = to_float(from[i]);
}

template <class T, int V, int PARTS>
__device__ void attend(T* out, float* log_sums, const T* q, const T* k, const T* v, AttentionShape shape) {
    DYNAMIC_SHARED(float, shared);
    const Place place(shape);
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, query = blockIdx.z * ATTENTION_WARPS + warp;
    if (query >= place.queries) return;
    const unsigned visible = place.visible(shape, query);
    float* mine = shared + warp * shape.d_k;
    fetch(mine, q + size_t(place.q_first + query) * shape.q_stride + place.head * shape.d_k, shape.d_k);
    sync_warp();
    float acc[PARTS] = {}, largest = -INFINITY, total = 0;
    for (unsigned first = 0; first < visible; first += WARP) {
        const unsigned key = first + lane, count = min(WARP, visible - first);
        float x = -INFINITY;
        if (key < visible) {
            x = shape.scale * dot<V>(mine, k + size_t(place.k_first + key) * shape.k_stride + place.head * shape.d_k, shape.d_k);
        }
        const float most = fmaxf(largest, warp_max(x)), shrink = expf(largest - most);
        float p = key < visible ? expf(x - most) : 0.0f;
        total = total * shrink + warp_sum(p);
        largest = most;
        if (shape.dropout.threshold > 0) p *= keep(shape.dropout, place.mask_index(shape, query, key));
#pragma unroll
        for (int c = 0; c < PARTS; c++) acc[c] *= shrink;
        const Apart<T> values = {v + size_t(place.k_first + first) * shape.k_stride + place.head * shape.d_v, shape.k_stride};
        add_rows<T>(acc, p, values, count, shape.d_v);
    }
    // A query that sees nothing gets zeros.
    put(out + size_t(place.q_first + query) * shape.out_stride + place.head * shape.d_v, acc, visible > 0 ? 1.0f / total : 0.0f, shape.d_v);
    if (lane == 0) log_sums[place.statistics(shape, query)] = visible > 0 ? largest + logf(total) : 0.0f;
}

// dq, and δ of every query.
template <class T, int V, int PARTS>
__device__ void attend_backward_queries(T* dq, float* deltas, const float* log_sums, const T* dout, const T* out, const T* q,
                                        const T* k, const T* v, AttentionShape shape) {
    DYNAMIC_SHARED(float, shared);
    const Place place(shape);
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, query = blockIdx.z * ATTENTION_WARPS + warp;
    if (query >= place.queries) return;
    const unsigned visible = place.visible(shape, query);
    const size_t q_at = size_t(place.q_first + query) * shape.q_stride + place.head * shape.d_k;
    const size_t out_at = size_t(place.q_first + query) * shape.out_stride + place.head * shape.d_v;
    float *mine = shared + warp * (shape.d_k + shape.d_v), *d_mine = mine + shape.d_k;
    fetch(mine, q + q_at, shape.d_k);
    fetch(d_mine, dout + out_at, shape.d_v);
    float delta = 0;
    for (unsigned i = lane; i < shape.d_v; i += WARP) delta += to_float(dout[out_at + i]) * to_float(out[out_at + i]);
    delta = warp_sum(delta);
    sync_warp();
    const float log_sum = log_sums[place.statistics(shape, query)];
    float acc[PARTS] = {};
    for (unsigned first = 0; first < visible; first += WARP) {
        const unsigned key = first + lane, count = min(WARP, visible - first);
        float dx = 0;
        if (key < visible) {
            const size_t row = size_t(place.k_first + key) * shape.k_stride;
            const float p = expf(shape.scale * dot<V>(mine, k + row + place.head * shape.d_k, shape.d_k) - log_sum);
            float dp = dot<V>(d_mine, v + row + place.head * shape.d_v, shape.d_v);
            if (shape.dropout.threshold > 0) dp *= keep(shape.dropout, place.mask_index(shape, query, key));
            dx = p * (dp - delta);
        }
        const Apart<T> keys = {k + size_t(place.k_first + first) * shape.k_stride + place.head * shape.d_k, shape.k_stride};
        add_rows<T>(acc, dx, keys, count, shape.d_k);
    }
    put(dq + q_at, acc, shape.scale, shape.d_k);
    if (lane == 0) deltas[place.statistics(shape, query)] = delta;
}

// dk and dv.
template <class T, int V, int PARTS>
__device__ void attend_backward_keys(T* dk, T* dv, const float* deltas, const float* log_sums, const T* dout, const T* q,
                                     const T* k, const T* v, AttentionShape shape) {
    DYNAMIC_SHARED(float, shared);
    const Place place(shape);
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, key = blockIdx.z * ATTENTION_WARPS + warp;
    if (key >= place.keys) return;
    const size_t row = size_t(place.k_first + key) * shape.k_stride;
    const size_t k_at = row + place.head * shape.d_k, v_at = row + place.head * shape.d_v;
    float *mine = shared + warp * (shape.d_k + shape.d_v), *v_mine = mine + shape.d_k;
    fetch(mine, k + k_at, shape.d_k);
    fetch(v_mine, v + v_at, shape.d_v);
    sync_warp();
    float acc_k[PARTS] = {}, acc_v[PARTS] = {};
    for (unsigned first = shape.causal ? key : 0; first < place.queries; first += WARP) {
        const unsigned query = first + lane, count = min(WARP, place.queries - first);
        float dx = 0, dropped = 0;
        if (query < place.queries) {
            const size_t q_row = size_t(place.q_first + query) * shape.q_stride + place.head * shape.d_k;
            const size_t out_row = size_t(place.q_first + query) * shape.out_stride + place.head * shape.d_v;
            const size_t at = place.statistics(shape, query);
            const float p = expf(shape.scale * dot<V>(mine, q + q_row, shape.d_k) - log_sums[at]);
            float dp = dot<V>(v_mine, dout + out_row, shape.d_v);
            dropped = p;
            if (shape.dropout.threshold > 0) {
                const float factor = keep(shape.dropout, place.mask_index(shape, query, key));
                dropped *= factor;
                dp *= factor;
            }
            dx = p * (dp - deltas[at]);
        }
        const size_t row_at = place.q_first + first;
        const Apart<T> queries = {q + row_at * shape.q_stride + place.head * shape.d_k, shape.q_stride};
        const Apart<T> gradients = {dout + row_at * shape.out_stride + place.head * shape.d_v, shape.out_stride};
        add_rows<T>(acc_k, dx, queries, count, shape.d_k);
        add_rows<T>(acc_v, dropped, gradients, count, shape.d_v);
    }
    put(dk + k_at, acc_k, shape.scale, shape.d_k);
    put(dv + v_at, acc_v, 1.0f, shape.d_v);
}

// One new position of every row: a row's query over the keys and values of its hypothesis, each of which lies where the step
// that made it left it. `steps[t·layers + layer]` is the address of the packed queries, keys and values of step t, and
// `ancestors[row·capacity + t]` the row of that step that the hypothesis went through. One warp a row and head.
struct Past {
    const unsigned long long* steps;
    const unsigned* ancestors;
    unsigned layer, layers, capacity, positions, rows, stride, heads, d_k, d_v;
    float scale;
};

template <class T, int V, int PARTS> __device__ void attend_past(T* out, const T* q, Past past) {
    DYNAMIC_SHARED(float, shared);
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const unsigned item = blockIdx.x * ATTENTION_WARPS + warp, row = item / past.heads, head = item % past.heads;
    if (row >= past.rows) return;
    const unsigned k_at = past.heads * past.d_k + head * past.d_k, v_at = 2 * past.heads * past.d_k + head * past.d_v;
    float* mine = shared + warp * past.d_k;
    fetch(mine, q + size_t(row) * past.stride + head * past.d_k, past.d_k);
    sync_warp();
    const auto kept = [&](unsigned t) {
        const T* rows = reinterpret_cast<const T*>(past.steps[t * past.layers + past.layer]);
        return rows + size_t(past.ancestors[size_t(row) * past.capacity + t]) * past.stride;
    };
    float acc[PARTS] = {}, largest = -INFINITY, total = 0;
    for (unsigned first = 0; first < past.positions; first += WARP) {
        const unsigned t = first + lane, count = min(WARP, past.positions - first);
        const float x = t < past.positions ? past.scale * dot<V>(mine, kept(t) + k_at, past.d_k) : -INFINITY;
        const float most = fmaxf(largest, warp_max(x)), shrink = expf(largest - most);
        const float p = expf(x - most);
        total = total * shrink + warp_sum(p);
        largest = most;
#pragma unroll
        for (int c = 0; c < PARTS; c++) acc[c] *= shrink;
        add_rows<T>(acc, p, [&](unsigned j) { return kept(first + j) + v_at; }, count, past.d_v);
    }
    put(out + size_t(row) * past.heads * past.d_v + head * past.d_v, acc, 1.0f / total, past.d_v);
}

#define DEFINE_PARTS(T, V, name, PARTS)                                                                                 \
    KERNEL attend_##name##_##PARTS(T* out, float* log_sums, const T* q, const T* k, const T* v, AttentionShape shape) { \
        attend<T, V, PARTS>(out, log_sums, q, k, v, shape);                                                             \
    }                                                                                                                   \
    LAUNCHABLE(attend_##name##_##PARTS)                                                                                 \
    KERNEL attend_backward_queries_##name##_##PARTS(T* dq, float* deltas, const float* log_sums, const T* dout,         \
                                                    const T* out, const T* q, const T* k, const T* v,                   \
                                                    AttentionShape shape) {                                             \
        attend_backward_queries<T, V, PARTS>(dq, deltas, log_sums, dout, out, q, k, v, shape);                          \
    }                                                                                                                   \
    LAUNCHABLE(attend_backward_queries_##name##_##PARTS)                                                                \
    KERNEL attend_backward_keys_##name##_##PARTS(T* dk, T* dv, const float* deltas, const float* log_sums,              \
                                                 const T* dout, const T* q, const T* k, const T* v,                     \
                                                 AttentionShape shape) {                                                \
        attend_backward_keys<T, V, PARTS>(dk, dv, deltas, log_sums, dout, q, k, v, shape);                              \
    }                                                                                                                   \
    LAUNCHABLE(attend_backward_keys_##name##_##PARTS)                                                                   \
    KERNEL attend_past_##name##_##PARTS(T* out, const T* q, Past past) { attend_past<T, V, PARTS>(out, q, past); }      \
    LAUNCHABLE(attend_past_##name##_##PARTS)
// `PARTS` in src/gpu/launch/attention.rs.
#define DEFINE(T, V, name) DEFINE_PARTS(T, V, name, 2) DEFINE_PARTS(T, V, name, 4) DEFINE_PARTS(T, V, name, 16)
FOR_NUMBERS_AND_WIDTHS(DEFINE)
#undef DEFINE
#undef DEFINE_PARTS
