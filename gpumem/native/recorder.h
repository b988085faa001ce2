// The recorder of this process: turns events into records with time, thread, stack and scope.
//
// Owns: what becomes of an event, a mark, a reading. Must not know: Python, CUDA, PyTorch; stacks come from the
// walker, sessions from session.h, threads and scopes from thread_state.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpumem.h"

namespace gpumem::recorder {

gm_status start(const gm_recorder_options& options, int32_t* errno_value);
gm_status stop(const char* ended_by);
bool is_active();
void set_enabled(bool enabled);
gm_status get_counts(gm_recorder_counts* counts);
gm_status get_path(char* path, size_t capacity);

// An event of an allocator of ours; those of PyTorch's own come through gm_record_event. `lane` is what claim_lane()
// gave the allocator; calls on a lane come one at a time.
[[gnu::hot]] gm_status record_own_event(const gm_event& event, uint32_t lane);
uint32_t claim_lane();
void give_back_lane(uint32_t lane);
gm_status record_mark(uint8_t kind, const char* name, uint64_t step, uint64_t* position);
gm_status record_reading(const gm_reading& reading);
// Id of the calling thread's stack in this recording; 0 when nothing is recorded or it has no Python frames.
uint32_t intern_current_stack();

}  // namespace gpumem::recorder
