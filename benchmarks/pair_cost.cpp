// Hands alloc+free pairs to the recorder as PyTorch's tracker does, so that a benchmark in Python measures a pair's
// cost below a stack of its own.
#include <cstdint>
#include <ctime>

#include "gpumem.h"

namespace {

constexpr uint64_t kLineBytes = 64;
volatile uint8_t g_others[8 << 20];

// What runs between two events of a real program takes the caches' nearest levels.
void work_on_other_memory(uint32_t bytes) {
  for (uint32_t at = 0; at < bytes; at += kLineBytes) g_others[at] = static_cast<uint8_t>(g_others[at] + 1);
}

gm_status skip(const gm_event*) {
  return GM_OK;
}

void hand_over(gm_status (*record)(const gm_event*), uint8_t kind, uint64_t address) {
  gm_event event{};
  event.address = address;
  event.requested_bytes = 512;
  event.kind = kind;
  record(&event);
}

}  // namespace

extern "C" {

// `record` null: the loop alone.
double nanoseconds_per_pair(gm_status (*record)(const gm_event*), uint32_t pairs, uint32_t other_bytes) {
  if (record == nullptr) record = skip;
  timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (uint32_t pair = 0; pair < pairs; ++pair) {
    const uint64_t address = 0x7f0000000000 + pair % 4096 * 512;
    work_on_other_memory(other_bytes);
    hand_over(record, GM_ALLOC, address);
    work_on_other_memory(other_bytes);
    hand_over(record, GM_FREE_REQUESTED, address);
    hand_over(record, GM_FREE_COMPLETED, address);
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  return (static_cast<double>(end.tv_sec - begin.tv_sec) * 1e9 + static_cast<double>(end.tv_nsec - begin.tv_nsec)) /
         pairs;
}
}
