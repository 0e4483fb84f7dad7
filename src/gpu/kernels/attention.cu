// The core of attention, for every width and type: src/ops/attention.rs. The [T, S] weights are never stored, only
// log Σ e^x of every query. attention_tiles.cu is the fast form for bf16.
//
// With scores x = q·k/√K, weights p = softmax(x) and dropout's mask m, backward is
//   δ = Σ dout·out,  dv = Σ_t p·m·dout,  dx = p·(m·(dout·v) − δ)/√K,  dq = Σ_s dx·k,  dk = Σ_t dx·q.
//
// A warp owns some rows (of queries, or in attend_backward_keys of keys), which lie in shared memory. The rows of the other
// side are read in tiles of 32 rows and CHUNK columns, as floats, which the warps of a block fill together. In products, a
// lane handles one row of the tile and all rows of the warp; in sums of weighted rows, the columns `lane`, `lane + 32`, ….
#include "attention.cuh"

// Each kernel is compiled for heads of at most 32·PARTS numbers, of which a lane holds PARTS.
constexpr unsigned ATTENTION_WARPS = 4;
constexpr unsigned CHUNK = 2 * WARP;
// Four more than CHUNK, so that lanes that read four numbers each from rows below each other read different banks.
constexpr unsigned PITCH = CHUNK + 4;
// Rows that a warp owns. `OWN` in src/gpu/launch/attention.rs.
template <int PARTS> constexpr int OWN = PARTS > 4 ? 2 : 4;

// The weight of one row of a tile for each row of a warp.
template <int ROWS> struct alignas(4 * ROWS) Weights {
    float of[ROWS];
};

// Fills a tile with the first `columns` of `rows` rows, and with zeros elsewhere. The whole block calls this.
template <int V, class T>
__device__ inline void fill(float* tile, const T* from, size_t stride, unsigned rows, unsigned columns) {
    for (unsigned i = threadIdx.x * V; i < WARP * CHUNK; i += blockDim.x * V) {
        const unsigned row = i / CHUNK, column = i % CHUNK;
        float x[V] = {};
        if (row < rows && column < columns) load<V>(from + row * stride + column, x);
        store<V>(tile + row * PITCH + column, x);
    }
}

// x[o] += row o of the warp · the lane's row of the tile. The whole block calls this.
template <int V, class T, int ROWS>
__device__ inline void add_products(float (&x)[ROWS], const float* mine, unsigned pitch, float* tile, const T* from,
                                    size_t stride, unsigned rows, unsigned d) {
    for (unsigned first = 0; first < d; first += CHUNK) {
        const unsigned columns = min(CHUNK, d - first);
        __syncthreads();
        fill<V>(tile, from + first, stride, rows, columns);
        __syncthreads();
        const float* theirs = tile + threadIdx.x % WARP * PITCH;
        for (unsigned i = 0; i < columns; i += 4) {
            const float4 b = *reinterpret_cast<const float4*>(theirs + i);
#pragma unroll
            for (int o = 0; o < ROWS; o++) {
                const float4 a = *reinterpret_cast<const float4*>(mine + o * pitch + first + i);
                x[o] += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
            }
        }
    }
}

// acc[o] += Σ weights[row].of[o] · row of the tile. The whole block calls this.
template <int V, class T, int ROWS, int PARTS>
__device__ inline void add_rows(float (&acc)[ROWS][PARTS], const Weights<ROWS>* weights, float* tile, const T* from,
                                size_t stride, unsigned rows, unsigned d) {
#pragma unroll
    for (int part = 0; part < PARTS; part += 2) {
        const unsigned first = part * WARP;
        if (first >= d) break;
        __syncthreads();
        fill<V>(tile, from + first, stride, rows, min(CHUNK, d - first));
        __syncthreads();
        const float* column = tile + threadIdx.x % WARP;
#pragma unroll 4
        for (unsigned row = 0; row < rows; row++) {
            const Weights<ROWS> weight = weights[row];
            const float low = column[row * PITCH], high = column[row * PITCH + WARP];
#pragma unroll
            for (int o = 0; o < ROWS; o++) {
                acc[o][part] += weight.of[o] * low;
                acc[o][part + 1] += weight.of[o] * high;
            }
        }
    }
}

