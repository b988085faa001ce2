// The heap's equations, checked by walking all of it, and the walks that describe it.
#include <algorithm>

#include "policy.h"

namespace gpumem {
namespace {

struct HeapSums {
  uint64_t allocated_bytes = 0;
  uint64_t pending_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t reserved_bytes = 0;
  uint64_t private_bytes = 0;    // of these, in private pools
  uint64_t requested_bytes = 0;  // of allocated and pending blocks
  uint64_t inactive_split_bytes = 0;
  size_t allocated_count = 0;
  size_t pending_count = 0;
  size_t block_count = 0;

  void add(const Block& block) {
    ++block_count;
    if (block.state == BlockState::kUnmapped) return;
    reserved_bytes += block.bytes;
    if (block.segment->pool->owner) private_bytes += block.bytes;
    if (block.state == BlockState::kFree) {
      free_bytes += block.bytes;
      if (!block.segment->is_expandable() && !is_whole_segment(&block)) inactive_split_bytes += block.bytes;
      return;
    }
    requested_bytes += block.requested_bytes;
    bool is_allocated = block.state == BlockState::kAllocated;
    (is_allocated ? allocated_bytes : pending_bytes) += block.bytes;
    ++(is_allocated ? allocated_count : pending_count);
  }
};

std::string hex(uint64_t address) {
  static const char kDigits[] = "0123456789abcdef";
  std::string text;
  do text.insert(text.begin(), kDigits[address % 16]);
  while (address /= 16);
  return "0x" + text;
}

bool is_idle(const Block* block) {
  return block->state == BlockState::kFree || block->state == BlockState::kUnmapped;
}

// What is wrong with a block by itself and beside its neighbours; "" when nothing is.
const char* find_block_fault(const Block* block, const Block* previous, const StreamBlocks& lists) {
  if (block->previous != previous) return "the links of neighbours disagree";
  if (previous && previous->address + previous->bytes != block->address) return "blocks do not tile their segment";
  if (block->bytes == 0 || block->bytes % kBlockUnitBytes != 0) return "block bytes are no multiple of 512";
  if (previous && is_idle(block) && previous->state == block->state) return "two free neighbours are not merged";
  bool in_free = lists.free.contains(block);
  bool in_unmapped = lists.unmapped.contains(block);
  if (in_free != (block->state == BlockState::kFree)) return "the free list disagrees with the block";
  if (in_unmapped != (block->state == BlockState::kUnmapped)) return "the unmapped list disagrees with the block";
  if (!is_idle(block) && block->requested_bytes > block->bytes) return "a block is smaller than its request";
  return "";
}

std::string find_segment_fault(const Segment& segment, HeapSums* sums, const BlockMap& live) {
  uint64_t bytes = 0;
  uint64_t mapped_bytes = 0;
  const Block* previous = nullptr;
  if (!segment.first || segment.first->address != segment.address) return "its first block is elsewhere";
  for (const Block* block = segment.first; block; previous = block, block = block->next) {
    const char* fault = find_block_fault(block, previous, *segment.lists);
    if (*fault) return std::string(fault) + " at " + hex(block->address);
    if ((block->state == BlockState::kAllocated) != (live.find(block->address) == block))
      return "the live map disagrees at " + hex(block->address);
    if (block->state == BlockState::kUnmapped && (block->address - segment.address) % segment.page_bytes != 0)
      return "unmapped space off a page border at " + hex(block->address);
    bytes += block->bytes;
    if (block->state != BlockState::kUnmapped) mapped_bytes += block->bytes;
    sums->add(*block);
  }
  if (bytes != segment.bytes) return "its blocks do not add up to its bytes";
  if (mapped_bytes != segment.mapped_bytes) return "its mapped blocks do not add up to its mapped bytes";
  if (!segment.is_expandable() && mapped_bytes != segment.bytes) return "an ordinary segment is not mapped whole";
  return "";
}

struct Equation {
  const char* text;
  uint64_t left, right;
};

template <size_t count>
bool hold_all(const Equation (&equations)[count], std::string* why) {
  for (const Equation& equation : equations) {
    if (equation.left == equation.right) continue;
    *why =
        std::string(equation.text) + ": " + std::to_string(equation.left) + " is not " + std::to_string(equation.right);
    return false;
  }
  return true;
}

}  // namespace

bool Policy::check(std::string* why) const {
  HeapSums sums;
  const Segment* before = nullptr;
  for (const auto& [address, segment] : segments_) {
    std::string fault = find_segment_fault(*segment, &sums, live_);
    // Where the card is not known, reservations are taken to be larger than they were.
    if (before && !before->is_expandable() && before->address + before->bytes > address)
      fault = "it overlaps the one before";
    before = segment.get();
    if (fault.empty()) continue;
    *why = "segment " + hex(address) + ": " + fault;
    return false;
  }
  const PoolStatistics& all = statistics_.all;
  uint64_t private_bytes = 0;
  for (const auto& [id, reserve] : private_reserves_) private_bytes += reserve.all.now;
  size_t listed_count = 0;
  for_each_pool([&](const BlockPool& pool) {
    for (const auto& [stream, blocks] : pool.streams)
      listed_count += blocks.free.block_count() + blocks.unmapped.block_count();
  });
  const Equation equations[] = {
      {"reserved = mapped blocks", all.reserved_bytes.now, sums.reserved_bytes},
      {"allocated = allocated blocks", all.allocated_bytes.now, sums.allocated_bytes},
      {"active = allocated + pending", all.active_bytes.now, sums.allocated_bytes + sums.pending_bytes},
      {"reserved = allocated + pending + idle", all.reserved_bytes.now,
       sums.allocated_bytes + sums.pending_bytes + sums.free_bytes},
      {"requested = requests of active blocks", all.requested_bytes.now, sums.requested_bytes},
      {"inactive split = free parts of segments in use", all.inactive_split_bytes.now, sums.inactive_split_bytes},
      {"small + large = all", statistics_.small.reserved_bytes.now + statistics_.large.reserved_bytes.now,
       all.reserved_bytes.now},
      {"private reserves = mapped blocks of private pools", private_bytes, sums.private_bytes},
      {"live map = allocated blocks", live_.block_count(), sums.allocated_count},
      {"active blocks = allocated + pending", all.active_blocks.now, sums.allocated_count + sums.pending_count},
      {"listed = free and unmapped blocks", listed_count, sums.block_count - sums.allocated_count - sums.pending_count},
      {"stored = blocks of segments", store_.live_count(), sums.block_count},
  };
  return hold_all(equations, why);
}

// Releasable: whole free segments, whole pages inside free blocks of reservations; nothing of a pool in use.
IdleMeasure Policy::measure_idle() const {
  IdleMeasure measure;
  uint64_t idle_bytes = 0;
  for_each_pool([&](const BlockPool& pool) {
    bool may_go = !pool.owner || pool.owner->use_count == 0;
    uint64_t& largest = pool.is_small ? measure.small_free_bytes_max : measure.large_free_bytes_max;
    for (const auto& [stream, blocks] : pool.streams)
      for (auto cursor = blocks.free.begin(); !blocks.free.is_end(cursor); cursor = blocks.free.after(cursor)) {
        const Block* block = blocks.free.at(cursor);
        idle_bytes += block->bytes;
        largest = std::max(largest, block->bytes);
        if (!may_go) continue;
        uint64_t page_bytes = block->segment->page_bytes;
        if (!page_bytes) {
          if (is_whole_segment(block)) measure.releasable_bytes += block->bytes;
          continue;
        }
        uint64_t first_page = (block->address - block->segment->address + page_bytes - 1) / page_bytes;
        uint64_t end_page = (block->address + block->bytes - block->segment->address) / page_bytes;
        if (end_page > first_page) measure.releasable_bytes += (end_page - first_page) * page_bytes;
      }
  });
  measure.gap_bytes = idle_bytes - measure.releasable_bytes;
  return measure;
}

void Policy::visit(const std::function<void(const SegmentDescription&, const BlockDescription&)>& visitor) const {
  for (const auto& [address, segment] : segments_) {
    SegmentDescription description;
    description.address = address;
    description.bytes = segment->bytes;
    description.stream = segment->stream;
    description.page_bytes = segment->page_bytes;
    description.is_small = segment->pool->is_small;
    if (segment->pool->owner) description.pool = segment->pool->owner->id;
    for (const Block* block = segment->first; block; block = block->next)
      visitor(description, BlockDescription{block->address, block->bytes, block->requested_bytes, block->state});
  }
}

void Policy::reset_peaks() {
  for (PoolStatistics* pool : {&statistics_.all, &statistics_.small, &statistics_.large})
    for (Counter* counter : {&pool->allocated_bytes, &pool->active_bytes, &pool->requested_bytes, &pool->reserved_bytes,
                             &pool->inactive_split_bytes, &pool->allocated_blocks, &pool->active_blocks,
                             &pool->segments, &pool->inactive_split_blocks})
      counter->peak = counter->now;
  for (auto& [id, reserve] : private_reserves_)
    for (Counter* counter : {&reserve.all, &reserve.small, &reserve.large}) counter->peak = counter->now;
}

}  // namespace gpumem
