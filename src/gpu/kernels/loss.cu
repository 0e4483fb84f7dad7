// Label-smoothed cross-entropy of rows of logits: src/ops/loss.rs. One block per row.
#include "common.cuh"

constexpr unsigned LOSS_WARPS = 8;

// Over the block: the largest maximum, the sum of the exponentials rescaled to it, and the plain total. All threads get all.
__device__ inline void combine(float& largest, float& exponentials, float& total) {
    __shared__ float maxima[LOSS_WARPS], sums[LOSS_WARPS], totals[LOSS_WARPS];
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const float most = warp_max(largest);
    // A lane without a number has a maximum of -∞, and nothing to scale.
    const float sum = warp_sum(largest > -INFINITY ? exponentials * expf(largest - most) : 0.0f);
    total = warp_sum(total);
    if (lane == 0) maxima[warp] = most, sums[warp] = sum, totals[warp] = total;
    __syncthreads();
    largest = -INFINITY;
    for (unsigned w = 0; w < LOSS_WARPS; w++) largest = fmaxf(largest, maxima[w]);
    exponentials = total = 0;
    for (unsigned w = 0; w < LOSS_WARPS; w++) {
        if (maxima[w] > -INFINITY) exponentials += sums[w] * expf(maxima[w] - largest);
        total += totals[w];
    }
}

// Numbers that a thread takes at once.
constexpr int LOGITS = 8;

// Eight logits of a row, of which only the first `left` are there; the others become -∞.
template <class T> __device__ inline void load_logits(const T* from, unsigned left, float (&x)[LOGITS]) {
    load<LOGITS>(from, x);
    if (left >= LOGITS) return;
#pragma unroll
    for (int i = 0; i < LOGITS; i++) {
        if (i >= left) x[i] = -INFINITY;
    }
}

// Stands for no label: the row has no loss.
constexpr unsigned NO_LABEL = ~0u;

// losses[row] = smoothed loss and negative log-likelihood; with `gradient` the logits become the smoothed loss's gradient, and
// the rest of a row, up to the stride (a multiple of eight), becomes zero.
template <class T>
__device__ void smoothed_loss(T* logits, float* losses, const unsigned* labels, float smoothing, unsigned vocabulary,
                              unsigned stride, unsigned gradient) {
    T* row = logits + size_t(blockIdx.x) * stride;
    const unsigned label = labels[blockIdx.x];
    if (label == NO_LABEL) {
        if (threadIdx.x < 2) losses[2 * blockIdx.x + threadIdx.x] = 0;
        const float none[LOGITS] = {};
        for (unsigned j = threadIdx.x * LOGITS; gradient && j < vocabulary; j += blockDim.x * LOGITS) store<LOGITS>(row + j, none);
        return;
    }
    const float chosen = to_float(row[label]);
    float largest = -INFINITY, exponentials = 0, total = 0;
    for (unsigned j = threadIdx.x * LOGITS; j < vocabulary; j += blockDim.x * LOGITS) {
        float x[LOGITS];
        load_logits(row + j, vocabulary - j, x);
        float most = x[0];
#pragma unroll
        for (int i = 1; i < LOGITS; i++) most = fmaxf(most, x[i]);
        if (most > largest) {
            exponentials *= expf(largest - most);
            largest = most;
        }
#pragma unroll
        for (int i = 0; i < LOGITS; i++) {
            exponentials += expf(x[i] - largest);
            if (i < vocabulary - j) total += x[i];
        }
    }
    combine(largest, exponentials, total);
    // Differences first, for precision: log Σ e^x lies near the largest logit, which may be far from zero.
    const float log_sum = logf(exponentials);
    if (threadIdx.x == 0) {
        const float nll = log_sum + (largest - chosen);
        losses[2 * blockIdx.x] =
            (1.0f - smoothing) * nll + smoothing * (log_sum + (largest - total / vocabulary));
        losses[2 * blockIdx.x + 1] = nll;
    }
    if (!gradient) return;
    const float inverse = 1.0f / exponentials, uniform = smoothing / vocabulary;
    for (unsigned j = threadIdx.x * LOGITS; j < vocabulary; j += blockDim.x * LOGITS) {
        float x[LOGITS];
        load_logits(row + j, vocabulary - j, x);
#pragma unroll
        for (int i = 0; i < LOGITS; i++) {
            x[i] = i < vocabulary - j ? expf(x[i] - largest) * inverse - uniform : 0.0f;
            if (j + i == label) x[i] -= 1.0f - smoothing;
        }
        store<LOGITS>(row + j, x);
    }
}

// sums[0] += Σ smoothed losses, sums[1] += Σ negative log-likelihoods, in a fixed order. One block.
KERNEL add_losses(double* sums, const float* losses, unsigned rows) {
    __shared__ double parts[2 * LOSS_WARPS * WARP];
    double smoothed = 0, nll = 0;
    for (unsigned row = threadIdx.x; row < rows; row += blockDim.x) {
        smoothed += losses[2 * row];
        nll += losses[2 * row + 1];
    }
    parts[2 * threadIdx.x] = smoothed;
    parts[2 * threadIdx.x + 1] = nll;
    __syncthreads();
    if (threadIdx.x < 2) {
        double sum = 0;
        for (unsigned t = 0; t < blockDim.x; t++) sum += parts[2 * t + threadIdx.x];
        sums[threadIdx.x] += sum;
    }
}
LAUNCHABLE(add_losses)

#define DEFINE(T, name)                                                                                                 \
    KERNEL smoothed_loss_##name(T* logits, float* losses, const unsigned* labels, float smoothing,                      \
                                unsigned vocabulary, unsigned stride, unsigned gradient) {                              \
        smoothed_loss<T>(logits, losses, labels, smoothing, vocabulary, stride, gradient);                              \
    }                                                                                                                   \
    LAUNCHABLE(smoothed_loss_##name)
FOR_NUMBERS(DEFINE)
#undef DEFINE
