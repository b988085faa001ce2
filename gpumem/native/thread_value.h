// A pthread key's value of the calling thread, or a thread-local variable's of another library, without a call where
// the C library is known to keep it.
//
// Owns: where that is, found by answer. Must not know: whose key or variable it is.
//
// To call pthread_getspecific takes six cache lines and three pages of code and tables that an event needs nothing
// else of.
#pragma once

#include <pthread.h>

#include <cstddef>
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

// The thread-local variables of one loaded object, as they lie for the calling thread; none: start is null.
struct ThreadLocals {
  char* start;
  size_t bytes;
};

#if defined(__x86_64__) && defined(__GLIBC__)

// Of the object that `code` is a part of, where the C library says.
ThreadLocals find_thread_locals(const void* code);

// glibc keeps the values of the first 32 keys in the thread's own descriptor, at which the thread pointer points. Each
// lies behind the number of the key it was set under: a key that is gone leaves both where the next one finds them.
// Variables of what was loaded with the program lie at fixed distances from there too.
class ThreadValue {
 public:
  // Of a key whose value in the calling thread is not null. False where its place is not found.
  bool find(pthread_key_t key);
  // Of the pointer `offset` bytes into the thread-local variables of what holds `code`. False where threads have them
  // at different distances.
  bool find_variable(const void* code, size_t offset);
  const void* get() const {
    struct {
      uint64_t sequence;
      const void* value;
    } slot;
    std::memcpy(&slot, thread_pointer() + distance_, sizeof slot);
    if (GM_LIKELY(slot.sequence == sequence_)) return slot.value;
    return sequence_ == kVariable ? slot.value : nullptr;
  }

 private:
  static constexpr uint16_t kVariable = 0;  // no key's number

  int16_t distance_ = 0;  // from the thread pointer to the word in front of the value
  uint16_t sequence_ = kVariable;
};

#else

inline ThreadLocals find_thread_locals(const void*) {
  return {nullptr, 0};
}

class ThreadValue {
 public:
  bool find(pthread_key_t key) {
    key_ = key;
    return true;
  }
  bool find_variable(const void*, size_t) { return false; }
  const void* get() const { return ::pthread_getspecific(key_); }

 private:
  pthread_key_t key_ = 0;
};

#endif

}  // namespace gpumem
