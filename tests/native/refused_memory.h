// A process whose memory ends at any allocation that a test chooses. The program's own operator new serves the library
// too, as any program's may, so only one source file of a program may include this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <utility>

#include "expect.h"

namespace {

thread_local uint64_t t_left = 0;           // allocations until one fails; 0: none does
thread_local bool t_is_for_good = false;    // all that follow fail too
thread_local uint64_t t_refused_count = 0;  // allocations that failed

void* take_memory(std::size_t bytes, std::size_t alignment) {
  if (t_left && --t_left == 0) {
    ++t_refused_count;
    if (t_is_for_good) t_left = 1;
    throw std::bad_alloc();
  }
  void* taken = nullptr;
  if (::posix_memalign(&taken, alignment, bytes ? bytes : 1) != 0) throw std::bad_alloc();
  return taken;
}

}  // namespace

// Not inlined, or the compiler sees that what they take and give is not its own and warns.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return take_memory(bytes, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return take_memory(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* taken) noexcept {
  std::free(taken);
}
[[gnu::noinline]] void operator delete(void* taken, std::size_t) noexcept {
  std::free(taken);
}
[[gnu::noinline]] void operator delete(void* taken, std::align_val_t) noexcept {
  std::free(taken);
}
[[gnu::noinline]] void operator delete(void* taken, std::size_t, std::align_val_t) noexcept {
  std::free(taken);
}

namespace {

constexpr uint64_t kAllocationsMax = 5000;  // of one scenario

// Runs a call of the library; what it throws is a failure.
template <typename Call>
auto held(const char* text, int line, Call call) {
  try {
    return call();
  } catch (...) {
    ++g_failure_count;
    std::printf("  line %d: %s threw\n", line, text);
    return decltype(call())();
  }
}
#define HELD(call) held(#call, __LINE__, [&] { return call; })

// The scenario with its first allocation refused, its second, ... until none is; then with all from there on.
void without_memory(const std::function<void()>& scenario) {
  const int failure_count = g_failure_count;
  for (const bool is_for_good : {false, true}) {
    uint64_t nth = 0;
    do {
      t_refused_count = 0;
      t_is_for_good = is_for_good;
      t_left = ++nth;
      scenario();
      t_left = 0;
    } while (t_refused_count > 0 && g_failure_count == failure_count && nth < kAllocationsMax);
    EXPECT(nth > 1 && nth < kAllocationsMax);
  }
}

template <typename Work>
void with_memory(Work work) {
  const uint64_t left = std::exchange(t_left, 0);
  work();
  t_left = left;
}

}  // namespace
