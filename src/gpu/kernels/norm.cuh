// The kinds of normalisation: src/ops/norm.rs. All that differs between them is here.
#pragma once
#include "common.cuh"

struct Norm {
    const float *gamma, *beta;
    float eps;
    // Its place in NormKind. 0: √(σ² + ε), 1: σ + ε with the unbiased σ, 2: √(mean of squares + ε), without mean and β.
    unsigned kind;
    // What is taken from each number of a row, given the row's sum; on the way back, from each gradient. `share` is 1/D.
    __device__ float mean(float sum, unsigned d) const { return kind == 2 ? 0.0f : sum / d; }
    __device__ float mean_by(float sum, float share) const { return kind == 2 ? 0.0f : sum * share; }
    // What a row is multiplied by, from its sum of squares.
    __device__ float factor(float squares, unsigned d) const {
        return kind != 1 ? 1.0f / sqrtf(squares / d + eps) : 1.0f / (sqrtf(squares / fmaxf(d - 1.0f, 1.0f)) + eps);
    }
    // What the sum that σ's gradient has is divided by.
    __device__ float divisor(float factor, unsigned d) const {
        return kind != 1 ? d : fmaxf((d - 1.0f) * (1.0f - eps * factor), 1.17549435e-38f);
    }
    // One part of that many.
    __device__ float by_divisor(float factor, unsigned d, float share) const {
        return kind != 1 ? share : 1.0f / divisor(factor, d);
    }
    // V numbers of β, which may be missing.
    template <int V> __device__ void load_beta(unsigned j, float (&x)[V]) const {
#pragma unroll
        for (int i = 0; i < V; i++) x[i] = 0;
        if (beta != nullptr) load<V>(beta + j, x);
    }
};
