// What the attention kernels share. Rows are packed: sentence b has the queries q_starts[b] to q_starts[b + 1] - 1, and
// likewise keys; padding does not exist.
#pragma once
#include "common.cuh"

struct AttentionShape {
    const unsigned *q_starts, *k_starts;
    // Distance from one row to the next, in numbers: of queries (and their gradients), of keys and values, of outputs.
    unsigned q_stride, k_stride, out_stride;
    unsigned heads, d_k, d_v, causal;
    // Lengths of the longest sentences, for the indices of dropout masks; number of all query rows, for the statistics.
    unsigned queries, keys, rows;
    float scale;
    Dropout dropout;
    // With relative positions, what is added to products by distance, [heads, 2·reach + 1]: src/ops/relative.rs. Else null.
    const float* by_distance;
    unsigned reach;
};

// One sentence and head. Sentences are counted by the grid's x: a batch may have more of them than y and z allow.
struct Place {
    unsigned sentence, head, q_first, k_first, queries, keys;
    __device__ Place(const AttentionShape& shape) : Place(shape, blockIdx.x, blockIdx.y) {}
    __device__ Place(const AttentionShape& shape, unsigned sentence, unsigned head) : sentence(sentence), head(head) {
        q_first = shape.q_starts[sentence], k_first = shape.k_starts[sentence];
        queries = shape.q_starts[sentence + 1] - q_first, keys = shape.k_starts[sentence + 1] - k_first;
    }
    // How many keys a query sees; they are the first ones.
    __device__ unsigned visible(const AttentionShape& shape, unsigned query) const {
        return shape.causal ? min(keys, query + 1) : keys;
    }
    __device__ unsigned mask_index(const AttentionShape& shape, unsigned query, unsigned key) const {
        return ((sentence * shape.heads + head) * shape.queries + query) * shape.keys + key;
    }
    // What is added to the product of a query and a key. Of rows that are not there, that of the last ones.
    __device__ float by_distance(const AttentionShape& shape, unsigned query, unsigned key) const {
        const unsigned middle = head * (2 * shape.reach + 1) + shape.reach;
        return shape.by_distance[middle + min(key, keys - 1) - min(query, queries - 1)];
    }
    // Where a query's statistics are: [heads, rows].
    __device__ size_t statistics(const AttentionShape& shape, unsigned query) const {
        return size_t(head) * shape.rows + q_first + query;
    }
};
