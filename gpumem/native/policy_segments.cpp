// New memory: ordinary segments from the driver, and taking in a heap that exists already.
#include "check.h"
#include "gpumem.h"
#include "policy.h"

namespace gpumem {

// The limit is held against the segment's bytes, not the request's, in expandable mode too.
bool Policy::is_over_limit(const Attempt& attempt) const {
  return limit_bytes_ != kUnlimitedBytes && statistics_.all.reserved_bytes.now + attempt.segment_bytes > limit_bytes_;
}

bool Policy::take_new_memory(Attempt* attempt) {
  if (is_over_limit(*attempt)) return false;
  return uses_expandable(*attempt->pool) ? take_expandable(attempt) : take_new_segment(attempt);
}

bool Policy::take_new_segment(Attempt* attempt) {
  PolicyEvent request_event;
  request_event.kind = GM_SEGMENT_REQUEST;
  request_event.requested_bytes = attempt->segment_bytes;
  request_event.stream = attempt->stream;
  if (attempt->pool->owner) request_event.pool = attempt->pool->owner->id;
  emit(request_event);

  uint64_t address = 0;
  DeviceStatus status = device_->alloc_segment(RangeRequest{attempt->segment_bytes, attempt->stream, 0}, &address);
  if (status == DeviceStatus::kNoMemory) return false;
  require(status, "allocating a segment");

  SegmentDescription description;
  description.address = address;
  description.bytes = attempt->segment_bytes;
  description.stream = attempt->stream;
  Segment* segment = add_segment(description, attempt->pool);
  segment->mapped_bytes = segment->bytes;
  Block* block = take_block(segment);
  block->address = address;
  block->bytes = segment->bytes;
  segment->first = block;
  ++statistics_.device_allocs;
  change_reserved(*attempt->pool, [&](Counter& reserved_bytes) { reserved_bytes.add(segment->bytes); });
  statistics_.change(attempt->pool->is_small, [](PoolStatistics& pool) { pool.segments.add(1); });
  emit_segment_event(GM_SEGMENT_ALLOC, address, segment->bytes, *segment);
  attempt->block = block;
  return true;
}

Segment* Policy::add_segment(const SegmentDescription& description, BlockPool* pool) {
  auto owned = std::make_unique<Segment>();
  Segment* segment = owned.get();
  segment->address = description.address;
  segment->bytes = description.bytes;
  segment->stream = description.stream;
  segment->page_bytes = description.page_bytes;
  segment->number = ++last_number_;
  segment->pool = pool;
  segment->lists = &pool->streams[description.stream];
  if (pool->owner) ++pool->owner->segment_count;
  bool is_new = segments_.emplace(description.address, std::move(owned)).second;
  GM_CHECK(is_new);
  return segment;
}

Block* Policy::take_block(Segment* segment) {
  Block* block = store_.take();
  block->segment = segment;
  if (behaviour_.elder_first == ElderFirst::kBlock) block->number = ++last_number_;
  if (behaviour_.elder_first == ElderFirst::kSegment) block->number = segment->number;
  return block;
}

void Policy::remove_segment(Segment* segment) {
  if (segment->pool->owner) --segment->pool->owner->segment_count;
  segments_.erase(segment->address);
}

const Segment* Policy::find_segment_at(uint64_t address) const {
  auto after = segments_.upper_bound(address);
  if (after == segments_.begin()) return nullptr;
  const Segment* segment = std::prev(after)->second.get();
  return address - segment->address < segment->bytes ? segment : nullptr;
}

// Segments below the range are looked at down to the first ordinary one; more reservations than a program can have are
// taken for an overlap.
bool Policy::is_unused(uint64_t address, uint64_t bytes) const {
  constexpr int kReservationsMax = 64;
  uint64_t end = address + bytes;
  auto after = segments_.lower_bound(end);
  for (int steps = 0; after != segments_.begin(); ++steps) {
    const Segment& segment = *(--after)->second;
    if (!segment.is_expandable()) return segment.address + segment.bytes <= address;
    if (steps == kReservationsMax) return false;
    if (segment.address + segment.bytes <= address) continue;
    const Block* unmapped = segment.lists->unmapped.find_last_up_to(address);
    if (!unmapped || end > unmapped->address + unmapped->bytes) return false;
  }
  return true;
}

void Policy::adopt(const SegmentDescription& description, const std::vector<BlockDescription>& blocks) {
  if (!description.pool.is_default() && !find_private_pool(description.pool))
    create_pool(description.pool, false, false, false);
  PrivatePool* owner = find_private_pool(description.pool);
  BlockPool* pool =
      owner ? (description.is_small ? &owner->small : &owner->large) : (description.is_small ? &small_ : &large_);
  Segment* segment = add_segment(description, pool);
  Block* last = nullptr;
  // Neighbours first: whether a free block is a whole segment depends on them.
  for (const BlockDescription& given : blocks) {
    Block* block = take_block(segment);
    block->address = given.address;
    block->bytes = given.bytes;
    block->requested_bytes = given.requested_bytes;
    block->state = given.state;
    block->previous = last;
    (last ? last->next : segment->first) = block;
    last = block;
  }
  for (Block* block = segment->first; block; block = block->next) adopt_block(block);
  change_reserved(*pool, [&](Counter& reserved_bytes) { reserved_bytes.add(segment->mapped_bytes); });
  if (!segment->is_expandable())
    statistics_.change(pool->is_small, [](PoolStatistics& counters) { counters.segments.add(1); });
}

void Policy::adopt_block(Block* block) {
  Segment* segment = block->segment;
  if (block->state == BlockState::kUnmapped) {
    segment->lists->unmapped.insert(block);
    return;
  }
  segment->mapped_bytes += block->bytes;
  if (block->state == BlockState::kFree) {
    insert_free(block);
    return;
  }
  bool is_allocated = block->state == BlockState::kAllocated;
  statistics_.change(segment->pool->is_small, [&](PoolStatistics& counters) {
    counters.active_bytes.add(block->bytes);
    counters.requested_bytes.add(block->requested_bytes);
    counters.active_blocks.add(1);
    if (!is_allocated) return;
    counters.allocated_bytes.add(block->bytes);
    counters.allocated_blocks.add(1);
  });
  if (is_allocated) {
    live_.insert(block);
    return;
  }
  DeviceEvent event{0};
  if (device_->record_event(segment->stream, &event) == DeviceStatus::kOk) {
    waiting_[event.value] = block;
    block->event_count = 1;
  }
}

// A live block's end moves into the free block behind it: its slack was not known when it was adopted.
void Policy::move_border(Block* live_block, uint64_t bytes) {
  Block* free = live_block->next;
  GM_CHECK(live_block->state == BlockState::kAllocated && free && free->state == BlockState::kFree);
  GM_CHECK(bytes > live_block->bytes && bytes < live_block->bytes + free->bytes);
  uint64_t moved_bytes = bytes - live_block->bytes;
  erase_free(free);
  uint64_t age_base = free->age_base;
  live_block->bytes += moved_bytes;
  free->address += moved_bytes;
  free->bytes -= moved_bytes;
  insert_free(free);
  free->age_base = age_base;
  statistics_.change(live_block->segment->pool->is_small, [&](PoolStatistics& counters) {
    counters.allocated_bytes.add(moved_bytes);
    counters.active_bytes.add(moved_bytes);
  });
}

}  // namespace gpumem
