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
//
// Between two events a program's own work takes the caches, so what costs is how many of their lines, and how many
// pages, an event needs: a chain lies in one piece, and chains lie close together.
#pragma once

#include <cstdint>

#include "check.h"
#include "python_layout.h"

namespace gpumem {

class ChainMemo {
 public:
  ChainMemo() = default;
  ~ChainMemo();
  ChainMemo(const ChainMemo&) = delete;
  ChainMemo& operator=(const ChainMemo&) = delete;

  // 0 when the chain is neither the last one again, as most are, nor the one that came after it the time before.
  uint32_t find_near(FrameLinks links, const char* innermost, uint64_t generation) {
    Chain* chain = latest_;
    for (uint32_t attempt = 0; attempt != 2; ++attempt, chain = chain->successor) {
      if (!is_chain(links, chain, innermost, generation)) continue;
      latest_ = chain;
      return chain->stack;
    }
    return 0;
  }
  // 0 when the chain is not remembered. A generation is one of watch_code's.
  uint32_t find(FrameLinks links, const char* innermost, uint64_t generation);

  static constexpr uint32_t kFramesMax = 128;
  // Remembers a chain's stack at its second time of late: most are not seen again before many others. A chain of more
  // than kFramesMax frames is not remembered.
  void keep(const PythonLayout& layout, const char* innermost, uint64_t generation, uint32_t stack);

  // Ids of another journal follow.
  void forget();

 private:
  struct Frame {
    const char* caller;       // the next frame's address; null behind the last
    const char* instruction;  // as it stands in the frame
  };
  struct Chain {
    const char* innermost;  // the first frame's address; null: nothing remembered
    uint64_t generation;    // its code objects are those of this generation
    Chain* successor;       // the chain that came after it when last another did; itself until then
    uint32_t stack;         // id
    uint32_t frame_count;   // at least 1; so many frames follow

    Frame* frames() { return reinterpret_cast<Frame*>(this + 1); }
    const Frame* frames() const { return reinterpret_cast<const Frame*>(this + 1); }
  };
  struct Pages;

  // Null is no chain's innermost frame.
  static bool is_chain(FrameLinks links, const Chain* chain, const char* innermost, uint64_t generation) {
    if (innermost == nullptr || chain->innermost != innermost || chain->generation != generation) return false;
    const char* frame = innermost;
    const Frame* const end = chain->frames() + chain->frame_count;
#pragma GCC unroll 2
    for (const Frame* remembered = chain->frames(); remembered != end; ++remembered) {
      const char* caller = remembered->caller;
      if (load<const char*>(frame, links.previous) != caller) return false;
      if (load<const char*>(frame, links.instruction) != remembered->instruction) return false;
      asm("" : "+r"(caller));  // or the compiler goes on from the frame's own pointer, for which it has to wait
      frame = caller;
    }
    return true;
  }

  bool make_room();
  Chain* place_for(uint32_t number, uint32_t frame_count);

  Chain none_ = {nullptr, 0, &none_, 0, 0};  // no chain
  Chain* latest_ = &none_;                   // the chain found last
  Pages* pages_ = nullptr;                   // from the first chain to keep on
};

}  // namespace gpumem
