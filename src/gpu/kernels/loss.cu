// Label-smoothed cross-entropy of rows of logits: src/ops/loss.rs. One block per row.
#include "common.cuh"

// Warps of a block, at most, and below what a thread keeps: the same as in src/gpu/launch/loss.rs.
constexpr unsigned LOSS_WARPS = 16;

// The largest of all threads' numbers or, with ADD, their sum; all threads get it. No other call may use the same `parts`.
template <bool ADD> __device__ inline float of_block(float (&parts)[LOSS_WARPS], float x) {
    x = ADD ? warp_sum(x) : warp_max(x);
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = x;
    __syncthreads();
    const unsigned lane = threadIdx.x % WARP;
    x = lane < blockDim.x / WARP ? parts[lane] : ADD ? 0.0f : -INFINITY;
    x = ADD ? warp_sum(x) : warp_max(x);
    return x;
}

// Numbers that a thread takes at once.
constexpr int LOGITS = 8;

// Stands for no label: the row has no loss; and for no token.
constexpr unsigned NO_LABEL = ~0u;

// The tokens that take part in the softmax: those of the vocabulary but `left_out`, which may be NO_LABEL.
struct Outputs {
    unsigned vocabulary, left_out;
    __device__ bool has(unsigned token) const { return token < vocabulary && token != left_out; }
    __device__ unsigned count() const { return vocabulary - (left_out < vocabulary); }
};

// Eight logits of a row from token `j` on; those that are not among the outputs become -∞.
template <class T> __device__ inline void load_logits(const T* from, unsigned j, const Outputs& outputs, float (&x)[LOGITS]) {
    load<LOGITS>(from, x);
    if (outputs.vocabulary - j >= LOGITS && outputs.left_out - j >= LOGITS) return;
#pragma unroll
    for (int i = 0; i < LOGITS; i++) {
        if (!outputs.has(j + i)) x[i] = -INFINITY;
    }
}

// What a block knows of its row of logits.
struct LogitRow {
    // The largest, Σ e^(x - largest), Σ x, and the label's.
    float largest, exponentials, total, chosen;
};

// What the loss of a row is: its label, label smoothing, what the smoothed loss is multiplied by, and the tokens of the softmax.
struct RowTarget {
    unsigned label;
    float smoothing, weight;
    Outputs outputs;
};

// The smoothed loss, and the negative log-likelihood.
__device__ inline float2 losses_of(const LogitRow& row, const RowTarget& target) {
    // Differences first: log Σ e^x lies near the largest logit, however far that is from zero.
    const float log_sum = logf(row.exponentials), nll = log_sum + (row.largest - row.chosen);
    const float uniform = log_sum + (row.largest - row.total / target.outputs.count());
    return {(1.0f - target.smoothing) * nll + target.smoothing * uniform, nll};
}

// losses[0] = weight · smoothed loss, losses[1] = negative log-likelihood.
__device__ inline void put_losses(float* losses, const LogitRow& row, const RowTarget& target) {
    const float2 both = losses_of(row, target);
    losses[0] = target.weight * both.x;
    losses[1] = both.y;
}

// Eight logits from token `j` on become gradients; those that are not among the outputs, zero.
template <class T>
__device__ inline void put_gradient(T* to, float (&x)[LOGITS], const LogitRow& row, const RowTarget& target, unsigned j) {
    const float inverse = target.weight / row.exponentials;
    const float uniform = target.weight * (target.smoothing / target.outputs.count());
#pragma unroll
    for (int i = 0; i < LOGITS; i++) {
        x[i] = target.outputs.has(j + i) ? exponential<T>(x[i] - row.largest) * inverse - uniform : 0.0f;
        if (j + i == target.label) x[i] -= target.weight * (1.0f - target.smoothing);
    }
    store<LOGITS>(to + j, x);
}

// A thread keeps up to this many times eight bf16 logits in registers, so that a row is read only once.
constexpr int HELD = 8;

