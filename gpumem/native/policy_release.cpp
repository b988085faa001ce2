// Giving memory back: garbage collection, oversize blocks, everything idle.
//
// Which blocks go is found first, by functions that change nothing; then they are released in that order.
// "Set order" is the order of a pool's lists: stream handle, then bytes, then (by the version) age, then
// address.
#include <algorithm>

#include "check.h"
#include "gpumem.h"
#include "policy.h"

namespace gpumem {

// Passes over the free segments of the default large pool. Each pass frees all that are at least of mean age; passes
// go on until the reserve is down to its target or one frees nothing. A pass does not stop at the target.
std::vector<Block*> Policy::find_garbage() const {
  std::vector<Block*> victims;
  if (limit_bytes_ == kUnlimitedBytes || settings_.garbage_collection_threshold <= 0.0) return victims;
  auto threshold_bytes =
      static_cast<uint64_t>(settings_.garbage_collection_threshold * static_cast<double>(limit_bytes_));
  uint64_t reserved_bytes = statistics_.all.reserved_bytes.now;
  if (reserved_bytes <= threshold_bytes) return victims;

  std::vector<Block*> candidates;
  uint64_t age_sum = 0;
  auto age_of = [this](const Block* block) { return large_.search_count - block->age_base; };
  for (const auto& [stream, blocks] : large_.streams)
    for (auto cursor = blocks.free.begin(); !blocks.free.is_end(cursor); cursor = blocks.free.after(cursor)) {
      Block* block = blocks.free.at(cursor);
      if (!is_whole_segment(block)) continue;
      candidates.push_back(block);
      age_sum += age_of(block);
    }
  uint64_t target_bytes = reserved_bytes - threshold_bytes;
  uint64_t freed_bytes = 0;
  uint64_t candidate_count = candidates.size();
  for (bool freed = true; freed && freed_bytes < target_bytes && candidate_count > 0;) {
    freed = false;
    double age_mean = static_cast<double>(age_sum) / static_cast<double>(candidate_count);
    for (Block*& block : candidates) {
      if (!block || block->segment->is_expandable() || static_cast<double>(age_of(block)) < age_mean) continue;
      freed = true;
      freed_bytes += block->bytes;
      age_sum -= age_of(block);
      --candidate_count;
      victims.push_back(block);
      block = nullptr;
    }
  }
  return victims;
}

void Policy::collect_garbage(Attempt* attempt) {
  for (Block* block : find_garbage()) {
    attempt->flags |= GM_FLAG_GARBAGE_COLLECTED;
    release_segment(block);
  }
}

// With a finite max_split_size: one unsplittable free block that is large enough by itself, else as many as it takes,
// from the largest down.
std::vector<Block*> Policy::find_oversize(const Attempt& attempt, bool* enough) const {
  std::vector<Block*> victims;
  *enough = false;
  auto blocks = attempt.pool->streams.find(attempt.stream);
  if (settings_.max_split_bytes == kUnlimitedBytes || blocks == attempt.pool->streams.end()) return victims;
  const BlockList& free = blocks->second.free;
  uint64_t needed_bytes = std::max(attempt.rounded_bytes, settings_.max_split_bytes);
  auto cursor = free.find_at_least(needed_bytes);
  if (!free.is_end(cursor) && !free.at(cursor)->segment->is_expandable()) {
    *enough = is_whole_segment(free.at(cursor));
    if (*enough) victims.push_back(free.at(cursor));
    return victims;
  }
  uint64_t freed_bytes = 0;
  while (freed_bytes < needed_bytes && !free.is_begin(cursor)) {
    cursor = free.before(cursor);
    Block* block = free.at(cursor);
    if (block->bytes < settings_.max_split_bytes) break;
    // Not whole: max_split_size was other when it was split; it cannot go back to the driver.
    if (block->segment->is_expandable() || !is_whole_segment(block)) continue;
    victims.push_back(block);
    freed_bytes += block->bytes;
  }
  *enough = freed_bytes >= needed_bytes;
  return victims;
}

// What was released stays released when it falls short.
bool Policy::release_oversize(const Attempt& attempt) {
  bool enough = false;
  for (Block* block : find_oversize(attempt, &enough)) release_segment(block);
  return enough;
}

void Policy::release_idle_memory() {
  finish_all_frees();
  release_pool_memory(&large_);
  release_pool_memory(&small_);
  for (auto& [id, pool] : private_pools_) {
    if (pool->use_count > 0) continue;
    release_pool_memory(&pool->small);
    release_pool_memory(&pool->large);
  }
  drop_empty_pools();
}

// Whole ordinary segments first; then the whole pages inside free blocks of expandable ones.
void Policy::release_pool_memory(BlockPool* pool) {
  std::vector<Block*> whole;
  std::vector<Block*> expandable;
  for (const auto& [stream, blocks] : pool->streams)
    for (auto cursor = blocks.free.begin(); !blocks.free.is_end(cursor); cursor = blocks.free.after(cursor)) {
      Block* block = blocks.free.at(cursor);
      if (block->segment->is_expandable())
        expandable.push_back(block);
      else if (is_whole_segment(block))
        whole.push_back(block);
    }
  for (Block* block : whole) release_segment(block);
  for (Block* block : expandable) {
    unmap_block(block);
    if (is_whole_segment(block)) release_reservation(block);
  }
}

void Policy::release_segment(Block* block) {
  Segment* segment = block->segment;
  GM_CHECK(is_whole_segment(block) && !segment->is_expandable());
  require(device_->free_segment(segment->address, segment->bytes), "freeing a segment");
  erase_free(block);
  store_.give_back(block);
  ++statistics_.device_frees;
  change_reserved(*segment->pool, [&](Counter& reserved_bytes) { reserved_bytes.remove(segment->bytes); });
  statistics_.change(segment->pool->is_small, [](PoolStatistics& pool) { pool.segments.remove(1); });
  Segment gone = *segment;
  remove_segment(segment);
  emit_segment_event(GM_SEGMENT_FREE, gone.address, gone.bytes, gone);
}

bool Policy::release_free_segment(uint64_t address) {
  auto found = segments_.find(address);
  if (found == segments_.end()) return false;
  Block* block = found->second->first;
  if (!is_whole_segment(block) || block->state != BlockState::kFree || block->segment->is_expandable()) return false;
  return guarded([&] {
           release_segment(block);
           return Outcome::kOk;
         }) == Outcome::kOk;
}

}  // namespace gpumem
