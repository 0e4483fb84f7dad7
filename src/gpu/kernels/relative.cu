// Relative positions: src/ops/relative.rs. Attention adds to its products what a table [buckets, heads] has for the bucket of
// their distance; `distances` are all from -reach to reach.
#include "attention.cuh"

// out[heads, distances]: the row of each distance, divided by what products are multiplied by afterwards.
KERNEL spread_by_distance(float* out, const float* table, const unsigned* buckets, unsigned heads, unsigned distances,
                          float scale) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < heads * distances; i += gridDim.x * blockDim.x) {
        out[i] = table[buckets[i % distances] * heads + i / distances] / scale;
    }
}
LAUNCHABLE(spread_by_distance)

constexpr unsigned DISTANCE_WARPS = 8;

// sums[heads, distances] += the gradients of all scores of a distance, dx of attention.cu. Since δ = Σ dout·out, that is
// p·Σ dout·(m·v − out). One block per distance and head; its warps take the pairs by turns.
template <class T>
__device__ void sum_by_distance(float* sums, const float* log_sums, const T* dout, const T* out, const T* q, const T* k,
                                const T* v, AttentionShape shape, unsigned sentences) {
    __shared__ float of_warps[DISTANCE_WARPS];
    const unsigned head = blockIdx.y, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    // How far behind the query the key is.
    const int to = int(blockIdx.x) - int(shape.keys - 1);
    if (shape.causal && to > 0) return;
    float sum = 0;
    for (unsigned sentence = 0; sentence < sentences; sentence++) {
        const Place place(shape, sentence, head);
        const unsigned begin = to < 0 ? -to : 0, out_of_reach = to > 0 ? to : 0;
        for (unsigned query = begin + warp; query + out_of_reach < place.queries; query += DISTANCE_WARPS) {
            const unsigned key = query + to;
            const size_t q_row = size_t(place.q_first + query), k_row = size_t(place.k_first + key) * shape.k_stride;
            const T *of_q = q + q_row * shape.q_stride + head * shape.d_k, *of_k = k + k_row + head * shape.d_k;
            const size_t out_at = q_row * shape.out_stride + head * shape.d_v;
            const T* of_v = v + k_row + head * shape.d_v;
            const float mask = shape.dropout.threshold > 0 ? keep(shape.dropout, place.mask_index(shape, query, key)) : 1.0f;
            float x = 0, g = 0;
            for (unsigned i = lane; i < shape.d_k; i += WARP) x += to_float(of_q[i]) * to_float(of_k[i]);
            for (unsigned i = lane; i < shape.d_v; i += WARP) {
                g += to_float(dout[out_at + i]) * (mask * to_float(of_v[i]) - to_float(out[out_at + i]));
            }
            x = warp_sum(x) + place.by_distance(shape, query, key);
            sum += expf(shape.scale * x - log_sums[place.statistics(shape, query)]) * warp_sum(g);
        }
    }
    if (lane == 0) of_warps[warp] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (unsigned other = 1; other < DISTANCE_WARPS; other++) sum += of_warps[other];
    sums[head * (2 * shape.reach + 1) + shape.reach + to] += sum;
}

#define DEFINE(T, name)                                                                                                 \
    KERNEL sum_by_distance_##name(float* sums, const float* log_sums, const T* dout, const T* out, const T* q,          \
                                  const T* k, const T* v, AttentionShape shape, unsigned sentences) {                   \
        sum_by_distance<T>(sums, log_sums, dout, out, q, k, v, shape, sentences);                                       \
    }                                                                                                                   \
    LAUNCHABLE(sum_by_distance_##name)
FOR_NUMBERS(DEFINE)
#undef DEFINE

// gradient[buckets, heads] += the sums of the distances of each bucket. One thread per number.
KERNEL add_to_buckets(float* gradient, const float* sums, const unsigned* buckets, unsigned heads, unsigned distances,
                      unsigned count) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, bucket = i / heads, head = i % heads;
    if (bucket >= count) return;
    float total = 0;
    for (unsigned j = 0; j < distances; j++) {
        if (buckets[j] == bucket) total += sums[head * distances + j];
    }
    gradient[i] += total;
}
LAUNCHABLE(add_to_buckets)