__device__ inline void smoothed_loss_of_held(bf16* logits, float* losses, const RowTarget& target, unsigned gradient) {
    const Outputs& outputs = target.outputs;
    const unsigned vocabulary = outputs.vocabulary;
    __shared__ float maxima[LOSS_WARPS], sums[LOSS_WARPS], totals[LOSS_WARPS];
    LogitRow row = {-INFINITY, 0, 0, to_float(logits[target.label])};
    uint4 held[HELD];
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const unsigned j = (k * blockDim.x + threadIdx.x) * LOGITS;
        if (j < vocabulary) held[k] = *reinterpret_cast<const uint4*>(logits + j);
    }
    // Gives `use` each eight held logits and the first one's token.
    const auto each = [&](const auto& use) {
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            const unsigned j = (k * blockDim.x + threadIdx.x) * LOGITS;
            if (j >= vocabulary) continue;
            float x[LOGITS];
            load_logits(reinterpret_cast<const bf16*>(&held[k]), j, outputs, x);
            use(x, j);
        }
    };
    each([&](const float (&x)[LOGITS], unsigned j) {
#pragma unroll
        for (int i = 0; i < LOGITS; i++) {
            row.largest = fmaxf(row.largest, x[i]);
            if (outputs.has(j + i)) row.total += x[i];
        }
    });
    row.largest = of_block<false>(maxima, row.largest);
    each([&](const float (&x)[LOGITS], unsigned) {
#pragma unroll
        for (int i = 0; i < LOGITS; i++) row.exponentials += exponential<bf16>(x[i] - row.largest);
    });
    row.exponentials = of_block<true>(sums, row.exponentials);
    row.total = of_block<true>(totals, row.total);
    if (threadIdx.x == 0) put_losses(losses, row, target);
    if (gradient) each([&](float (&x)[LOGITS], unsigned j) { put_gradient(logits, x, row, target, j); });
}

// What a block finds out about its row of logits. No other call may use the same shared memory.
template <class T>
__device__ inline LogitRow read_row(const T* logits, unsigned label, const Outputs& outputs, float (&maxima)[LOSS_WARPS],
                                    float (&sums)[LOSS_WARPS], float (&totals)[LOSS_WARPS]) {
    LogitRow row = {-INFINITY, 0, 0, to_float(logits[label])};
    for (unsigned j = threadIdx.x * LOGITS; j < outputs.vocabulary; j += blockDim.x * LOGITS) {
        float x[LOGITS];
        load_logits(logits + j, j, outputs, x);
        float most = x[0];
#pragma unroll
        for (int i = 1; i < LOGITS; i++) most = fmaxf(most, x[i]);
        if (most > row.largest) {
            row.exponentials *= exponential<T>(row.largest - most);
            row.largest = most;
        }
        // Nothing but the token that is left out: -∞ minus -∞ would be no number.
        if (most == -INFINITY) continue;
#pragma unroll
        for (int i = 0; i < LOGITS; i++) {
            row.exponentials += exponential<T>(x[i] - row.largest);
            if (outputs.has(j + i)) row.total += x[i];
        }
    }
    const float largest = of_block<false>(maxima, row.largest);
    // A thread without a number has a maximum of -∞, and nothing to scale.
    const float scaled = row.largest > -INFINITY ? row.exponentials * exponential<T>(row.largest - largest) : 0.0f;
    row.largest = largest;
    row.exponentials = of_block<true>(sums, scaled);
    row.total = of_block<true>(totals, row.total);
    return row;
}

