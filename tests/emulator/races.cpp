// Finds races in kernels: two threads of a launch access the same number, one of them writes, and CUDA does not order them.
//
// Kernels compiled with -fsanitize=thread call the functions at the end for every access: they have the interface of that
// sanitizer, whose own library knows nothing of blocks and warps. Accesses are ordered by __syncthreads for the threads of a
// block and by __syncwarp for those of a warp, by nothing else: not by shuffles, and never between blocks.
#include "races.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <unordered_map>

namespace {

// Bytes watched as a unit: the size of the smallest numbers; and bytes whose cells are allocated together.
constexpr uintptr_t GRAIN = 2, PAGE = 4096;
constexpr unsigned LANES = 32;

// Kept small, as there are two for every grain.
struct Access {
    // Counted from 1.
    uint32_t launch = 0, block;
    uint16_t meetings, warp_meetings, thread;
    // Whether it stands for reads by several blocks, warps or threads.
    bool of_blocks : 1, of_warps : 1, of_threads : 1;
    // Offset from the beginning of the library.
    uint32_t code;
};
struct Cell {
    Access read, written;
};
struct Page {
    Cell cells[PAGE / GRAIN];
};

struct Span {
    const char* begin = nullptr;
    size_t bytes = 0;
    bool holds(const char* at) const { return at >= begin && at < begin + bytes; }
};

struct Watch {
    bool is_on = false, ignores_meetings = false;
    const char* kernel = "";
    uint32_t launch = 0;
    size_t found = 0;
    const char* code = nullptr;
    races::Position now;
    // Shared memory of the launch's blocks.
    Span fixed_shared, dynamic_shared;
    std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;
    // The pages looked up last.
    struct {
        uintptr_t number;
        Page* page = nullptr;
    } recent[256];

    Cell& cell(uintptr_t grain) {
        const uintptr_t number = grain / (PAGE / GRAIN);
        auto& found = recent[number % 256];
        if (found.number != number || !found.page) {
            auto& page = pages[number];
            if (!page) page = std::make_unique<Page>();
            found = {number, page.get()};
        }
        return found.page->cells[grain % (PAGE / GRAIN)];
    }
    bool is_shared(const char* at) const { return dynamic_shared.holds(at) || fixed_shared.holds(at); }
};

// Global, so only one launch at a time is watched: a library finds its thread-local variables by a call, too slow for every
// access.
Watch watch;

// The thread-local variables of this library, among which is shared memory of a fixed size.
Span thread_local_variables() {
    static thread_local char one_of_them;
    Span found;
    const auto look = [](dl_phdr_info* info, size_t, void* to) {
        for (int i = 0; i < info->dlpi_phnum; i++) {
            const auto& part = info->dlpi_phdr[i];
            const Span span = {static_cast<const char*>(info->dlpi_tls_data), part.p_memsz};
            if (part.p_type == PT_TLS && span.holds(&one_of_them)) *static_cast<Span*>(to) = span;
        }
        return 0;
    };
    dl_iterate_phdr(look, &found);
    return found;
}

// Whether nothing orders `before` before `now`.
bool is_race(const Access& before, const Access& now, bool is_shared) {
    if (before.launch != now.launch || (is_shared && before.block != now.block)) return false;
    if (before.of_blocks || before.block != now.block) return true;
    if (before.meetings != now.meetings) return false;
    if (before.of_warps || before.thread / LANES != now.thread / LANES) return true;
    if (before.warp_meetings != now.warp_meetings) return false;
    return before.of_threads || before.thread != now.thread;
}

// Adds a read to `reads`, which stands for all reads that are not ordered before what follows `now`.
void join(Access& reads, const Access& now, bool is_shared) {
    const Access before = reads;
    reads = now;
    if (before.launch != now.launch || (is_shared && before.block != now.block)) return;
    reads.of_blocks = before.of_blocks || before.block != now.block;
    if (before.block != now.block || before.meetings != now.meetings) return;
    reads.of_warps = before.of_warps || before.thread / LANES != now.thread / LANES;
    if (before.thread / LANES != now.thread / LANES || before.warp_meetings != now.warp_meetings) return;
    reads.of_threads = before.of_threads || before.thread != now.thread;
}

void tell(const Access& access, bool writes) {
    std::fprintf(stderr, "  %s by thread %u of block %u, its meetings %u and %u, code at %#x\n", writes ? "written" : "read",
                 access.thread, access.block, access.meetings, access.warp_meetings, access.code);
}

void note_shared_or_global(const char* at, size_t bytes, bool writes, const void* code) {
    const races::Position& position = watch.now;
    const bool is_shared = watch.is_shared(at), counts = !watch.ignores_meetings;
    const Access now = {watch.launch,
                        position.block,
                        uint16_t(counts ? *position.meetings : 0),
                        uint16_t(counts ? *position.warp_meetings : 0),
                        uint16_t(position.thread),
                        false,
                        false,
                        false,
                        uint32_t(static_cast<const char*>(code) - watch.code)};
    const uintptr_t first = reinterpret_cast<uintptr_t>(at) / GRAIN, last = (reinterpret_cast<uintptr_t>(at) + bytes - 1) / GRAIN;
    for (uintptr_t grain = first; grain <= last; grain++) {
        Cell& cell = watch.cell(grain);
        for (const Access* before : {&cell.written, &cell.read}) {
            const bool wrote = before == &cell.written;
            if ((!writes && !wrote) || !is_race(*before, now, is_shared)) continue;
            if (watch.found++ > 0 || watch.ignores_meetings) continue;
            std::fprintf(stderr, "kernel %s: a race in %s memory\n", watch.kernel, is_shared ? "shared" : "global");
            tell(*before, wrote);
            tell(now, writes);
        }
        if (writes) {
            cell.written = now;
        } else {
            join(cell.read, now, is_shared);
        }
    }
}

inline void note(const void* address, size_t bytes, bool writes, const void* code) {
    const char* at = static_cast<const char*>(address);
    const Span own = {watch.now.stack, watch.now.stack_bytes};
    if (watch.is_on && !own.holds(at)) note_shared_or_global(at, bytes, writes, code);
}

}  // namespace

