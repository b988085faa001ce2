// Finding a block among the free ones, splitting what is too large, merging what comes back.
#include "check.h"
#include "gpumem.h"
#include "policy.h"

namespace gpumem {
namespace {

// What an expandable block could grow to: itself and the unmapped space right behind it.
uint64_t expandable_bytes(const Block* block) {
  const Block* next = block->next;
  return block->bytes + (next && next->state == BlockState::kUnmapped ? next->bytes : 0);
}

BlockList::Cursor skip_expandable(const BlockList& free, BlockList::Cursor cursor) {
  while (!free.is_end(cursor) && free.at(cursor)->segment->is_expandable()) cursor = free.after(cursor);
  return cursor;
}

// Among sufficient expandable blocks PyTorch prefers the one that can grow least, looking only as far as each next
// one is smaller than the last.
BlockList::Cursor find_least_expandable(const BlockList& free, BlockList::Cursor cursor) {
  BlockList::Cursor next = free.after(cursor);
  while (free.at(cursor)->segment->is_expandable() && !free.is_end(next) &&
         expandable_bytes(free.at(next)) < expandable_bytes(free.at(cursor))) {
    cursor = next;
    next = free.after(next);
  }
  return cursor;
}

}  // namespace

// The smallest sufficient block of the stream, lowest address first (or the eldest, by the version); then
// rejected if it is oversize.
Block* Policy::find_fit(const Attempt& attempt, BlockList::Cursor* place) const {
  auto blocks = attempt.pool->streams.find(attempt.stream);
  if (blocks == attempt.pool->streams.end()) return nullptr;
  const BlockList& free = blocks->second.free;
  BlockList::Cursor cursor = free.find_at_least(attempt.rounded_bytes);
  if (free.is_end(cursor)) return nullptr;
  if (free.at(cursor)->segment->is_expandable()) {
    cursor = uses_expandable(*attempt.pool) ? find_least_expandable(free, cursor) : skip_expandable(free, cursor);
    if (free.is_end(cursor)) return nullptr;
  }
  Block* block = free.at(cursor);
  if (block->bytes >= reusable_bytes_below(attempt.rounded_bytes)) return nullptr;
  if (place) *place = cursor;
  return block;
}

// A large request may get a somewhat larger unsplittable block; a smaller one never gets an unsplittable block.
uint64_t Policy::reusable_bytes_below(uint64_t rounded_bytes) const {
  if (rounded_bytes < settings_.max_split_bytes) return settings_.max_split_bytes;
  return rounded_bytes + settings_.max_non_split_rounding_bytes;
}

// Would a search that misses now hit once `completed` has come back and merged?
bool Policy::would_fit_after(const Attempt& attempt, const Block* completed) const {
  const Segment& segment = *completed->segment;
  if (segment.pool != attempt.pool || segment.stream != attempt.stream) return false;
  uint64_t bytes = completed->bytes;
  for (const Block* neighbour : {completed->previous, completed->next})
    if (neighbour && neighbour->state == BlockState::kFree) bytes += neighbour->bytes;
  return bytes >= attempt.rounded_bytes && bytes < reusable_bytes_below(attempt.rounded_bytes);
}

bool Policy::take_fit(Attempt* attempt) {
  if (limit_bytes_ != kUnlimitedBytes && settings_.garbage_collection_threshold > 0.0) ++attempt->pool->search_count;
  attempt->block = find_fit(*attempt, &attempt->cursor);
  if (!attempt->block) return false;
  attempt->is_listed = true;
  attempt->flags |= GM_FLAG_CACHE_HIT;
  return true;
}

// The default pools may borrow a free block of a pool that offers them, but no new memory for it.
bool Policy::take_from_pools_on_oom(Attempt* attempt) {
  if (attempt->pool->owner) return false;
  for (auto& [id, pool] : private_pools_) {
    if (!pool->use_on_oom) continue;
    Attempt borrowed = *attempt;
    borrowed.pool = attempt->pool->is_small ? &pool->small : &pool->large;
    if (take_fit(&borrowed)) {
      *attempt = borrowed;
      return true;
    }
  }
  return false;
}

// The test is on the request, not on the block: an unsplittable block was refused to small requests before.
bool Policy::should_split(const Attempt& attempt) const {
  const BlockPool& pool = *attempt.pool;
  if (pool.owner && pool.owner->no_split) return false;
  uint64_t remaining_bytes = attempt.block->bytes - attempt.rounded_bytes;
  if (pool.is_small || settings_.expandable_segments) return remaining_bytes >= kBlockUnitBytes;
  return attempt.rounded_bytes < settings_.max_split_bytes && remaining_bytes > kSmallRequestBytesMax;
}

void Policy::take_from_list(const Attempt& attempt) {
  if (!attempt.is_listed) return;
  count_inactive_split(attempt.block, false);
  attempt.block->segment->lists->free.erase_at(attempt.cursor);
}

// The low end becomes a block of its own; the rest stays the same block in the free list.
Block* Policy::split_front(const Attempt& attempt) {
  Block* block = attempt.block;
  Block* front = take_block(block->segment);
  front->address = block->address;
  front->bytes = attempt.rounded_bytes;
  front->previous = block->previous;
  front->next = block;
  begin_net_split();
  if (attempt.is_listed) count_inactive_split(block, false);
  (front->previous ? front->previous->next : block->segment->first) = front;
  block->previous = front;
  block->address += front->bytes;
  block->bytes -= front->bytes;
  if (attempt.is_listed) {
    count_inactive_split(block, true);
    block->age_base = attempt.pool->search_count;
    block->segment->lists->free.move_at(attempt.cursor);
  } else {
    insert_free(block);
  }
  end_net_split(attempt.pool->is_small);
  return front;
}

// `neighbour` disappears into `block` if it is as mapped and as free; the block object of the later free survives.
bool Policy::merge(Block* block, Block* neighbour) {
  if (!neighbour) return false;
  bool block_is_mapped = block->state != BlockState::kUnmapped;
  if (block_is_mapped) {
    if (neighbour->state != BlockState::kFree) return false;
    erase_free(neighbour);
  } else {
    if (neighbour->state != BlockState::kUnmapped) return false;
    block->segment->lists->unmapped.erase(neighbour);
  }
  if (block->previous == neighbour) {
    block->address = neighbour->address;
    block->previous = neighbour->previous;
    if (block->previous)
      block->previous->next = block;
    else
      block->segment->first = block;
  } else {
    block->next = neighbour->next;
    if (block->next) block->next->previous = block;
  }
  block->bytes += neighbour->bytes;
  store_.give_back(neighbour);
  return true;
}

void Policy::insert_free(Block* block) {
  block->state = BlockState::kFree;
  block->age_base = block->segment->pool->search_count;
  block->segment->lists->free.insert(block);
  count_inactive_split(block, true);
}

void Policy::erase_free(Block* block) {
  block->segment->lists->free.erase(block);
  count_inactive_split(block, false);
}

void Policy::count_inactive_split(const Block* block, bool added) {
  if (block->segment->is_expandable() || is_whole_segment(block)) return;
  if (net_split_.is_open) {
    net_split_.bytes += added ? static_cast<int64_t>(block->bytes) : -static_cast<int64_t>(block->bytes);
    net_split_.blocks += added ? 1 : -1;
    return;
  }
  statistics_.change(block->segment->pool->is_small, [&](PoolStatistics& counters) {
    if (added) {
      counters.inactive_split_bytes.add(block->bytes);
      counters.inactive_split_blocks.add(1);
    } else {
      counters.inactive_split_bytes.remove(block->bytes);
      counters.inactive_split_blocks.remove(1);
    }
  });
}

void Policy::begin_net_split() {
  net_split_ = NetSplit{true, 0, 0};
}

void Policy::end_net_split(bool is_small) {
  auto apply = [](Counter& counter, int64_t change) {
    if (change > 0) counter.add(static_cast<uint64_t>(change));
    if (change < 0) counter.remove(static_cast<uint64_t>(-change));
  };
  statistics_.change(is_small, [&](PoolStatistics& counters) {
    apply(counters.inactive_split_bytes, net_split_.bytes);
    apply(counters.inactive_split_blocks, net_split_.blocks);
  });
  net_split_.is_open = false;
}

bool Policy::uses_expandable(const BlockPool& pool) const {
  return settings_.expandable_segments && !(pool.owner && pool.owner->own_allocator);
}

}  // namespace gpumem
