// The two kinds of normalisation: src/ops/norm.rs.
#pragma once
#include "common.cuh"

struct Norm {
    const float *gamma, *beta;
    float eps;
    // 0: √(σ² + ε), 1: σ + ε with the unbiased σ.
    unsigned kind;
    // What a row is multiplied by, from its sum of squares.
    __device__ float factor(float squares, unsigned d) const {
        return kind == 0 ? 1.0f / sqrtf(squares / d + eps) : 1.0f / (sqrtf(squares / fmaxf(d - 1.0f, 1.0f)) + eps);
    }
    // What the sum that σ's gradient has is divided by.
    __device__ float divisor(float factor, unsigned d) const {
        return kind == 0 ? d : fmaxf((d - 1.0f) * (1.0f - eps * factor), 1.17549435e-38f);
    }
};
