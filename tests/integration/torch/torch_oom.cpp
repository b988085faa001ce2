// Asks our allocator for too much as PyTorch does, with PyTorch's real error classes loaded: says what was caught.
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

int main(int count, char** words) {
  using Malloc = void* (*)(size_t, int, void*);
  void* library = count > 1 ? dlopen(words[1], RTLD_NOW) : nullptr;
  auto* ask = library ? reinterpret_cast<Malloc>(dlsym(library, "gm_torch_malloc")) : nullptr;
  if (!ask) return std::fprintf(stderr, "%s\n", dlerror()), 2;
  std::printf("%s\n", ask(1000, 0, nullptr) ? "served" : "null");
  for (int i = 0; i < 2; ++i) {
    try {
      ask(size_t{1} << 30, 0, nullptr);
    } catch (const c10::OutOfMemoryError& error) {
      std::printf("OutOfMemoryError: %s\n", error.what_without_backtrace());
    } catch (const std::exception& error) {
      std::printf("another error: %s\n", error.what());
    }
  }
  return 0;
}
