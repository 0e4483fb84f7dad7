// Emulates NCCL on the processor, between threads or processes of one machine, through a file that all of them map. All
// ranks add in the order of the ranks, so they get the same bits. It is strict: ranks that do not make the same calls in the
// same order get an error, as does one that leaves a group open.
//
// Alone, an operation is complete when its call returns, also if it has failed. A stream that is not null is then a list of
// what memory was when the stream began to wait: what is added up must still be that. In driver.cpp, an operation is queued as
// other work of the device is, and if it fails, it never completes.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

// What a tensor's memory was.
struct Remembered {
    const char* at;
    size_t bytes;
    const char* copy;
};

#ifndef NCCL_LATER
#define NCCL_LATER(stream, piece) (piece)()
#define NCCL_COMPLETE(stream, from, bytes) check_complete(static_cast<const Remembered*>(stream), static_cast<const char*>(from), bytes)
#define NCCL_CHECK(memory, bytes)
#define NCCL_HANGS false
#endif
#define NCCL_EXPORT extern "C" __attribute__((visibility("default")))

namespace nccl {

constexpr int SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6;
constexpr int MOST_RANKS = 8;
constexpr size_t AREA = 1 << 18;

struct Id {
    char path[128];
};

enum Kind { ALL_REDUCE, ALL_GATHER, BROADCAST };

struct Operation {
    int kind, type, root;
    size_t count;
    bool operator==(const Operation& other) const {
        return kind == other.kind && type == other.type && root == other.root && count == other.count;
    }
};

// What all ranks see. A new file is zero.
struct Shared {
    std::atomic<uint64_t> phases[MOST_RANKS];
    std::atomic<int> counts[MOST_RANKS];
    std::atomic<bool> is_broken;
    Operation operations[MOST_RANKS];
    char areas[MOST_RANKS][AREA];
};

struct Rank {
    Shared* shared;
    int rank, count;
    uint64_t phase = 0;
    std::atomic<int> error{SUCCESS};
    std::atomic<bool> is_aborted{false};
    // Operations until one fails; none does if it is negative.
    long fails_after;
};

constexpr int BYTES = 1, FLOAT = 7, DOUBLE = 8, BF16 = 9;
size_t size_of(int type) { return type == DOUBLE ? 8 : type == FLOAT ? 4 : type == BF16 ? 2 : 1; }

// Finite numbers of bfloat16: every sum is rounded to nearest, ties to even.
struct Half {
    uint16_t bits;
    float value() const {
        const uint32_t wide = uint32_t(bits) << 16;
        float value;
        return std::memcpy(&value, &wide, 4), value;
    }
    Half& operator+=(const Half& other) {
        const float sum = value() + other.value();
        uint32_t wide;
        std::memcpy(&wide, &sum, 4);
        return bits = static_cast<uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16), *this;
    }
};

// MT_EMULATED_NCCL_FAILS=RANK:N lets operation N of a rank fail.
thread_local long fails_after = -1;
long failing(int rank) {
    const char* const text = std::getenv("MT_EMULATED_NCCL_FAILS");
    int of = 0;
    long after = 0;
    if (text != nullptr && std::sscanf(text, "%d:%ld", &of, &after) == 2 && of == rank) return after;
    return fails_after;
}

void fail(Rank& rank, int error) {
    rank.error = error;
    rank.shared->is_broken = true;
}

// Waits until all ranks have come as far. Returns whether they did.
bool meet(Rank& rank) {
    rank.shared->phases[rank.rank] = ++rank.phase;
    for (int other = 0; other < rank.count; other++) {
        while (rank.shared->phases[other] < rank.phase) {
            if (rank.is_aborted) return false;
            if (rank.shared->is_broken) {
                int none = SUCCESS;
                rank.error.compare_exchange_strong(none, REMOTE_ERROR);
                return false;
            }
            ::usleep(100);
        }
    }
    return true;
}

