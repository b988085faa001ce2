#include "segment_signal.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <ctime>

#include "journal_file.h"

namespace gpumem {

namespace {

std::atomic<uint64_t> g_event_count{0};
std::atomic<uint32_t> g_word{0};      // what waiters sleep on; changes with every event and every wake
std::atomic<uint32_t> g_waiters{0};   // threads in wait_segment_event
std::atomic<uint32_t> g_releases{0};  // wake_segment_waiters() calls: a change ends a wait

static_assert(sizeof g_word == sizeof(uint32_t), "a futex is a plain 32-bit word");

void change_word() {
  g_word.fetch_add(1, std::memory_order_seq_cst);
  if (g_waiters.load(std::memory_order_seq_cst)) {
    ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&g_word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
}

void sleep_on_word(uint32_t word, uint64_t timeout_ns) {
  const timespec timeout = {static_cast<time_t>(timeout_ns / 1000000000u), static_cast<long>(timeout_ns % 1000000000u)};
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&g_word), FUTEX_WAIT_PRIVATE, word, &timeout, nullptr, 0);
}

}  // namespace

void signal_segment_event() {
  g_event_count.fetch_add(1, std::memory_order_seq_cst);
  change_word();
}

uint64_t segment_event_count() {
  return g_event_count.load(std::memory_order_relaxed);
}

uint64_t wait_segment_event(uint64_t seen, uint32_t timeout_ms) {
  const uint64_t deadline_ns = clock_ns(CLOCK_MONOTONIC) + timeout_ms * 1000000ull;
  const uint32_t releases = g_releases.load(std::memory_order_seq_cst);
  g_waiters.fetch_add(1, std::memory_order_seq_cst);
  uint64_t count;
  for (;;) {
    const uint32_t word = g_word.load(std::memory_order_seq_cst);
    count = g_event_count.load(std::memory_order_seq_cst);
    if (count != seen || g_releases.load(std::memory_order_seq_cst) != releases) break;
    const uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
    if (now_ns >= deadline_ns) break;
    sleep_on_word(word, deadline_ns - now_ns);
  }
  g_waiters.fetch_sub(1, std::memory_order_seq_cst);
  return count;
}

void wake_segment_waiters() {
  g_releases.fetch_add(1, std::memory_order_seq_cst);
  change_word();
}

void forget_segment_waiters() {
  g_waiters.store(0, std::memory_order_relaxed);
}

}  // namespace gpumem
