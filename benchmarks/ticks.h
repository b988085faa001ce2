// What the benchmarks time single calls by: the processor's counter, read in order with what stands around it.
#pragma once

#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

inline uint64_t read_clock_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

inline uint64_t read_ticks() {
#if defined(__x86_64__)
  unsigned processor;
  return __rdtscp(&processor);
#else
  return read_clock_ns();
#endif
}

inline double measure_ticks_per_ns() {
  const uint64_t begin_ns = read_clock_ns(), begin = read_ticks();
  uint64_t elapsed_ns = 0;
  while (elapsed_ns < 20'000'000) elapsed_ns = read_clock_ns() - begin_ns;
  return static_cast<double>(read_ticks() - begin) / static_cast<double>(elapsed_ns);
}