template <class T> void add(Rank& rank, void* to, size_t count) {
    for (size_t i = 0; i < count; i++) {
        T sum = {};
        for (int other = 0; other < rank.count; other++) sum += reinterpret_cast<const T*>(rank.shared->areas[other])[i];
        static_cast<T*>(to)[i] = sum;
    }
}

bool is_over(const Rank& rank) { return rank.error != SUCCESS || rank.is_aborted; }

void compute(Rank& rank, const Operation& operation, const char* from, char* to) {
    if (is_over(rank)) return;
    if (rank.fails_after == 0) return fail(rank, SYSTEM_ERROR);
    if (rank.fails_after > 0) rank.fails_after--;
    Shared& shared = *rank.shared;
    shared.operations[rank.rank] = operation;
    if (!meet(rank)) return;
    for (int other = 0; other < rank.count; other++) {
        if (!(shared.operations[other] == operation)) {
            std::fprintf(stderr, "emulated NCCL: ranks %d and %d make different calls\n", rank.rank, other);
            return fail(rank, INVALID_USAGE);
        }
    }
    const size_t size = size_of(operation.type), at_once = AREA / size;
    for (size_t begin = 0; begin < operation.count; begin += at_once) {
        const size_t count = std::min(at_once, operation.count - begin), bytes = count * size;
        if (operation.kind != BROADCAST || operation.root == rank.rank) std::memcpy(shared.areas[rank.rank], from + begin * size, bytes);
        if (!meet(rank)) return;
        char* const here = to + begin * size;
        switch (operation.kind) {
            case ALL_REDUCE:
                operation.type == FLOAT ? add<float>(rank, here, count) : operation.type == BF16 ? add<Half>(rank, here, count)
                                                                                                 : add<double>(rank, here, count);
                break;
            case ALL_GATHER:
                for (int other = 0; other < rank.count; other++) {
                    std::memcpy(here + other * operation.count * size, shared.areas[other], bytes);
                }
                break;
            case BROADCAST:
                std::memcpy(here, shared.areas[operation.root], bytes);
        }
        if (!meet(rank)) return;
    }
}

void run(Rank& rank, const Operation& operation, const char* from, char* to) {
    compute(rank, operation, from, to);
    while (NCCL_HANGS && rank.error != SUCCESS && !rank.is_aborted) ::usleep(100);
}

[[maybe_unused]] void check_complete(const Remembered* tensor, const char* from, size_t bytes) {
    for (; tensor != nullptr && tensor->bytes > 0; tensor++) {
        const bool is_here = from >= tensor->at && from + bytes <= tensor->at + tensor->bytes;
        if (is_here && std::memcmp(from, tensor->copy + (from - tensor->at), bytes) != 0) {
            std::fprintf(stderr, "emulated NCCL: a sum may begin before its numbers are complete\n");
            std::abort();
        }
    }
}

// Operations of a group that has begun, on this thread.
thread_local int open_groups = 0;
thread_local std::vector<std::function<void()>> waiting;

int queue(void* handle, const Operation& operation, const void* from, void* to, void* stream) {
    Rank& rank = *static_cast<Rank*>(handle);
    if (handle == nullptr || from == nullptr || to == nullptr || operation.count == 0) return INVALID_ARGUMENT;
    if (operation.kind == ALL_REDUCE && operation.type == BYTES) return INVALID_ARGUMENT;
    const size_t bytes = operation.count * size_of(operation.type);
    NCCL_CHECK(from, bytes);
    NCCL_CHECK(to, operation.kind == ALL_GATHER ? rank.count * bytes : bytes);
    NCCL_COMPLETE(stream, from, bytes);
    (void)bytes;
    auto piece = [=, &rank] { run(rank, operation, static_cast<const char*>(from), static_cast<char*>(to)); };
    auto later = [=] { NCCL_LATER(stream, piece); };
    if (open_groups > 0) {
        waiting.push_back(later);
    } else {
        later();
    }
    (void)stream;
    return SUCCESS;
}

}  // namespace nccl

