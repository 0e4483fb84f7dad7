// Runs CUDA kernels on the processor, to test them without a GPU: tests/common/emulator.rs compiles src/gpu/kernels as C++
// against this header.
//
// The threads of a block are fibers of one thread, switched at barriers and warp collectives, in an order that changes from
// turn to turn: a result that depends on an order which no barrier guarantees differs from launch to launch. Blocks run one
// after the other. Dynamic shared memory is filled with NaN before each block. A barrier that some threads never reach ends
// the process with a message. With MT_RACES, every access is reported to races.cpp.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#ifdef MT_RACES
#include "races.h"
// The emulator's own accesses, which are not a kernel's.
#define UNWATCHED __attribute__((no_sanitize("thread")))
#else
#define UNWATCHED
#endif

using std::isfinite;

#define EXPORTED __attribute__((visibility("default")))
#define __device__
#define __global__
#define __shared__ static thread_local
#define GRID_CONSTANT
#define __align__(n) __attribute__((aligned(n)))

struct Dim3 {
    unsigned x = 1, y = 1, z = 1;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline unsigned __float_as_uint(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}
inline float __uint_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
// Rounded by themselves: these kernels are compiled for processors that need not join them.
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }

struct bf16 {
    uint16_t bits;
};
inline float to_float(bf16 x) { return __uint_as_float(unsigned(x.bits) << 16); }
// Rounds to nearest, ties to even.
inline bf16 to_bf16(float x) {
    const unsigned bits = __float_as_uint(x);
    if (x != x) return {uint16_t(bits >> 16 | 0x40)};
    return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

inline thread_local Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

constexpr size_t STACK = 256 << 10;
constexpr unsigned LANES = 32;

struct Barrier {
    unsigned arrived = 0, expected = 0, generation = 0;
};

// Where to go on: the compiler's own jumps cost a few instructions, and those of <setjmp.h> far more.
typedef void* Place[5];

// A fiber starts with its own context, on its own stack; after that it is left and entered by jumps, which, unlike context
// switches, need no system call.
struct Fiber {
    ucontext_t context;
    Place place;
    std::vector<char> stack;
    bool begun, done;
};

struct Slot {
    unsigned a[4], b[2];
    float value;
    const bf16* row;
};

// A copy to shared memory that a thread has begun.
struct Copy {
    uint4* to;
    uint4 bytes;
    unsigned group;
};

// Those of a thread, in memory of its own: the watch would take memory that is given back and used again for a race.
struct Copies {
    Copy all[512];
    // Those from `first` on are under way.
    unsigned first = 0, count = 0;
    // Number of groups that are complete.
    unsigned groups = 0;
};

struct Block {
    std::deque<Fiber> fibers;
    std::deque<Copies> copies;
    Place scheduler;
    unsigned current = 0, threads = 0, progress = 0;
    Barrier all;
    std::vector<Barrier> warps;
    // How often the threads of a warp have met where CUDA orders their accesses: at __syncwarp, not at other collectives.
    std::vector<unsigned> warp_meetings;
    std::vector<Slot> slots;
    std::vector<unsigned char> shared;
    uint64_t random = 1;
    void (*body)(void*) = nullptr;
    void* arguments = nullptr;
};

// A pointer: each use of a thread-local object asks whether its constructor has run.
inline thread_local Block* block = nullptr;

// Other fibers change memory before a jump back, which the compiler cannot know of its own jumps.
UNWATCHED inline void others_run() { asm volatile("" ::: "memory"); }

// The compiler wants a jump in another function than the one that sets a place.
[[noreturn]] UNWATCHED __attribute__((noinline)) inline void jump(Place& place) { __builtin_longjmp(place, 1); }

// Not inlined: variables that are used after the jump back must not be held in registers.
UNWATCHED __attribute__((noinline)) inline void leave() {
    others_run();
    if (__builtin_setjmp(block->fibers[block->current].place) == 0) jump(block->scheduler);
    others_run();
}

inline void run_fiber();

UNWATCHED __attribute__((noinline)) inline void enter(Fiber& fiber) {
    others_run();
    if (__builtin_setjmp(block->scheduler) != 0) return others_run();
    if (fiber.begun) jump(fiber.place);
    fiber.begun = true;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    // Stacks that begin at like addresses would drive each other out of the cache.
    fiber.context.uc_stack.ss_size = fiber.stack.size() - threadIdx.x % 64 * 64;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, run_fiber, 0);
    setcontext(&fiber.context);
}

