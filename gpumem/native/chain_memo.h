// The chains of frames that one thread shows again and again, with their stacks' ids.
//
// Owns: comparing a chain with those remembered, and which are. Must not know: code objects, journals.
//
// A training step allocates below the same hundred stacks or so, in the same order. To find one again takes no walk
// from frame to frame, each step of which waits for the last: the next frame is taken from memory and the real one
// compared with it, and the processor, which foresees that they are equal, compares many frames at once.
//
// Of a frame its place in the chain and its instruction are compared. What holds it, a thread or a generator, decides
// something only before its first instruction that can be traced: chains with such a frame are not remembered.
#pragma once

#include <cstdint>

#include "python_layout.h"

namespace gpumem {

class ChainMemo {
 public:
  ChainMemo() = default;
  ~ChainMemo();
  ChainMemo(const ChainMemo&) = delete;
  ChainMemo& operator=(const ChainMemo&) = delete;

  // 0 when the chain is not remembered. A generation is one of code_generation().
  uint32_t find(const PythonLayout& layout, const char* innermost, uint64_t generation) {
    if (chains_ == nullptr) return 0;
    // What came after the last chain the time before: it can be read, and compared, before the innermost frame is
    // known.
    if (is_chain(layout, chains_[expected_], innermost, generation)) return step_to(expected_);
    const uint64_t mark = mark_of(layout, innermost);
    const uint32_t set = set_number(mark) * kWays;
    for (uint32_t number = set; number != set + kWays; ++number) {
      if (tags_[number] == tag_of(mark) && is_chain(layout, chains_[number], innermost, generation)) {
        chains_[latest_].successor = number;
        return step_to(number);
      }
    }
    return 0;
  }

  static constexpr uint32_t kFramesMax = 128;
  // Remembers a chain's stack at its second time of late: most are not seen again before many others. A chain of more
  // than kFramesMax frames is not remembered.
  void keep(const PythonLayout& layout, const char* innermost, uint64_t generation, uint32_t stack);

  // Ids of another journal follow.
  void forget();

 private:
  // A training step allocates below some hundred stacks.
  static constexpr uint32_t kSetBits = 7;
  static constexpr uint32_t kWays = 4;
  static constexpr uint32_t kChainCount = kWays << kSetBits;
  static constexpr uint32_t kSeenCount = 256;
  // So many frames tell most chains apart: a module's forward and the two calls around it are the same for all modules
  // of a kind, the line that calls them is not.
  static constexpr uint32_t kMarkFrames = 4;

  struct Chain {
    const char* innermost;                 // the first frame's address; null: nothing remembered
    uint64_t generation;                   // its code objects are those of this generation
    uint32_t stack;                        // id
    uint32_t frame_count;                  // at least 1
    uint32_t successor;                    // number of the chain found after it
    const char* frames[kFramesMax + 1];    // their addresses, innermost first; null behind the last
    const char* instructions[kFramesMax];  // as they stand in the frames
  };

  // Of the instructions of the innermost frames.
  static uint64_t mark_of(const PythonLayout& layout, const char* frame) {
    uint64_t mark = 0;
    for (uint32_t i = 0; i < kMarkFrames && frame != nullptr; ++i) {
      mark = (mark + load<uint64_t>(frame, layout.frame_instruction)) * 0x9e3779b97f4a7c15u;
      frame = load<const char*>(frame, layout.frame_previous);
    }
    return mark;
  }
  static uint32_t set_number(uint64_t mark) { return static_cast<uint32_t>(mark >> (64 - kSetBits)); }
  static uint32_t tag_of(uint64_t mark) { return static_cast<uint32_t>(mark >> 16); }

  uint32_t step_to(uint32_t number) {
    latest_ = number;
    expected_ = chains_[number].successor;
    return chains_[number].stack;
  }

  static bool is_chain(const PythonLayout& layout, const Chain& chain, const char* innermost, uint64_t generation) {
    if (chain.innermost != innermost || chain.generation != generation) return false;
    const uint32_t previous = layout.frame_previous, instruction = layout.frame_instruction;
    const char* frame = chain.innermost;
#pragma GCC unroll 4
    for (uint32_t i = 0; i < chain.frame_count; ++i) {
      const char* next = chain.frames[i + 1];
      if (load<const char*>(frame, previous) != next) return false;
      if (load<const char*>(frame, instruction) != chain.instructions[i]) return false;
      asm("" : "+r"(next));  // or the compiler goes on from the frame's own pointer, for which it has to wait
      frame = next;
    }
    return true;
  }

  bool make_room();

  Chain* chains_ = nullptr;          // kChainCount of them, from the first chain to keep on
  uint32_t tags_[kChainCount] = {};  // of the chains' marks
  uint32_t seen_[kSeenCount] = {};   // stacks of late, by the lowest bits of their ids
  uint32_t turn_ = 0;                // which way of a set goes next
  uint32_t latest_ = 0;              // number of the chain found last
  uint32_t expected_ = 0;            // its successor
};

}  // namespace gpumem
