// Adam and the norm of the gradient over flat buffers: src/ops/optimizer.rs.
#include "common.cuh"

constexpr unsigned SQUARE_THREADS = 256;

__device__ inline void sum_of_block(double* to, double x) {
    __shared__ double parts[SQUARE_THREADS];
    parts[threadIdx.x] = x;
    __syncthreads();
    for (unsigned half = SQUARE_THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) *to = parts[0];
}

// partial[block] = the sum of squares of its share.
KERNEL squares(double* partial, const float* x, unsigned long long count) {
    double sum = 0;
    const size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) sum += double(x[i]) * x[i];
    sum_of_block(partial + blockIdx.x, sum);
}
LAUNCHABLE(squares)

// to = Σ partial. One block.
KERNEL add_squares(double* to, const double* partial, unsigned blocks) {
    double sum = 0;
    for (unsigned i = threadIdx.x; i < blocks; i += blockDim.x) sum += partial[i];
    sum_of_block(to, sum);
}
LAUNCHABLE(add_squares)

struct Adam {
    float scale, beta1, beta2, correction1, correction2, eps, rate, decay;
};

KERNEL adam(float* values, const float* gradients, float* first, float* second, Adam step, unsigned long long count) {
    const size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        const float g = gradients[i] * step.scale;
        const float m = step.beta1 * first[i] + (1.0f - step.beta1) * g;
        const float v = step.beta2 * second[i] + (1.0f - step.beta2) * g * g;
        first[i] = m;
        second[i] = v;
        values[i] =
            values[i] * step.decay - step.rate * (m * step.correction1 / (sqrtf(v * step.correction2) + step.eps));
    }
}
LAUNCHABLE(adam)

// The values in the type of products.
KERNEL to_bf16_all(bf16* out, const float* in, unsigned long long count) {
    const size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) out[i] = to_bf16(in[i]);
}
LAUNCHABLE(to_bf16_all)