// losses[row] = smoothed loss, times the row's weight (1 if there are no `weights`), and negative log-likelihood, both over all
// tokens but `left_out`; with `gradient` the logits become the former's gradient, and the rest of a row, up to the stride (a
// multiple of eight), becomes zero.
template <class T>
__device__ void smoothed_loss(T* all_logits, float* all_losses, const unsigned* labels, const float* weights, float smoothing,
                              unsigned vocabulary, unsigned stride, unsigned left_out, unsigned gradient) {
    const Outputs outputs = {vocabulary, left_out};
    __shared__ float maxima[LOSS_WARPS], sums[LOSS_WARPS], totals[LOSS_WARPS];
    T* logits = all_logits + size_t(blockIdx.x) * stride;
    float* losses = all_losses + 2 * size_t(blockIdx.x);
    const unsigned label = labels[blockIdx.x];
    if (label == NO_LABEL) {
        if (threadIdx.x < 2) losses[threadIdx.x] = 0;
        const float none[LOGITS] = {};
        for (unsigned j = threadIdx.x * LOGITS; gradient && j < vocabulary; j += blockDim.x * LOGITS) store<LOGITS>(logits + j, none);
        return;
    }
    const RowTarget target = {label, smoothing, weights ? weights[blockIdx.x] : 1.0f, outputs};
    if constexpr (sizeof(T) == sizeof(bf16)) {
        if (vocabulary <= HELD * LOGITS * blockDim.x) {
            smoothed_loss_of_held(logits, losses, target, gradient);
            return;
        }
    }
    LogitRow row = read_row(logits, label, outputs, maxima, sums, totals);
    if (threadIdx.x == 0) put_losses(losses, row, target);
    if (!gradient) return;
    for (unsigned j = threadIdx.x * LOGITS; j < vocabulary; j += blockDim.x * LOGITS) {
        float x[LOGITS];
        load_logits(logits + j, j, outputs, x);
        put_gradient(logits, x, row, target, j);
    }
}

// The same with R-Drop, as in `pair_loss` of src/ops/loss.rs: token t has the rows t and (number of tokens) + t. One block per
// token.
template <class T>
__device__ void paired_loss(T* all_logits, float* all_losses, const unsigned* labels, const float* weights, float smoothing,
                            float alpha, unsigned vocabulary, unsigned stride, unsigned left_out, unsigned gradient) {
    const Outputs outputs = {vocabulary, left_out};
    __shared__ float maxima[2][LOSS_WARPS], sums[2][LOSS_WARPS], totals[2][LOSS_WARPS], parts[2][LOSS_WARPS];
    T* first = all_logits + size_t(blockIdx.x) * stride;
    T* second = first + size_t(gridDim.x) * stride;
    float* losses = all_losses + 2 * size_t(blockIdx.x);
    const unsigned label = labels[blockIdx.x], step = blockDim.x * LOGITS;
    if (label == NO_LABEL) {
        if (threadIdx.x < 2) losses[threadIdx.x] = 0;
        const float none[LOGITS] = {};
        for (unsigned j = threadIdx.x * LOGITS; gradient && j < vocabulary; j += step) {
            store<LOGITS>(first + j, none);
            store<LOGITS>(second + j, none);
        }
        return;
    }
    const RowTarget target = {label, smoothing, weights ? weights[blockIdx.x] : 1.0f, outputs};
    const LogitRow p = read_row(first, label, outputs, maxima[0], sums[0], totals[0]);
    const LogitRow q = read_row(second, label, outputs, maxima[1], sums[1], totals[1]);
    const float between = (p.largest - q.largest) + (logf(p.exponentials) - logf(q.exponentials));
    const float of_p = 1.0f / p.exponentials, of_q = 1.0f / q.exponentials;
    // Gives `use` eight tokens from j on: their probabilities in both passes, and the difference of their logarithms.
    const auto each = [&](const auto& use) {
        for (unsigned j = threadIdx.x * LOGITS; j < vocabulary; j += step) {
            float x[LOGITS], y[LOGITS], difference[LOGITS];
            load_logits(first + j, j, outputs, x);
            load_logits(second + j, j, outputs, y);
#pragma unroll
            for (int i = 0; i < LOGITS; i++) {
                difference[i] = outputs.has(j + i) ? (x[i] - y[i]) - between : 0.0f;
                x[i] = exponential<T>(x[i] - p.largest) * of_p;
                y[i] = exponential<T>(y[i] - q.largest) * of_q;
            }
            use(x, y, difference, j);
        }
    };
    float forward = 0, back = 0;
    each([&](const float (&x)[LOGITS], const float (&y)[LOGITS], const float (&difference)[LOGITS], unsigned) {
#pragma unroll
        for (int i = 0; i < LOGITS; i++) {
            forward += x[i] * difference[i];
            back -= y[i] * difference[i];
        }
    });
    forward = of_block<true>(parts[0], forward);
    back = of_block<true>(parts[1], back);
    if (threadIdx.x == 0) {
        const float2 of_first = losses_of(p, target), of_second = losses_of(q, target);
        losses[0] = target.weight * (0.5f * (of_first.x + of_second.x) + 0.25f * alpha * (forward + back));
        losses[1] = 0.5f * (of_first.y + of_second.y);
    }
    if (!gradient) return;
    const float half = 0.5f * target.weight, pull = 0.25f * alpha * target.weight;
    const float uniform = half * (smoothing / outputs.count());
    each([&](float (&x)[LOGITS], float (&y)[LOGITS], const float (&difference)[LOGITS], unsigned j) {
#pragma unroll
        for (int i = 0; i < LOGITS; i++) {
            const float a = x[i], b = y[i], d = difference[i], taken = j + i == label ? half * (1.0f - smoothing) : 0.0f;
            const bool is_output = outputs.has(j + i);
            x[i] = is_output ? half * a - uniform + pull * (a * (d - forward) + a - b) - taken : 0.0f;
            y[i] = is_output ? half * b - uniform + pull * (b * (-d - back) + b - a) - taken : 0.0f;
        }
        store<LOGITS>(first + j, x);
        store<LOGITS>(second + j, y);
    });
}

