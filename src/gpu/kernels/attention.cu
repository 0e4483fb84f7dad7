// The core of attention, for every width and type: src/ops/attention.rs. One warp a query, or a key; the [T, S] weights are
// never stored, only log Σ e^x of every query. attention_tiles.cu is the fast form for bf16.
//
// With scores x = q·k/√K, weights p = softmax(x) and dropout's mask m, backward is
//   δ = Σ dout·out,  dv = Σ_t p·m·dout,  dx = p·(m·(dout·v) − δ)/√K,  dq = Σ_s dx·k,  dk = Σ_t dx·q.
#include "attention.cuh"

// Numbers of a head that a lane holds, at most: heads are up to 512 wide.
constexpr int PARTS = 16;
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

// acc[c] += Σ_j weight of lane j · rows[j][lane + 32c].
template <class T>
__device__ inline void add_rows(float (&acc)[PARTS], float weight, const T* rows, size_t stride, unsigned count, unsigned d) {
    const unsigned lane = threadIdx.x % WARP;
    for (unsigned j = 0; j < count; j++) {
        const float w = shuffle(weight, j);
#pragma unroll
        for (int c = 0; c < PARTS; c++) {
            if (lane + WARP * c < d) acc[c] += w * to_float(rows[j * stride + lane + WARP * c]);
        }
    }
}

template <class T> __device__ inline void put(T* to, const float (&acc)[PARTS], float factor, unsigned d) {
    const unsigned lane = threadIdx.x % WARP;
#pragma unroll
    for (int c = 0; c < PARTS; c++) {
        if (lane + WARP * c < d) to[lane + WARP * c] = from_float<T>(acc[c] * factor);
    }
}

template <class T> __device__ inline void fetch(float* to, const T* from, unsigned d) {
    for (unsigned i = threadIdx.x % WARP; i < d; i += WARP) to[i] = to_float(from[i]);
}

template <class T, int V>
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
        add_rows(acc, p, v + size_t(place.k_first + first) * shape.k_stride + place.head * shape.d_v, shape.k_stride, count, shape.d_v);
    }
    // A query that sees nothing gets zeros.
    put(out + size_t(place.q_first + query) * shape.out_stride + place.head * shape.d_v, acc, visible > 0 ? 1.0f / total : 0.0f, shape.d_v);
    if (lane == 0) log_sums[place.statistics(shape, query)] = visible > 0 ? largest + logf(total) : 0.0f;
}

// dq, and δ of every query.
template <class T, int V>
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
        add_rows(acc, dx, k + size_t(place.k_first + first) * shape.k_stride + place.head * shape.d_k, shape.k_stride, count, shape.d_k);
    }
    put(dq + q_at, acc, shape.scale, shape.d_k);
    if (lane == 0) deltas[place.statistics(shape, query)] = delta;
}

// dk and dv.
template <class T, int V>
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
        add_rows(acc_k, dx, q + size_t(place.q_first + first) * shape.q_stride + place.head * shape.d_k, shape.q_stride, count, shape.d_k);
        add_rows(acc_v, dropped, dout + size_t(place.q_first + first) * shape.out_stride + place.head * shape.d_v, shape.out_stride, count, shape.d_v);
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

template <class T, int V> __device__ void attend_past(T* out, const T* q, Past past) {
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
        for (unsigned j = 0; j < count; j++) {
            const float weight = shuffle(p, j);
            const T* v = kept(first + j) + v_at;
#pragma unroll
            for (int c = 0; c < PARTS; c++) {
                if (lane + WARP * c < past.d_v) acc[c] += weight * to_float(v[lane + WARP * c]);
            }
        }
    }
    put(out + size_t(row) * past.heads * past.d_v + head * past.d_v, acc, 1.0f / total, past.d_v);
}

#define DEFINE(T, V, name)                                                                                              \
    KERNEL attend_##name(T* out, float* log_sums, const T* q, const T* k, const T* v, AttentionShape shape) {           \
        attend<T, V>(out, log_sums, q, k, v, shape);                                                                    \
    }                                                                                                                   \
    LAUNCHABLE(attend_##name)                                                                                           \
    KERNEL attend_backward_queries_##name(T* dq, float* deltas, const float* log_sums, const T* dout, const T* out,     \
                                          const T* q, const T* k, const T* v, AttentionShape shape) {                   \
        attend_backward_queries<T, V>(dq, deltas, log_sums, dout, out, q, k, v, shape);                                 \
    }                                                                                                                   \
    LAUNCHABLE(attend_backward_queries_##name)                                                                          \
    KERNEL attend_backward_keys_##name(T* dk, T* dv, const float* deltas, const float* log_sums, const T* dout,         \
                                       const T* q, const T* k, const T* v, AttentionShape shape) {                      \
        attend_backward_keys<T, V>(dk, dv, deltas, log_sums, dout, q, k, v, shape);                                     \
    }                                                                                                                   \
    LAUNCHABLE(attend_backward_keys_##name)                                                                             \
    KERNEL attend_past_##name(T* out, const T* q, Past past) { attend_past<T, V>(out, q, past); }                       \
    LAUNCHABLE(attend_past_##name)
FOR_NUMBERS_AND_WIDTHS(DEFINE)
#undef DEFINE
