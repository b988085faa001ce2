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

  // 0 when the chain is neither the last one again, as most are, nor the one that came after it the time before. Twice
  // the same code: the processor foresees each place's outcome by itself.
  [[gnu::always_inline]] uint32_t find_near(FrameLinks links, const char* innermost, uint64_t generation) {
    Chain* chain = latest_;
    if (GM_LIKELY(is_chain(links, chain, innermost, generation))) return chain->stack;
    chain = chain->successor;
    if (GM_UNLIKELY(!is_chain(links, chain, innermost, generation))) return 0;
    latest_ = chain;
    return chain->stack;
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

    // At least one; the last has no caller.
    Frame* frames() { return reinterpret_cast<Frame*>(this + 1); }
    const Frame* frames() const { return reinterpret_cast<const Frame*>(this + 1); }
  };
  struct Pages;
  static constexpr uint32_t kFramesARound = 4;

  // Of an innermost frame that is not null.
  [[gnu::always_inline]] static bool is_chain(FrameLinks links, const Chain* chain, const char* innermost,
                                              uint64_t generation) {
    if (chain->innermost != innermost || chain->generation != generation) return false;
    const char* frame = innermost;
    for (const Frame* remembered = chain->frames();; remembered += kFramesARound) {
#pragma GCC unroll 4
      for (uint32_t i = 0; i != kFramesARound; ++i) {
        const char* caller = remembered[i].caller;
        if (load<const char*>(frame, links.previous) != caller) return false;
        if (load<const char*>(frame, links.instruction) != remembered[i].instruction) return false;
        asm("" : "+r"(caller));  // or the compiler goes on from the frame's own pointer, for which it has to wait
        if (caller == nullptr) return true;
        frame = caller;
      }
    }
  }

  bool make_room();
  Chain* place_for(uint32_t number, uint32_t frame_count);

  Chain* latest_ = &none_;                // the chain found last
  Chain none_ = {nullptr, 0, &none_, 0};  // no chain
  Pages* pages_ = nullptr;                // from the first chain to keep on
};

}  // namespace gpumem
