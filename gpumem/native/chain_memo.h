// The chains of frames that one thread shows again and again, with their stacks' ids.
//
// Owns: comparing a chain with those remembered, and which are. Must not know: code objects, journals.
//
// A loop allocates below few stacks. To find one of them again takes no walk from frame to frame, each step of which
// waits for the last: the next frame is taken from memory and the real one compared with it, and the processor, which
// foresees that they are equal, compares many frames at once.
#pragma once

#include <cstdint>

#include "python_layout.h"

namespace gpumem {

class ChainMemo {
 public:
  // 0 when the chain is not remembered. A generation is one of code_generation().
  uint32_t find(const PythonLayout& layout, const char* innermost, uint64_t generation) const {
    const Chain* set = set_of(layout, innermost);
    for (const Chain* chain = set; chain != set + kWays; ++chain) {
      if (chain->innermost == innermost && chain->generation == generation && is_same(layout, *chain)) {
        return chain->stack;
      }
    }
    return 0;
  }

  static constexpr uint32_t kFramesMax = 128;
  // Remembers a chain's stack at its second time of late: most are not seen again before many others. The chain has at
  // most kFramesMax frames.
  void keep(const PythonLayout& layout, const char* innermost, uint64_t generation, uint32_t stack);

  // Ids of another journal follow.
  void forget();

 private:
  static constexpr uint32_t kSets = 8;
  static constexpr uint32_t kWays = 2;
  static constexpr uint32_t kSeenCount = 16;

  struct Frame {
    const char* previous;     // the next frame outwards; null ends the chain
    const char* instruction;  // as it stands in the frame
    uint8_t owner;            // likewise
  };
  struct Chain {
    const char* innermost = nullptr;  // the first frame's address; null: nothing remembered
    uint64_t generation = 0;          // its code objects are those of this generation
    uint32_t stack = 0;               // id
    Frame frames[kFramesMax];         // innermost first
  };

  static uint32_t set_number(const PythonLayout& layout, const char* innermost) {
    const auto instruction = load<uint64_t>(innermost, layout.frame_instruction);
    return static_cast<uint32_t>(instruction * 0x9e3779b97f4a7c15u >> 61);
  }
  const Chain* set_of(const PythonLayout& layout, const char* innermost) const {
    return chains_ + set_number(layout, innermost) * kWays;
  }

  static bool is_same(const PythonLayout& layout, const Chain& chain) {
    const uint32_t previous = layout.frame_previous, instruction = layout.frame_instruction;
    const uint32_t owner = layout.frame_owner;
    const char* frame = chain.innermost;
    for (const Frame* known = chain.frames;; ++known) {
      const char* next = known->previous;
      if (load<const char*>(frame, previous) != next) return false;
      if (load<const char*>(frame, instruction) != known->instruction) return false;
      if (load<uint8_t>(frame, owner) != known->owner) return false;
      if (next == nullptr) return true;
      asm("" : "+r"(next));  // or the compiler goes on from the frame's own pointer, for which it has to wait
      frame = next;
    }
  }

  Chain chains_[kSets * kWays];
  uint32_t seen_[kSeenCount] = {};  // stacks of late, by the lowest bits of their ids
  uint32_t turn_ = 0;               // which way of a set goes next
};

}  // namespace gpumem
