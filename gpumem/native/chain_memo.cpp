#include "chain_memo.h"

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

void ChainMemo::keep(const PythonLayout& layout, const char* innermost, uint64_t generation, uint32_t stack) {
  if (std::exchange(seen_[stack % kSeenCount], stack) != stack) return;
  Chain& chain = chains_[set_number(layout, innermost) * kWays + turn_++ % kWays];
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
}

void ChainMemo::forget() {
  for (Chain& chain : chains_) chain.innermost = nullptr;
  for (uint32_t& stack : seen_) stack = 0;
}

}  // namespace gpumem
