// The exported functions of live allocators: argument checks, translation.
#include <algorithm>
#include <cstring>

#include "gpumem_allocator.h"
#include "live_allocator.h"
#include "policy_translate.h"
#include "recorder.h"

using gpumem::copy_text;
using gpumem::LiveAllocator;
using gpumem::status_of;

namespace {

LiveAllocator* live(gm_allocator* allocator) {
  return reinterpret_cast<LiveAllocator*>(allocator);
}

template <typename Body>
gm_status checked(gm_allocator* allocator, Body body) {
  if (!allocator) return GM_BAD_ARGUMENT;
  return gpumem::guarded([&]() -> gm_status {
    try {
      return body(*live(allocator));
    } catch (const gpumem::NotServing&) {
      return GM_POLICY_DEVICE_FAILED;
    }
  });
}

gm_counter as_counter(const gpumem::Counter& now, const gpumem::Counter& base) {
  uint64_t added = now.added - base.added;
  uint64_t removed = (now.added - now.now) - (base.added - base.now);
  return gm_counter{now.now, now.peak, added, removed};
}

gm_pool_counters as_counters(const gpumem::PoolStatistics& now, const gpumem::PoolStatistics& base) {
  return gm_pool_counters{
      as_counter(now.allocated_blocks, base.allocated_blocks),
      as_counter(now.segments, base.segments),
      as_counter(now.active_blocks, base.active_blocks),
      as_counter(now.inactive_split_blocks, base.inactive_split_blocks),
      as_counter(now.allocated_bytes, base.allocated_bytes),
      as_counter(now.reserved_bytes, base.reserved_bytes),
      as_counter(now.active_bytes, base.active_bytes),
      as_counter(now.inactive_split_bytes, base.inactive_split_bytes),
      as_counter(now.requested_bytes, base.requested_bytes),
  };
}

LiveAllocator* make_simulated(const gm_allocator_options& given, gpumem::LiveOptions options) {
  auto device = std::make_unique<gpumem::SimulatedDevice>(given.memory_bytes);
  options.limit_bytes = gpumem::limit_of(given.limit_bytes, given.memory_bytes, options.settings);
  return new LiveAllocator(std::move(device), options);
}

LiveAllocator* make_cuda(const gm_allocator_options& given, gpumem::LiveOptions options, std::string* why) {
  auto device = gpumem::CudaDevice::open(static_cast<int>(given.device), given.memory_bytes, why);
  if (!device) return nullptr;
  options.limit_bytes = gpumem::limit_of(given.limit_bytes, device->memory_bytes(), options.settings);
  return new LiveAllocator(std::move(device), options);
}

}  // namespace

const char* gm_allocator_abi_hash(void) {
  return GPUMEM_ALLOCATOR_ABI_HASH;
}

gm_status gm_allocator_count_gpus(uint32_t* count, char* error, size_t capacity) {
  if (!count) return GM_BAD_ARGUMENT;
  return gpumem::guarded([&]() -> gm_status {
    std::string why;
    int found = 0;
    const gpumem::cuda::Functions* driver = gpumem::cuda::driver(&why);
    if (driver) {
      gpumem::cuda::Result result = driver->get_device_count(&found);
      if (result != gpumem::cuda::kSuccess) why = gpumem::cuda::describe(*driver, "cuDeviceGetCount", result);
      if (why.empty() && found == 0) why = "the driver shows this process no GPU";
    }
    *count = static_cast<uint32_t>(found);
    copy_text(why, error, capacity);
    return why.empty() ? static_cast<gm_status>(GM_OK) : static_cast<gm_status>(GM_ALLOCATOR_NO_DEVICE);
  });
}

gm_status gm_allocator_get_gpu(uint32_t device, gm_allocator_gpu* gpu, char* error, size_t capacity) {
  if (!gpu || device >= 255) return GM_BAD_ARGUMENT;
  return gpumem::guarded([&]() -> gm_status {
    std::string why;
    gpumem::GpuFacts facts;
    bool is_found = gpumem::CudaDevice::describe(static_cast<int>(device), &facts, &why);
    copy_text(why, error, capacity);
    if (!is_found) return GM_ALLOCATOR_NO_DEVICE;
    *gpu = gm_allocator_gpu{};
    gpu->memory_bytes = facts.memory_bytes;
    gpu->has_expandable_segments = facts.has_virtual_memory;
    copy_text(facts.name, gpu->name, sizeof gpu->name);
    copy_text(facts.uuid, gpu->uuid, sizeof gpu->uuid);
    return GM_OK;
  });
}

