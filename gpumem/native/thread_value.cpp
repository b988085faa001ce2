#include "thread_value.h"

namespace gpumem {

#if defined(__x86_64__) && defined(__GLIBC__)

namespace {

// A descriptor is longer than that in every glibc; the values begin at its 784th byte in those of today.
constexpr int32_t kDescriptorBytes = 2048;
constexpr int32_t kSlotBytes = 16;  // a sequence number, then the value

// Whether a key of our own shows its values at `distance`, so far away as the keys are apart.
bool is_place_of_values(int32_t distance, pthread_key_t key) {
  pthread_key_t own;
  if (::pthread_key_create(&own, nullptr) != 0) return false;
  const int64_t own_distance = distance + (static_cast<int64_t>(own) - static_cast<int64_t>(key)) * kSlotBytes;
  bool is_place = own_distance >= 0 && own_distance < kDescriptorBytes;
  for (uintptr_t word = 1; word != 4 && is_place; ++word) {
    const auto value = reinterpret_cast<const void*>(word << 48 | 0x5d3b);
    const void* seen = nullptr;
    is_place = ::pthread_setspecific(own, value) == 0;
    asm volatile("" ::: "memory");
    std::memcpy(&seen, thread_pointer() + own_distance, sizeof seen);
    is_place = is_place && seen == value;
  }
  ::pthread_key_delete(own);
  return is_place;
}

}  // namespace

bool ThreadValue::find(pthread_key_t key) {
  const void* value = ::pthread_getspecific(key);
  if (value == nullptr) return false;
  for (distance_ = 0; distance_ < kDescriptorBytes; distance_ += sizeof value) {
    if (get() == value && is_place_of_values(distance_, key)) return true;
  }
  return false;
}

#endif

}  // namespace gpumem
