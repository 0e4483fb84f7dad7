// What all kernels share: number types, wide loads and stores, sums over a warp, dropout.
//
// The kernels are written in the part of CUDA that tests/emulator/ runs on the processor: no library but this file, and
// collectives of a warp only through the functions here.
#pragma once

#ifdef MT_EMULATED
#include "emulated.h"
#else
#include <cuda_bf16.h>

typedef __nv_bfloat16 bf16;

#define KERNEL extern "C" __global__ void
// For blocks of many threads: limits the registers so that a block (or a given number of them) fits.
#define KERNEL_OF(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
// The emulator keeps a table of kernels; CUDA finds them by name.
#define LAUNCHABLE(name)
// For a large argument that is indexed at run time: it is read in place instead of being copied by each thread.
#define GRID_CONSTANT __grid_constant__
#define DYNAMIC_SHARED(type, name)                                      \
    extern __shared__ __align__(16) unsigned char dynamic_shared[];     \
    type* name = reinterpret_cast<type*>(dynamic_shared)

__device__ inline float to_float(bf16 x) { return __bfloat162float(x); }
__device__ inline bf16 to_bf16(float x) { return __float2bfloat16_rn(x); }

__device__ inline float shuffle_xor(float x, unsigned lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
__device__ inline float shuffle(float x, unsigned lane) { return __shfl_sync(0xffffffffu, x, lane); }
__device__ inline void sync_warp() { __syncwarp(); }

// 2^x with a relative error of about 2^-22, in one instruction: exact enough wherever the result is rounded to bf16.
__device__ inline float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// c += a·b: a is 16×16 (row-major), b 16×8 (column-major), c 16×8 in float, each spread over the lanes as PTX's
// mma.m16n8k16 has it. Lane l holds the element (l/4, 2(l%4)) of c, its right neighbour, and the two that are eight rows below.
__device__ inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8×8 matrices from shared memory: lane l gives the address of row l%8 of matrix l/8, and gets from each matrix the
// elements (l/4, 2(l%4)) and its right neighbour; transposed, (2(l%4), l/4) and the one below.
template <bool TRANSPOSED> __device__ inline void load_matrices(unsigned (&x)[4], const bf16* row) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(address)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(address)
                     : "memory");
    }
}

// Begins to copy 16 bytes to shared memory, or zeros unless they are there; both addresses are multiples of 16 bytes.
__device__ inline void copy_async(void* to, const void* from, bool is_there) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address), "l"(from), "r"(is_there ? 16u : 0u) : "memory");
}

// Waits for the thread's own copies.
__device__ inline void copies_done() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

// Makes a group of the copies that the thread has begun since its last group; there may be none.
__device__ inline void end_group_of_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Waits for all of the thread's groups but the last LEFT.
template <int LEFT> __device__ inline void groups_done_but() { asm volatile("cp.async.wait_group %0;\n" ::"n"(LEFT) : "memory"); }
#endif

constexpr unsigned WARP = 32;
// log₂ e.
constexpr float LOG2_E = 1.44269504f;

// e^x, as exactly as a result that is stored as T needs it.
template <class T> __device__ inline float exponential(float x);
template <> __device__ inline float exponential<float>(float x) { return expf(x); }
template <> __device__ inline float exponential<bf16>(float x) { return exp2_fast(x * LOG2_E); }

__device__ inline float to_float(float x) { return x; }
template <class T> __device__ T from_float(float x);
template <> __device__ inline float from_float<float>(float x) { return x; }
template <> __device__ inline bf16 from_float<bf16>(float x) { return to_bf16(x); }

// Two numbers side by side in 32 bits, the first one low.
union Pair {
    unsigned bits;
    bf16 half[2];
    __device__ Pair() {}
};

__device__ inline unsigned pair_of(float low, float high) {
    Pair pair;
    pair.half[0] = to_bf16(low);
    pair.half[1] = to_bf16(high);
    return pair.bits;
}

