// Notices when CPython (3.12 and later) destroys code objects: only then may another come to lie where one was.
//
// Owns: the count of destroyed code objects. Must not know: frames, stacks, ids.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpumem {

// Starts counting in `generation`, which is 0 until then, changes before the memory of a destroyed code object is used
// again, and lives as long as the process. The caller holds the interpreter lock of the main interpreter. False, and
// nothing raised, where this Python cannot say (3.11, or other tools have taken all eight of its places for watchers).
bool watch_code(std::atomic<uint64_t>* generation);

}  // namespace gpumem
