// The C interface of an allocator on the simulated device: locking, argument checks, translation.
#include <mutex>

#include "gpumem_policy.h"
#include "policy.h"
#include "policy_translate.h"
#include "simulated_device.h"

using gpumem::copy_text;
using gpumem::guarded;
using gpumem::guarded_on;
using gpumem::PoolId;
using gpumem::status_of;

namespace {

class Listener : public gpumem::EventSink {
 public:
  Listener(gm_policy_listener listener, void* context) : listener_(listener), context_(context) {}

  void on_event(const gpumem::PolicyEvent& told) override {
    gm_event event = {};
    event.kind = told.kind;
    event.flags = told.flags;
    event.address = told.address;
    event.requested_bytes = told.requested_bytes;
    event.block_bytes = told.block_bytes;
    event.split_bytes = told.split_bytes;
    event.stream = told.stream;
    event.pool_first = told.pool.first;
    event.pool_second = told.pool.second;
    listener_(context_, &event);
  }

 private:
  gm_policy_listener listener_;
  void* context_;
};

gpumem::SimulatedDevice make_device(const gm_policy_options& options) {
  auto order = static_cast<gpumem::AddressOrder>(options.address_order);
  return gpumem::SimulatedDevice(options.memory_bytes, order, options.seed);
}

}  // namespace

struct gm_policy {
  gm_policy(const gm_policy_options& options, const gpumem::Settings& settings, gm_policy_listener callback,
            void* context)
      : device(make_device(options)),
        listener(callback, context),
        policy(&device, settings, gpumem::behaviour_of(options.behaviour), callback ? &listener : nullptr) {
    policy.set_limit(gpumem::limit_of(options.limit_bytes, options.memory_bytes, settings));
  }

  std::mutex mutex;
  bool is_broken = false;  // see guarded_on
  gpumem::SimulatedDevice device;
  Listener listener;
  gpumem::Policy policy;
};

namespace {

// One call on a handle: null checked, lock held.
template <typename Body>
gm_status locked(gm_policy* policy, Body body) {
  if (!policy) return GM_BAD_ARGUMENT;
  std::lock_guard<std::mutex> lock(policy->mutex);
  return guarded_on(policy, body);
}

}  // namespace

const char* gm_policy_abi_hash(void) {
  return GPUMEM_POLICY_ABI_HASH;
}

gm_status gm_policy_check_settings(const char* settings, char* error, size_t capacity) {
  if (!settings) return GM_BAD_ARGUMENT;
  return guarded([&]() -> gm_status {
    gpumem::Settings parsed;
    std::string reason;
    bool ok = gpumem::parse_settings(settings, &parsed, &reason);
    copy_text(reason, error, capacity);
    if (!ok) return GM_POLICY_BAD_SETTINGS;
    return GM_OK;
  });
}

gm_status gm_policy_create(const gm_policy_options* options, gm_policy_listener listener, void* context,
                           gm_policy** policy, char* error, size_t capacity) {
  if (!options || !options->settings || !policy || options->address_order > GM_ADDRESS_SCATTERED)
    return GM_BAD_ARGUMENT;
  return guarded([&]() -> gm_status {
    gpumem::Settings settings;
    std::string reason;
    bool ok = gpumem::parse_settings(options->settings, &settings, &reason);
    copy_text(reason, error, capacity);
    if (!ok) return GM_POLICY_BAD_SETTINGS;
    *policy = new gm_policy(*options, settings, listener, context);
    return GM_OK;
  });
}

void gm_policy_destroy(gm_policy* policy) {
  delete policy;
}

gm_status gm_policy_alloc(gm_policy* policy, uint64_t bytes, uint64_t stream, uint64_t thread,
                          gm_policy_allocation* allocation) {
  if (!allocation) return GM_BAD_ARGUMENT;
  return locked(policy, [&] {
    gpumem::Request request;
    request.bytes = bytes;
    request.stream = stream;
    request.thread = thread;
    gpumem::Allocation given;
    gpumem::Outcome outcome = policy->policy.allocate(request, &given);
    *allocation = gm_policy_allocation{given.address, given.block_bytes, given.split_bytes, given.flags};
    return status_of(outcome);
  });
}

gm_status gm_policy_free(gm_policy* policy, uint64_t address) {
  return locked(policy, [&] { return status_of(policy->policy.free(address)); });
}

gm_status gm_policy_record_stream(gm_policy* policy, uint64_t address, uint64_t stream) {
  return locked(policy, [&] { return status_of(policy->policy.record_stream(address, stream)); });
}

gm_status gm_policy_empty_cache(gm_policy* policy) {
  return locked(policy, [&] { return status_of(policy->policy.empty_cache()); });
}

gm_status gm_policy_set_limit(gm_policy* policy, uint64_t limit_bytes) {
  return locked(policy, [&]() -> gm_status {
    policy->policy.set_limit(limit_bytes);
    return GM_OK;
  });
}

gm_status gm_policy_set_settings(gm_policy* policy, const char* settings, char* error, size_t capacity) {
  if (!settings) return GM_BAD_ARGUMENT;
  return locked(policy, [&]() -> gm_status {
    gpumem::Settings parsed;
    std::string reason;
    bool ok = gpumem::parse_settings(settings, &parsed, &reason);
    copy_text(reason, error, capacity);
    if (!ok) return GM_POLICY_BAD_SETTINGS;
    policy->policy.set_settings(parsed);
    return GM_OK;
  });
}