// Distance from one of a warp's rows to the next, in numbers: rows are padded with zeros to a multiple of four.
__device__ inline unsigned pitch_of(unsigned d) { return (d + 3) / 4 * 4; }

template <class T> __device__ inline void fetch(float* to, const T* from, unsigned d) {
    for (unsigned i = threadIdx.x % WARP; i < pitch_of(d); i += WARP) to[i] = i < d ? to_float(from[i]) : 0.0f;
}

template <class T, int PARTS> __device__ inline void put(T* to, const float (&acc)[PARTS], float factor, unsigned d) {
    const unsigned lane = threadIdx.x % WARP;
#pragma unroll
    for (int c = 0; c < PARTS; c++) {
        if (lane + WARP * c < d) to[lane + WARP * c] = from_float<T>(acc[c] * factor);
    }
}

// The rows of a block and of a warp among those of a sentence. Beyond the last row, the last one is repeated and not written.
template <int ROWS> struct Owned {
    unsigned of_block, first, rows;
    __device__ explicit Owned(unsigned rows) : rows(rows) {
        const unsigned warps = blockDim.x / WARP;
        of_block = blockIdx.z * warps * ROWS, first = of_block + threadIdx.x / WARP * ROWS;
    }
    // The same for all threads of a block, since they fill tiles together.
    __device__ bool is_none() const { return of_block >= rows; }
    __device__ unsigned last_of_block() const { return min(of_block + blockDim.x / WARP * ROWS, rows) - 1; }
    __device__ unsigned row(int o) const { return min(first + o, rows - 1); }
    __device__ bool has(int o) const { return first + o < rows; }
};

template <class T, int V, int PARTS>
__device__ void attend(T* out, float* log_sums, const T* q, const T* k, const T* v, AttentionShape shape) {
    constexpr int ROWS = OWN<PARTS>;
    DYNAMIC_SHARED(float, shared);
    __shared__ __align__(16) float tile[WARP * PITCH];
    __shared__ __align__(16) Weights<ROWS> all_weights[ATTENTION_WARPS * WARP];
    const Place place(shape);
    const Owned<ROWS> queries(place.queries);
    if (queries.is_none()) return;
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, pitch = pitch_of(shape.d_k);
    float* mine = shared + warp * ROWS * pitch;
    Weights<ROWS>* weights = all_weights + warp * WARP;
    const T* keys = k + size_t(place.k_first) * shape.k_stride + place.head * shape.d_k;
    const T* values = v + size_t(place.k_first) * shape.k_stride + place.head * shape.d_v;
    float acc[ROWS][PARTS] = {}, largest[ROWS], total[ROWS];
#pragma unroll
    for (int o = 0; o < ROWS; o++) {
        largest[o] = -INFINITY, total[o] = 0;
        const size_t row = place.q_first + queries.row(o);
        fetch(mine + o * pitch, q + row * shape.q_stride + place.head * shape.d_k, shape.d_k);
    }
    const unsigned visible = place.visible(shape, queries.last_of_block());
    for (unsigned first = 0; first < visible; first += WARP) {
        const unsigned key = first + lane, count = min(WARP, visible - first);
        const size_t from = size_t(first) * shape.k_stride;
        float x[ROWS] = {};
        add_products<V>(x, mine, pitch, tile, keys + from, shape.k_stride, count, shape.d_k);
        Weights<ROWS> p;
#pragma unroll
        for (int o = 0; o < ROWS; o++) {
            const unsigned query = queries.row(o);
            if (shape.by_distance != nullptr) x[o] += place.by_distance(shape, query, key);
            // Finite from the first tile on, in which every query sees a key.
            x[o] = key < place.visible(shape, query) ? shape.scale * x[o] : -INFINITY;
            const float most = fmaxf(largest[o], warp_max(x[o])), shrink = expf(largest[o] - most);
            p.of[o] = expf(x[o] - most);
            total[o] = total[o] * shrink + warp_sum(p.of[o]);
            largest[o] = most;
            if (shape.dropout.threshold > 0) p.of[o] *= keep(shape.dropout, place.mask_index(shape, query, key));
#pragma unroll
            for (int c = 0; c < PARTS; c++) acc[o][c] *= shrink;
        }
        weights[lane] = p;
        add_rows<V>(acc, weights, tile, values + from, shape.k_stride, count, shape.d_v);
    }
#pragma unroll
    for (int o = 0; o < ROWS; o++) {
        if (!queries.has(o)) break;
        const size_t row = place.q_first + queries.row(o);
        // A query that sees nothing gets zeros.
        put(out + row * shape.out_stride + place.head * shape.d_v, acc[o], visible > 0 ? 1.0f / total[o] : 0.0f, shape.d_v);
        if (lane == 0) log_sums[place.statistics(shape, queries.row(o))] = visible > 0 ? largest[o] + logf(total[o]) : 0.0f;
    }
}

