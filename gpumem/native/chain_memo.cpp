#include "chain_memo.h"

#include <sys/mman.h>

#include <cstring>
#include <utility>

namespace gpumem {

namespace {

// A training step allocates below some hundred stacks.
constexpr uint32_t kSetBits = 7;
constexpr uint32_t kWays = 4;
constexpr uint32_t kChainCount = kWays << kSetBits;
constexpr uint32_t kSeenCount = 256;
// So many frames tell most chains apart: a module's forward and the two calls around it are the same for all modules
// of a kind, the line that calls them is not.
constexpr uint32_t kMarkFrames = 4;
constexpr uint64_t kLineBytes = 64;
constexpr uint64_t kBytes = 1 << 20;  // room for kChainCount chains of 122 frames each

// Of the instructions of the innermost frames.
uint64_t mark_of(FrameLinks links, const char* frame) {
  uint64_t mark = 0;
  for (uint32_t i = 0; i < kMarkFrames && frame != nullptr; ++i) {
    mark = (mark + load<uint64_t>(frame, links.instruction)) * 0x9e3779b97f4a7c15u;
    frame = load<const char*>(frame, links.previous);
  }
  return mark;
}

uint32_t first_of_set(uint64_t mark) {
  return static_cast<uint32_t>(mark >> (64 - kSetBits)) * kWays;
}

uint32_t tag_of(uint64_t mark) {
  return static_cast<uint32_t>(mark >> 16);
}

bool is_traceable(const PythonLayout& layout, const char* frame) {
  if (load<uint8_t>(frame, layout.frame_owner) >= kFirstHiddenOwner) return true;
  const char* code = layout.code_of(frame);
  const char* instruction = load<const char*>(frame, layout.frame_instruction);
  const int64_t first_traceable = load<int32_t>(code, layout.code_first_traceable);
  return instruction - (code + layout.code_start) >= first_traceable * int64_t{kCodeUnitBytes};
}

// 0 for a chain that cannot be remembered.
uint32_t count_frames(const PythonLayout& layout, const char* frame) {
  uint32_t count = 0;
  for (; frame != nullptr; frame = load<const char*>(frame, layout.frame_previous)) {
    if (count == ChainMemo::kFramesMax || !is_traceable(layout, frame)) return 0;
    ++count;
  }
  return count;
}

}  // namespace

// Zero at first, touched as chains come. Chains stand behind it, each from a cache line on.
struct alignas(64) ChainMemo::Pages {
  uint32_t tags[kChainCount];        // of the chains' marks
  Chain* chains[kChainCount];        // null: none yet
  uint32_t capacities[kChainCount];  // bytes of the chains' places
  uint32_t seen[kSeenCount];         // stacks of late, by the lowest bits of their ids
  uint64_t used_bytes;               // of all, this head included
  uint32_t turn;                     // which way of a set goes next
};

ChainMemo::~ChainMemo() {
  if (pages_ != nullptr) munmap(pages_, kBytes);
}

uint32_t ChainMemo::find(FrameLinks links, const char* innermost, uint64_t generation) {
  if (const uint32_t stack = find_near(links, innermost, generation)) return stack;
  if (pages_ == nullptr) return 0;
  const uint64_t mark = mark_of(links, innermost);
  const uint32_t first = first_of_set(mark);
  for (uint32_t number = first; number != first + kWays; ++number) {
    Chain* chain = pages_->chains[number];
    if (pages_->tags[number] == tag_of(mark) && chain != nullptr && is_chain(links, chain, innermost, generation)) {
      latest_->successor = chain;
      latest_ = chain;
      return chain->stack;
    }
  }
  return 0;
}

void ChainMemo::keep(const PythonLayout& layout, const char* innermost, uint64_t generation, uint32_t stack) {
  if (!make_room() || std::exchange(pages_->seen[stack % kSeenCount], stack) != stack) return;
  const uint32_t count = count_frames(layout, innermost);
  if (count == 0) return;
  const uint64_t mark = mark_of(layout.links(), innermost);
  const uint32_t number = first_of_set(mark) + pages_->turn++ % kWays;
  Chain* chain = place_for(number, count);
  *chain = {innermost, generation, chain, stack};
  const char* frame = innermost;
  for (Frame* remembered = chain->frames(); remembered != chain->frames() + count; ++remembered) {
    *remembered = {load<const char*>(frame, layout.frame_previous), load<const char*>(frame, layout.frame_instruction)};
    frame = remembered->caller;
  }
  pages_->tags[number] = tag_of(mark);
}

// Of the chain that goes, where the new one fits; else behind all. Where that is full all chains go.
ChainMemo::Chain* ChainMemo::place_for(uint32_t number, uint32_t frame_count) {
  const uint64_t wanted = sizeof(Chain) + frame_count * sizeof(Frame);
  if (pages_->chains[number] != nullptr && pages_->capacities[number] >= wanted) return pages_->chains[number];
  const uint64_t bytes = (wanted + kLineBytes - 1) / kLineBytes * kLineBytes;
  if (pages_->used_bytes + bytes > kBytes) forget();
  pages_->chains[number] = reinterpret_cast<Chain*>(reinterpret_cast<char*>(pages_) + pages_->used_bytes);
  pages_->capacities[number] = static_cast<uint32_t>(bytes);
  pages_->used_bytes += bytes;
  return pages_->chains[number];
}

void ChainMemo::forget() {
  none_.successor = latest_ = &none_;
  if (pages_ == nullptr) return;
  std::memset(static_cast<void*>(pages_), 0, sizeof *pages_);
  pages_->used_bytes = sizeof *pages_;
}

// Most threads have no chains.
bool ChainMemo::make_room() {
  if (pages_ != nullptr) return true;
  void* pages = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return false;
  pages_ = static_cast<Pages*>(pages);
  forget();
  return true;
}

}  // namespace gpumem
