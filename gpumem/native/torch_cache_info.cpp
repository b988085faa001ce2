// cudnn.benchmark under our allocator: one function of PyTorch's allocator object exchanged.
//
// PyTorch asks its allocator for the largest free block (cacheInfo), which a pluggable one refuses to say. The object
// gets a copy of its class's table of virtual functions in which that one is ours. Everything is checked first: both
// symbols are exported, the object is of exactly that class, and the function stands in the table once.
#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "gpumem_allocator.h"
#include "live_allocator.h"
#include "policy_translate.h"

namespace {

constexpr const char kCurrentAllocator[] = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";
constexpr const char kClass[] = "_ZTVN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE";
constexpr const char kCacheInfo[] = "_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator9cacheInfoEaPm";
constexpr size_t kTableHead = 2;  // offset to top and type information stand before the functions

void* find_in(const char* library, const char* name) {
  void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  if (!handle) return nullptr;
  void* symbol = dlsym(handle, name);
  dlclose(handle);
  return symbol;
}

// What PyTorch's own allocator answers: the given bound or the driver's free bytes, or a free block that is larger.
void answer_cache_info(void*, int8_t device, size_t* largest_bytes) {
  auto* allocator =
      reinterpret_cast<gpumem::LiveAllocator*>(gm_torch_allocator(static_cast<uint32_t>(device < 0 ? 0 : device)));
  if (!allocator) return;
  if (*largest_bytes == 0) *largest_bytes = allocator->memory().free_bytes;
  *largest_bytes = allocator->find_largest_free(*largest_bytes);
}

// Entries of a class's table by the size of its symbol; 0 when the library does not say.
size_t count_table(void* table) {
  Dl_info where{};
  const ElfW(Sym)* symbol = nullptr;
  if (!dladdr1(table, &where, reinterpret_cast<void**>(const_cast<ElfW(Sym)**>(&symbol)), RTLD_DL_SYMENT)) return 0;
  if (!symbol || where.dli_saddr != table) return 0;
  return symbol->st_size / sizeof(void*);
}

const char* exchange() {
  auto* current = static_cast<std::atomic<void*>*>(find_in("libc10_cuda.so", kCurrentAllocator));
  auto** table = static_cast<void**>(find_in("libtorch_cuda.so", kClass));
  void* refusing = find_in("libtorch_cuda.so", kCacheInfo);
  if (!current || !table || !refusing) return "its pluggable allocator is not exported";
  auto** object = static_cast<void***>(current->load());
  if (!object || *object != table + kTableHead) return "its allocator is of another class";
  size_t count = count_table(table);
  std::vector<void*> entries(table, table + count);
  size_t place = 0;
  for (size_t i = kTableHead; i < count; ++i) {
    if (entries[i] != refusing) continue;
    if (place) return "its allocator answers twice";
    place = i;
  }
  if (!place) return "its allocator does not answer";
  entries[place] = reinterpret_cast<void*>(&answer_cache_info);
  auto* kept = new std::vector<void*>(std::move(entries));  // for good: the object refers to it
  *object = kept->data() + kTableHead;
  return nullptr;
}

}  // namespace

gm_status gm_torch_answer_cache_info(char* reason, size_t capacity) {
  return gpumem::guarded([&]() -> gm_status {
    const char* why = exchange();
    if (!why) return GM_OK;
    gpumem::copy_text(std::string("cudnn.benchmark cannot be used with gpumem's allocator: in this PyTorch ") + why +
                          "; choose --allocator native for it.",
                      reason, capacity);
    return GM_UNSUPPORTED;
  });
}
