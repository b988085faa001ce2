// A pthread key's value, or a thread-local variable's, read in place: what pthread_getspecific or the variable itself
// says, in every thread.
#include <dlfcn.h>
#include <pthread.h>

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
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
// A thread that had set a value under a key that is gone: a new key in the same place has no value there, although the
// old word still lies in the thread's descriptor.
void test_value_of_a_key_that_is_gone() {
  const pthread_key_t gone = [] {
    const Key earlier;
    return earlier.key;
  }();
  std::mutex mutex;
  std::condition_variable changed;
  int turn = 0;
  const auto take_turn = [&](int number) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return turn == number; });
  };
  const auto pass_turn = [&] {
    const std::lock_guard<std::mutex> lock(mutex);
    ++turn;
    changed.notify_all();
  };
  auto key = std::make_unique<Key>();
  EXPECT(key->key == gone);
  ThreadValue value;
  std::thread thread([&] {
    ::pthread_setspecific(key->key, pointer_of(0x57a1e));
    pass_turn();
    take_turn(2);
    EXPECT(value.get() == nullptr);  // first: pthread_getspecific takes the old word away
    EXPECT(says_the_same(value, key->key));
    ::pthread_setspecific(key->key, pointer_of(0x5eed));
    EXPECT(value.get() == pointer_of(0x5eed));
  });
  take_turn(1);
  key = nullptr;
  key = std::make_unique<Key>();
  EXPECT(key->key == gone);
  value = find_value(key->key);
  pass_turn();
  thread.join();
}

// Without a value nothing can be found, and of keys beyond the first 32 the thread's descriptor does not hold the
// values.
void test_places_that_cannot_be_known() {
  const Key keys[40] = {};
  EXPECT(!ThreadValue().find(keys[0].key));
  ::pthread_setspecific(keys[39].key, pointer_of(0x1a7e));
  EXPECT(!ThreadValue().find(keys[39].key));
}

thread_local const void* t_others = nullptr;
thread_local const void* t_variable = nullptr;

void test_each_thread_has_its_own_variable() {
  t_others = pointer_of(0x5eed);
  t_variable = pointer_of(0x5eed);
  const auto code = reinterpret_cast<const void*>(test_places_that_cannot_be_known);
  const gpumem::ThreadLocals locals = gpumem::find_thread_locals(code);
  const auto offset = static_cast<size_t>(reinterpret_cast<char*>(&t_variable) - locals.start);
  EXPECT(offset + sizeof t_variable <= locals.bytes);
  ThreadValue value;
  EXPECT(value.find_variable(code, offset));
  EXPECT(value.get() == pointer_of(0x5eed));
  t_others = nullptr;
  EXPECT(value.get() == pointer_of(0x5eed));
  std::thread([&value] {
    t_others = pointer_of(0x5eed);
    EXPECT(value.get() == nullptr);
    t_variable = pointer_of(0x7e57);
    EXPECT(value.get() == pointer_of(0x7e57));
  }).join();
  EXPECT(value.get() == pointer_of(0x5eed));
}

// Nor are those of a library that was loaded later at one place in all threads.
void test_late_variables_cannot_be_known() {
  void* library = ::dlopen(LATE_VARIABLES, RTLD_NOW);
  EXPECT(library != nullptr);
  const void** (*late_variable)() = nullptr;
  void* found = ::dlsym(library, "late_variable");
  std::memcpy(&late_variable, &found, sizeof found);
  const void** variable = late_variable();
  *variable = pointer_of(0x5eed);
  EXPECT(gpumem::find_thread_locals(found).start == reinterpret_cast<char*>(variable));
  EXPECT(!ThreadValue().find_variable(found, 0));
  EXPECT(gpumem::find_thread_locals(&library).start == nullptr);
  EXPECT(!ThreadValue().find_variable(&library, 0));
}
#endif

}  // namespace

int main(int, char**) {
  run_case("each thread", test_each_thread_has_its_own);
  run_case("same value", test_others_with_the_same_value);
#if defined(__x86_64__) && defined(__GLIBC__)
  run_case("key that is gone", test_value_of_a_key_that_is_gone);
  run_case("unknown places", test_places_that_cannot_be_known);
  run_case("each thread's variable", test_each_thread_has_its_own_variable);
  run_case("late variables", test_late_variables_cannot_be_known);
#endif
  return exit_code();
}