// Σ of the products of the numbers in two pairs.
__device__ inline float product_of_pairs(unsigned a, unsigned b) {
    Pair left, right;
    left.bits = a, right.bits = b;
    return to_float(left.half[0]) * to_float(right.half[0]) + to_float(left.half[1]) * to_float(right.half[1]);
}

// V neighbouring numbers as floats. With V = 8 the address must be a multiple of eight numbers.
template <int V, class T> __device__ inline void load(const T* from, float (&x)[V]) {
    static_assert(V == 1, "one or eight");
    x[0] = to_float(from[0]);
}
template <> __device__ inline void load<8, float>(const float* from, float (&x)[8]) {
    const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}
template <> __device__ inline void load<8, bf16>(const bf16* from, float (&x)[8]) {
    const uint4 all = *reinterpret_cast<const uint4*>(from);
    const unsigned words[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = __uint_as_float(words[i] << 16);
        x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

template <int V, class T> __device__ inline void store(T* to, const float (&x)[V]) {
    static_assert(V == 1, "one or eight");
    to[0] = from_float<T>(x[0]);
}
template <> __device__ inline void store<8, float>(float* to, const float (&x)[8]) {
    reinterpret_cast<float4*>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
}
template <> __device__ inline void store<8, bf16>(bf16* to, const float (&x)[8]) {
    *reinterpret_cast<uint4*>(to) =
        make_uint4(pair_of(x[0], x[1]), pair_of(x[2], x[3]), pair_of(x[4], x[5]), pair_of(x[6], x[7]));
}

// x as rounded by storing it as T.
template <class T> __device__ inline float rounded(float x) { return to_float(from_float<T>(x)); }

// max(0, x), but NaN stays NaN.
__device__ inline float positive_part(float x) { return x < 0.0f ? 0.0f : x; }

__device__ inline float warp_sum(float x) {
#pragma unroll
    for (unsigned lanes = WARP / 2; lanes > 0; lanes /= 2) x += shuffle_xor(x, lanes);
    return x;
}

__device__ inline float warp_max(float x) {
#pragma unroll
    for (unsigned lanes = WARP / 2; lanes > 0; lanes /= 2) x = fmaxf(x, shuffle_xor(x, lanes));
    return x;
}

// In a block of at most 32 warps: lane i gets the `mine` of warp i, or `none` if there is no such warp.
template <class T> __device__ inline T of_warps(T* shared, T mine, T none) {
    const unsigned lane = threadIdx.x % WARP;
    __syncthreads();
    if (lane == 0) shared[threadIdx.x / WARP] = mine;
    __syncthreads();
    return lane < blockDim.x / WARP ? shared[lane] : none;
}

// The mask of one dropout site: src/ops/dropout.rs, bit for bit.
struct Dropout {
    unsigned threshold, key;
    float scale;
};

__device__ inline float keep(const Dropout& dropout, unsigned index) {
    unsigned x = (index * 0x9E3779B9u) ^ dropout.key;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x >= dropout.threshold ? dropout.scale : 0.0f;
}

// Which of the parts of a launch a block works on: each ends at a block, and those that are not there beyond the grid. `block`
// becomes its number among that part's.
template <unsigned COUNT, class T> __device__ inline unsigned part_of(const T (&each)[COUNT], unsigned& block) {
    static_assert(COUNT < 64, "six steps");
    // How many parts end before the block.
    unsigned which = 0;
#pragma unroll
    for (unsigned half = 32; half > 0; half /= 2) {
        if (which + half <= COUNT && each[which + half - 1].end <= block) which += half;
    }
    if (which > 0) block -= each[which - 1].end;
    return which;
}

// Kernels over rows exist for both number types, with wide accesses (all widths multiples of eight) and without.
#define FOR_NUMBERS(DEFINE) DEFINE(float, f32) DEFINE(bf16, bf16)
#define FOR_NUMBERS_AND_WIDTHS(DEFINE) \
    DEFINE(float, 8, f32_wide) DEFINE(float, 1, f32_narrow) DEFINE(bf16, 8, bf16_wide) DEFINE(bf16, 1, bf16_narrow)