[[noreturn]] inline void fail(const char* what) {
    std::fprintf(stderr, "emulator: %s\n", what);
    std::abort();
}

// Shared memory of a block with compute capability 8.6, which of those that the kernels are for gives the least.
constexpr unsigned MOST_SHARED = 99 << 10;

// Whether every GPU accepts such a launch.
inline bool runs(const unsigned* grid, unsigned threads, unsigned shared) {
    return shared <= MOST_SHARED && threads > 0 && threads <= 1024 && threads % LANES == 0 && grid[1] <= 65535 && grid[2] <= 65535;
}

// Returns whether this thread is the last to arrive.
UNWATCHED inline bool wait(Barrier& barrier) {
    const unsigned generation = barrier.generation;
    block->progress++;
    if (++barrier.arrived == barrier.expected) {
        barrier.arrived = 0;
        barrier.generation++;
        return true;
    }
    while (barrier.generation == generation) leave();
    return false;
}

UNWATCHED inline unsigned lane() { return threadIdx.x % LANES; }
UNWATCHED inline Slot& slot(unsigned lane) { return block->slots[threadIdx.x / LANES * LANES + lane]; }
UNWATCHED inline bool wait_warp() { return wait(block->warps[threadIdx.x / LANES]); }

UNWATCHED inline Copies& copies() { return block->copies[block->current]; }
UNWATCHED inline void add_copy(uint4* to, const uint4& bytes) {
    Copies& mine = copies();
    if (mine.first == mine.count) mine.first = mine.count = 0;
    if (mine.count == sizeof mine.all / sizeof *mine.all) fail("a thread begins too many copies");
    Copy& copy = mine.all[mine.count++];
    copy.to = to, copy.bytes = bytes, copy.group = mine.groups;
}
// The first copy that is under way, if there is one, and it is not among those of the last `left` groups and those in no group.
UNWATCHED inline const Copy* take_copy(unsigned left) {
    Copies& mine = copies();
    const bool is_due = mine.first < mine.count && mine.all[mine.first].group + left < mine.groups;
    return is_due ? &mine.all[mine.first++] : nullptr;
}
UNWATCHED inline void end_group() { copies().groups++; }

UNWATCHED inline void run_fiber() {
    // One turn per block.
    for (;;) {
        block->body(block->arguments);
        block->fibers[block->current].done = true;
        block->progress++;
        leave();
    }
}

UNWATCHED inline Fiber new_fiber() {
    Fiber made;
    made.stack.resize(STACK);
    made.begun = false;
    return made;
}

// Makes this thread the current one.
UNWATCHED inline void choose(unsigned thread) {
    block->current = thread;
    threadIdx.x = thread;
#ifdef MT_RACES
    const unsigned number = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const auto& stack = block->fibers[thread].stack;
    races::enter({number, thread, &block->all.generation, &block->warp_meetings[thread / LANES], stack.data(), stack.size()});
#endif
}

