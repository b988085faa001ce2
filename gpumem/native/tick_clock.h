// CLOCK_MONOTONIC from the processor's counter: a fraction of a system clock's cost, within a microsecond of it.
//
// Owns: the conversion from ticks, checked against the system clock every 1 to 32 milliseconds or so: the more seldom
// the better they agree. Must not know: events.
//
// Each thread has its own. Two threads' clocks, and one before and after a check, may differ by that microsecond. Where
// one of the clocks changes its pace, as when the system's is slewed, this one follows from its next check on: a change
// by 500 millionths may have put it 16 microseconds off by then. Where they disagree by more than a microsecond, the
// time is the system's until both have been seen at one pace again.
#pragma once

#include <cstdint>

#include "check.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace gpumem {

// Invariant: with ticks in [base_ticks_, base_ticks_ + span_ticks_) the time is
//   base_ns_ + (ticks - base_ticks_) * ns_per_tick_ / 2^30
// Kept short: it lies with a thread's state on one cache line.
class TickClock {
 public:
  // The time at `ticks`, just read from the counter by the caller; 0: now.
  uint64_t time_ns(uint64_t ticks) {
    const uint64_t elapsed = (ticks != 0 ? ticks : read_ticks()) - base_ticks_;
    return GM_LIKELY(elapsed < span_ticks_) ? base_ns_ + (elapsed * ns_per_tick_ >> kRateBits) : check();
  }

  // Whether the time at `ticks` takes no look at the system's clock.
  bool is_known(uint64_t ticks) const { return ticks - base_ticks_ < span_ticks_; }
  // The system's time, and what the counter said then; from them and those before, the rate for the next span.
  void compare(uint64_t ticks, uint64_t now_ns);

 private:
  static uint64_t read_ticks() {
#if defined(__x86_64__)
    return __rdtsc();
#else
    return 0;
#endif
  }
  // The system's time, with which the counter is compared.
  [[gnu::cold]] uint64_t check();
  uint64_t next_span_ticks(uint64_t last_span_ticks, uint64_t elapsed, uint64_t now_ns) const;

  static constexpr uint32_t kRateBits = 30;

  uint64_t base_ticks_ = 0;   // counter at base_ns_
  uint64_t base_ns_ = 0;      // CLOCK_MONOTONIC; 0 before the first check
  uint32_t ns_per_tick_ = 0;  // in 2^-kRateBits nanoseconds: less than 4 ns
  uint32_t span_ticks_ = 0;   // 0: every time is the system's
};

}  // namespace gpumem
