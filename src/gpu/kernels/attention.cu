// The core of attention, for every width and type: src/ops/attention.rs. One warp a query, or a key; the [T, S] weights are
// never stored, only log Σ e^x of every query. attention_tiles.cu is the fast form for bf16.
//
// With scores x = q·k/√K, weights p = softmax(x) and dropout's mask m, backward is
//   δ = Σ dout·out,  dv = Σ_t p·m·dout,  dx = p·(m·(dout·v) − δ)/√K,  dq = Σ_s dx·k,  dk = Σ_t dx·q.
#include "attention.cuh"

// Numbers of a head that a lane holds, at most: heads are up to 512 wide.
constexpr int PARTS = 16;
constexpr unsigned ATTENTION_WARPS = 4;

template <class T> __device__ inline float dot(const float* a, const T* b, unsigned n) {
    float sum = 0;
    for (unsigned i = 0; i < n; i++) sum += a[i] * to_float(b[i]);
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

template <class T>
__device__ void attend(T* out, float* log_sums, const T* q, const T* k, const T* v, AttentionShape shape) {
    DYNAMIC_SHARED(float, shared);
    const Place place(shape);
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, query = blockIdx.x * ATTENTION_WARPS + warp;
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
            x = shape.scale * dot(mine, k + size_t(place.k_first + key) * shape.k_stride + place.head * shape.d_k, shape.d_k);
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
template <class T>
__device__ void attend_backward_queries(T* dq, float* deltas, const float* log_sums, const T* dout, const T* out, const T* q,
                                        const T* k, const T* v, AttentionShape shape) {
    DYNAMIC_SHARED(float, shared);
    const Place place(shape);
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, query = blockIdx.x * ATTENTION_WARPS + warp;
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
            const float p = expf(shape.scale * dot(mine, k + row + place.head * shape.d_k, shape.d_k) - log_sum);
            float dp = dot(d_mine, v + row + place.head * shape.d_v, shape.d_v);
            if (shape.dropout.threshold > 0) dp *= keep(shape.dropout, place.mask_index(shape, query, key));
            dx = p * (dp - delta);
        }
        add_rows(acc, dx, k + size_t(place.k_first + first) * shape.k_stride + place.head * shape.d_k, shape.k_stride, count, shape.d_k);
    }
    put(dq + q_at, acc, shape.scale, shape.d_k);
    if (lane == 0) deltas[place.statistics(shape, query)] = delta;
}

// dk and dv.
template <class T>
__device__ void attend_backward_keys(T* dk, T* dv, const float* deltas, const float* log_sums, const T* dout, const T* q,
                                     const T* k, const T* v, AttentionShape shape) {
    DYNAMIC_SHARED(float, shared);
    const Place place(shape);
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, key = blockIdx.x * ATTENTION_WARPS + warp;
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
            const float p = expf(shape.scale * dot(mine, q + q_row, shape.d_k) - log_sums[at]);
            float dp = dot(v_mine, dout + out_row, shape.d_v);
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

#define DEFINE(T, name)                                                                                                 \
    KERNEL attend_##name(T* out, float* log_sums, const T* q, const T* k, const T* v, AttentionShape shape) {           \
        attend<T>(out, log_sums, q, k, v, shape);                                                                       \
    }                                                                                                                   \
    LAUNCHABLE(attend_##name)                                                                                           \
    KERNEL attend_backward_queries_##name(T* dq, float* deltas, const float* log_sums, const T* dout, const T* out,     \
                                          const T* q, const T* k, const T* v, AttentionShape shape) {                   \
        attend_backward_queries<T>(dq, deltas, log_sums, dout, out, q, k, v, shape);                                    \
    }                                                                                                                   \
    LAUNCHABLE(attend_backward_queries_##name)                                                                          \
    KERNEL attend_backward_keys_##name(T* dk, T* dv, const float* deltas, const float* log_sums, const T* dout,         \
                                       const T* q, const T* k, const T* v, AttentionShape shape) {                      \
        attend_backward_keys<T>(dk, dv, deltas, log_sums, dout, q, k, v, shape);                                        \
    }                                                                                                                   \
    LAUNCHABLE(attend_backward_keys_##name)
FOR_NUMBERS(DEFINE)
#undef DEFINE
