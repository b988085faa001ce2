// Our allocator in PyTorch's place: the functions that a CUDAPluggableAllocator calls.
//
// Owns: which device has which allocator. Must not know: PyTorch's headers; what is declared here with PyTorch's shape
// (pool ids, filters) is what its setters of functions take. A device gets its allocator at its first request, when
// PyTorch has started CUDA; it is never destroyed, as PyTorch frees until the process is gone.
#include "torch_allocator.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <functional>
#include <mutex>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gpumem_allocator.h"
#include "live_allocator.h"
#include "policy_translate.h"
#include "process_memory.h"
#include "torch_error.h"
#include "torch_streams.h"

namespace {

using gpumem::LiveAllocator;
using gpumem::Outcome;
using TorchPool = std::pair<unsigned long long, unsigned long long>;
using TorchFilter = std::function<bool(void*)>;

constexpr int kDevicesMax = 128;
constexpr double kNoFraction = -1.0;

struct Prepared {
  std::mutex mutex;  // one device is started at a time
  gpumem::Settings settings;
  gpumem::Behaviour behaviour;
  uint8_t number = 0;                               // of each device's allocator
  std::array<double, kDevicesMax> fractions;        // what was set for a device; kNoFraction: nothing was
  std::array<std::vector<int>, kDevicesMax> peers;  // GPUs that may read and write a device's memory

  Prepared() { fractions.fill(kNoFraction); }
};

std::array<std::atomic<LiveAllocator*>, kDevicesMax> g_allocators{};
std::atomic<size_t> g_devices_end{0};  // no device from here on has one
Prepared& g_prepared = *new Prepared;
thread_local gpumem::torch::Asked g_asked;

// In a forked child, where the thread that started a device meanwhile is gone, nobody gives its lock back.
void renew_lock() {
  new (&g_prepared.mutex) std::mutex;
}

[[maybe_unused]] const int g_fork_hook = pthread_atfork(nullptr, nullptr, renew_lock);

// None in a forked child, where PyTorch would have to start CUDA anew.
LiveAllocator* find_allocator(int device) {
  if (device < 0 || device >= kDevicesMax) return nullptr;
  LiveAllocator* found = g_allocators[static_cast<size_t>(device)].load(std::memory_order_acquire);
  return found && !found->is_inherited() ? found : nullptr;
}

// With the lock of what is prepared held.
void keep(int device, LiveAllocator* allocator) {
  auto place = static_cast<size_t>(device);
  g_allocators[place].store(allocator, std::memory_order_release);
  if (place >= g_devices_end.load()) g_devices_end.store(place + 1);
}

uint64_t limit_by_fraction(double fraction, uint64_t memory_bytes) {
  if (fraction >= 1.0) return gpumem::kUnlimitedBytes;
  return static_cast<uint64_t>(fraction * static_cast<double>(memory_bytes));
}

LiveAllocator* start_device(int device) {
  if (device < 0 || device >= kDevicesMax) throw std::runtime_error("gpumem: no such GPU");
  Prepared& known = g_prepared;
  std::lock_guard<std::mutex> lock(known.mutex);
  if (LiveAllocator* started = find_allocator(device)) return started;
  std::string why;
  auto cuda = gpumem::CudaDevice::open(device, 0, &why);
  if (!cuda) throw std::runtime_error("gpumem's allocator cannot use GPU " + std::to_string(device) + ": " + why);
  cuda->order_streams_by([device](uint64_t handle) { return gpumem::torch::find_stream_key(device, handle); });
  gpumem::LiveOptions options;
  options.device = static_cast<uint8_t>(device);
  options.settings = known.settings;
  options.behaviour = known.behaviour;
  options.number = known.number;
  options.limit_bytes = gpumem::limit_of(GM_NO_LIMIT, cuda->memory_bytes(), known.settings);
  double fraction = known.fractions[static_cast<size_t>(device)];
  if (fraction >= 0.0) options.limit_bytes = limit_by_fraction(fraction, cuda->memory_bytes());
  for (int peer : known.peers[static_cast<size_t>(device)]) cuda->let_in(peer, {});
  auto* made = new LiveAllocator(std::move(cuda), options);
  keep(device, made);
  return made;
}

// As PyTorch writes sizes in its messages.
std::string format_bytes(uint64_t bytes) {
  char text[48];
  double value = static_cast<double>(bytes);
  if (bytes <= 1024)
    std::snprintf(text, sizeof text, "%llu bytes", static_cast<unsigned long long>(bytes));
  else if (bytes <= 1048576)
    std::snprintf(text, sizeof text, "%.2f KiB", value / 1024);
  else if (bytes <= 1073741824)
    std::snprintf(text, sizeof text, "%.2f MiB", value / 1048576);
  else
    std::snprintf(text, sizeof text, "%.2f GiB", value / 1073741824);
  return text;
}

// As PyTorch says what NVML lists; nothing where NVML does not answer.
std::string describe_processes(const std::string& gpu_uuid) {
  std::string text;
  for (const gpumem::ProcessMemory& process : gpumem::list_process_memory(gpu_uuid)) {
    bool is_own = process.pid == static_cast<uint32_t>(::getpid());
    text += is_own ? "Including non-PyTorch memory, this process" : "Process " + std::to_string(process.pid);
    text += " has " + format_bytes(process.bytes) + " memory in use. ";
  }
  return text;
}

// PyTorch 2.11's sentence, which programs and tools look into.
std::string describe_out_of_memory(const LiveAllocator& allocator, const gpumem::Refusal& refusal) {
  std::string text = "CUDA out of memory. Tried to allocate " + format_bytes(refusal.segment_bytes) + ". GPU " +
                     std::to_string(allocator.device()) + " has a total capacity of " +
                     format_bytes(refusal.memory_bytes) + " of which " + format_bytes(refusal.free_bytes) +
                     " is free. " + describe_processes(allocator.device_uuid());
  if (refusal.limit_bytes != gpumem::kUnlimitedBytes) text += format_bytes(refusal.limit_bytes) + " allowed; ";
  // What lies idle in private pools counts as allocated in PyTorch's sentence, for nothing else can have it.
  uint64_t taken_bytes = refusal.allocated_bytes + refusal.private_idle_bytes;
  text += "Of the allocated memory " + format_bytes(taken_bytes) + " is allocated by PyTorch, ";
  if (refusal.private_idle_bytes > 0)
    text += "with " + format_bytes(refusal.private_idle_bytes) + " allocated in private pools (e.g., CUDA Graphs), ";
  return text + "and " + format_bytes(refusal.reserved_bytes - taken_bytes) +
         " is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
         "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
         "Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
         "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)";
}

[[noreturn]] void fail(LiveAllocator* allocator, Outcome outcome, uint64_t bytes, int device) {
  if (outcome == Outcome::kOutOfMemory)
    gpumem::throw_torch_out_of_memory(describe_out_of_memory(*allocator, allocator->describe_refusal(bytes)));
  if (outcome == Outcome::kTooLarge)
    gpumem::throw_torch_out_of_memory("CUDA out of memory. Tried to allocate more than 1EB memory.");
  throw std::runtime_error("gpumem's allocator failed on GPU " + std::to_string(device) + " while " +
                           allocator->describe_failure());
}

uint64_t handle_of(void* stream) {
  return reinterpret_cast<uintptr_t>(stream);
}

gpumem::PoolId pool_of(const TorchPool& pool) {
  return gpumem::PoolId{pool.first, pool.second};
}

constexpr Outcome kServesNoMore = Outcome::kDeviceFailed;

// Asks the allocators in turn who has a block; false: nobody. It may be one that serves no more and cannot tell, but
// the others are asked as well.
template <typename Ask>
bool has_owner(Ask ask) {
  bool may_have_one = false;
  size_t end = g_devices_end.load(std::memory_order_acquire);
  for (size_t device = 0; device < end; ++device) {
    LiveAllocator* allocator = g_allocators[device].load(std::memory_order_acquire);
    if (!allocator) continue;
    Outcome outcome = ask(*allocator);
    if (outcome == Outcome::kOk) return true;
    if (outcome != Outcome::kNotLive) may_have_one = true;
  }
  return may_have_one;
}

template <typename Body>
void for_each_allocator(Body body) {
  for (int device = 0; device < kDevicesMax; ++device)
    if (LiveAllocator* allocator = find_allocator(device)) body(*allocator);
}

}  // namespace

