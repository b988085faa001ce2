// The shortest way from PyTorch to our allocator: its pluggable allocator's own functions, exchanged for ours.
//
// A pluggable allocator keeps a table of every block, under a lock of its own, to tell its two functions stream and
// size at the free; ours knows them. So allocate, raw_alloc, raw_alloc_with_stream and raw_delete become ours.
//
// Owns: when they may stand in, and PyTorch's shapes of a DataPtr and a CUDAStream, which nothing declares to us.
// Must not know: how memory is found. Nothing is believed: the first requests go PyTorch's own way, and ours takes over
// once one of them came out as ours would have done it and was freed through raw_delete; otherwise PyTorch's functions
// stay for good. Blocks of both ways may be live at once: all are taken back without PyTorch's table, where the rows of
// the first requests then stay, never to be read.
#include <array>
#include <atomic>
#include <memory>

#include "gpumem_allocator.h"
#include "guarded.h"
#include "policy_translate.h"
#include "torch_allocator.h"
#include "torch_object.h"

namespace {

using gpumem::torch::find_exported;

#define GM_PLUGGABLE "_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator"
constexpr const char kAllocate[] = GM_PLUGGABLE "8allocateEm";
constexpr const char kRawAlloc[] = GM_PLUGGABLE "9raw_allocEm";
constexpr const char kRawAllocWithStream[] = GM_PLUGGABLE "21raw_alloc_with_streamEmP11CUstream_st";
constexpr const char kRawDelete[] = GM_PLUGGABLE "10raw_deleteEPv";
#undef GM_PLUGGABLE
constexpr const char kCurrentDevice[] = "_ZN3c104cuda14current_deviceEv";
constexpr const char kCurrentStream[] = "_ZN3c104cuda20getCurrentCUDAStreamEa";
constexpr const char kHandleOfStream[] = "_ZNK3c104cuda10CUDAStream6streamEv";

using Deleter = void (*)(void*);
constexpr int8_t kCuda = 1;  // c10::DeviceType::CUDA

// c10::DataPtr.
struct DataPtr {
  void* address;
  std::unique_ptr<void, Deleter> context;  // the address again
  int8_t device_type;
  int8_t device;
};

// c10::cuda::CUDAStream: device and number in two registers.
struct Stream {
  int64_t device;
  int64_t number;
};

struct Functions {
  DataPtr (*allocate)(void* self, size_t bytes) = nullptr;
  void* (*raw_alloc)(void* self, size_t bytes) = nullptr;
  void* (*raw_alloc_with_stream)(void* self, size_t bytes, void* stream) = nullptr;
  void (*raw_delete)(void* self, void* address) = nullptr;
  int8_t (*current_device)() = nullptr;
  Stream (*current_stream)(int8_t device) = nullptr;
  void* (*handle_of)(const Stream* stream) = nullptr;
};

enum class Way : uint8_t { kUntried, kDirect, kPyTorchs };

// The last addresses that PyTorch's own allocate gave out, to be seen again where they are freed. One that has come out
// of another of its functions since is forgotten: how that one is freed says nothing about tensors.
class Recent {
 public:
  void add(void* address) { places_[next_.fetch_add(1) % places_.size()].store(address); }
  void* forget(void* address) {
    for (auto& place : places_) {
      void* expected = address;
      place.compare_exchange_strong(expected, nullptr);
    }
    return address;
  }
  bool has(const void* address) const {
    for (const auto& place : places_)
      if (address && place.load() == address) return true;
    return false;
  }