namespace races {

void begin_launch(const char* kernel) {
    Dl_info library = {};
    if (dladdr(reinterpret_cast<const void*>(&begin_launch), &library)) watch.code = static_cast<const char*>(library.dli_fbase);
    watch.kernel = kernel;
    watch.launch++;
    watch.found = 0;
    watch.fixed_shared = thread_local_variables();
}

void begin_block(const void* shared, size_t bytes) { watch.dynamic_shared = {static_cast<const char*>(shared), bytes}; }

void enter(const Position& position) {
    watch.now = position;
    watch.is_on = true;
}

void leave() { watch.is_on = false; }

void reads(const void* at, size_t bytes) { ::note(at, bytes, false, __builtin_return_address(0)); }

bool end_launch() { return watch.found > 0; }

}  // namespace races

extern "C" {

// With `ignores`, judges as if no thread ever waited for another: a test that races are found.
__attribute__((visibility("default"))) void emulator_ignores_meetings(int ignores) { watch.ignores_meetings = ignores; }

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

#define WATCHED(bytes)                                                                                             \
    void __tsan_read##bytes(void* at) { note(at, bytes, false, __builtin_return_address(0)); }                     \
    void __tsan_write##bytes(void* at) { note(at, bytes, true, __builtin_return_address(0)); }                     \
    void __tsan_unaligned_read##bytes(void* at) { note(at, bytes, false, __builtin_return_address(0)); }           \
    void __tsan_unaligned_write##bytes(void* at) { note(at, bytes, true, __builtin_return_address(0)); }
WATCHED(1)
WATCHED(2)
WATCHED(4)
WATCHED(8)
WATCHED(16)
void __tsan_read_range(void* at, size_t bytes) { note(at, bytes, false, __builtin_return_address(0)); }
void __tsan_write_range(void* at, size_t bytes) { note(at, bytes, true, __builtin_return_address(0)); }
}
