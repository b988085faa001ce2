// Asks our allocator for too much as PyTorch does, with PyTorch's real error classes loaded: says what was caught.
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <utility>

namespace {

using Malloc = void* (*)(size_t, int, void*);
using Free = void (*)(void*, size_t, int, void*);
using Pool = std::pair<unsigned long long, unsigned long long>;
using BeginPool = void (*)(int, Pool, std::function<bool(void*)>);
using EndPool = void (*)(int, Pool);

void ask_too_much(Malloc ask) {
  try {
    ask(size_t{1} << 30, 0, nullptr);
  } catch (const c10::OutOfMemoryError& error) {
    std::printf("OutOfMemoryError: %s\n", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::printf("another error: %s\n", error.what());
  }
}

}  // namespace

int main(int count, char** words) {
  void* library = count > 1 ? dlopen(words[1], RTLD_NOW) : nullptr;
  auto* ask = library ? reinterpret_cast<Malloc>(dlsym(library, "gm_torch_malloc")) : nullptr;
  if (!ask) return std::fprintf(stderr, "%s\n", dlerror()), 2;
  std::printf("%s\n", ask(1000, 0, nullptr) ? "served" : "null");
  ask_too_much(ask);
  ask_too_much(ask);
  // A graph's pool, with a block of 15 MiB that it no longer uses.
  reinterpret_cast<BeginPool>(dlsym(library, "gm_torch_begin_pool"))(0, Pool(1, 0), [](void*) { return true; });
  void* block = ask(15 << 20, 0, nullptr);
  reinterpret_cast<EndPool>(dlsym(library, "gm_torch_end_pool"))(0, Pool(1, 0));
  reinterpret_cast<Free>(dlsym(library, "gm_torch_free"))(block, 15 << 20, 0, nullptr);
  ask_too_much(ask);
  return 0;
}
