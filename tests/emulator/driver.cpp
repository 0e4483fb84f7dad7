// Emulates on the processor what a binary of `make cuda` calls of NVIDIA's driver, cuBLASLt and other libraries: enough to
// run mt's GPU engine (scripts/cuda-emulate.sh). It has the kernels of src/gpu/kernels, on the emulator, and the few of
// Candle's that training and decoding need. It is as strict as the real ones about handles, alignments, leading dimensions
// and shapes.
//
// It has as many devices as MT_EMULATED_DEVICES says, or one. All are the same memory of this process: there is a process for
// each device that trains. NCCL connects them (nccl.cpp).
//
// Work is done as late as possible, when it is waited for, and that of other streams only if it waits for them. If the host
// changes or reads memory too early, such as pinned memory, or a stream does not wait for another one, it therefore sees wrong
// results. With MT_EMULATED_STREAMS=early, a stream that waits for another one goes on as soon as it may.
#include "../../src/gpu/kernels/all.cu"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <functional>
#include <map>
#include <mutex>
#include <set>

namespace {

typedef int Status;
constexpr Status SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_SUPPORTED = 15, NOT_READY = 600, ILLEGAL_ADDRESS = 700;

[[noreturn]] void fail(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vfprintf(stderr, format, arguments);
    va_end(arguments);
    std::fputc('\n', stderr);
    std::abort();
}

std::mutex mutex;

// Locked while work is queued or done, on any stream.
std::recursive_mutex working;

// The queued work of a stream, in the order of the calls, and how many pieces are done.
struct Work {
    struct Piece {
        std::function<void()> run;
        // What must be done before, and how much of it.
        Work* other;
        uint64_t after;
    };
    std::deque<Piece> queue;
    uint64_t done = 0;

    uint64_t queued() {
        std::lock_guard<std::recursive_mutex> lock(working);
        return done + queue.size();
    }
    bool is_done(uint64_t until) {
        std::lock_guard<std::recursive_mutex> lock(working);
        return done >= until;
    }
    void later(std::function<void()> run) {
        std::lock_guard<std::recursive_mutex> lock(working);
        queue.push_back({std::move(run), nullptr, 0});
    }
    void wait_for(Work* other, uint64_t after) {
        std::lock_guard<std::recursive_mutex> lock(working);
        queue.push_back({[] {}, other, after});
    }
    void finish(uint64_t until);
    void finish() { finish(queued()); }
};

// The existing streams. Default streams are refused: the per-thread one differs from thread to thread.
std::set<void*>& streams() {
    static std::set<void*>* const all = new std::set<void*>;
    return *all;
}

// Lets all streams but one go on as far as they may.
void go_on(const Work* but) {
    static const char* const when = std::getenv("MT_EMULATED_STREAMS");
    static bool is_going = false;
    if (when == nullptr || std::strcmp(when, "early") != 0 || is_going) return;
    is_going = true;
    for (void* stream : streams()) {
        Work& work = *static_cast<Work*>(stream);
        const auto may = [&] { return work.queue.front().other == nullptr || work.queue.front().other->done >= work.queue.front().after; };
        while (&work != but && !work.queue.empty() && may()) work.finish(work.done + 1);
    }
    is_going = false;
}

void Work::finish(uint64_t until) {
    std::lock_guard<std::recursive_mutex> lock(working);
    while (done < until && !queue.empty()) {
        const Piece piece = std::move(queue.front());
        queue.pop_front();
        if (piece.other != nullptr) piece.other->finish(piece.after);
        piece.run();
        done++;
        go_on(this);
    }
}

void finish_all() {
    std::lock_guard<std::recursive_mutex> lock(working);
    for (void* stream : streams()) static_cast<Work*>(stream)->finish();
}

// With MT_EMULATED_IDLE, no product and no kernel but `decide` is computed, and memory is zero: the time that is left is the
// host's. At the end, the number of calls of each kernel is printed.
bool is_idle() {
    static const bool idle = std::getenv("MT_EMULATED_IDLE") != nullptr;
    return idle;
}

struct Calls {
    std::mutex mutex;
    std::map<std::string, uint64_t> calls;
    void count(const std::string& name) {
        std::lock_guard<std::mutex> lock(mutex);
        calls[name]++;
    }
    ~Calls() {
        for (const auto& kernel : calls) std::fprintf(stderr, "%10lu %s\n", kernel.second, kernel.first.c_str());
    }
};

void count(const std::string& name) {
    static Calls calls;
    if (is_idle()) calls.count(name);
}

// The allocations of the device: address and size.
std::map<uintptr_t, size_t>& blocks() {
    static std::map<uintptr_t, size_t> table;
    return table;
}

size_t limit() {
    static const size_t bytes = std::getenv("MT_EMULATED_BYTES") ? std::strtoull(std::getenv("MT_EMULATED_BYTES"), nullptr, 10) : ~size_t(0);
    return bytes;
}

Status allocate(void** to, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex);
    size_t used = 0;
    for (const auto& block : blocks()) used += block.second;
    if (bytes == 0) return INVALID_VALUE;
    if (used + bytes > limit()) return OUT_OF_MEMORY;
    void* memory = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
    std::memset(memory, is_idle() ? 0 : 0xff, bytes);
    blocks()[reinterpret_cast<uintptr_t>(memory)] = bytes;
    *to = memory;
    return SUCCESS;
}

