// A bounded cache from 128-bit hash to id, for keys made of addresses, which come and go without end.
//
// Owns: the sets and their replacement. Must not know: what a key or an id stands for.
//
// A set is one cache line of four slots. A slot is two words: the key's high half, then the upper half of its low
// half beside the id; the set's number comes from the key's lowest bits. So all but 32 - kSetBits bits are compared.
// A forgotten key costs its owner a resolution by content, never another id.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>

#include "check.h"
#include "intern.h"

namespace gpumem {

// find takes no lock and writes nothing; insert may come from any number of threads.
class IdCache {
 public:
  IdCache() {
    // Zero pages, touched as keys come.
    void* pages = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    sets_ = static_cast<Set*>(pages);
  }
  ~IdCache() { munmap(sets_, kBytes); }
  IdCache(const IdCache&) = delete;
  IdCache& operator=(const IdCache&) = delete;

  // 0 when the key is not here.
  uint32_t find(Hash128 key) const {
    for (const Slot& slot : sets_[set_of(key)].slots) {
      // A slot being replaced has id 0 in between, so a key's halves and its id are those of one key.
      const uint64_t tagged_id = slot.tagged_id.load(std::memory_order_acquire);
      if (((tagged_id ^ key.low) >> 32) != 0 || static_cast<uint32_t>(tagged_id) == 0) continue;
      const uint64_t high = slot.high.load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (high == key.high && slot.tagged_id.load(std::memory_order_relaxed) == tagged_id) {
        return static_cast<uint32_t>(tagged_id);
      }
    }
    return 0;
  }

  void insert(Hash128 key, uint32_t id) {
    GM_CHECK(id != 0);
    std::lock_guard<std::mutex> lock(mutex_);
    Slot* slot = choose(sets_[set_of(key)]);
    slot->tagged_id.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    slot->high.store(key.high, std::memory_order_relaxed);
    slot->tagged_id.store((key.low & ~uint64_t{UINT32_MAX}) | id, std::memory_order_release);
  }

  // Gives the memory back; keys may come and be found again, a key being inserted may be lost.
  void forget() { madvise(sets_, kBytes, MADV_DONTNEED); }

 private:
  static constexpr uint32_t kSetBits = 15;
  static constexpr uint32_t kSlotsPerSet = 4;

  struct Slot {
    std::atomic<uint64_t> high;       // the key's high half
    std::atomic<uint64_t> tagged_id;  // upper half of the key's low half, then the id; id 0: empty
  };
  struct alignas(64) Set {
    Slot slots[kSlotsPerSet];
  };
  static constexpr size_t kBytes = sizeof(Set) << kSetBits;

  static size_t set_of(Hash128 key) { return key.low & ((size_t{1} << kSetBits) - 1); }

  // An empty slot, else the next in turn.
  Slot* choose(Set& set) {
    for (Slot& slot : set.slots) {
      if (static_cast<uint32_t>(slot.tagged_id.load(std::memory_order_relaxed)) == 0) return &slot;
    }
    return &set.slots[turn_++ % kSlotsPerSet];
  }

  Set* sets_;
  uint32_t turn_ = 0;  // guarded by mutex_
  std::mutex mutex_;   // for writers
};

}  // namespace gpumem