 private:
  std::array<std::atomic<void*>, 16> places_{};
  std::atomic<size_t> next_{0};
};

// `torch` is written before PyTorch can ask for anything, `deleter` before `recent` has an address.
struct Direct {
  Functions torch;
  std::atomic<Way> way{Way::kUntried};
  std::atomic<Deleter> deleter{nullptr};  // what frees a DataPtr's context
  Recent recent;
};
Direct g_direct;

bool is_direct() {
  return g_direct.way.load(std::memory_order_acquire) == Way::kDirect;
}

void decide(Way way) {
  Way untried = Way::kUntried;
  g_direct.way.compare_exchange_strong(untried, way);
}

void* stream_of(int8_t device) {
  Stream stream = g_direct.torch.current_stream(device);
  return g_direct.torch.handle_of(&stream);
}

// Whether PyTorch asked what we would have asked, and made of the answer what we would have made.
bool is_as_ours(const DataPtr& made) {
  int8_t device = g_direct.torch.current_device();
  gpumem::torch::Asked asked = gpumem::torch::last_asked();
  return asked.device == device && asked.stream == stream_of(device) && asked.address == made.address &&
         made.context.get() == made.address && made.context.get_deleter() && made.device_type == kCuda &&
         made.device == device;
}

[[gnu::cold, gnu::noinline]] DataPtr allocate_by_torch(void* self, size_t bytes) {
  DataPtr made = g_direct.torch.allocate(self, bytes);
  if (bytes == 0 || g_direct.way.load() != Way::kUntried) return made;
  if (is_as_ours(made)) {
    g_direct.deleter.store(made.context.get_deleter());
    g_direct.recent.add(made.address);
  } else {
    decide(Way::kPyTorchs);
  }
  return made;
}

[[gnu::cold, gnu::noinline]] void delete_by_torch(void* self, void* address) {
  bool is_seen_again = g_direct.recent.has(address);
  g_direct.torch.raw_delete(self, address);
  if (is_seen_again) decide(Way::kDirect);
}

[[gnu::hot]] DataPtr allocate(void* self, size_t bytes) {
  if (!is_direct()) return allocate_by_torch(self, bytes);
  int8_t device = g_direct.torch.current_device();
  void* address = gpumem::torch::serve(bytes, device, stream_of(device));
  Deleter deleter = g_direct.deleter.load(std::memory_order_relaxed);
  return DataPtr{address, std::unique_ptr<void, Deleter>(address, deleter), kCuda, device};
}

void* raw_alloc(void* self, size_t bytes) {
  if (!is_direct()) return g_direct.recent.forget(g_direct.torch.raw_alloc(self, bytes));
  int8_t device = g_direct.torch.current_device();
  return gpumem::torch::serve(bytes, device, stream_of(device));
}

void* raw_alloc_with_stream(void* self, size_t bytes, void* stream) {
  if (!is_direct()) return g_direct.recent.forget(g_direct.torch.raw_alloc_with_stream(self, bytes, stream));
  return gpumem::torch::serve(bytes, g_direct.torch.current_device(), stream);
}

// A block that is none of ours gets PyTorch's own refusal: by an address that is no block's, as a row of the first
// requests may still name this one.
[[gnu::hot]] void raw_delete(void* self, void* address) {
  if (!is_direct())
    delete_by_torch(self, address);
  else if (!gpumem::torch::take_back(address))
    g_direct.torch.raw_delete(self, &g_direct);
}

template <typename Function>
bool find(const char* symbol, Function* function) {
  *function = reinterpret_cast<Function>(find_exported("libc10_cuda.so", symbol));
  return *function != nullptr;
}

const char* stand_in() {
  Functions& torch = g_direct.torch;
  if (!find(kCurrentDevice, &torch.current_device) || !find(kCurrentStream, &torch.current_stream) ||
      !find(kHandleOfStream, &torch.handle_of))
    return "its streams are not exported";
  return gpumem::torch::exchange_functions(
      {{kAllocate, reinterpret_cast<void*>(&allocate), reinterpret_cast<void**>(&torch.allocate)},
       {kRawAlloc, reinterpret_cast<void*>(&raw_alloc), reinterpret_cast<void**>(&torch.raw_alloc)},
       {kRawAllocWithStream, reinterpret_cast<void*>(&raw_alloc_with_stream),
        reinterpret_cast<void**>(&torch.raw_alloc_with_stream)},
       {kRawDelete, reinterpret_cast<void*>(&raw_delete), reinterpret_cast<void**>(&torch.raw_delete)}});
}

}  // namespace

gm_status gm_torch_serve_directly(char* reason, size_t capacity) {
  return gpumem::guarded([&]() -> gm_status {
    const char* why = stand_in();
    if (!why) return GM_OK;
    gpumem::copy_text(why, reason, capacity);
    return GM_UNSUPPORTED;
  });
}