// Removes an allocation from the table; returns whether it was there.
bool forget(void* memory) {
    std::lock_guard<std::mutex> lock(mutex);
    return blocks().erase(reinterpret_cast<uintptr_t>(memory)) > 0;
}

Status release(void* memory) {
    if (!forget(memory)) return INVALID_VALUE;
    std::free(memory);
    return SUCCESS;
}

// Pinned memory of the host: address and size.
std::map<uintptr_t, size_t>& pinned() {
    static std::map<uintptr_t, size_t> table;
    return table;
}

bool is_pinned(const void* memory) {
    std::lock_guard<std::mutex> lock(mutex);
    const uintptr_t at = reinterpret_cast<uintptr_t>(memory);
    auto block = pinned().upper_bound(at);
    return block != pinned().begin() && (--block, at < block->first + block->second);
}

// Ends the process unless the bytes lie in one allocation.
void check(const void* memory, size_t bytes, const char* what) {
    std::lock_guard<std::mutex> lock(mutex);
    const uintptr_t at = reinterpret_cast<uintptr_t>(memory);
    auto block = blocks().upper_bound(at);
    if (block == blocks().begin() || (--block, at + bytes > block->first + block->second)) {
        fail("%s: %zu bytes at %p are not the device's", what, bytes, memory);
    }
}

// The work of a stream.
Work& on(void* stream) {
    std::lock_guard<std::recursive_mutex> lock(working);
    if (streams().count(stream) == 0) fail("a stream that was not created: %p", stream);
    return *static_cast<Work*>(stream);
}

// MT_EMULATED_REFUSES names products for which cuBLASLt shall have no algorithm: `epilogues`, those with an epilogue, `late`,
// the same, but it says so only when it is to compute one, or `round`, those whose number of rows was rounded up to choose an
// algorithm.
bool refuses(const char* what) {
    static const char* const refused = std::getenv("MT_EMULATED_REFUSES");
    return refused != nullptr && std::strcmp(refused, what) == 0;
}

// With MT_EMULATED_FAILS_AFTER=N, the device fails at the kernel after N: as with a real one, that shows when something is
// waited for or queued later, and then every time.
std::atomic<long> launched{0};
Status health() {
    static const char* const last = std::getenv("MT_EMULATED_FAILS_AFTER");
    return last != nullptr && launched > std::atol(last) ? ILLEGAL_ADDRESS : SUCCESS;
}

struct Function {
    std::string name;
    // The most dynamic shared memory that it may be given; it has to ask for more than 48 KiB.
    unsigned shared = 48 << 10;
};

struct Recorded {
    std::chrono::steady_clock::time_point time;
};

