// What the emulator tells races.cpp about the threads that it runs.
#pragma once
#include <cstddef>

namespace races {

// A thread of a block, and how often the threads of its block (__syncthreads) and of its warp (__syncwarp) have met.
struct Position {
    unsigned block, thread;
    const unsigned *meetings, *warp_meetings;
    // The thread's own memory.
    const char* stack;
    size_t stack_bytes;
};

void begin_launch(const char* kernel);
// Gives the dynamic shared memory of the next block.
void begin_block(const void* shared, size_t bytes);
// This thread runs until `leave`; accesses outside are the emulator's.
void enter(const Position& position);
void leave();
// Reports a read by that thread that the compiler does not see.
void reads(const void* at, size_t bytes);
// Whether there were races.
bool end_launch();

}  // namespace races
