// Stands between PyTorch's tracker and the recorder, so that a benchmark in Python can have the events of one step
// recorded and those of the next dropped, and can see how long the calls of a step take.
#include <atomic>
#include <cstdint>

#include "gpumem.h"
#include "ticks.h"

namespace {

using Sink = gm_status (*)(const gm_event*);

constexpr uint32_t kTicksMax = 1 << 14;  // longer calls count as so long

Sink g_record = nullptr;
std::atomic<bool> g_is_dropped{false};
std::atomic<bool> g_is_timed{false};
std::atomic<uint64_t> g_dropped{0};
thread_local bool t_is_main = false;
uint64_t g_counts[2][kTicksMax];  // calls by thread (0: another, 1: main) and ticks
uint64_t g_ticks[2];              // of all calls together

}  // namespace

extern "C" {

void step_cost_start(Sink record) {
  g_record = record;
  t_is_main = true;
}

void step_cost_drop(int is_dropped) {
  g_is_dropped.store(is_dropped != 0);
}

void step_cost_time(int is_timed) {
  g_is_timed.store(is_timed != 0);
}

uint64_t step_cost_dropped() {
  return g_dropped.load();
}

const uint64_t* step_cost_counts(int is_main) {
  return g_counts[is_main];
}

uint64_t step_cost_ticks(int is_main) {
  return g_ticks[is_main];
}

double step_cost_ticks_per_ns() {
  return measure_ticks_per_ns();
}

// Called under the allocator's lock, so that the counts need none.
gm_status step_cost_record(const gm_event* event) {
  if (g_is_dropped.load(std::memory_order_relaxed)) {
    g_dropped.fetch_add(1, std::memory_order_relaxed);
    return GM_OK;
  }
  if (!g_is_timed.load(std::memory_order_relaxed)) return g_record(event);
  const uint64_t begin = read_ticks();
  const gm_status status = g_record(event);
  const uint64_t ticks = read_ticks() - begin;
  g_ticks[t_is_main] += ticks;
  ++g_counts[t_is_main][ticks < kTicksMax ? ticks : kTicksMax - 1];
  return status;
}
}
