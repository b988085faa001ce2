#include "code_watch.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>

namespace gpumem {

namespace {

std::atomic<uint64_t>* g_generation = nullptr;  // set once, before the watcher is CPython's to call

constexpr int kCodeDestroyed = 1;  // CPython's PY_CODE_EVENT_DESTROY

// Called with the interpreter lock, at the start of a code object's end.
int count_destroyed(int event, void*) {
  if (event == kCodeDestroyed) g_generation->fetch_add(1, std::memory_order_release);
  return 0;
}

template <typename Function>
bool find_function(const char* name, Function* function) {
  void* found = dlsym(RTLD_DEFAULT, name);
  static_assert(sizeof found == sizeof *function);
  std::memcpy(function, &found, sizeof found);
  return found != nullptr;
}

}  // namespace

bool watch_code(std::atomic<uint64_t>* generation) {
  int (*add_watcher)(int (*)(int, void*)) = nullptr;
  void (*clear_error)() = nullptr;
  if (!find_function("PyCode_AddWatcher", &add_watcher) || !find_function("PyErr_Clear", &clear_error)) return false;
  g_generation = generation;
  if (add_watcher(count_destroyed) < 0) {
    clear_error();
    return false;
  }
  generation->fetch_add(1, std::memory_order_release);
  return true;
}

}  // namespace gpumem