UNWATCHED inline void run_block(const char* name) {
    const unsigned threads = block->threads;
    // NaN, as a float and as a pair of bf16.
    std::memset(block->shared.data(), 0xff, block->shared.size());
    block->all = {0, threads, 0};
    for (auto& warp : block->warps) warp = {0, LANES, 0};
    for (auto& meetings : block->warp_meetings) meetings = 0;
#ifdef MT_RACES
    races::begin_block(block->shared.data(), block->shared.size());
#endif
    while (block->copies.size() < threads) block->copies.emplace_back();
    for (unsigned t = 0; t < threads; t++) {
        block->fibers[t].done = false;
    }
    for (unsigned left = threads; left > 0;) {
        block->random = block->random * 6364136223846793005ull + 1442695040888963407ull;
        // Modulo a power of two, any odd step visits all numbers.
        unsigned size = 1;
        while (size < threads) size *= 2;
        const unsigned start = unsigned(block->random >> 33), step = unsigned(block->random >> 20) | 1;
        const unsigned before = block->progress;
        for (unsigned i = 0; i < size; i++) {
            const unsigned t = (start + i * step) % size;
            if (t >= threads || block->fibers[t].done) continue;
            choose(t);
            enter(block->fibers[t]);
#ifdef MT_RACES
            races::leave();
#endif
            if (!block->fibers[t].done) continue;
            left--;
            if (block->copies[t].first < block->copies[t].count) fail("a thread ends without waiting for its copies");
        }
        if (left > 0 && block->progress == before) {
            std::fprintf(stderr, "kernel %s: a barrier that not all threads reach, block %u %u %u\n", name, blockIdx.x,
                         blockIdx.y, blockIdx.z);
            std::abort();
        }
    }
}

typedef void (*Launcher)(void** arguments);
// A copy of a kernel's arguments, which keeps them alive.
struct Arguments {
    std::shared_ptr<void> values;
    std::vector<void*> pointers;
};
struct Kernel {
    Launcher launch;
    Arguments (*copy)(void** arguments);
};
inline std::unordered_map<std::string, Kernel>& kernels() {
    static std::unordered_map<std::string, Kernel> table;
    return table;
}

template <auto KERNEL_FUNCTION> struct Launch;
template <class... Types, void (*KERNEL_FUNCTION)(Types...)> struct Launch<KERNEL_FUNCTION> {
    template <size_t... I> static void call(void** arguments, std::index_sequence<I...>) {
        KERNEL_FUNCTION(*static_cast<std::remove_cv_t<Types>*>(arguments[I])...);
    }
    static void run(void** arguments) { call(arguments, std::index_sequence_for<Types...>{}); }
    template <size_t... I> static Arguments copied(void** arguments, std::index_sequence<I...>) {
        const auto values = std::make_shared<std::tuple<std::remove_cv_t<Types>...>>(
            *static_cast<std::remove_cv_t<Types>*>(arguments[I])...);
        return {values, {&std::get<I>(*values)...}};
    }
    static Arguments copy(void** arguments) { return copied(arguments, std::index_sequence_for<Types...>{}); }
};

struct Registration {
    Registration(const char* name, Kernel kernel) { kernels()[name] = kernel; }
};

}  // namespace emulator

// Internal linkage: other libraries have functions of the same names.
#define KERNEL static void
#define KERNEL_OF(...) static void
#define LAUNCHABLE(name) static emulator::Registration registration_of_##name(#name, {emulator::Launch<&name>::run, emulator::Launch<&name>::copy});
#define DYNAMIC_SHARED(type, name) type* name = reinterpret_cast<type*>(emulator::block->shared.data())

UNWATCHED inline void __syncthreads() { emulator::wait(emulator::block->all); }
UNWATCHED inline void sync_warp() {
    if (emulator::wait_warp()) emulator::block->warp_meetings[threadIdx.x / emulator::LANES]++;
}

inline float exp2_fast(float x) { return exp2f(x); }

UNWATCHED inline float shuffle(float x, unsigned lane) {
    emulator::slot(emulator::lane()).value = x;
    emulator::wait_warp();
    const float y = emulator::slot(lane).value;
    emulator::wait_warp();
    return y;
}
inline float shuffle_xor(float x, unsigned lanes) { return shuffle(x, emulator::lane() ^ lanes); }

UNWATCHED inline float half_of(unsigned pair, unsigned which) { return __uint_as_float(which ? pair & 0xffff0000u : pair << 16); }

