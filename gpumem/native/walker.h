// Walks the calling thread's Python frames without the interpreter lock and gives the stack an id.
//
// Owns: walking, hashing of what lies at the frames' addresses. Must not know: records, files; it reaches the
// journal through Intern alone. What CPython keeps where is python_layout's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "chain_memo.h"
#include "gpumem.h"
#include "id_cache.h"
#include "intern.h"

namespace gpumem {

constexpr uint32_t kStackDepthMax = 1024;

// What the walker remembers of one journal's ids. Ids belong to an Intern: make a new one with each.
struct WalkerCaches {
  IdCache chains;  // by the hash of what the frames themselves hold, for a code generation
  IdCache stacks;  // by the hash of code objects, which their memory's reuse does not fool
  IdCache codes;   // likewise of one code object
};

// GM_UNSUPPORTED with a sentence in `reason` when this interpreter cannot be walked. Called with the interpreter lock,
// CPython 3.12 and later will say when code objects end, which makes known stacks cheaper.
gm_status start_walker(char* reason, size_t capacity);
// Id of the calling thread's stack, whose memo of this journal is `memo`; 0 when it has no Python frames or walking is
// off.
[[gnu::hot]] uint32_t intern_current_stack(Intern& intern, WalkerCaches& caches, ChainMemo& memo);
// Depth of the calling thread's stack; at most `capacity` pairs are written, innermost first.
uint32_t walk_current_stack(uint64_t* code_addresses, uint32_t* instruction_offsets, uint32_t capacity);
// Switches walking off for good.
void stop_walker();

}  // namespace gpumem
