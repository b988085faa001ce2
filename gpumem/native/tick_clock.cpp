#include "tick_clock.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "journal_file.h"

namespace gpumem {

namespace {

// A span is 0.5 to 1 ms on the processors of today. Elapsed ticks times rate stay below 2^64.
constexpr uint64_t kSpanTicks = 1 << 21;
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
  span_ticks_ = 0;
  if (!g_has_steady_counter) return clock_ns(CLOCK_MONOTONIC);
  const uint64_t before = read_ticks();
  const uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
  const uint64_t after = read_ticks();
  if (after - before > kReadTicksMax) return now_ns;
  const uint64_t ticks = before + (after - before) / 2;
  const uint64_t elapsed = ticks - base_ticks_;
  if (base_ns_ != 0 && elapsed < kSpanTicks) return now_ns;
  if (base_ns_ != 0 && elapsed < kRateTicksMax && now_ns - base_ns_ < kRateNsMax) {
    ns_per_tick_ = static_cast<uint64_t>((static_cast<unsigned __int128>(now_ns - base_ns_) << 32) / elapsed);
    span_ticks_ = kSpanTicks;
  }
  base_ticks_ = ticks;
  base_ns_ = now_ns;
  return now_ns;
}

}  // namespace gpumem
