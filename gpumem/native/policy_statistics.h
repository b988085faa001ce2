// What the allocator counts while it works, in PyTorch's own categories.
//
// Owns: counters and when they move. Must not know: blocks' neighbours, devices.
//
// At every moment, for small, large and their sum:
//   reserved = active + idle; active = allocated + pending; requested <= active
// PyTorch's manner: allocated drops when the program frees, active and requested when the free is complete.
#pragma once

#include <cstdint>

namespace gpumem {

struct Counter {
  uint64_t now = 0;
  uint64_t peak = 0;   // highest `now` since the last reset
  uint64_t added = 0;  // all that was ever added; removed = added - now

  void add(uint64_t amount) {
    now += amount;
    added += amount;
    if (now > peak) peak = now;
  }
  void remove(uint64_t amount) { now -= amount; }
};

struct PoolStatistics {
  Counter allocated_bytes;       // blocks the program holds
  Counter active_bytes;          // those and pending ones
  Counter requested_bytes;       // what was asked for the active ones
  Counter reserved_bytes;        // segments and mapped ranges
  Counter inactive_split_bytes;  // free parts of ordinary segments that are in use
  Counter allocated_blocks;
  Counter active_blocks;
  Counter segments;  // ordinary segments
  Counter inactive_split_blocks;
};

// What one private pool has of reserved_bytes; kept when the pool is gone.
struct PrivateReserve {
  Counter all;
  Counter small;
  Counter large;
};

struct Statistics {
  PoolStatistics all;  // peaks of the sums, which are not the sums of the peaks
  PoolStatistics small;
  PoolStatistics large;
  uint64_t cache_hits = 0;      // requests served from a free block
  uint64_t splits = 0;          // requests that left a remainder
  uint64_t alloc_retries = 0;   // full releases that a request forced
  uint64_t ooms = 0;            // requests refused for good
  uint64_t oom_rejections = 0;  // of these, refused over the limit without asking the driver
  uint64_t device_allocs = 0;   // segments and maps
  uint64_t device_frees = 0;    // segments and unmaps

  template <typename Change>
  void change(bool is_small, Change change_one) {
    change_one(all);
    change_one(is_small ? small : large);
  }
};

// Idle memory, told apart; measured by a walk over the free lists.
struct IdleMeasure {
  uint64_t releasable_bytes = 0;      // what empty_cache would give back now
  uint64_t gap_bytes = 0;             // the rest of idle
  uint64_t small_free_bytes_max = 0;  // largest free block of the small pools
  uint64_t large_free_bytes_max = 0;  // largest free block of the large pools
};

}  // namespace gpumem
