#include "thread_value.h"

namespace gpumem {

#if defined(__x86_64__) && defined(__GLIBC__)

namespace {

// A descriptor is longer than that in every glibc; the slots begin at its 784th byte in those of today.
constexpr int16_t kDescriptorBytes = 2048;
constexpr int16_t kSlotBytes = 16;  // a sequence number, then the value
constexpr int16_t kValueInSlot = 8;

template <typename Word>
Word read_word(int64_t distance) {
  Word word;
  std::memcpy(&word, thread_pointer() + distance, sizeof word);
  return word;
}

// Whether a key of our own shows its values at `distance`, so far away as the keys are apart.
bool is_place_of_values(int64_t distance, pthread_key_t key) {
  pthread_key_t own;
  if (::pthread_key_create(&own, nullptr) != 0) return false;
  const int64_t own_distance = distance + (static_cast<int64_t>(own) - static_cast<int64_t>(key)) * kSlotBytes;
  bool is_place = own_distance >= 0 && own_distance < kDescriptorBytes;
  for (uintptr_t word = 1; word != 4 && is_place; ++word) {
    const auto value = reinterpret_cast<const void*>(word << 48 | 0x5d3b);
    is_place = ::pthread_setspecific(own, value) == 0;
    asm volatile("" ::: "memory");
    is_place = is_place && read_word<const void*>(own_distance) == value;
  }
  ::pthread_key_delete(own);
  return is_place;
}

}  // namespace

bool ThreadValue::find(pthread_key_t key) {
  const void* value = ::pthread_getspecific(key);
  if (value == nullptr) return false;
  for (distance_ = 0; distance_ < kDescriptorBytes; distance_ += kValueInSlot) {
    const int64_t place = distance_ + kValueInSlot;
    if (read_word<const void*>(place) != value || !is_place_of_values(place, key)) continue;
    const auto sequence = read_word<uint64_t>(distance_);
    sequence_ = static_cast<uint16_t>(sequence);
    return sequence != 0 && sequence == sequence_;
  }
  return false;
}

#endif

}  // namespace gpumem
