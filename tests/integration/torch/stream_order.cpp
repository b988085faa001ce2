// Holds our order of streams to PyTorch's own table, by random insertions, removals and clearings of streams' keys.
#include "stream_order.h"

#include <c10/util/flat_hash_map.h>

#include <cstdio>
#include <random>
#include <vector>

namespace {

// The default stream, PyTorch's pools, and other libraries' handles.
uint64_t make_key(std::mt19937_64& random) {
  const uint64_t device = (uint64_t{1} << 56) | (random() % 2) << 48;
  const uint64_t number = random() % 40;
  if (number == 0) return device;
  if (number < 33) return device | (number - 1) << 5 | (random() % 4 + 1) << 1 | 1;
  return device | (0x7f0000000000 + number * 0x1340);
}

std::vector<uint64_t> list_keys(const gpumem::StreamOrder& order) {
  std::vector<uint64_t> keys;
  for (const auto& slot : order.slots())
    if (!slot.is_empty()) keys.push_back(slot.key);
  return keys;
}

}  // namespace

int main() {
  size_t longest = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    ska::flat_hash_map<uint64_t, int> theirs;
    gpumem::StreamOrder ours;
    const uint64_t rarity = seed % 7 + 2;
    for (int step = 0; step < 2000; ++step) {
      const uint64_t key = make_key(random);
      auto found = theirs.find(key);
      if (found == theirs.end()) {
        theirs[key] = step;
        ours.insert(key, key);
      } else if (random() % 2 == 0) {
        theirs.erase(found);
        ours.erase(key);
      }
      if (random() % (40 * rarity) == 0) {
        theirs.clear();
        for (uint64_t one : list_keys(ours)) ours.erase(one);
      }
      std::vector<uint64_t> expected;
      for (const auto& [one, value] : theirs) expected.push_back(one);
      if (expected != list_keys(ours)) return std::printf("seed %d, step %d: the orders differ\n", int(seed), step), 1;
      longest = expected.size() > longest ? expected.size() : longest;
    }
  }
  std::printf("equal\n");
  return longest > 64 ? 0 : 2;
}
