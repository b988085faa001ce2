// Hands alloc+free pairs to the recorder as PyTorch's tracker does, so that a benchmark in Python measures a pair's
// cost below a stack of its own. Between two events other work may run, which leaves the recorder's code, its data and
// the interpreter's frames out of the caches and translations that are nearest.
#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "gpumem.h"
#include "ticks.h"

namespace {

constexpr uint64_t kLineBytes = 64;
constexpr uint64_t kPageBytes = 4096;
constexpr uint32_t kLinesPerPage = 4;
constexpr uint32_t kPagesMax = 4096;
constexpr uint64_t kTicksMax = 100'000;  // a call that took longer was interrupted

using Code = void (*)();

volatile uint8_t g_other_memory[kPagesMax * kPageBytes];

gm_status skip(const gm_event*) {
  return GM_OK;
}

// A line's place in its page; every line of the pages has its turn.
uint64_t place_of(uint32_t page, uint32_t line) {
  return (page * 7 + line * 17) % (kPageBytes / kLineBytes) * kLineBytes;
}

// Code that jumps from page to page and line to line, then returns; null where none can be made.
Code make_other_code(uint32_t pages) {
#if defined(__x86_64__)
  void* memory = mmap(nullptr, kPagesMax * kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* code = static_cast<uint8_t*>(memory);
  for (uint32_t step = 0; step < pages * kLinesPerPage; ++step) {
    const uint64_t at = step % pages * kPageBytes + place_of(step % pages, step / pages);
    const uint32_t next = step + 1;
    if (next == pages * kLinesPerPage) {
      code[at] = 0xc3;  // ret
      break;
    }
    const uint64_t target = next % pages * kPageBytes + place_of(next % pages, next / pages);
    const auto distance = static_cast<int32_t>(static_cast<int64_t>(target) - static_cast<int64_t>(at + 5));
    code[at] = 0xe9;  // jmp
    std::memcpy(code + at + 1, &distance, sizeof distance);
  }
  mprotect(memory, kPagesMax * kPageBytes, PROT_READ | PROT_EXEC);
  return reinterpret_cast<Code>(memory);
#else
  (void)pages;
  return nullptr;
#endif
}

// What runs between two events of a real program: other code, other memory.
void work_elsewhere(Code code, uint32_t pages) {
  if (pages == 0) return;
  if (code != nullptr) code();
  for (uint32_t step = 0; step < pages * kLinesPerPage; ++step) {
    const uint64_t at = step % pages * kPageBytes + place_of(step % pages, step / pages);
    g_other_memory[at] = static_cast<uint8_t>(g_other_memory[at] + 1);
  }
}

uint64_t ticks_of(gm_status (*record)(const gm_event*), uint8_t kind, uint64_t address) {
  gm_event event{};
  event.address = address;
  event.requested_bytes = 512;
  event.kind = kind;
  const uint64_t begin = read_ticks();
  event.ticks = begin;  // as PyTorch has read it for its entry
  record(&event);
  return read_ticks() - begin;
}

}  // namespace

extern "C" {

// Ticks of a pair, the clock's own reading included: mean of the calls that nothing interrupted. `record` null: calls
// of nothing. Before the alloc and before the free other work takes so many pages.
double ticks_per_pair(gm_status (*record)(const gm_event*), uint32_t pairs, uint32_t other_pages) {
  static uint32_t pages_made = 0;
  static Code code = nullptr;
  if (record == nullptr) record = skip;
  if (other_pages != pages_made) {
    code = make_other_code(other_pages);
    pages_made = other_pages;
  }
  uint64_t sums[3] = {}, counts[3] = {};
  for (uint32_t pair = 0; pair < pairs; ++pair) {
    const uint64_t address = 0x7f0000000000 + pair % 4096 * 512;
    const uint8_t kinds[3] = {GM_ALLOC, GM_FREE_REQUESTED, GM_FREE_COMPLETED};
    for (uint32_t i = 0; i < 3; ++i) {
      if (i != 2) work_elsewhere(code, other_pages);
      const uint64_t ticks = ticks_of(record, kinds[i], address);
      if (ticks > kTicksMax) continue;
      sums[i] += ticks;
      ++counts[i];
    }
  }
  double ticks = 0;
  for (uint32_t i = 0; i < 3; ++i)
    ticks += counts[i] == 0 ? 0 : static_cast<double>(sums[i]) / static_cast<double>(counts[i]);
  return ticks;
}

double ticks_per_ns(void) {
  return measure_ticks_per_ns();
}
}
