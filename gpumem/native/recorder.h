// The recorder of this process: turns events into records with time, thread, stack and scope.
//
// Owns: the session (journal, intern tables, facts), per-thread state, what happens at fork and at exit.
// Must not know: Python, CUDA, PyTorch; it gets stacks from the walker.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpumem.h"

namespace gpumem::recorder {

gm_status start(const gm_recorder_options& options, int32_t* errno_value);
gm_status stop(const char* ended_by);
bool is_active();
void set_enabled(bool enabled);
void get_counts(gm_recorder_counts* counts);
gm_status get_path(char* path, size_t capacity);

gm_status record_event(const gm_event& event);
gm_status record_mark(uint8_t kind, const char* name, uint64_t step, uint64_t* position);
gm_status record_reading(const gm_reading& reading);
gm_status record_fact(const char* key, const char* json, size_t json_bytes);
gm_status push_scope(const char* name, uint32_t* scope);
gm_status pop_scope();
gm_status name_thread(const char* name);
uint64_t wait_segment_event(uint64_t seen, uint32_t timeout_ms);
// Id of the calling thread's stack in this recording; 0 when nothing is recorded or it has no Python frames.
uint32_t intern_current_stack();

}  // namespace gpumem::recorder
