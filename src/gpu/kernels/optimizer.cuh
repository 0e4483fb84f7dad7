// What decides on an update, for all kernels that make it.
#pragma once
#include "common.cuh"

// The sums of an update's losses, and its counts, over all ranks: Totals in src/gpu/mod.rs.
struct Totals {
    double smoothed, nll, tokens, pairs, stopping;
};

// The decision on an update: src/gpu/mod.rs.
struct Decision {
    Totals totals;
    double norm;
    // What the gradients are multiplied by.
    float scale;
    unsigned is_made;
};
