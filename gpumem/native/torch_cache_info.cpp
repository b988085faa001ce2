// cudnn.benchmark under our allocator: PyTorch asks its allocator for the largest free block (cacheInfo), which a
// pluggable one refuses to say; ours says it.
//
// Owns: the answer. Must not know: how PyTorch comes to ask us (torch_object).
#include "gpumem_allocator.h"
#include "live_allocator.h"
#include "policy_translate.h"
#include "torch_object.h"

namespace {

constexpr const char kCacheInfo[] = "_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator9cacheInfoEaPm";

// What PyTorch's own allocator answers: the given bound or the driver's free bytes, or a free block that is larger.
void answer_cache_info(void*, int8_t device, size_t* largest_bytes) {
  auto* allocator =
      reinterpret_cast<gpumem::LiveAllocator*>(gm_torch_allocator(static_cast<uint32_t>(device < 0 ? 0 : device)));
  if (!allocator) return;
  if (*largest_bytes == 0) *largest_bytes = allocator->memory().free_bytes;
  *largest_bytes = allocator->find_largest_free(*largest_bytes);
}

}  // namespace

gm_status gm_torch_answer_cache_info(char* reason, size_t capacity) {
  return gpumem::guarded([&]() -> gm_status {
    const char* why =
        gpumem::torch::exchange_functions({{kCacheInfo, reinterpret_cast<void*>(&answer_cache_info), nullptr}});
    if (!why) return GM_OK;
    gpumem::copy_text(std::string("cudnn.benchmark cannot be used with gpumem's allocator: in this PyTorch ") + why +
                          "; choose --allocator native for it.",
                      reason, capacity);
    return GM_UNSUPPORTED;
  });
}
