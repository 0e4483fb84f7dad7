// Adam and the norm of the gradient over flat buffers: src/ops/optimizer.rs.
#include "optimizer.cuh"

constexpr unsigned SQUARE_THREADS = 256;

// The sum over the threads of a block; all of them get it.
__device__ inline double sum_of_block(double x) {
    __shared__ double parts[SQUARE_THREADS];
    parts[threadIdx.x] = x;
    __syncthreads();
    for (unsigned half = SQUARE_THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
        __syncthreads();
    }
    return parts[0];
}

// partial[block] = the sum of squares of the block's share of x.
KERNEL squares(double* partial, const float* x, unsigned long long count) {
    double sum = 0;
    const size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) sum += double(x[i]) * x[i];
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
LAUNCHABLE(squares)

// Decides from the totals and the sums of the gradients' squares, as `decide` of src/ops/optimizer.rs does; while
// `stopped` is set, no update is made. One block.
KERNEL decide(Decision* decision, unsigned* stopped, const double* partial, const Totals* totals, double clip_norm,
              unsigned blocks) {
    double sum = 0;
    for (unsigned i = threadIdx.x; i < blocks; i += blockDim.x) sum += partial[i];
    sum = sum_of_block(sum);
    if (threadIdx.x != 0) return;
    const double scale = 1.0 / totals->tokens, norm = sqrt(sum) * scale;
    const bool is_made = *stopped == 0 && totals->stopping == 0 && isfinite(totals->smoothed) && isfinite(norm);
    if (!is_made) *stopped = 1;
    const double clipped = clip_norm > 0 && norm > clip_norm ? scale * (clip_norm / norm) : scale;
    *decision = {*totals, norm, float(clipped), is_made};
}
LAUNCHABLE(decide)

// AdamStep::constants in src/ops/optimizer.rs.
struct Adam {
    float beta1, beta2, rest1, rest2, correction1, correction2, eps, rate, share;
};

// `bounds` are the places where weight decay begins and ends, alternately.
KERNEL adam(float* values, const float* gradients, float* first, float* second, const Decision* decision, Adam step,
            const unsigned long long* bounds, unsigned bound_count, unsigned long long from, unsigned long long count) {
    if (!decision->is_made) return;
    values += from;
    gradients += from;
    const float scale = decision->scale;
    const size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        const float g = gradients[i] * scale;
        const float m = step.beta1 * first[i] + step.rest1 * g;
        const float v = step.beta2 * second[i] + step.rest2 * g * g;
        first[i] = m;
        second[i] = v;
        // The number of bounds at or before the parameter.
        unsigned before = 0;
        for (unsigned above = bound_count; before < above;) {
            const unsigned middle = (before + above) / 2;
            if (bounds[middle] <= from + i) {
                before = middle + 1;
            } else {
                above = middle;
            }
        }
        const float taken = before % 2 == 1 ? step.share * values[i] : 0.0f;
        values[i] -= step.rate * (m * step.correction1 / (sqrtf(v * step.correction2) + step.eps)) + taken;
    }
}
LAUNCHABLE(adam)

// average += share · (values - average).
KERNEL average(float* average, const float* values, const Decision* decision, float share, unsigned long long count) {
    if (!decision->is_made) return;
    const size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        average[i] += share * (values[i] - average[i]);
    }
}
LAUNCHABLE(average)

// The values in the type of products.
KERNEL to_bf16_all(bf16* out, const float* in, unsigned long long count) {
    const size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) out[i] = to_bf16(in[i]);
}
LAUNCHABLE(to_bf16_all)

// And back.
KERNEL to_float_all(float* out, const bf16* in, unsigned long long count) {
    const size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) out[i] = to_float(in[i]);
}
LAUNCHABLE(to_float_all)
