// Factors of low rank: src/ops/low_rank.rs.
#include "optimizer.cuh"

// x *= factor.
KERNEL scale(float* x, float factor, unsigned long long count) {
    const size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) x[i] *= factor;
}
LAUNCHABLE(scale)

// values = base + scale·b·a, if the update is made: b is [rows, rank], a [rank, columns]. Each number is summed and rounded as
// by `add_row` of src/ops/low_rank.rs, which reads checkpoints: both have the same bits.
KERNEL merge(float* values, const float* base, const float* b, const float* a, const Decision* decision, float scale,
             unsigned rank, unsigned columns, unsigned long long count) {
    if (!decision->is_made) return;
    const size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        const size_t row = i / columns, column = i % columns;
        float sum = base[i];
        for (unsigned k = 0; k < rank; k++) {
            const float factor = __fmul_rn(scale, b[row * rank + k]);
            sum = __fadd_rn(sum, __fmul_rn(factor, a[size_t(k) * columns + column]));
        }
        values[i] = sum;
    }
}
LAUNCHABLE(merge)
