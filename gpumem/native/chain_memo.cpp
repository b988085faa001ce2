#include "chain_memo.h"

#include <sys/mman.h>

#include <utility>

namespace gpumem {

namespace {

bool is_traceable(const PythonLayout& layout, const char* frame) {
  if (load<uint8_t>(frame, layout.frame_owner) >= kOwnedByCStack) return true;
  const char* code = load<const char*>(frame, layout.frame_code);
  const char* instruction = load<const char*>(frame, layout.frame_instruction);
  const int64_t first_traceable = load<int32_t>(code, layout.code_first_traceable);
  return instruction - (code + layout.code_start) >= first_traceable * int64_t{kCodeUnitBytes};
}

}  // namespace

ChainMemo::~ChainMemo() {
  if (chains_ != nullptr) munmap(chains_, kChainCount * sizeof(Chain));
}

void ChainMemo::keep(const PythonLayout& layout, const char* innermost, uint64_t generation, uint32_t stack) {
  if (std::exchange(seen_[stack % kSeenCount], stack) != stack || !make_room()) return;
  const uint64_t mark = mark_of(layout, innermost);
  const uint32_t number = set_number(mark) * kWays + turn_++ % kWays;
  Chain& chain = chains_[number];
  chain.innermost = nullptr;
  uint32_t count = 0;
  for (const char* frame = innermost; frame != nullptr; frame = load<const char*>(frame, layout.frame_previous)) {
    if (count == kFramesMax || !is_traceable(layout, frame)) return;
    chain.frames[count] = frame;
    chain.instructions[count++] = load<const char*>(frame, layout.frame_instruction);
  }
  chain.frames[count] = nullptr;
  chain.frame_count = count;
  chain.innermost = innermost;
  chain.generation = generation;
  chain.stack = stack;
  tags_[number] = tag_of(mark);
}

void ChainMemo::forget() {
  for (uint32_t number = 0; chains_ != nullptr && number < kChainCount; ++number) chains_[number].innermost = nullptr;
  for (uint32_t& stack : seen_) stack = 0;
}

// Zero pages, touched as chains come: most threads have none.
bool ChainMemo::make_room() {
  if (chains_ != nullptr) return true;
  void* pages = mmap(nullptr, kChainCount * sizeof(Chain), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages != MAP_FAILED) chains_ = static_cast<Chain*>(pages);
  return chains_ != nullptr;
}

}  // namespace gpumem
