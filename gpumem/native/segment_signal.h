// Wakes the NVML sampler after segment events; costs the signalling side nothing while nobody waits.
//
// Owns: the count of segment events and its waiters. Must not know: what waits or why.
#pragma once

#include <cstdint>

namespace gpumem {

[[gnu::cold]] void signal_segment_event();
uint64_t segment_event_count();
// Waits until segment_event_count() differs from `seen`, the recording ends or timeout_ms passed; the count then.
uint64_t wait_segment_event(uint64_t seen, uint32_t timeout_ms);
// Ends every wait under way.
void wake_segment_waiters();
// For a forked child: its parent's waiters are not here.
void forget_segment_waiters();

}  // namespace gpumem
