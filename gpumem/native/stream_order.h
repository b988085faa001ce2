// In which order PyTorch goes through the streams that its pending frees wait for: that of its hash table.
//
// Owns: where a key lies in that table (open addressing, Robin Hood, Fibonacci hashing), which depends on what was in
// it before. Must not know: streams, events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpumem {

class StreamOrder {
 public:
  // A place of the table; empty where `distance`, from the place that the key belongs to, is negative.
  struct Slot {
    uint64_t key = 0;
    uint64_t stream = 0;
    int distance = -1;
    bool is_empty() const { return distance < 0; }
  };

  // The key must not be there.
  void insert(uint64_t key, uint64_t stream);
  // The key must be there.
  void erase(uint64_t key);
  const std::vector<Slot>& slots() const { return slots_; }

 private:
  bool place(Slot* incoming);
  bool displace(size_t at, Slot* incoming);
  void grow();
  size_t home_of(uint64_t key) const;

  std::vector<Slot> slots_;  // buckets, and room behind them for what belongs to the last ones
  uint64_t bucket_count_ = 0;
  uint64_t key_count_ = 0;
  unsigned shift_ = 63;
  int distance_end_ = 3;  // no key lies so far off
};

}  // namespace gpumem