struct Event {
    std::shared_ptr<Recorded> recorded = std::make_shared<Recorded>();
    // The stream that it is recorded on, and how much of its work comes before it.
    Work* stream = nullptr;
    uint64_t after = 0;
};

// Candle's kernels, on contiguous tensors.
template <class T> T value(void** arguments, int i) { return *static_cast<T*>(arguments[i]); }

bool candle_kernel(const std::string& name, void** a, Work& work) {
    if (name == "copy2d_f32") {
        const float* from = value<const float*>(a, 0);
        float* to = value<float*>(a, 1);
        const unsigned d1 = value<unsigned>(a, 2), d2 = value<unsigned>(a, 3), from_s = value<unsigned>(a, 4), to_s = value<unsigned>(a, 5);
        work.later([=] {
            for (unsigned i = 0; i < d1; i++) std::memcpy(to + size_t(i) * to_s, from + size_t(i) * from_s, 4 * d2);
        });
        return true;
    }
    if (name == "affine_f32") {
        const size_t count = value<size_t>(a, 0);
        const float* in = value<const float*>(a, 3);
        float *out = value<float*>(a, 4), by = value<float>(a, 5), plus = value<float>(a, 6);
        work.later([=] {
            for (size_t i = 0; i < count; i++) out[i] = (in ? in : out)[i] * by + plus;
        });
        return true;
    }
    if (name == "badd_f32") {
        const size_t count = value<size_t>(a, 0);
        const float *left = value<const float*>(a, 3), *right = value<const float*>(a, 4);
        float* out = value<float*>(a, 5);
        work.later([=] {
            for (size_t i = 0; i < count; i++) out[i] = left[i] + right[i];
        });
        return true;
    }
    return false;
}

// cuBLASLt's descriptors.
struct Layout {
    int type;
    uint64_t rows, columns;
    int64_t ld;
    size_t bytes(uint64_t columns_of) const { return (columns_of == 0 ? 0 : (columns_of - 1) * ld + rows) * (type == 0 ? 4 : 2); }
    float at(const void* data, uint64_t row, uint64_t column) const {
        const size_t i = row + column * ld;
        return type == 0 ? static_cast<const float*>(data)[i] : to_float(static_cast<const bf16*>(data)[i]);
    }
    void put(void* data, uint64_t row, uint64_t column, float x) const {
        const size_t i = row + column * ld;
        if (type == 0) {
            static_cast<float*>(data)[i] = x;
        } else {
            static_cast<bf16*>(data)[i] = to_bf16(x);
        }
    }
};

struct Operation {
    int compute, scale, left = 0, right = 0, epilogue = 1;
    const void* bias = nullptr;
};

struct Preference {
    size_t workspace = 0;
    // A, B, C, D.
    uint32_t alignments[4] = {256, 256, 256, 256};
};

// An opaque algorithm, as large as cuBLASLt's: it records what it was chosen for.
struct Algorithm {
    uint64_t magic;
    uint32_t alignments[4];
    int types[4];
    int left, right, epilogue;
    uint64_t rest[2];
};
static_assert(sizeof(Algorithm) == 72 || sizeof(Algorithm) == 64, "");

struct Heuristic {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

constexpr uint64_t MAGIC = 0x6d746d746d746d74;

}  // namespace

#define NCCL_LATER(stream, piece) on(stream).later(piece)
#define NCCL_COMPLETE(stream, from, bytes)
#define NCCL_CHECK(memory, bytes) check(memory, bytes, "NCCL")
#define NCCL_HANGS true
#include "nccl.cpp"

