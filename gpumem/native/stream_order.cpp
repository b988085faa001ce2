// PyTorch's table of streams, as far as its order goes; see the header.
#include "stream_order.h"

#include <algorithm>
#include <utility>

#include "check.h"

namespace gpumem {
namespace {

constexpr uint64_t kFibonacci = 0x9E3779B97F4A7C15u;
constexpr uint64_t kBucketsMin = 4;
constexpr int kDistanceEndMin = 4;

}  // namespace

size_t StreamOrder::home_of(uint64_t key) const {
  return static_cast<size_t>((key * kFibonacci) >> shift_);
}

void StreamOrder::insert(uint64_t key, uint64_t stream) {
  Slot incoming{key, stream, 0};
  while (!place(&incoming)) grow();
  ++key_count_;
}

// False: the table has to grow first, for `incoming`, which may be another one than came.
bool StreamOrder::place(Slot* incoming) {
  if (bucket_count_ == 0) return false;
  size_t at = home_of(incoming->key);
  incoming->distance = 0;
  for (; slots_[at].distance >= incoming->distance; ++at) ++incoming->distance;
  if (incoming->distance == distance_end_ || 2 * (key_count_ + 1) > bucket_count_) return false;
  if (!slots_[at].is_empty()) return displace(at, incoming);
  slots_[at] = *incoming;
  return true;
}

// Whoever lies nearer to its home than the incoming one makes room and goes on looking.
bool StreamOrder::displace(size_t at, Slot* incoming) {
  const size_t first = at;
  std::swap(*incoming, slots_[at]);
  for (++incoming->distance, ++at;; ++at) {
    if (slots_[at].is_empty()) {
      slots_[at] = *incoming;
      return true;
    }
    if (slots_[at].distance < incoming->distance) std::swap(*incoming, slots_[at]);
    if (++incoming->distance == distance_end_) {
      std::swap(*incoming, slots_[first]);
      return false;
    }
  }
}

void StreamOrder::grow() {
  std::vector<Slot> old = std::move(slots_);
  bucket_count_ = std::max(kBucketsMin, 2 * bucket_count_);
  int bits = 0;
  while (uint64_t{1} << bits < bucket_count_) ++bits;
  shift_ = 64u - static_cast<unsigned>(bits);
  distance_end_ = std::max(kDistanceEndMin, bits);
  slots_.assign(bucket_count_ + static_cast<uint64_t>(distance_end_), Slot());
  key_count_ = 0;
  for (const Slot& slot : old)
    if (!slot.is_empty()) insert(slot.key, slot.stream);
}

void StreamOrder::erase(uint64_t key) {
  GM_CHECK(bucket_count_ > 0);
  size_t at = home_of(key);
  while (!slots_[at].is_empty() && slots_[at].key != key) ++at;
  GM_CHECK(!slots_[at].is_empty());
  --key_count_;
  for (; slots_[at + 1].distance > 0; ++at) {
    slots_[at] = slots_[at + 1];
    --slots_[at].distance;
  }
  slots_[at] = Slot();
}

}  // namespace gpumem
