// Expandable segments: one reservation of address space per stream and pool, mapped page by page.
//
// A reservation's blocks alternate between free or live (mapped) and unmapped ones; unmapped blocks begin and end on
// page borders, counted from the reservation's base.
#include <algorithm>

#include "check.h"
#include "gpumem.h"
#include "policy.h"

namespace gpumem {
namespace {

bool has_room(const Block* block, uint64_t bytes) {
  uint64_t found_bytes = 0;
  for (; block && found_bytes < bytes; block = block->next) {
    if (block->state != BlockState::kFree && block->state != BlockState::kUnmapped) return false;
    found_bytes += block->bytes;
  }
  return found_bytes >= bytes;
}

uint64_t round_up(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

// Maps what is missing until one free block holds the request. A map that fails leaves the earlier ones in place.
bool Policy::take_expandable(Attempt* attempt) {
  Block* block = find_room(*attempt);
  if (!block) block = reserve(*attempt);
  if (!block) return false;
  uint64_t bytes = attempt->rounded_bytes;
  if (block->state == BlockState::kUnmapped && !map_block(block, std::min(block->bytes, bytes))) return false;
  while (block->bytes < bytes) {
    Block* next = block->next;
    if (!map_block(next, std::min(next->bytes, bytes - block->bytes))) return false;
    block = next;  // the block mapped last swallowed the one before it
  }
  erase_free(block);
  attempt->block = block;
  return true;
}

// The lowest unmapped space that, with free blocks around it, is large enough.
Block* Policy::find_room(const Attempt& attempt) {
  const BlockList& unmapped = attempt.pool->streams[attempt.stream].unmapped;
  for (auto cursor = unmapped.begin(); !unmapped.is_end(cursor); cursor = unmapped.after(cursor)) {
    Block* block = unmapped.at(cursor);
    if (block->previous && block->previous->state == BlockState::kFree) block = block->previous;
    if (has_room(block, attempt.rounded_bytes)) return block;
  }
  return nullptr;
}

// An eighth more address space than the card has memory.
Block* Policy::reserve(const Attempt& attempt) {
  uint64_t page_bytes = attempt.pool->is_small ? kSmallSegmentBytes : kLargeSegmentBytes;
  if (!attempt.pool->is_small && behaviour_.large_segment_setting_counts) page_bytes = settings_.large_segment_bytes;
  DeviceMemory memory{0, 0};
  require(device_->memory(&memory), "asking for the device's memory");
  uint64_t bytes = memory.total_bytes ? memory.total_bytes + memory.total_bytes / 8 : kReservationBytesUnknownCard;
  bytes = round_up(bytes, page_bytes);
  if (attempt.rounded_bytes > bytes) return nullptr;  // more than the card has; no map of it could succeed
  uint64_t address = 0;
  DeviceStatus status = device_->reserve(RangeRequest{bytes, attempt.stream, page_bytes}, &address);
  if (status == DeviceStatus::kNoMemory) return nullptr;
  require(status, "reserving address space");

  SegmentDescription description;
  description.address = address;
  description.bytes = bytes;
  description.stream = attempt.stream;
  description.page_bytes = page_bytes;
  Segment* segment = add_segment(description, attempt.pool);
  Block* block = take_block(segment);
  block->address = address;
  block->bytes = bytes;
  block->state = BlockState::kUnmapped;
  segment->first = block;
  segment->lists->unmapped.insert(block);
  return block;
}

// Maps whole pages from the block's start that cover `wanted_bytes`; the block becomes free, the rest stays unmapped.
bool Policy::map_block(Block* block, uint64_t wanted_bytes) {
  Segment* segment = block->segment;
  GM_CHECK(block->state == BlockState::kUnmapped);
  // Unmapped space ends on a page border, but for that of a foreign heap that was adopted.
  uint64_t bytes = std::min(round_up(wanted_bytes, segment->page_bytes), block->bytes);
  DeviceStatus status = device_->map(block->address, bytes);
  if (status == DeviceStatus::kNoMemory) return false;
  require(status, "mapping memory");

  uint64_t address = block->address;
  BlockList& unmapped = segment->lists->unmapped;
  unmapped.erase(block);
  if (bytes < block->bytes) {
    Block* rest = take_block(segment);
    rest->address = address + bytes;
    rest->bytes = block->bytes - bytes;
    rest->state = BlockState::kUnmapped;
    rest->previous = block;
    rest->next = block->next;
    if (rest->next) rest->next->previous = rest;
    block->next = rest;
    block->bytes = bytes;
    unmapped.insert(rest);
  }
  block->state = BlockState::kFree;
  merge(block, block->previous);
  merge(block, block->next);
  insert_free(block);
  segment->mapped_bytes += bytes;
  ++statistics_.device_allocs;
  change_reserved(*segment->pool, [&](Counter& reserved_bytes) { reserved_bytes.add(bytes); });
  emit_segment_event(GM_SEGMENT_MAP, address, bytes, *segment);
  return true;
}

// Gives back the whole pages inside a free block; slivers at both ends stay mapped and free.
void Policy::unmap_block(Block* block) {
  Segment* segment = block->segment;
  uint64_t page_bytes = segment->page_bytes;
  uint64_t begin = segment->address + round_up(block->address - segment->address, page_bytes);
  uint64_t end = block->address + block->bytes;
  end = segment->address + (end - segment->address) / page_bytes * page_bytes;
  if (begin >= end) return;
  require(device_->synchronise(segment->stream), "waiting for a stream");
  require(device_->unmap(begin, end - begin), "unmapping memory");

  erase_free(block);
  if (begin > block->address) insert_sliver(block, block->address, begin - block->address);
  uint64_t block_end = block->address + block->bytes;
  if (block_end > end) insert_sliver(block, end, block_end - end);
  block->address = begin;
  block->bytes = end - begin;
  block->state = BlockState::kUnmapped;
  merge(block, block->previous);
  merge(block, block->next);
  segment->lists->unmapped.insert(block);
  segment->mapped_bytes -= end - begin;
  ++statistics_.device_frees;
  change_reserved(*segment->pool, [&](Counter& reserved_bytes) { reserved_bytes.remove(end - begin); });
  emit_segment_event(GM_SEGMENT_UNMAP, begin, end - begin, *segment);
}

// A free block of its own before or behind the one that is being unmapped.
void Policy::insert_sliver(Block* block, uint64_t address, uint64_t bytes) {
  Block* sliver = take_block(block->segment);
  sliver->address = address;
  sliver->bytes = bytes;
  if (address == block->address) {
    sliver->previous = block->previous;
    sliver->next = block;
    (sliver->previous ? sliver->previous->next : block->segment->first) = sliver;
    block->previous = sliver;
  } else {
    sliver->previous = block;
    sliver->next = block->next;
    if (sliver->next) sliver->next->previous = sliver;
    block->next = sliver;
  }
  insert_free(sliver);
}

// A reservation without memory goes at once: its address range may serve another stream next.
void Policy::release_reservation(Block* block) {
  Segment* segment = block->segment;
  require(device_->release_reservation(segment->address, segment->bytes), "releasing address space");
  segment->lists->unmapped.erase(block);
  store_.give_back(block);
  remove_segment(segment);
}

}  // namespace gpumem