// dq, and δ of every query.
template <class T, int V, int PARTS>
__device__ void attend_backward_queries(T* dq, float* deltas, const float* log_sums, const T* dout, const T* out, const T* q,
                                        const T* k, const T* v, AttentionShape shape) {
    constexpr int ROWS = OWN<PARTS>;
    DYNAMIC_SHARED(float, shared);
    __shared__ __align__(16) float tile[WARP * PITCH];
    __shared__ __align__(16) Weights<ROWS> all_weights[ATTENTION_WARPS * WARP];
    const Place place(shape);
    const Owned<ROWS> queries(place.queries);
    if (queries.is_none()) return;
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const unsigned q_pitch = pitch_of(shape.d_k), out_pitch = pitch_of(shape.d_v);
    float *mine = shared + warp * ROWS * (q_pitch + out_pitch), *d_mine = mine + ROWS * q_pitch;
    Weights<ROWS>* weights = all_weights + warp * WARP;
    const T* keys = k + size_t(place.k_first) * shape.k_stride + place.head * shape.d_k;
    const T* values = v + size_t(place.k_first) * shape.k_stride + place.head * shape.d_v;
    float acc[ROWS][PARTS] = {}, delta[ROWS], log_sum[ROWS];
#pragma unroll
    for (int o = 0; o < ROWS; o++) {
        const size_t row = place.q_first + queries.row(o), out_at = row * shape.out_stride + place.head * shape.d_v;
        fetch(mine + o * q_pitch, q + row * shape.q_stride + place.head * shape.d_k, shape.d_k);
        fetch(d_mine + o * out_pitch, dout + out_at, shape.d_v);
        float sum = 0;
        for (unsigned i = lane; i < shape.d_v; i += WARP) sum += to_float(dout[out_at + i]) * to_float(out[out_at + i]);
        delta[o] = warp_sum(sum);
        log_sum[o] = log_sums[place.statistics(shape, queries.row(o))];
    }
    const unsigned visible = place.visible(shape, queries.last_of_block());
    for (unsigned first = 0; first < visible; first += WARP) {
        const unsigned key = first + lane, count = min(WARP, visible - first);
        const size_t from = size_t(first) * shape.k_stride;
        float x[ROWS] = {}, dp[ROWS] = {};
        add_products<V>(x, mine, q_pitch, tile, keys + from, shape.k_stride, count, shape.d_k);
        add_products<V>(dp, d_mine, out_pitch, tile, values + from, shape.k_stride, count, shape.d_v);
        Weights<ROWS> dx;
#pragma unroll
        for (int o = 0; o < ROWS; o++) {
            const unsigned query = queries.row(o);
            if (shape.by_distance != nullptr) x[o] += place.by_distance(shape, query, key);
            const float p = key < place.visible(shape, query) ? expf(shape.scale * x[o] - log_sum[o]) : 0.0f;
            if (shape.dropout.threshold > 0) dp[o] *= keep(shape.dropout, place.mask_index(shape, query, key));
            dx.of[o] = p * (dp[o] - delta[o]);
        }
        weights[lane] = dx;
        add_rows<V>(acc, weights, tile, keys + from, shape.k_stride, count, shape.d_k);
    }
#pragma unroll
    for (int o = 0; o < ROWS; o++) {
        if (!queries.has(o)) break;
        const size_t row = place.q_first + queries.row(o);
        put(dq + row * shape.q_stride + place.head * shape.d_k, acc[o], shape.scale, shape.d_k);
        if (lane == 0) deltas[place.statistics(shape, queries.row(o))] = delta[o];
    }
}

