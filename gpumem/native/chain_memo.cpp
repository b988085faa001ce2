#include "chain_memo.h"

#include <utility>

namespace gpumem {

void ChainMemo::keep(const PythonLayout& layout, const char* innermost, uint64_t generation, uint32_t stack) {
  if (std::exchange(seen_[stack % kSeenCount], stack) != stack) return;
  Chain& chain = chains_[set_number(layout, innermost) * kWays + turn_++ % kWays];
  chain.innermost = nullptr;
  const char* frame = innermost;
  for (Frame& kept : chain.frames) {
    kept = {load<const char*>(frame, layout.frame_previous), load<const char*>(frame, layout.frame_instruction),
            load<uint8_t>(frame, layout.frame_owner)};
    frame = kept.previous;
    if (frame == nullptr) break;
  }
  if (frame != nullptr) return;  // too long
  chain.innermost = innermost;
  chain.generation = generation;
  chain.stack = stack;
}

void ChainMemo::forget() {
  for (Chain& chain : chains_) chain.innermost = nullptr;
  for (uint32_t& stack : seen_) stack = 0;
}

}  // namespace gpumem
