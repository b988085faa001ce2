// Notices when CPython (3.12 and later) destroys code objects: only then may another come to lie where one was.
//
// Owns: the count of destroyed code objects. Must not know: frames, stacks, ids.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpumem {

// Of code objects: see code_generation().
extern std::atomic<uint64_t> g_code_generation;

// Starts counting; the caller holds the interpreter lock of the main interpreter. False, and nothing raised, where
// this Python cannot say (3.11, or other tools have taken all eight of its places for watchers).
bool watch_code();
// Changes before the memory of a destroyed code object is used again; 0 while nothing is counted.
inline uint64_t code_generation() {
  return g_code_generation.load(std::memory_order_acquire);
}

}  // namespace gpumem
