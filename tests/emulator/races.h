// What the emulator tells races.cpp of the threads that it runs.
#pragma once
#include <cstddef>

namespace races {

// A thread of a block, how often all threads of its block have met (__syncthreads), and those of its warp (__syncwarp).
struct Position {
    unsigned block, thread;
    const unsigned *meetings, *warp_meetings;
    // Its own memory.
    const char* stack;
    size_t stack_bytes;
};

void begin_launch(const char* kernel);
// Dynamic shared memory of the blocks that come.
void begin_block(const void* shared, size_t bytes);
// The thread that goes on, until it is left: what comes between is the emulator's.
void enter(const Position& position);
void leave();
// Something that the compiler does not see is read by that thread.
void reads(const void* at, size_t bytes);
// Whether there were races.
bool end_launch();

}  // namespace races
