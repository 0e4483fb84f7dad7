// What search needs of a step: src/decode/neural.rs.
#include "common.cuh"

// The rows that each row's hypothesis went through, position by position: those of its parent, and itself.
KERNEL advance(unsigned* ancestors, const unsigned* before, const unsigned* parents, unsigned position, unsigned capacity,
               unsigned rows) {
    const unsigned count = position + 1;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < size_t(rows) * count; i += size_t(gridDim.x) * blockDim.x) {
        const unsigned row = unsigned(i / count), t = unsigned(i % count);
        ancestors[size_t(row) * capacity + t] = t == position ? row : before[size_t(parents[row]) * capacity + t];
    }
}
LAUNCHABLE(advance)

// A token and its logit; among equals the smaller token is better.
struct Candidate {
    float logit;
    unsigned token;
    __device__ bool better(const Candidate& other) const {
        return logit > other.logit || (logit == other.logit && token < other.token);
    }
};

constexpr unsigned SEARCH_WARPS = 8;

__device__ inline Candidate best_of_warp(Candidate mine) {
#pragma unroll
    for (unsigned lanes = WARP / 2; lanes > 0; lanes /= 2) {
        const Candidate other = {shuffle_xor(mine.logit, lanes),
                                 __float_as_uint(shuffle_xor(__uint_as_float(mine.token), lanes))};
        if (other.better(mine)) mine = other;
    }
    return mine;
}

// The best candidate among all threads'. All get it.
__device__ inline Candidate best_of_block(Candidate mine) {
    __shared__ Candidate bests[SEARCH_WARPS];
    mine = best_of_warp(mine);
    __syncthreads();
    if (threadIdx.x % WARP == 0) bests[threadIdx.x / WARP] = mine;
    __syncthreads();
    Candidate best = bests[0];
    for (unsigned w = 1; w < SEARCH_WARPS; w++) {
        if (bests[w].better(best)) best = bests[w];
    }
    return best;
}

// The sum over all threads. All get it.
__device__ inline float sum_of_block_of(float x) {
    __shared__ float sums[SEARCH_WARPS];
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = x;
    __syncthreads();
    float sum = 0;
    for (unsigned w = 0; w < SEARCH_WARPS; w++) sum += sums[w];
    return sum;
}

struct Exclusions {
    // The one token that a row may be continued by, or NO_TOKEN.
    const unsigned* forced;
    // Of row r the tokens starts[r] to starts[r + 1] - 1.
    const unsigned *starts, *tokens;
    // For all rows.
    const unsigned* always;
    unsigned always_count;
};
constexpr unsigned NO_TOKEN = ~0u;

// The k best continuations of each row, with their log-probabilities, of which what is excluded takes none; then tokens with
// the log-probability -∞. A row whose probabilities are no numbers begins with NaN. One block a row; the logits are used up.
KERNEL best_continuations(unsigned* tokens, float* log_probs, float* logits, Exclusions excluded, unsigned vocabulary,
                          unsigned stride, unsigned k) {
    const unsigned row = blockIdx.x, none = 0;
    float* x = logits + size_t(row) * stride;
    tokens += size_t(row) * k;
    log_probs += size_t(row) * k;
    // A thread has every 256th token.
    Candidate mine = {-INFINITY, NO_TOKEN};
    bool is_nan = false;
    for (unsigned j = threadIdx.x; j < vocabulary; j += blockDim.x) {
        is_nan |= x[j] != x[j];
        if (x[j] > mine.logit) mine = {x[j], j};
    }
    const float largest = best_of_block(mine).logit;
    float sum = is_nan ? NAN : 0;
    for (unsigned j = threadIdx.x; j < vocabulary; j += blockDim.x) sum += expf(x[j] - largest);
    const float log_sum = largest + logf(sum_of_block_of(sum));
    const bool is_number = log_sum > -INFINITY && log_sum < INFINITY;
    const unsigned forced = excluded.forced[row];
    for (unsigned i = threadIdx.x; i < k; i += blockDim.x) {
        const bool first = i == 0, by_force = first && is_number && forced != NO_TOKEN;
        tokens[i] = by_force ? forced : none;
        log_probs[i] = first && !is_number ? NAN : by_force ? x[forced] - log_sum : -INFINITY;
    }
    // Alike for all threads.
    if (!is_number || forced != NO_TOKEN) return;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < excluded.always_count; i += blockDim.x) {
        if (excluded.always[i] < vocabulary) x[excluded.always[i]] = -INFINITY;
    }
    for (unsigned i = excluded.starts[row] + threadIdx.x; i < excluded.starts[row + 1]; i += blockDim.x) {
        if (excluded.tokens[i] < vocabulary) x[excluded.tokens[i]] = -INFINITY;
    }
    __syncthreads();
    // Each thread shows its best; whose is taken looks for its next.
    Candidate taken = {INFINITY, 0};
    bool look = true;
    for (unsigned i = 0; i < k; i++) {
        if (look) {
            mine = {-INFINITY, NO_TOKEN};
            for (unsigned j = threadIdx.x; j < vocabulary; j += blockDim.x) {
                const Candidate candidate = {x[j], j};
                if (candidate.better(mine) && taken.better(candidate)) mine = candidate;
            }
        }
        const Candidate best = best_of_block(mine);
        if (!(best.logit > -INFINITY)) return;
        look = best.token == mine.token;
        if (look) {
            taken = mine;
            tokens[i] = best.token;
            log_probs[i] = best.logit - log_sum;
        }
    }
}
LAUNCHABLE(best_continuations)
