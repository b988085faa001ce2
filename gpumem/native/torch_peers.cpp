// Copies between GPUs under our allocator: what is mapped of an expandable segment is its own GPU's alone until the
// driver is told of others, which PyTorch's pluggable allocator does not know.
//
// Owns: the two functions that PyTorch asks before and for such a copy. Must not know: what is mapped.
#include "gpumem_allocator.h"
#include "guarded.h"
#include "policy_translate.h"
#include "torch_allocator.h"
#include "torch_object.h"

namespace {

using gpumem::torch::find_exported;

#define GM_PLUGGABLE "_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator"
constexpr const char kEnablePeerAccess[] = GM_PLUGGABLE "16enablePeerAccessEaa";
constexpr const char kCopy[] = GM_PLUGGABLE "11memcpyAsyncEPviPKvimP11CUstream_stb";
#undef GM_PLUGGABLE

using Copy = int(void* self, void* to, int to_device, const void* from, int from_device, size_t bytes, void* stream,
                 bool is_let_in);
using CopyBetween = int(void* to, int to_device, const void* from, int from_device, size_t bytes, void* stream);

struct Functions {
  void (*enable_peer_access)(void* self, int8_t device, int8_t accessed_device) = nullptr;
  Copy* copy = nullptr;
  CopyBetween* copy_between = nullptr;  // cudaMemcpyPeerAsync
};
Functions g_torch;

void enable_peer_access(void* self, int8_t device, int8_t accessed_device) {
  g_torch.enable_peer_access(self, device, accessed_device);
  gpumem::torch::let_in(accessed_device, device);
}

// Between GPUs that do not reach each other's memory only the runtime's own function copies what was mapped.
int copy(void* self, void* to, int to_device, const void* from, int from_device, size_t bytes, void* stream,
         bool is_let_in) {
  if (is_let_in || to_device == from_device)
    return g_torch.copy(self, to, to_device, from, from_device, bytes, stream, is_let_in);
  return g_torch.copy_between(to, to_device, from, from_device, bytes, stream);
}

const char* stand_in() {
  g_torch.copy_between = reinterpret_cast<CopyBetween*>(find_exported("libc10_cuda.so", "cudaMemcpyPeerAsync"));
  if (!g_torch.copy_between) return "the CUDA runtime is not shared";
  return gpumem::torch::exchange_functions(
      {{kEnablePeerAccess, reinterpret_cast<void*>(&enable_peer_access),
        reinterpret_cast<void**>(&g_torch.enable_peer_access)},
       {kCopy, reinterpret_cast<void*>(&copy), reinterpret_cast<void**>(&g_torch.copy)}});
}

}  // namespace

gm_status gm_torch_let_peers_in(char* reason, size_t capacity) {
  return gpumem::guarded([&]() -> gm_status {
    const char* why = stand_in();
    if (!why) return GM_OK;
    gpumem::copy_text(std::string("GPUs cannot copy from each other's expandable segments with gpumem's allocator: in "
                                  "this PyTorch ") +
                          why + "; choose --allocator native for it.",
                      reason, capacity);
    return GM_UNSUPPORTED;
  });
}