gm_status gm_allocator_current_gpu(uint32_t* device) {
  if (!device) return GM_BAD_ARGUMENT;
  return gpumem::guarded([&]() -> gm_status {
    int found = gpumem::CudaDevice::find_current();
    if (found < 0) return GM_ALLOCATOR_NO_DEVICE;
    *device = static_cast<uint32_t>(found);
    return GM_OK;
  });
}

gm_status gm_allocator_create(const gm_allocator_options* options, gm_allocator** allocator, char* error,
                              size_t capacity) {
  if (!options || !options->settings || !allocator || options->device >= 255) return GM_BAD_ARGUMENT;
  if (options->device_kind > GM_DEVICE_CUDA || options->number > 255) return GM_BAD_ARGUMENT;
  return gpumem::guarded([&]() -> gm_status {
    std::string why;
    gpumem::LiveOptions live_options;
    live_options.device = static_cast<uint8_t>(options->device);
    live_options.number = static_cast<uint8_t>(options->number);
    bool ok = gpumem::parse_settings(options->settings, &live_options.settings, &why);
    copy_text(why, error, capacity);
    if (!ok) return GM_POLICY_BAD_SETTINGS;
    LiveAllocator* made = options->device_kind == GM_DEVICE_CUDA ? make_cuda(*options, live_options, &why)
                                                                 : make_simulated(*options, live_options);
    copy_text(why, error, capacity);
    if (!made) return GM_ALLOCATOR_NO_DEVICE;
    *allocator = reinterpret_cast<gm_allocator*>(made);
    return GM_OK;
  });
}

void gm_allocator_destroy(gm_allocator* allocator) {
  if (!allocator || live(allocator)->is_inherited()) return;
  gpumem::guarded([&]() -> gm_status {
    live(allocator)->close();
    return GM_OK;
  });
  delete live(allocator);
}

gm_status gm_allocator_alloc(gm_allocator* allocator, uint64_t bytes, uint64_t stream, uint64_t* address) {
  if (!address) return GM_BAD_ARGUMENT;
  return checked(allocator, [&](LiveAllocator& live) {
    gpumem::Allocation allocation;
    gpumem::Outcome outcome = live.allocate(bytes, stream, &allocation);
    *address = allocation.address;
    return status_of(outcome);
  });
}

gm_status gm_allocator_free(gm_allocator* allocator, uint64_t address) {
  return checked(allocator, [&](LiveAllocator& live) { return status_of(live.free(address)); });
}

gm_status gm_allocator_record_stream(gm_allocator* allocator, uint64_t address, uint64_t stream) {
  return checked(allocator, [&](LiveAllocator& live) { return status_of(live.record_stream(address, stream)); });
}

gm_status gm_allocator_empty_cache(gm_allocator* allocator) {
  return checked(allocator, [&](LiveAllocator& live) { return status_of(live.empty_cache()); });
}

gm_status gm_allocator_hold_streams(gm_allocator* allocator, uint32_t held) {
  return checked(allocator, [&](LiveAllocator& live) -> gm_status {
    return live.with_simulated([&](gpumem::SimulatedDevice* device) -> gm_status {
      if (!device) return GM_BAD_ARGUMENT;
      device->hold_streams(held != 0);
      return GM_OK;
    });
  });
}