gm_status gm_torch_prepare(const char* settings, uint32_t behaviour, uint32_t number, char* error, size_t capacity) {
  if (!settings || number > 255) return GM_BAD_ARGUMENT;
  return gpumem::guarded([&]() -> gm_status {
    Prepared& known = g_prepared;
    std::lock_guard<std::mutex> lock(known.mutex);
    std::string why;
    bool ok = gpumem::parse_settings(settings, &known.settings, &why);
    gpumem::copy_text(why, error, capacity);
    if (!ok) return GM_POLICY_BAD_SETTINGS;
    known.behaviour = gpumem::behaviour_of(behaviour);
    known.number = static_cast<uint8_t>(number);
    return GM_OK;
  });
}

gm_allocator* gm_torch_allocator(uint32_t device) {
  return reinterpret_cast<gm_allocator*>(find_allocator(static_cast<int>(device)));
}

gm_status gm_torch_start(uint32_t device, gm_allocator** allocator, char* error, size_t capacity) {
  if (!allocator) return GM_BAD_ARGUMENT;
  return gpumem::guarded([&]() -> gm_status {
    try {
      *allocator = reinterpret_cast<gm_allocator*>(start_device(static_cast<int>(device)));
    } catch (const std::runtime_error& why) {
      gpumem::copy_text(why.what(), error, capacity);
      return GM_ALLOCATOR_NO_DEVICE;
    }
    return GM_OK;
  });
}

