// Walks the calling thread's Python frames without the interpreter lock and gives the stack an id.
//
// Owns: the interpreter's frame layout, walking, hashing. Must not know: records, files; it reaches the journal
// through Intern alone. Ids belong to the Intern they came from: caches are keyed by it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpumem.h"
#include "intern.h"

namespace gpumem {

// GM_UNSUPPORTED with a sentence in `reason` when this interpreter cannot be walked.
gm_status start_walker(char* reason, size_t capacity);
// Id of the calling thread's stack; 0 when it has no Python frames or walking is off.
uint32_t intern_current_stack(Intern& intern);
// Depth of the calling thread's stack; at most `capacity` pairs are written, innermost first.
uint32_t walk_current_stack(uint64_t* code_addresses, uint32_t* instruction_offsets, uint32_t capacity);
// Switches walking off for good.
void stop_walker();

}  // namespace gpumem
