// Frees: at once, or when the other streams that used a block are done with it.
#include "check.h"
#include "gpumem.h"
#include "policy.h"

namespace gpumem {

void Policy::free_block(Block* block) {
  bool waits = block->has_stream_uses && (is_capturing() || record_events(block));
  live_.erase(block->address);
  statistics_.change(block->segment->pool->is_small, [&](PoolStatistics& pool) {
    pool.allocated_bytes.remove(block->bytes);
    pool.allocated_blocks.remove(1);
  });
  if (!waits) {
    complete(block, GM_FREE);
    return;
  }
  block->state = BlockState::kPending;
  // While a graph is captured no event may be recorded: the block waits until none is.
  if (block->event_count == 0) held_back_.push_back(block);
  if (!sink_) return;
  PolicyEvent event;
  event.kind = GM_FREE_REQUESTED;
  event.address = block->address;
  event.requested_bytes = block->requested_bytes;
  event.block_bytes = block->bytes;
  event.stream = block->segment->stream;
  if (block->segment->pool->owner) event.pool = block->segment->pool->owner->id;
  emit(event);
}

// The block joins its free neighbours, previous first, and goes back to the free list.
void Policy::complete(Block* block, uint8_t kind) {
  BlockPool* pool = block->segment->pool;
  PolicyEvent event;
  event.kind = kind;
  event.address = block->address;
  event.requested_bytes = block->requested_bytes;
  event.block_bytes = block->bytes;
  event.stream = block->segment->stream;
  if (pool->owner) event.pool = pool->owner->id;
  statistics_.change(pool->is_small, [&](PoolStatistics& counters) {
    counters.active_bytes.remove(block->bytes);
    counters.requested_bytes.remove(block->requested_bytes);
    counters.active_blocks.remove(1);
  });
  block->state = BlockState::kFree;
  begin_net_split();
  if (merge(block, block->previous)) event.flags |= GM_FLAG_MERGED_PREVIOUS;
  if (merge(block, block->next)) event.flags |= GM_FLAG_MERGED_NEXT;
  insert_free(block);
  end_net_split(pool->is_small);
  emit(event);
}

// One event per stream that used the block; false when none did. An event recorded before a later one fails stays
// in the device and means nothing: waiting_ does not know it.
bool Policy::record_events(Block* block) {
  auto found = stream_uses_.find(block);
  if (found == stream_uses_.end()) return false;
  std::vector<uint64_t> values;
  for (uint64_t stream : found->second) {
    DeviceEvent event{0};
    require(device_->record_event(stream, &event), "recording an event");
    values.push_back(event.value);
  }
  for (uint64_t value : values) waiting_[value] = block;
  block->event_count = static_cast<uint32_t>(values.size());
  block->has_stream_uses = false;
  stream_uses_.erase(found);
  return block->event_count > 0;
}

void Policy::record_held_back_events() {
  while (!held_back_.empty()) {
    Block* block = held_back_.front();
    record_events(block);
    held_back_.erase(held_back_.begin());
  }
}

void Policy::finish_frees() {
  if (!held_back_.empty()) record_held_back_events();
  while (!waiting_.empty()) {
    DeviceEvent event{0};
    bool found = false;
    require(device_->poll_event(&event, &found), "asking for an event");
    if (!found) return;
    finish_event(event);
  }
}

void Policy::finish_all_frees() {
  if (!held_back_.empty() && !is_capturing()) record_held_back_events();
  while (!waiting_.empty()) {
    DeviceEvent event{0};
    require(device_->wait_event(&event), "waiting for an event");
    finish_event(event);
  }
}

const Block* Policy::find_waiting(DeviceEvent event) const {
  auto found = waiting_.find(event.value);
  return found == waiting_.end() ? nullptr : found->second;
}

void Policy::finish_event(DeviceEvent event) {
  auto found = waiting_.find(event.value);
  if (found == waiting_.end()) return;
  Block* block = found->second;
  waiting_.erase(found);
  if (--block->event_count == 0) complete(block, GM_FREE_COMPLETED);
}

}  // namespace gpumem