gm_status gm_torch_share(gm_allocator* allocator) {
  if (!allocator) return GM_BAD_ARGUMENT;
  return gpumem::guarded([&]() -> gm_status {
    auto* shared = reinterpret_cast<LiveAllocator*>(allocator);
    Prepared& known = g_prepared;
    std::lock_guard<std::mutex> lock(known.mutex);
    int device = shared->device();
    if (device >= kDevicesMax || find_allocator(device)) return GM_BAD_ARGUMENT;
    double fraction = known.fractions[static_cast<size_t>(device)];
    uint64_t limit_bytes = limit_by_fraction(fraction, shared->memory_bytes());
    if (fraction >= 0.0) shared->with_policy([&](gpumem::Policy& policy) { policy.set_limit(limit_bytes); });
    keep(device, shared);
    return GM_OK;
  });
}

namespace gpumem::torch {

void* serve(size_t bytes, int device, void* stream) {
  LiveAllocator* allocator = find_allocator(device);
  if (!allocator) allocator = start_device(device);
  Allocation allocation;
  Outcome outcome = allocator->allocate(bytes, handle_of(stream), &allocation);
  if (outcome != Outcome::kOk) fail(allocator, outcome, bytes, device);
  return reinterpret_cast<void*>(static_cast<uintptr_t>(allocation.address));
}

// One inherited by a forked child takes every block back without a word.
bool take_back(void* address) {
  if (!address) return true;
  return has_owner([block = reinterpret_cast<uintptr_t>(address)](LiveAllocator& allocator) {
    return guarded_value(kServesNoMore, [&] { return allocator.free(block, kServesNoMore); });
  });
}

void let_in(int device, int peer) {
  if (device < 0 || device >= kDevicesMax) return;
  std::lock_guard<std::mutex> lock(g_prepared.mutex);
  std::vector<int>& peers = g_prepared.peers[static_cast<size_t>(device)];
  if (std::find(peers.begin(), peers.end(), peer) != peers.end()) return;
  LiveAllocator* allocator = find_allocator(device);
  std::string why;
  if (allocator && allocator->let_in(peer, &why) != Outcome::kOk)
    throw std::runtime_error("gpumem's allocator cannot let GPU " + std::to_string(peer) + " at the memory of GPU " +
                             std::to_string(device) + ": " + why);
  peers.push_back(peer);
}

Asked last_asked() {
  return g_asked;
}

}  // namespace gpumem::torch

extern "C" {

[[gnu::hot]] GM_API void* gm_torch_malloc(size_t bytes, int device, void* stream) {
  void* address = gpumem::torch::serve(bytes, device, stream);
  g_asked = gpumem::torch::Asked{device, stream, address};
  return address;
}

// Called from destructors of tensors, where an exception would end the process. The device may be one that had the
// address before: of a raw block PyTorch looks it up in its table, where 2.6 leaves the rows of tensors as they are.
[[gnu::hot]] GM_API void gm_torch_free(void* address, size_t, int device, void*) {
  if (!address) return;
  const auto block = reinterpret_cast<uintptr_t>(address);
  LiveAllocator* allocator = find_allocator(device);
  if (!allocator || guarded_value(kServesNoMore, [&] { return allocator->free(block); }) == Outcome::kNotLive)
    gpumem::torch::take_back(address);
}

// PyTorch does not say which device the block is on: whoever handed it out knows it.
GM_API void gm_torch_record_stream(void* address, void* stream) {
  if (!address) return;
  has_owner([=](LiveAllocator& allocator) {
    return allocator.record_stream(reinterpret_cast<uintptr_t>(address), handle_of(stream), kServesNoMore);
  });
}

GM_API void gm_torch_empty_cache(void) {
  for_each_allocator([](LiveAllocator& allocator) {
    if (allocator.empty_cache() == Outcome::kDeviceFailed)
      throw std::runtime_error("gpumem's allocator failed while " + allocator.describe_failure());
  });
}

GM_API void gm_torch_set_memory_fraction(double fraction, int device) {
  if (device < 0 || device >= kDevicesMax) return;
  Prepared& known = g_prepared;
  std::lock_guard<std::mutex> lock(known.mutex);
  known.fractions[static_cast<size_t>(device)] = fraction;
  LiveAllocator* allocator = find_allocator(device);
  if (!allocator) return;
  uint64_t limit_bytes = limit_by_fraction(fraction, allocator->memory_bytes());
  allocator->with_policy([&](gpumem::Policy& policy) { policy.set_limit(limit_bytes); });
}

GM_API void gm_torch_begin_pool(int device, TorchPool pool, TorchFilter filter) {
  LiveAllocator* allocator = find_allocator(device);
  if (!allocator) allocator = start_device(device);
  allocator->begin_pool(pool_of(pool), [filter = std::move(filter)](uint64_t stream) {
    return filter(reinterpret_cast<void*>(static_cast<uintptr_t>(stream)));
  });
}

GM_API void gm_torch_end_pool(int device, TorchPool pool) {
  if (LiveAllocator* allocator = find_allocator(device)) allocator->end_pool(pool_of(pool));
}

// As gm_torch_free, by destructors of graphs and pools.
GM_API void gm_torch_release_pool(int device, TorchPool pool) {
  LiveAllocator* allocator = find_allocator(device);
  if (!allocator) return;
  gpumem::guarded([&]() -> gm_status {
    allocator->release_pool(pool_of(pool));
    return GM_OK;
  });
}

}  // extern "C"