// dk and dv.
template <class T, int V, int PARTS>
__device__ void attend_backward_keys(T* dk, T* dv, const float* deltas, const float* log_sums, const T* dout, const T* q,
                                     const T* k, const T* v, AttentionShape shape) {
    constexpr int ROWS = OWN<PARTS>;
    DYNAMIC_SHARED(float, shared);
    __shared__ __align__(16) float tile[WARP * PITCH];
    __shared__ __align__(16) Weights<ROWS> all_weights[2][ATTENTION_WARPS * WARP];
    const Place place(shape);
    const Owned<ROWS> keys(place.keys);
    if (keys.is_none()) return;
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const unsigned k_pitch = pitch_of(shape.d_k), v_pitch = pitch_of(shape.d_v);
    float *mine = shared + warp * ROWS * (k_pitch + v_pitch), *v_mine = mine + ROWS * k_pitch;
    Weights<ROWS>*weights = all_weights[0] + warp * WARP, *d_weights = all_weights[1] + warp * WARP;
    const T* queries = q + size_t(place.q_first) * shape.q_stride + place.head * shape.d_k;
    const T* gradients = dout + size_t(place.q_first) * shape.out_stride + place.head * shape.d_v;
    float acc_k[ROWS][PARTS] = {}, acc_v[ROWS][PARTS] = {};
#pragma unroll
    for (int o = 0; o < ROWS; o++) {
        const size_t row = size_t(place.k_first + keys.row(o)) * shape.k_stride;
        fetch(mine + o * k_pitch, k + row + place.head * shape.d_k, shape.d_k);
        fetch(v_mine + o * v_pitch, v + row + place.head * shape.d_v, shape.d_v);
    }
    for (unsigned first = shape.causal ? keys.of_block : 0; first < place.queries; first += WARP) {
        const unsigned query = first + lane, count = min(WARP, place.queries - first);
        const T *from = queries + size_t(first) * shape.q_stride, *d_from = gradients + size_t(first) * shape.out_stride;
        const bool is_there = query < place.queries;
        const size_t at = place.statistics(shape, is_there ? query : 0);
        const float log_sum = log_sums[at], delta = deltas[at];
        float x[ROWS] = {}, dp[ROWS] = {};
        add_products<V>(x, mine, k_pitch, tile, from, shape.q_stride, count, shape.d_k);
        add_products<V>(dp, v_mine, v_pitch, tile, d_from, shape.out_stride, count, shape.d_v);
        Weights<ROWS> dx, dropped;
#pragma unroll
        for (int o = 0; o < ROWS; o++) {
            const unsigned key = keys.row(o);
            if (shape.by_distance != nullptr) x[o] += place.by_distance(shape, query, key);
            const bool sees = is_there && key < place.visible(shape, query);
            const float p = sees ? expf(shape.scale * x[o] - log_sum) : 0.0f;
            float factor = 1;
            if (shape.dropout.threshold > 0) factor = keep(shape.dropout, place.mask_index(shape, query, key));
            dropped.of[o] = p * factor;
            dx.of[o] = p * (dp[o] * factor - delta);
        }
        weights[lane] = dropped, d_weights[lane] = dx;
        add_rows<V>(acc_v, weights, tile, d_from, shape.out_stride, count, shape.d_v);
        add_rows<V>(acc_k, d_weights, tile, from, shape.q_stride, count, shape.d_k);
    }
#pragma unroll
    for (int o = 0; o < ROWS; o++) {
        if (!keys.has(o)) break;
        const size_t row = size_t(place.k_first + keys.row(o)) * shape.k_stride;
        put(dk + row + place.head * shape.d_k, acc_k[o], shape.scale, shape.d_k);
        put(dv + row + place.head * shape.d_v, acc_v[o], 1.0f, shape.d_v);
    }
}

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

