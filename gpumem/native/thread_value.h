// A pthread key's value of the calling thread, without a call where the C library is known to keep it.
//
// Owns: where that is, found by answer. Must not know: whose key it is.
//
// To call pthread_getspecific takes six cache lines and three pages of code and tables that an event needs nothing
// else of.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <cstring>

#include "check.h"

namespace gpumem {

#if defined(__x86_64__)
// What the thread's own words lie at fixed distances from.
inline const char* thread_pointer() {
  const char* pointer;
  asm("mov %%fs:0, %0" : "=r"(pointer));
  return pointer;
}
#endif

#if defined(__x86_64__) && defined(__GLIBC__)

// glibc keeps the values of the first 32 keys in the thread's own descriptor, at which the thread pointer points. Each
// lies behind the number of the key it was set under: a key that is gone leaves both where the next one finds them.
class ThreadValue {
 public:
  // Of a key whose value in the calling thread is not null. False where its place is not found.
  bool find(pthread_key_t key);
  const void* get() const {
    struct {
      uint64_t sequence;
      const void* value;
    } slot;
    std::memcpy(&slot, thread_pointer() + distance_, sizeof slot);
    return GM_LIKELY(slot.sequence == sequence_) ? slot.value : nullptr;
  }

 private:
  int16_t distance_ = 0;   // from the thread pointer
  uint16_t sequence_ = 0;  // the key's number; 0 is none's
};

#else

class ThreadValue {
 public:
  bool find(pthread_key_t key) {
    key_ = key;
    return true;
  }
  const void* get() const { return ::pthread_getspecific(key_); }

 private:
  pthread_key_t key_ = 0;
};

#endif

}  // namespace gpumem