// sums[0] += Σ smoothed losses, sums[1] += Σ negative log-likelihoods, in a fixed order. One block.
constexpr unsigned ADD_THREADS = 1024;

KERNEL_OF(ADD_THREADS) add_losses(double* sums, const float* losses, unsigned rows) {
    __shared__ double parts[2][ADD_THREADS];
    double smoothed = 0, nll = 0;
#pragma unroll 4
    for (unsigned row = threadIdx.x; row < rows; row += ADD_THREADS) {
        const float2 both = reinterpret_cast<const float2*>(losses)[row];
        smoothed += both.x;
        nll += both.y;
    }
    parts[0][threadIdx.x] = smoothed;
    parts[1][threadIdx.x] = nll;
    __syncthreads();
    for (unsigned half = ADD_THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            parts[0][threadIdx.x] += parts[0][threadIdx.x + half];
            parts[1][threadIdx.x] += parts[1][threadIdx.x + half];
        }
        __syncthreads();
    }
    if (threadIdx.x < 2) sums[threadIdx.x] += parts[threadIdx.x][0];
}
LAUNCHABLE(add_losses)

#define DEFINE(T, name)                                                                                                 \
    KERNEL_OF(LOSS_WARPS * WARP, 2) smoothed_loss_##name(T* logits, float* losses, const unsigned* labels, const float* weights, \
                                float smoothing, unsigned vocabulary, unsigned stride, unsigned left_out,               \
                                unsigned gradient) {                                                                    \
        smoothed_loss<T>(logits, losses, labels, weights, smoothing, vocabulary, stride, left_out, gradient);           \
    }                                                                                                                   \
    LAUNCHABLE(smoothed_loss_##name)                                                                                    \
    KERNEL_OF(LOSS_WARPS * WARP, 2) paired_loss_##name(T* logits, float* losses, const unsigned* labels, const float* weights, \
                                float smoothing, float alpha, unsigned vocabulary, unsigned stride, unsigned left_out,  \
                                unsigned gradient) {                                                                    \
        paired_loss<T>(logits, losses, labels, weights, smoothing, alpha, vocabulary, stride, left_out, gradient);      \
    }                                                                                                                   \
    LAUNCHABLE(paired_loss_##name)
FOR_NUMBERS(DEFINE)
#undef DEFINE
