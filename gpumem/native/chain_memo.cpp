#include "chain_memo.h"

#include <utility>

#include "check.h"

namespace gpumem {

void ChainMemo::keep(const PythonLayout& layout, const char* innermost, uint64_t generation, uint32_t stack) {
  if (std::exchange(seen_[stack % kSeenCount], stack) != stack) return;
  Chain& chain = chains_[set_number(layout, innermost) * kWays + turn_++ % kWays];
  const char* frame = innermost;
  for (Frame* kept = chain.frames; frame != nullptr; frame = kept++->previous) {
    GM_CHECK(kept != chain.frames + kFramesMax);
    *kept = {load<const char*>(frame, layout.frame_previous), load<const char*>(frame, layout.frame_instruction),
             load<uint8_t>(frame, layout.frame_owner)};
  }
  chain.innermost = innermost;
  chain.generation = generation;
  chain.stack = stack;
}

void ChainMemo::forget() {
  for (Chain& chain : chains_) chain.innermost = nullptr;
  for (uint32_t& stack : seen_) stack = 0;
}

}  // namespace gpumem
