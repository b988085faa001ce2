// What one source of records may still change in place: the record it holds open.
//
// Owns: how a source's changes and the journal's helper thread keep out of each other's way. Must not know: what is
// changed, or why.
//
// A source whose next event is long in coming must not keep a window from being FULL: its hold is taken back. Neither
// side waits for the other and the source has no locked instruction. The source alone writes `word`, the helper alone
// `taken_back`:
//
//   source, to change its record of window w       helper, once all of w is committed
//     S1  word := OPEN w CHANGING                    H1  taken_back := OPEN w, where word = OPEN w
//     S2  read taken_back; change none if OPEN w     H2  every thread passes a barrier
//     S3  change the record                          H3  read word
//     S4  word := 0
//
//   (1) open() comes before the commit, so that the helper at H1 sees the hold on w or what came after it, and no word
//       becomes OPEN w any more: w has no slot left.
//   (2) taken_back = OPEN w stays while the hold on w lasts: the next H1 on this source is for another window v and has
//       read word = OPEN v, which the source stores after S4.
//   (3) The barrier falls into the source's thread after S1 or before S2, since S1 precedes S2. After S1: H3 reads what
//       S1 stored or something later. Before S2: S2 reads what H1 stored.
//
//   H3 = OPEN w            S1 was not before the barrier, hence S2 is after it and reads OPEN w: nothing is changed.
//   H3 = OPEN w CHANGING   the source may be at S3: w is still held, the helper looks again later.
//   H3 = anything else     the hold on w is over, and S4 (release) has shown the helper its last change.
//
// So the record, and the memory it lies in, is touched by no one once the helper takes w for FULL. It takes H3 for
// nothing where there was no barrier: the hold lasts, and a source that finds it taken back leaves its record alone.
#pragma once

#include <atomic>
#include <cstdint>

#include "check.h"
#include "gpumem.h"

namespace gpumem {

class RecordHold {
 public:
  // ---- the source's ----

  // Before the record is committed: whoever finds all of a window committed then finds this, or what came after it.
  // Whoever finds this has seen the last change of the record held before, though another thread may have made it.
  void open(uint32_t window, gm_record* record) {
    record_ = record;
    word_.store(kIsOpen | window, std::memory_order_release);
  }
  bool is_open() const { return word_.load(std::memory_order_relaxed) != 0; }
  // S1 and S2, while it is open: the record, to be changed before let_go(). Null where the hold was taken back.
  gm_record* begin_change() {
    const uint64_t word = word_.load(std::memory_order_relaxed);
    word_.store(word | kIsChanging, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // for the processor the helper's barrier does it
    return GM_LIKELY(taken_back_.load(std::memory_order_acquire) != word) ? record_ : nullptr;
  }
  // After the last change of the record, or without any.
  void let_go() { word_.store(0, std::memory_order_release); }

  // ---- the helper's ----

  bool is_in(uint32_t window) const {
    return (word_.load(std::memory_order_acquire) & ~kIsChanging) == (kIsOpen | window);
  }
  // H1, once all of the window is committed.
  void take_back(uint32_t window) {
    if (is_in(window)) taken_back_.store(kIsOpen | window, std::memory_order_relaxed);
  }
  // H3, after the barrier.
  bool is_changing_in(uint32_t window) const {
    return word_.load(std::memory_order_acquire) == (kIsOpen | kIsChanging | window);
  }

 private:
  static constexpr uint64_t kIsOpen = 1ull << 63;
  static constexpr uint64_t kIsChanging = 1ull << 62;

  std::atomic<uint64_t> word_{0};        // directory index with kIsOpen, perhaps kIsChanging; 0: nothing is held
  std::atomic<uint64_t> taken_back_{0};  // the word whose hold is taken back
  gm_record* record_ = nullptr;          // the record, while one is held
};

}  // namespace gpumem