UNWATCHED inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    emulator::Slot& mine = emulator::slot(emulator::lane());
    std::memcpy(mine.a, a, sizeof mine.a);
    mine.b[0] = b0, mine.b[1] = b1;
    emulator::wait_warp();
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = emulator::lane() / 4 + i / 2 * 8, column = emulator::lane() % 4 * 2 + i % 2;
        for (unsigned k = 0; k < 16; k++) {
            const emulator::Slot &left = emulator::slot(row % 8 * 4 + k % 8 / 2), &right = emulator::slot(column * 4 + k % 8 / 2);
            c[i] += half_of(left.a[row / 8 + k / 8 * 2], k % 2) * half_of(right.b[k / 8], k % 2);
        }
    }
    emulator::wait_warp();
}

template <bool TRANSPOSED> UNWATCHED inline void load_matrices(unsigned (&x)[4], const bf16* row) {
#ifdef MT_RACES
    races::reads(row, 8 * sizeof *row);
#endif
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0) emulator::fail("a matrix's row does not begin at a multiple of 16 bytes");
    emulator::slot(emulator::lane()).row = row;
    emulator::wait_warp();
    const unsigned pair = emulator::lane() % 4 * 2, single = emulator::lane() / 4;
    unsigned out[4];
    for (unsigned m = 0; m < 4; m++) {
        const bf16 low = TRANSPOSED ? emulator::slot(8 * m + pair).row[single] : emulator::slot(8 * m + single).row[pair];
        const bf16 high = TRANSPOSED ? emulator::slot(8 * m + pair + 1).row[single] : emulator::slot(8 * m + single).row[pair + 1];
        out[m] = low.bits | unsigned(high.bits) << 16;
    }
    std::memcpy(x, out, sizeof out);
    emulator::wait_warp();
}

// The copy is made when the thread waits for it. Until then there is NaN: nobody may count on what was there before, as the GPU
// may copy at any time in between.
inline void copy_async(void* to, const void* from, bool is_there) {
    if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) {
        emulator::fail("a copy to or from where no multiple of 16 bytes is");
    }
    const uint4 bytes = is_there ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
    *static_cast<uint4*>(to) = make_uint4(~0u, ~0u, ~0u, ~0u);
    emulator::add_copy(static_cast<uint4*>(to), bytes);
}

inline void end_group_of_copies() { emulator::end_group(); }

template <int LEFT> inline void groups_done_but() {
    while (const emulator::Copy* copy = emulator::take_copy(LEFT)) *copy->to = copy->bytes;
}

inline void copies_done() {
    end_group_of_copies();
    groups_done_but<0>();
}

// Returns 1 if there is no kernel of this name, 2 if no GPU accepts such a launch, 3 if its threads race.
extern "C" UNWATCHED EXPORTED int emulator_launch(const char* name, const unsigned* grid, unsigned threads, unsigned shared, void** arguments) {
    using emulator::block;
    static thread_local emulator::Block of_thread;
    block = &of_thread;
    const auto found = emulator::kernels().find(name);
    if (found == emulator::kernels().end()) return 1;
    if (!emulator::runs(grid, threads, shared)) return 2;
    block->threads = threads;
    // A deque: fibers that have started must not move.
    while (block->fibers.size() < threads) block->fibers.push_back(emulator::new_fiber());
    block->warps.resize(threads / emulator::LANES);
    block->warp_meetings.resize(threads / emulator::LANES);
    block->slots.resize(threads);
    // A little more than asked for, so that the end is not the vector's.
    block->shared.resize(shared + 64);
    block->body = reinterpret_cast<void (*)(void*)>(found->second.launch);
    block->arguments = arguments;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {threads, 1, 1};
    threadIdx = {0, 0, 0};
#ifdef MT_RACES
    races::begin_launch(name);
#endif
    for (blockIdx.z = 0; blockIdx.z < grid[2]; blockIdx.z++) {
        for (blockIdx.y = 0; blockIdx.y < grid[1]; blockIdx.y++) {
            for (blockIdx.x = 0; blockIdx.x < grid[0]; blockIdx.x++) emulator::run_block(name);
        }
    }
#ifdef MT_RACES
    if (races::end_launch()) return 3;
#endif
    return 0;
}
