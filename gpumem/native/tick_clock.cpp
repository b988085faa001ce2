#include "tick_clock.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "journal_file.h"

namespace gpumem {

namespace {

// Spans are 0.5 to 1 ms on the processors of today at first, and ever longer while the error stays small, up to 16 to
// 32 ms: in a training step a check finds nothing it needs in the caches, and costs ten times as much as an event.
constexpr uint64_t kShortestSpanTicks = 1 << 21;
constexpr uint64_t kLongestSpanTicks = 1 << 26;
// A span whose error at its end is larger is followed by the shortest; by a longer one if it is at most half of that.
constexpr uint64_t kErrorNsMax = 250;
// After such an error one of the clocks stood still, was set or changed its pace: the rate since may be that of
// neither.
constexpr uint64_t kBreakNs = 1000;
// A rate from a longer time, by either clock, may have a suspended machine in it.
constexpr uint64_t kRateTicksMax = uint64_t{1} << 32;
constexpr uint64_t kRateNsMax = uint64_t{1} << 32;
// Longer between two readings of the counter: the thread was interrupted there.
constexpr uint64_t kReadTicksMax = 2048;

#if defined(__x86_64__)
// What the kernel tells the time by; empty where it does not say (gVisor).
std::string read_clock_source() {
  const int fd = ::open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  char name[64];
  const ssize_t length = ::read(fd, name, sizeof name);
  ::close(fd);
  return std::string(name, length > 0 ? static_cast<size_t>(length) - 1 : 0);
}

// Whether the processor promises a counter of one rate, whatever its cores do.
bool is_counter_invariant() {
  constexpr unsigned kPowerLeaf = 0x80000007, kInvariant = 1 << 8;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(kPowerLeaf, &eax, &ebx, &ecx, &edx) != 0 && (edx & kInvariant) != 0;
}
#endif

// Whether the counter is one for all cores, steady. The kernel goes by it only then; a guest's kernel may go by its
// host's page instead, which gives the rate of the same counter. Where it is said to be another clock it has been found
// wanting.
bool find_steady_counter() {
#if defined(__x86_64__)
  const std::string source = read_clock_source();
  if (source == "tsc") return true;
  const bool may_be_steady = source.empty() || source == "kvm-clock" || source == "hyperv_clocksource_tsc_page";
  return may_be_steady && is_counter_invariant();
#else
  return false;
#endif
}

// Known as the library is loaded: a child forked while another thread was finding out would wait for that for ever.
const bool g_has_steady_counter = find_steady_counter();

}  // namespace

uint64_t TickClock::check() {
  if (!g_has_steady_counter) return clock_ns(CLOCK_MONOTONIC);
  const uint64_t before = read_ticks();
  const uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
  const uint64_t after = read_ticks();
  if (after - before > kReadTicksMax) {
    span_ticks_ = 0;
  } else {
    compare(before + (after - before) / 2, now_ns);
  }
  return now_ns;
}

void TickClock::compare(uint64_t ticks, uint64_t now_ns) {
  const uint64_t last_span_ticks = std::exchange(span_ticks_, 0u);
  const uint64_t elapsed = ticks - base_ticks_;
  if (base_ns_ != 0 && elapsed < kShortestSpanTicks) return;
  if (base_ns_ != 0 && elapsed < kRateTicksMax && now_ns - base_ns_ < kRateNsMax) {
    const uint64_t rate = ((now_ns - base_ns_) << kRateBits) / elapsed;
    if (rate <= UINT32_MAX) {  // no counter is so slow
      const uint64_t span_ticks = next_span_ticks(std::max(last_span_ticks, kShortestSpanTicks), elapsed, now_ns);
      span_ticks_ = static_cast<uint32_t>(span_ticks);
      ns_per_tick_ = static_cast<uint32_t>(rate);
    }
  }
  base_ticks_ = ticks;
  base_ns_ = now_ns;
}

// By what the clock would have said `elapsed` ticks after the last check, when the system's says `now_ns`. So no rate
// is gone by that has not been found right once: the first is 0, and none after a break is.
uint64_t TickClock::next_span_ticks(uint64_t last_span_ticks, uint64_t elapsed, uint64_t now_ns) const {
  const auto foreseen_ns = static_cast<uint64_t>(static_cast<unsigned __int128>(elapsed) * ns_per_tick_ >> kRateBits);
  const uint64_t elapsed_ns = now_ns - base_ns_;
  const uint64_t distance_ns = foreseen_ns > elapsed_ns ? foreseen_ns - elapsed_ns : elapsed_ns - foreseen_ns;
  const double share = static_cast<double>(last_span_ticks) / static_cast<double>(std::max(elapsed, last_span_ticks));
  const double error_ns = static_cast<double>(distance_ns) * share;
  if (error_ns > kBreakNs) return 0;
  if (error_ns > kErrorNsMax) return kShortestSpanTicks;
  if (error_ns > kErrorNsMax / 2.0) return last_span_ticks;
  return std::min(last_span_ticks * 2, kLongestSpanTicks);
}

}  // namespace gpumem