gm_status gm_allocator_get_statistics(gm_allocator* allocator, gm_allocator_statistics* statistics) {
  if (!statistics) return GM_BAD_ARGUMENT;
  return checked(allocator, [&](LiveAllocator& live) -> gm_status {
    const auto [now, base, idle, max_split_bytes] = live.take_figures();
    *statistics = gm_allocator_statistics{
        as_counters(now.policy.all, base.policy.all),
        as_counters(now.policy.small, base.policy.small),
        as_counters(now.policy.large, base.policy.large),
        as_counter(now.counts.oversize_blocks, base.counts.oversize_blocks),
        as_counter(now.counts.oversize_segments, base.counts.oversize_segments),
        now.policy.alloc_retries - base.policy.alloc_retries,
        now.policy.ooms - base.policy.ooms,
        now.counts.full_release_count + now.policy.alloc_retries,
        now.policy.device_allocs,
        now.policy.device_frees,
        now.policy.oom_rejections,
        max_split_bytes,
        now.policy.cache_hits,
        now.policy.splits,
        idle.releasable_bytes,
        idle.gap_bytes,
    };
    return GM_OK;
  });
}

gm_status gm_allocator_get_private_pools(gm_allocator* allocator, gm_private_pool* pools, uint64_t capacity,
                                         uint64_t* count) {
  if (!count || (capacity > 0 && !pools)) return GM_BAD_ARGUMENT;
  return checked(allocator, [&](LiveAllocator& live) -> gm_status {
    gpumem::PrivateReserves now;
    gpumem::PrivateReserves base;
    live.take_private_reserves(&now, &base);
    *count = now.size();
    uint64_t row = 0;
    for (const auto& [id, reserve] : now) {
      if (row == capacity) break;
      const gpumem::PrivateReserve& from = base[id];
      pools[row++] = gm_private_pool{id.first, id.second, as_counter(reserve.all, from.all),
                                     as_counter(reserve.small, from.small), as_counter(reserve.large, from.large)};
    }
    return GM_OK;
  });
}

gm_status gm_allocator_reset_peaks(gm_allocator* allocator) {
  return checked(allocator, [&](LiveAllocator& live) -> gm_status {
    live.reset_peaks();
    return GM_OK;
  });
}

gm_status gm_allocator_reset_accumulated(gm_allocator* allocator) {
  return checked(allocator, [&](LiveAllocator& live) -> gm_status {
    live.reset_accumulated();
    return GM_OK;
  });
}

gm_status gm_allocator_get_device(gm_allocator* allocator, gm_allocator_device* device) {
  if (!device) return GM_BAD_ARGUMENT;
  return checked(allocator, [&](LiveAllocator& live) -> gm_status {
    *device = gm_allocator_device{};
    device->memory_bytes = live.memory_bytes();
    device->limit_bytes = live.with_policy([](gpumem::Policy& policy) { return policy.limit_bytes(); });
    device->free_bytes = live.memory().free_bytes;
    copy_text(live.device_name(), device->name, sizeof device->name);
    copy_text(live.device_uuid(), device->uuid, sizeof device->uuid);
    return GM_OK;
  });
}

gm_status gm_allocator_get_failure(gm_allocator* allocator, char* text, size_t capacity) {
  return checked(allocator, [&](LiveAllocator& live) -> gm_status {
    copy_text(live.describe_failure(), text, capacity);
    return GM_OK;
  });
}

gm_status gm_allocator_check(gm_allocator* allocator, char* error, size_t capacity) {
  return checked(allocator, [&](LiveAllocator& live) -> gm_status {
    std::string why;
    bool sound = live.with_policy([&](gpumem::Policy& policy) { return policy.check(&why); });
    copy_text(why, error, capacity);
    return sound ? static_cast<gm_status>(GM_OK) : static_cast<gm_status>(GM_POLICY_UNSOUND);
  });
}

gm_status gm_allocator_take_heap(gm_allocator* allocator, gm_allocator_heap_taker take, void* context) {
  if (!take) return GM_BAD_ARGUMENT;
  return checked(allocator, [&](LiveAllocator& live) -> gm_status {
    gpumem::HeapRows rows;
    uint64_t position = live.with_policy([&](gpumem::Policy& policy) {
      gpumem::fill_heap(policy, &rows);
      gm_recorder_counts counts = {};
      return gpumem::recorder::get_counts(&counts) == GM_OK ? counts.records : 0;
    });
    take(context, &rows.segments, &rows.blocks, position);
    return GM_OK;
  });
}