// acc[c] += Σ_j weight of lane j · row(j)[lane + 32c]. Four rows are loaded at a time.
template <class T, int PARTS, class Row>
__device__ inline void add_scattered(float (&acc)[PARTS], float weight, Row row, unsigned count, unsigned d) {
    constexpr unsigned AHEAD = 4;
    const unsigned lane = threadIdx.x % WARP;
    for (unsigned j = 0; j < count; j += AHEAD) {
        T x[AHEAD][PARTS];
#pragma unroll
        for (unsigned a = 0; a < AHEAD; a++) {
            // Beyond the last row, the last one is loaded again and not used.
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

// Attention of one new position of every row to the keys and values of its hypothesis, each still where its step wrote it.
// `steps[t·layers + layer]` is the address of the packed queries, keys and values of step t, and
// `ancestors[row·capacity + t]` the row of that step that the hypothesis went through. One warp per row and head.
struct Past {
    const unsigned long long* steps;
    const unsigned* ancestors;
    unsigned layer, layers, capacity, positions, rows, stride, heads, d_k, d_v;
    float scale;
    // As in AttentionShape.
    const float* by_distance;
    unsigned reach;
};

template <class T, int V, int PARTS> __device__ void attend_past(T* out, const T* q, Past past) {
    DYNAMIC_SHARED(float, shared);
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const unsigned item = blockIdx.x * ATTENTION_WARPS + warp, row = item / past.heads, head = item % past.heads;
    if (row >= past.rows) return;
    const unsigned k_at = past.heads * past.d_k + head * past.d_k, v_at = 2 * past.heads * past.d_k + head * past.d_v;
    float* mine = shared + warp * pitch_of(past.d_k);
    fetch(mine, q + size_t(row) * past.stride + head * past.d_k, past.d_k);
    sync_warp();
    const auto kept = [&](unsigned t) {
        const T* rows = reinterpret_cast<const T*>(past.steps[t * past.layers + past.layer]);
        return rows + size_t(past.ancestors[size_t(row) * past.capacity + t]) * past.stride;
    };
    float acc[PARTS] = {}, largest = -INFINITY, total = 0;
    for (unsigned first = 0; first < past.positions; first += WARP) {
        const unsigned t = first + lane, count = min(WARP, past.positions - first);
        float x = -INFINITY;
        if (t < past.positions) {
            x = dot<V>(mine, kept(t) + k_at, past.d_k);
            if (past.by_distance != nullptr) x += past.by_distance[head * (2 * past.reach + 1) + past.reach + t + 1 - past.positions];
            x *= past.scale;
        }
        const float most = fmaxf(largest, warp_max(x)), shrink = expf(largest - most);
        const float p = expf(x - most);
        total = total * shrink + warp_sum(p);
        largest = most;
#pragma unroll
        for (int c = 0; c < PARTS; c++) acc[c] *= shrink;
        add_scattered<T>(acc, p, [&](unsigned j) { return kept(first + j) + v_at; }, count, past.d_v);
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
