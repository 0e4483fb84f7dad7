// What the search needs from a decoding step: src/decode/neural.rs.
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

constexpr unsigned NO_TOKEN = ~0u;

// A token and its logit; of equal logits, the smaller token is better.
struct Candidate {
    float logit;
    unsigned token;
    __device__ bool better(const Candidate& other) const {
        return logit > other.logit || (logit == other.logit && token < other.token);
    }
};

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
    __shared__ Candidate bests[WARP];
    const Candidate none = {-INFINITY, NO_TOKEN};
    return best_of_warp(of_warps(bests, best_of_warp(mine), none));
}

// The largest of all threads' `largest`, and the sum of their `sum`s, each rescaled to it. All threads get both.
__device__ inline void combine_exponentials(float& largest, float& sum) {
    __shared__ float maxima[WARP], sums[WARP];
    const float most = warp_max(of_warps(maxima, warp_max(largest), -INFINITY));
    sum = warp_sum(of_warps(sums, warp_sum(sum * expf(largest - most)), 0.0f));
    largest = most;
}

// Logits that a thread takes at once.
constexpr unsigned SEARCH_LOGITS = 4;

// Four logits from token `j` on; `j` and the stride are multiples of four. Beyond the vocabulary, x is -∞.
__device__ inline void load_some(const float* row, unsigned j, unsigned vocabulary, float (&x)[SEARCH_LOGITS]) {
    const float4 all = *reinterpret_cast<const float4*>(row + j);
    x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
#pragma unroll
    for (unsigned i = 1; i < SEARCH_LOGITS; i++) {
        if (j + i >= vocabulary) x[i] = -INFINITY;
    }
}

struct Exclusions {
    // The one token that a row may be continued by, or NO_TOKEN.
    const unsigned* forced;
    // Row r may not be continued by tokens[starts[r]] to tokens[starts[r + 1] - 1].
    const unsigned *starts, *tokens;
    // Tokens by which no row may be continued.
    const unsigned* always;
    unsigned always_count;
};

// The k best continuations of each row that are not excluded, with their log-probabilities (over all tokens, excluded ones
// too). If there are fewer, tokens with the log-probability -∞ follow. A row whose probabilities are not numbers begins with
// NaN. One block of at most 32 warps per row; the logits are overwritten. The stride is a multiple of four.
KERNEL_OF(32 * WARP) best_continuations(unsigned* tokens, float* log_probs, float* logits, Exclusions excluded,
                                        unsigned vocabulary, unsigned stride, unsigned k) {
    const unsigned row = blockIdx.x, none = 0;
    float* x = logits + size_t(row) * stride;
    tokens += size_t(row) * k;
    log_probs += size_t(row) * k;
    // Each thread takes four tokens out of every 4·blockDim.x, and offers its best.
    Candidate mine = {-INFINITY, NO_TOKEN}, taken = {INFINITY, 0};
    float largest = -INFINITY, sum = 0;
    bool is_nan = false;
    for (unsigned j = threadIdx.x * SEARCH_LOGITS; j < vocabulary; j += blockDim.x * SEARCH_LOGITS) {
        float logits[SEARCH_LOGITS];
        load_some(x, j, vocabulary, logits);
        float most = logits[0];
#pragma unroll
        for (unsigned i = 0; i < SEARCH_LOGITS; i++) {
            is_nan |= logits[i] != logits[i];
            most = fmaxf(most, logits[i]);
            const Candidate candidate = {logits[i], j + i};
            if (candidate.better(mine)) mine = candidate;
        }
        if (!(most > -INFINITY)) continue;
        if (most > largest) {
            sum *= expf(largest - most);
            largest = most;
        }
#pragma unroll
        for (unsigned i = 0; i < SEARCH_LOGITS; i++) sum += expf(logits[i] - largest);
    }
    if (is_nan) sum = NAN;
    combine_exponentials(largest, sum);
    const float log_sum = largest + logf(sum);
    const bool is_number = log_sum > -INFINITY && log_sum < INFINITY;
    const unsigned forced = excluded.forced[row];
    for (unsigned i = threadIdx.x; i < k; i += blockDim.x) {
        const bool first = i == 0, by_force = first && is_number && forced != NO_TOKEN;
        tokens[i] = by_force ? forced : none;
        log_probs[i] = first && !is_number ? NAN : by_force ? x[forced] - log_sum : -INFINITY;
    }
    // The same for all threads of the block.
    if (!is_number || forced != NO_TOKEN) return;
    __syncthreads();
    // A thread whose best may be excluded, or was taken, looks for another.
    bool look = false;
    const auto exclude = [&](unsigned token) {
        if (token >= vocabulary || token / SEARCH_LOGITS % blockDim.x != threadIdx.x) return;
        x[token] = -INFINITY;
        look = true;
    };
    for (unsigned i = 0; i < excluded.always_count; i++) exclude(excluded.always[i]);
    for (unsigned i = excluded.starts[row]; i < excluded.starts[row + 1]; i++) exclude(excluded.tokens[i]);
    for (unsigned i = 0; i < k; i++) {
        if (look) {
            mine = {-INFINITY, NO_TOKEN};
            for (unsigned j = threadIdx.x * SEARCH_LOGITS; j < vocabulary; j += blockDim.x * SEARCH_LOGITS) {
                float logits[SEARCH_LOGITS];
                load_some(x, j, vocabulary, logits);
#pragma unroll
                for (unsigned i = 0; i < SEARCH_LOGITS; i++) {
                    const Candidate candidate = {logits[i], j + i};
                    if (candidate.better(mine) && taken.better(candidate)) mine = candidate;
                }
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
