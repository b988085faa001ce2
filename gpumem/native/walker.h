// Walks the calling thread's Python frames without the interpreter lock and gives the stack an id.
//
// Owns: walking, hashing of what lies at the frames' addresses. Must not know: records, files; it reaches the
// journal through Intern alone. What CPython keeps where is python_layout's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "chain_memo.h"
#include "check.h"
#include "event_line.h"
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
// Depth of the calling thread's stack; at most `capacity` pairs are written, innermost first.
uint32_t walk_current_stack(uint64_t* code_addresses, uint32_t* instruction_offsets, uint32_t capacity);
// Switches walking off for good.
void stop_walker();

// A thread's innermost frame; the offsets are PythonLayout's.
inline const char* innermost_frame(const char* thread_state, uint32_t thread_frame, int32_t holder_frame) {
  const char* frame = load<const char*>(thread_state, thread_frame);
  if (holder_frame < 0 || frame == nullptr) return frame;
  return load<const char*>(frame, static_cast<uint32_t>(holder_frame));
}

// The calling thread's innermost frame in few steps; null where it takes a closer look.
[[gnu::always_inline]] inline const char* current_frame_by(const WalkerShortcut& shortcut) {
  const bool is_alone = load<int>(shortcut.initialized, 0) != 0 &&
                        load<const char*>(shortcut.interpreter_head, 0) == shortcut.main_interpreter;
  if (GM_UNLIKELY(!is_alone)) return nullptr;
  const auto state = static_cast<const char*>(shortcut.state.get());
  return GM_LIKELY(state) ? innermost_frame(state, shortcut.thread_frame, shortcut.holder_frame) : nullptr;
}

// Id of the calling thread's stack where it is, of those in `memo`, the last one again or the one that came after it
// the time before; else 0: then find_stack knows.
[[gnu::always_inline]] inline uint32_t find_stack_near(ChainMemo& memo) {
  const WalkerShortcut& shortcut = g_event_line.shortcut;
  if (GM_UNLIKELY(!shortcut.is_open.load(std::memory_order_acquire))) return 0;
  const char* innermost = current_frame_by(shortcut);
  if (GM_UNLIKELY(innermost == nullptr)) return 0;
  return memo.find_near(shortcut.links, innermost, shortcut.code_generation.load(std::memory_order_acquire));
}
// Id of the calling thread's stack, whose memo of this journal is `memo`; 0 when it has no Python frames or walking is
// off.
uint32_t find_stack(Intern& intern, WalkerCaches& caches, ChainMemo& memo);

}  // namespace gpumem