extern "C" {

Status cuInit(unsigned) { return SUCCESS; }
Status cuDriverGetVersion(int* version) { return *version = 13000, SUCCESS; }
Status cuDeviceGetCount(int* count) {
    const char* const devices = std::getenv("MT_EMULATED_DEVICES");
    return *count = devices != nullptr ? std::atoi(devices) : 1, SUCCESS;
}
Status cuDeviceGetUuid_v2(char* bytes, int device) {
    std::memset(bytes, 0, 16);
    return bytes[15] = static_cast<char>(device), SUCCESS;
}
Status cuDeviceGetUuid(char* bytes, int device) { return cuDeviceGetUuid_v2(bytes, device); }
Status cuDeviceGet(int* device, int ordinal) { return *device = ordinal, SUCCESS; }
Status cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
        case 75: *value = 9; break;    // compute capability, major
        case 76: *value = 0; break;    // minor
        case 16: *value = 3; break;    // multiprocessors
        case 115: *value = 1; break;   // memory pools
        default: *value = 0;
    }
    return SUCCESS;
}
Status cuDevicePrimaryCtxRetain(void** context, int) { return *context = reinterpret_cast<void*>(0x1000), SUCCESS; }
Status cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
Status cuCtxSetCurrent(void*) { return SUCCESS; }
Status cuCtxGetCurrent(void** context) { return *context = reinterpret_cast<void*>(0x1000), SUCCESS; }
Status cuGetErrorString(Status, const char** text) { return *text = "an error of the emulated driver", SUCCESS; }
Status cuCtxSynchronize() { return finish_all(), SUCCESS; }
Status cuStreamCreate(void** stream, unsigned) {
    std::lock_guard<std::recursive_mutex> lock(working);
    return *stream = new Work, streams().insert(*stream), SUCCESS;
}
Status cuStreamSynchronize(void* stream) { return on(stream).finish(), health(); }
Status cuStreamWaitEvent(void* stream, void* event, unsigned) {
    const Event& of = *static_cast<Event*>(event);
    if (of.stream != nullptr) on(stream).wait_for(of.stream, of.after);
    return SUCCESS;
}
Status cuStreamIsCapturing(void*, int* status) { return *status = 0, SUCCESS; }
Status cuStreamDestroy_v2(void* stream) {
    on(stream).finish();
    std::lock_guard<std::recursive_mutex> lock(working);
    // Events may name it for longer.
    return streams().erase(stream), SUCCESS;
}

Status cuMemAlloc_v2(void** memory, size_t bytes) { return health() != SUCCESS ? health() : allocate(memory, bytes); }
Status cuMemAllocAsync(void** memory, size_t bytes, void* stream) { return on(stream), allocate(memory, bytes); }
Status cuMemFree_v2(void* memory) { return finish_all(), health() != SUCCESS ? health() : release(memory); }
Status cuMemFreeAsync(void* memory, void* stream) {
    // Work queued from now on must not use it.
    if (!forget(memory)) return INVALID_VALUE;
    return on(stream).later([=] { std::free(memory); }), SUCCESS;
}
Status cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
    *memory = std::malloc(bytes);
    std::lock_guard<std::mutex> lock(mutex);
    return pinned()[reinterpret_cast<uintptr_t>(*memory)] = bytes, SUCCESS;
}
Status cuMemFreeHost(void* memory) {
    std::lock_guard<std::mutex> lock(mutex);
    if (pinned().erase(reinterpret_cast<uintptr_t>(memory)) == 0) return INVALID_VALUE;
    return std::free(memory), SUCCESS;
}
Status cuMemcpyHtoDAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
    check(to, bytes, "upload");
    count("an upload");
    if (is_pinned(from)) return on(stream).later([=] { std::memcpy(to, from, bytes); }), SUCCESS;
    // The driver copies pageable memory before it returns.
    const auto* begin = static_cast<const char*>(from);
    return on(stream).later([to, copy = std::vector<char>(begin, begin + bytes)] { std::memcpy(to, copy.data(), copy.size()); }), SUCCESS;
}
Status cuMemcpyDtoHAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
    check(from, bytes, "download");
    on(stream).later([=] { std::memcpy(to, from, bytes); });
    if (!is_pinned(to)) on(stream).finish();
    return SUCCESS;
}
Status cuMemcpyDtoDAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
    check(to, bytes, "copy to");
    check(from, bytes, "copy from");
    return on(stream).later([=] { std::memmove(to, from, bytes); }), SUCCESS;
}
Status cuMemsetD8Async(void* at, unsigned char byte, size_t bytes, void* stream) {
    check(at, bytes, "memset");
    count("a memset");
    if (is_idle() && bytes > 64) return SUCCESS;
    return on(stream).later([=] { std::memset(at, byte, bytes); }), SUCCESS;
}

