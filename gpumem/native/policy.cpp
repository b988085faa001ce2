// The order of attempts: how a request is served, and what happens when it cannot be.
#include "policy.h"

#include "check.h"
#include "gpumem.h"

namespace gpumem {

Policy::Policy(Device* device, const Settings& settings, const Behaviour& behaviour, EventSink* sink)
    : device_(device), settings_(settings), behaviour_(behaviour), sink_(sink) {
  small_.is_small = true;
}

Policy::~Policy() = default;

Outcome Policy::allocate(const Request& request, Allocation* allocation) {
  *allocation = Allocation();
  if (request.bytes == 0) return Outcome::kOk;
  return guarded([&] {
    if (!is_capturing()) finish_frees();
    Attempt attempt;
    Outcome outcome = plan(request, &attempt);
    if (outcome != Outcome::kOk) return outcome;
    if (!find_or_make_block(&attempt)) return refuse(attempt);
    hand_out(&attempt, allocation);
    return Outcome::kOk;
  });
}

// Every attempt in PyTorch's order. After the last release pending frees are over, but free blocks are not searched
// again (unless the version does): a block that just came back is missed, and the call runs out of memory.
bool Policy::find_or_make_block(Attempt* attempt) {
  if (take_fit(attempt)) return true;
  collect_garbage(attempt);
  if (settings_.reject_over_limit && is_over_limit(*attempt)) {
    ++statistics_.oom_rejections;
    return false;
  }
  return take_new_memory(attempt) || take_from_pools_on_oom(attempt) ||
         (release_oversize(*attempt) && take_new_memory(attempt)) ||
         (attempt->may_release_all && may_release_all() && retry_after_full_release(attempt));
}

bool Policy::retry_after_full_release(Attempt* attempt) {
  release_idle_memory();
  ++statistics_.alloc_retries;
  attempt->flags |= GM_FLAG_RETRIED;
  if (behaviour_.search_after_retry_wait && take_fit(attempt)) return true;
  return take_new_memory(attempt);
}

Outcome Policy::plan(const Request& request, Attempt* attempt) {
  if (request.bytes > kRequestBytesMax) return Outcome::kTooLarge;
  attempt->requested_bytes = request.bytes;
  attempt->rounded_bytes = round_request(settings_, request.bytes);
  attempt->segment_bytes = segment_bytes_for(settings_, behaviour_, attempt->rounded_bytes);
  attempt->stream = request.stream;
  attempt->may_release_all = request.may_release_all;
  attempt->pool = pool_for(request, attempt->rounded_bytes <= kSmallRequestBytesMax);
  return attempt->pool ? Outcome::kOk : Outcome::kPoolUnknown;
}

void Policy::hand_out(Attempt* attempt, Allocation* allocation) {
  Block* block = attempt->block;
  if (should_split(*attempt)) {
    attempt->flags |= GM_FLAG_SPLIT;
    allocation->split_bytes = block->bytes - attempt->rounded_bytes;
    block = split_front(*attempt);
    ++statistics_.splits;
  } else {
    take_from_list(*attempt);
  }
  block->state = BlockState::kAllocated;
  block->requested_bytes = attempt->requested_bytes;
  live_.insert(block);
  statistics_.change(attempt->pool->is_small, [&](PoolStatistics& pool) {
    pool.allocated_bytes.add(block->bytes);
    pool.active_bytes.add(block->bytes);
    pool.requested_bytes.add(block->requested_bytes);
    pool.allocated_blocks.add(1);
    pool.active_blocks.add(1);
  });
  if (attempt->flags & GM_FLAG_CACHE_HIT) ++statistics_.cache_hits;
  allocation->address = block->address;
  allocation->block_bytes = block->bytes;
  allocation->flags = attempt->flags;
  if (!sink_) return;
  PolicyEvent event;
  event.kind = GM_ALLOC;
  event.flags = attempt->flags;
  event.address = block->address;
  event.requested_bytes = block->requested_bytes;
  event.block_bytes = block->bytes;
  event.split_bytes = allocation->split_bytes;
  event.stream = attempt->stream;
  if (attempt->pool->owner) event.pool = attempt->pool->owner->id;
  emit(event);
}

Outcome Policy::refuse(const Attempt& attempt) {
  ++statistics_.ooms;
  DeviceMemory memory{0, 0};
  // The figures only describe the refusal: a driver that cannot give them changes nothing about it.
  if (device_->memory(&memory) != DeviceStatus::kOk) memory = DeviceMemory{0, 0};
  PolicyEvent event;
  event.kind = GM_OOM;
  event.address = memory.free_bytes;
  event.requested_bytes = attempt.rounded_bytes;
  event.block_bytes = limit_bytes_ == kUnlimitedBytes ? 0 : limit_bytes_;
  event.split_bytes = memory.total_bytes;
  event.flags = attempt.flags;
  event.stream = attempt.stream;
  if (attempt.pool->owner) event.pool = attempt.pool->owner->id;
  emit(event);
  return Outcome::kOutOfMemory;
}

Outcome Policy::free(uint64_t address) {
  Block* block = live_.find(address);
  if (!block) return Outcome::kNotLive;
  return guarded([&] {
    free_block(block);
    return Outcome::kOk;
  });
}

Outcome Policy::record_stream(uint64_t address, uint64_t stream) {
  Block* block = live_.find(address);
  if (!block) return Outcome::kNotLive;
  if (stream == block->segment->stream) return Outcome::kOk;
  auto& streams = stream_uses_[block];
  for (uint64_t known : streams)
    if (known == stream) return Outcome::kOk;
  streams.push_back(stream);
  block->has_stream_uses = true;
  return Outcome::kOk;
}

Outcome Policy::empty_cache() {
  return guarded([&] {
    release_idle_memory();
    return Outcome::kOk;
  });
}

Outcome Policy::finish_ready_frees() {
  return guarded([&] {
    finish_frees();
    return Outcome::kOk;
  });
}

void Policy::require(DeviceStatus status, const char* call) {
  if (status == DeviceStatus::kOk) return;
  failed_call_ = call;
  throw DeviceError();
}

void Policy::emit(const PolicyEvent& event) {
  if (sink_) sink_->on_event(event);
}

void Policy::emit_segment_event(uint8_t kind, uint64_t address, uint64_t bytes, const Segment& segment) {
  PolicyEvent event;
  event.kind = kind;
  event.address = address;
  event.requested_bytes = bytes;
  event.stream = segment.stream;
  if (segment.pool->owner) event.pool = segment.pool->owner->id;
  emit(event);
}

}  // namespace gpumem