gm_status gm_policy_create_pool(gm_policy* policy, uint64_t first, uint64_t second, uint32_t no_split,
                                uint32_t use_on_oom) {
  if (first == 0 && second == 0) return GM_BAD_ARGUMENT;
  return locked(policy, [&]() -> gm_status {
    policy->policy.create_pool(PoolId{first, second}, no_split, use_on_oom, false);
    return GM_OK;
  });
}

gm_status gm_policy_release_pool(gm_policy* policy, uint64_t first, uint64_t second) {
  return locked(policy, [&] { return status_of(policy->policy.release_pool(PoolId{first, second})); });
}

gm_status gm_policy_begin_thread_route(gm_policy* policy, uint64_t first, uint64_t second, uint64_t thread) {
  return locked(policy, [&] { return status_of(policy->policy.begin_thread_route(PoolId{first, second}, thread)); });
}

gm_status gm_policy_begin_capture(gm_policy* policy, uint64_t first, uint64_t second, uint64_t stream) {
  return locked(policy, [&] { return status_of(policy->policy.begin_capture(PoolId{first, second}, stream)); });
}

gm_status gm_policy_end_route(gm_policy* policy, uint64_t first, uint64_t second) {
  return locked(policy, [&] { return status_of(policy->policy.end_route(PoolId{first, second})); });
}

gm_status gm_policy_hold_streams(gm_policy* policy, uint32_t held) {
  return locked(policy, [&]() -> gm_status {
    policy->device.hold_streams(held);
    return GM_OK;
  });
}

gm_status gm_policy_finish_stream(gm_policy* policy, uint64_t stream) {
  return locked(policy, [&]() -> gm_status {
    policy->device.finish_stream(stream);
    return GM_OK;
  });
}

gm_status gm_policy_fail_call(gm_policy* policy, uint64_t call_number, uint32_t out_of_memory) {
  return locked(policy, [&]() -> gm_status {
    policy->device.fail_call(call_number,
                             out_of_memory ? gpumem::DeviceStatus::kNoMemory : gpumem::DeviceStatus::kFailed);
    return GM_OK;
  });
}

gm_status gm_policy_device_calls(gm_policy* policy, uint64_t* call_count, char* failed, size_t capacity) {
  if (!call_count) return GM_BAD_ARGUMENT;
  return locked(policy, [&]() -> gm_status {
    *call_count = policy->device.call_count();
    copy_text(policy->policy.failed_call(), failed, capacity);
    return GM_OK;
  });
}

gm_status gm_policy_get_statistics(gm_policy* policy, gm_policy_statistics* statistics) {
  if (!statistics) return GM_BAD_ARGUMENT;
  return locked(policy, [&]() -> gm_status {
    const gpumem::Statistics& counted = policy->policy.statistics();
    const gpumem::PoolStatistics& all = counted.all;
    gpumem::IdleMeasure idle = policy->policy.measure_idle();
    *statistics = gm_policy_statistics{all.allocated_bytes.now,
                                       all.allocated_bytes.peak,
                                       all.active_bytes.now,
                                       all.active_bytes.peak,
                                       all.requested_bytes.now,
                                       all.requested_bytes.peak,
                                       all.reserved_bytes.now,
                                       all.reserved_bytes.peak,
                                       all.inactive_split_bytes.now,
                                       all.inactive_split_bytes.peak,
                                       all.allocated_blocks.now,
                                       all.active_blocks.now,
                                       all.segments.now,
                                       counted.cache_hits,
                                       counted.splits,
                                       counted.alloc_retries,
                                       counted.ooms,
                                       counted.oom_rejections,
                                       counted.device_allocs,
                                       counted.device_frees,
                                       idle.releasable_bytes,
                                       idle.gap_bytes,
                                       idle.small_free_bytes_max,
                                       idle.large_free_bytes_max};
    return GM_OK;
  });
}

gm_status gm_policy_reset_peaks(gm_policy* policy) {
  return locked(policy, [&]() -> gm_status {
    policy->policy.reset_peaks();
    return GM_OK;
  });
}

gm_status gm_policy_check(gm_policy* policy, char* error, size_t capacity) {
  return locked(policy, [&]() -> gm_status {
    std::string why;
    bool sound = policy->policy.check(&why);
    copy_text(why, error, capacity);
    if (!sound) return GM_POLICY_UNSOUND;
    return GM_OK;
  });
}

gm_status gm_policy_count_heap(gm_policy* policy, uint64_t* segments, uint64_t* blocks) {
  if (!segments || !blocks) return GM_BAD_ARGUMENT;
  return locked(policy, [&]() -> gm_status {
    gm_heap_segments segment_rows = {};
    gm_heap_blocks block_rows = {};
    gpumem::list_heap(policy->policy, &segment_rows, &block_rows);
    *segments = segment_rows.count;
    *blocks = block_rows.count;
    return GM_OK;
  });
}

gm_status gm_policy_get_heap(gm_policy* policy, gm_heap_segments* segments, gm_heap_blocks* blocks) {
  if (!segments || !blocks || !segments->address || !blocks->address) return GM_BAD_ARGUMENT;
  return locked(policy, [&]() -> gm_status {
    gpumem::list_heap(policy->policy, segments, blocks);
    return GM_OK;
  });
}