NCCL_EXPORT int ncclGetUniqueId(nccl::Id* id) {
    std::memset(id, 0, sizeof *id);
    const char* const folder = std::getenv("TMPDIR");
    std::snprintf(id->path, sizeof id->path, "%s/emulated-nccl-XXXXXX", folder != nullptr ? folder : "/tmp");
    const int file = ::mkstemp(id->path);
    if (file < 0 || ::ftruncate(file, sizeof(nccl::Shared)) != 0) return nccl::SYSTEM_ERROR;
    return ::close(file), nccl::SUCCESS;
}

NCCL_EXPORT int ncclCommInitRank(void** handle, int count, nccl::Id id, int rank) {
    if (count < 1 || count > nccl::MOST_RANKS || rank < 0 || rank >= count) return nccl::INVALID_ARGUMENT;
    const int file = ::open(id.path, O_RDWR);
    if (file < 0) return nccl::SYSTEM_ERROR;
    void* const memory = ::mmap(nullptr, sizeof(nccl::Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    if (memory == MAP_FAILED) return nccl::SYSTEM_ERROR;
    auto* const of = new nccl::Rank;
    of->shared = static_cast<nccl::Shared*>(memory);
    of->rank = rank;
    of->count = count;
    of->fails_after = nccl::failing(rank);
    of->shared->counts[rank] = count;
    if (!nccl::meet(*of)) return nccl::REMOTE_ERROR;
    if (rank == 0) ::unlink(id.path);
    for (int other = 0; other < count; other++) {
        if (of->shared->counts[other] != count) return nccl::INVALID_USAGE;
    }
    return *handle = of, nccl::SUCCESS;
}

NCCL_EXPORT int ncclCommAbort(void* handle) {
    // Another thread may be in an operation: the memory stays.
    return static_cast<nccl::Rank*>(handle)->is_aborted = true, nccl::SUCCESS;
}

NCCL_EXPORT int ncclCommGetAsyncError(void* handle, int* error) {
    return *error = static_cast<nccl::Rank*>(handle)->error, nccl::SUCCESS;
}

NCCL_EXPORT const char* ncclGetErrorString(int error) {
    switch (error) {
        case nccl::SUCCESS: return "no error";
        case nccl::SYSTEM_ERROR: return "unhandled system error";
        case nccl::INVALID_ARGUMENT: return "invalid argument";
        case nccl::INVALID_USAGE: return "invalid usage";
        case nccl::REMOTE_ERROR: return "remote process exited or there was a network error";
        default: return "unknown result code";
    }
}

NCCL_EXPORT const char* ncclGetLastError(void*) { return ""; }

NCCL_EXPORT int ncclGroupStart() { return nccl::open_groups++, nccl::SUCCESS; }

NCCL_EXPORT int ncclGroupEnd() {
    if (nccl::open_groups == 0) return nccl::INVALID_USAGE;
    if (--nccl::open_groups > 0) return nccl::SUCCESS;
    const std::vector<std::function<void()>> operations = std::move(nccl::waiting);
    nccl::waiting.clear();
    for (const auto& operation : operations) operation();
    return nccl::SUCCESS;
}

NCCL_EXPORT int ncclAllReduce(const void* from, void* to, size_t count, int type, int operation, void* handle, void* stream) {
    if (operation != 0) return nccl::INVALID_ARGUMENT;
    return nccl::queue(handle, {nccl::ALL_REDUCE, type, 0, count}, from, to, stream);
}

NCCL_EXPORT int ncclAllGather(const void* from, void* to, size_t count, int type, void* handle, void* stream) {
    return nccl::queue(handle, {nccl::ALL_GATHER, type, 0, count}, from, to, stream);
}

NCCL_EXPORT int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, void* handle, void* stream) {
    return nccl::queue(handle, {nccl::BROADCAST, type, root, count}, from, to, stream);
}

// Lets an operation fail of the rank that this thread starts next: after so many others.
NCCL_EXPORT void emulated_nccl_fails_after(long operations) { nccl::fails_after = operations; }
