// A pthread key's value read in place: what pthread_getspecific says, in every thread.
#include <pthread.h>

#include <cstdint>
#include <thread>
#include <vector>

#include "expect.h"
#include "thread_value.h"

namespace {

using gpumem::ThreadValue;

const void* pointer_of(uintptr_t word) {
  return reinterpret_cast<const void*>(word);
}

bool says_the_same(const ThreadValue& value, pthread_key_t key) {
  return value.get() == ::pthread_getspecific(key);
}

struct Key {
  Key() { EXPECT(::pthread_key_create(&key, nullptr) == 0); }
  ~Key() { ::pthread_key_delete(key); }
  Key(const Key&) = delete;
  Key& operator=(const Key&) = delete;

  pthread_key_t key = 0;
};

ThreadValue find_value(pthread_key_t key) {
  ThreadValue value;
  ::pthread_setspecific(key, pointer_of(0x5eed));
  EXPECT(value.find(key));
  EXPECT(value.get() == pointer_of(0x5eed));
  return value;
}

void test_each_thread_has_its_own() {
  const Key own;
  const pthread_key_t key = own.key;
  const ThreadValue value = find_value(key);
  std::vector<std::thread> threads;
  for (uintptr_t number = 1; number <= 4; ++number) {
    threads.emplace_back([=, &value] {
      EXPECT(value.get() == nullptr);
      for (uintptr_t round = 1; round <= 1000; ++round) {
        ::pthread_setspecific(key, pointer_of(number << 32 | round));
        EXPECT(value.get() == pointer_of(number << 32 | round));
        EXPECT(says_the_same(value, key));
      }
      ::pthread_setspecific(key, nullptr);
      EXPECT(value.get() == nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT(value.get() == pointer_of(0x5eed));
}

// Other words of the thread's that hold the same, as other software's keys do, are not taken for the key's place.
void test_others_with_the_same_value() {
  const Key before[4] = {}, own, after[4] = {};
  for (const Key& other : before) ::pthread_setspecific(other.key, pointer_of(0x5eed));
  for (const Key& other : after) ::pthread_setspecific(other.key, pointer_of(0x5eed));
  const ThreadValue value = find_value(own.key);
  for (const Key& other : before) ::pthread_setspecific(other.key, pointer_of(0x77));
  for (const Key& other : after) ::pthread_setspecific(other.key, pointer_of(0x77));
  EXPECT(says_the_same(value, own.key));
  EXPECT(value.get() == pointer_of(0x5eed));
}

#if defined(__x86_64__) && defined(__GLIBC__)
// Without a value nothing can be found, and of keys beyond the first 32 the thread's descriptor does not hold the
// values.
void test_places_that_cannot_be_known() {
  const Key keys[40] = {};
  EXPECT(!ThreadValue().find(keys[0].key));
  ::pthread_setspecific(keys[39].key, pointer_of(0x1a7e));
  EXPECT(!ThreadValue().find(keys[39].key));
}
#endif

}  // namespace

int main(int, char**) {
  run_case("each thread", test_each_thread_has_its_own);
  run_case("same value", test_others_with_the_same_value);
#if defined(__x86_64__) && defined(__GLIBC__)
  run_case("unknown places", test_places_that_cannot_be_known);
#endif
  return exit_code();
}