Status cuEventCreate(void** event, unsigned) { return *event = new Event, SUCCESS; }
Status cuEventRecord(void* event, void* stream) {
    Event& of = *static_cast<Event*>(event);
    of.stream = &on(stream);
    std::lock_guard<std::recursive_mutex> lock(working);
    of.stream->later([recorded = of.recorded] { recorded->time = std::chrono::steady_clock::now(); });
    return of.after = of.stream->queued(), SUCCESS;
}
Status cuEventSynchronize(void* event) {
    const Event& of = *static_cast<Event*>(event);
    if (of.stream != nullptr) of.stream->finish(of.after);
    return health();
}
Status cuEventQuery(void* event) {
    const Event& of = *static_cast<Event*>(event);
    return of.stream == nullptr || of.stream->is_done(of.after) ? SUCCESS : NOT_READY;
}
Status cuEventElapsedTime_v2(float* milliseconds, void* from, void* to) {
    if (cuEventQuery(from) != SUCCESS || cuEventQuery(to) != SUCCESS) return NOT_READY;
    const auto time = static_cast<Event*>(to)->recorded->time - static_cast<Event*>(from)->recorded->time;
    return *milliseconds = std::chrono::duration<float, std::milli>(time).count(), SUCCESS;
}
Status cuEventDestroy_v2(void* event) { return delete static_cast<Event*>(event), SUCCESS; }

Status cuModuleLoadData(void** module, const void* image) { return *module = const_cast<void*>(image), SUCCESS; }
Status cuModuleUnload(void*) { return SUCCESS; }
Status cuModuleGetFunction(void** function, void*, const char* name) { return *function = new Function{name}, SUCCESS; }
Status cuFuncSetAttribute(void* function, int attribute, int value) {
    // The most dynamic shared memory.
    if (attribute != 8 || value < 0 || unsigned(value) > emulator::MOST_SHARED) return INVALID_VALUE;
    static_cast<Function*>(function)->shared = static_cast<unsigned>(value);
    return SUCCESS;
}
Status cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
                      unsigned shared, void* stream, void** arguments, void** extra) {
    Work& work = on(stream);
    if (const Status status = health(); status != SUCCESS) return status;
    launched++;
    const std::string& name = static_cast<Function*>(function)->name;
    if (x == 0 || y == 0 || z == 0 || extra != nullptr) return INVALID_VALUE;
    if (shared > static_cast<Function*>(function)->shared) return INVALID_VALUE;
    if (candle_kernel(name, arguments, work)) return SUCCESS;
    if (ty != 1 || tz != 1) fail("%s: a block of more than one dimension", name.c_str());
    const auto kernel = emulator::kernels().find(name);
    if (kernel == emulator::kernels().end()) fail("the emulated driver has no kernel %s", name.c_str());
    const std::array<unsigned, 3> grid = {x, y, z};
    if (!emulator::runs(grid.data(), threads, shared)) return INVALID_VALUE;
    count(name);
    if (is_idle() && name != "decide") return SUCCESS;
    work.later([=, copy = kernel->second.copy(arguments)]() mutable {
        emulator_launch(name.c_str(), grid.data(), threads, shared, copy.pointers.data());
    });
    return SUCCESS;
}

Status cublasCreate_v2(void** handle) { return *handle = reinterpret_cast<void*>(0x2000), SUCCESS; }
Status cublasDestroy_v2(void*) { return SUCCESS; }
Status cublasSetStream_v2(void*, void*) { return SUCCESS; }
Status curandCreateGenerator(void** generator, int) { return *generator = reinterpret_cast<void*>(0x3000), SUCCESS; }
Status curandSetPseudoRandomGeneratorSeed(void*, unsigned long long) { return SUCCESS; }
Status curandSetStream(void*, void*) { return SUCCESS; }
Status curandDestroyGenerator(void*) { return SUCCESS; }

