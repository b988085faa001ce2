// Calls a function of the core again and again, so that a benchmark in Python measures it and not ctypes.
#include <cstdint>
#include <ctime>

extern "C" double nanoseconds_per_call(uint32_t (*function)(void*, void*, uint32_t), uint32_t calls) {
  timespec begin, end;
  uint32_t sum = 0;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (uint32_t call = 0; call < calls; ++call) sum += function(nullptr, nullptr, 0);
  clock_gettime(CLOCK_MONOTONIC, &end);
  const volatile uint32_t kept = sum;
  (void)kept;
  return (static_cast<double>(end.tv_sec - begin.tv_sec) * 1e9 + static_cast<double>(end.tv_nsec - begin.tv_nsec)) /
         calls;
}