Status cublasLtCreate(void** handle) { return *handle = reinterpret_cast<void*>(0x4000), SUCCESS; }
Status cublasLtDestroy(void*) { return SUCCESS; }
Status cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t columns, int64_t ld) {
    if ((type != 0 && type != 14) || ld < int64_t(rows) || rows == 0 || columns == 0) fail("cublasLtMatrixLayoutCreate: %d, %lu×%lu, ld %ld", type, rows, columns, ld);
    return *layout = new Layout{type, rows, columns, ld}, SUCCESS;
}
Status cublasLtMatrixLayoutDestroy(void* layout) { return delete static_cast<Layout*>(layout), SUCCESS; }
Status cublasLtMatmulDescCreate(void** operation, int compute, int scale) {
    if (compute != 68 || scale != 0) fail("cublasLtMatmulDescCreate: %d, %d", compute, scale);
    return *operation = new Operation{compute, scale}, SUCCESS;
}
Status cublasLtMatmulDescDestroy(void* operation) { return delete static_cast<Operation*>(operation), SUCCESS; }
Status cublasLtMatmulDescSetAttribute(void* operation, int attribute, const void* data, size_t bytes) {
    Operation& of = *static_cast<Operation*>(operation);
    switch (attribute) {
        case 3:
        case 4:
            if (bytes != 4 || *static_cast<const unsigned*>(data) > 1) fail("a transposition of %zu bytes", bytes);
            (attribute == 3 ? of.left : of.right) = *static_cast<const int*>(data);
            return SUCCESS;
        case 7:
            of.epilogue = *static_cast<const int*>(data);
            if (bytes != 4 || (of.epilogue != 1 && of.epilogue != 4 && of.epilogue != 6)) fail("epilogue %d", of.epilogue);
            return SUCCESS;
        case 8:
            if (bytes != 8) fail("a bias of %zu bytes", bytes);
            std::memcpy(&of.bias, data, 8);
            return SUCCESS;
    }
    fail("cublasLtMatmulDescSetAttribute: attribute %d", attribute);
}
Status cublasLtMatmulPreferenceCreate(void** preference) { return *preference = new Preference, SUCCESS; }
Status cublasLtMatmulPreferenceDestroy(void* preference) { return delete static_cast<Preference*>(preference), SUCCESS; }
Status cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* data, size_t bytes) {
    Preference& of = *static_cast<Preference*>(preference);
    if (attribute == 1 && bytes == 8) return std::memcpy(&of.workspace, data, 8), SUCCESS;
    if (attribute == 3 && bytes == 4) {
        // If sums are split, the parts must be added in the type of the computation.
        if (*static_cast<const unsigned*>(data) != 2) fail("a reduction in another type than float32");
        return SUCCESS;
    }
    if (attribute >= 5 && attribute <= 8 && bytes == 4) return std::memcpy(&of.alignments[attribute - 5], data, 4), SUCCESS;
    fail("cublasLtMatmulPreferenceSetAttribute: attribute %d of %zu bytes", attribute, bytes);
}
Status cublasLtMatmulAlgoGetHeuristic(void*, void* operation, void* a, void* b, void* c, void* d, void* preference, int wanted,
                                      Heuristic* results, int* found) {
    const Operation& of = *static_cast<Operation*>(operation);
    const Preference& given = *static_cast<Preference*>(preference);
    if (wanted < 1) return INVALID_VALUE;
    const Layout& left = *static_cast<Layout*>(a);
    // Larger than 64, to exclude the widths of the tests' models.
    const auto is_round = [](uint64_t size) { return size > 64 && size % 64 == 0; };
    const bool round = is_round(static_cast<Layout*>(d)->columns) || is_round(of.left ? left.rows : left.columns);
    if ((of.epilogue != 1 && refuses("epilogues")) || (round && refuses("round"))) return *found = 0, NOT_SUPPORTED;
    Algorithm algorithm = {};
    algorithm.magic = MAGIC;
    std::memcpy(algorithm.alignments, given.alignments, sizeof algorithm.alignments);
    void* layouts[4] = {a, b, c, d};
    for (int i = 0; i < 4; i++) algorithm.types[i] = static_cast<Layout*>(layouts[i])->type;
    algorithm.left = of.left, algorithm.right = of.right, algorithm.epilogue = of.epilogue;
    std::memset(results, 0, sizeof *results);
    std::memcpy(results->algorithm, &algorithm, 56);
    return *found = 1, SUCCESS;
}
Status cublasLtMatmul(void*, void* operation, const float* alpha, const void* a, void* a_layout, const void* b, void* b_layout,
                      const float* beta, const void* c, void* c_layout, void* d, void* d_layout, const void* chosen,
                      void* workspace, size_t workspace_bytes, void* stream) {
    Work& work = on(stream);
    const Operation& of = *static_cast<Operation*>(operation);
    const Layout *left = static_cast<Layout*>(a_layout), *right = static_cast<Layout*>(b_layout), *result = static_cast<Layout*>(d_layout);
    Algorithm algorithm;
    std::memcpy(&algorithm, chosen, 56);
    const void* pointers[4] = {a, b, c, d};
    const Layout* layouts[4] = {left, right, static_cast<Layout*>(c_layout), result};
    if (algorithm.magic != MAGIC) fail("an algorithm that was not chosen");
    for (int i = 0; i < 4; i++) {
        if (reinterpret_cast<uintptr_t>(pointers[i]) % algorithm.alignments[i] != 0) fail("operand %d is not aligned to %u bytes", i, algorithm.alignments[i]);
        if (layouts[i]->type != algorithm.types[i]) fail("operand %d is not of the algorithm's type", i);
        check(pointers[i], layouts[i]->bytes(layouts[i]->columns), "an operand");
    }
    check(workspace, workspace_bytes, "workspace");
    if (of.left != algorithm.left || of.right != algorithm.right || of.epilogue != algorithm.epilogue) fail("an algorithm of another operation");
    const uint64_t m = of.left ? left->columns : left->rows, k = of.left ? left->rows : left->columns;
    const uint64_t n = of.right ? right->rows : right->columns;
    if ((of.right ? right->columns : right->rows) != k || result->rows != m || result->columns != n) fail("shapes that do not fit");
    if (of.epilogue != 1) check(of.bias, m * (result->type == 0 ? 4 : 2), "bias");
    // Undocumented, but some kernels read the bias 16 bytes at a time.
    if (of.epilogue != 1 && reinterpret_cast<uintptr_t>(of.bias) % 16 != 0) fail("a bias that is not aligned to 16 bytes");
    if (of.epilogue != 1 && refuses("late")) return NOT_SUPPORTED;
    count("a product");
    if (is_idle()) return SUCCESS;
    work.later([=, of = of, left = *left, right = *right, added = *layouts[2], result = *result, alpha = *alpha, beta = *beta] {
        std::vector<float> column(k);
        for (uint64_t j = 0; j < n; j++) {
            for (uint64_t l = 0; l < k; l++) column[l] = of.right ? right.at(b, j, l) : right.at(b, l, j);
            for (uint64_t i = 0; i < m; i++) {
                float sum = 0;
                for (uint64_t l = 0; l < k; l++) sum += (of.left ? left.at(a, l, i) : left.at(a, i, l)) * column[l];
                sum *= alpha;
                if (beta != 0) sum += beta * added.at(c, i, j);
                if (of.epilogue != 1) sum += result.type == 0 ? static_cast<const float*>(of.bias)[i] : to_float(static_cast<const bf16*>(of.bias)[i]);
                if (of.epilogue == 6) sum = std::fmax(sum, 0.0f);
                result.put(d, i, j, sum);
            }
        }
    });
    return SUCCESS;
}

}  // extern "C"
