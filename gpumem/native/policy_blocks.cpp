// Containers of blocks: sorted lists, the address map, the store.
#include "policy_blocks.h"

#include <algorithm>

#include "check.h"

namespace gpumem {
namespace {

constexpr size_t kEntriesFew = 5;
constexpr size_t kSlabBlocks = 512;

}  // namespace

// How many of the ascending keys lie below `key`.
size_t BlockList::count_below(const Key* keys, size_t count, const Key& key) {
  const Key* first = keys;
  while (count > 1) {
    size_t half = count / 2;
    first += is_below(first[half - 1], key) ? half : 0;
    count -= half;
  }
  return static_cast<size_t>(first - keys) + (count == 1 && is_below(*first, key) ? 1 : 0);
}

BlockList::Cursor BlockList::lower_bound(const Key& key) const {
  size_t leaf = count_below(tops_.data(), tops_.size(), key);
  if (leaf == leaves_.size()) return end();
  return Cursor{leaf, count_below(leaves_[leaf]->keys, leaves_[leaf]->entry_count, key)};
}

void BlockList::insert(Block* block) {
  Key key = key_of(block);
  ++block_count_;
  Cursor cursor = lower_bound(key);
  if (is_end(cursor)) {
    if (leaves_.empty()) {
      leaves_.push_back(std::make_unique<Leaf>());
      tops_.push_back(key);
    }
    cursor = Cursor{leaves_.size() - 1, leaves_.back()->entry_count};
  }
  if (leaves_[cursor.leaf]->entry_count == kEntriesMax) {
    split_leaf(cursor.leaf);
    constexpr size_t kHalf = kEntriesMax / 2;
    if (cursor.slot > kHalf) cursor = Cursor{cursor.leaf + 1, cursor.slot - kHalf};
  }
  Leaf& leaf = *leaves_[cursor.leaf];
  std::copy_backward(leaf.keys + cursor.slot, leaf.keys + leaf.entry_count, leaf.keys + leaf.entry_count + 1);
  std::copy_backward(leaf.blocks + cursor.slot, leaf.blocks + leaf.entry_count, leaf.blocks + leaf.entry_count + 1);
  leaf.keys[cursor.slot] = key;
  leaf.blocks[cursor.slot] = block;
  ++leaf.entry_count;
  tops_[cursor.leaf] = leaf.keys[leaf.entry_count - 1];
}

void BlockList::split_leaf(size_t index) {
  constexpr size_t kHalf = kEntriesMax / 2;
  Leaf& lower = *leaves_[index];
  auto upper = std::make_unique<Leaf>();
  std::copy(lower.keys + kHalf, lower.keys + kEntriesMax, upper->keys);
  std::copy(lower.blocks + kHalf, lower.blocks + kEntriesMax, upper->blocks);
  upper->entry_count = kEntriesMax - kHalf;
  lower.entry_count = kHalf;
  tops_.insert(tops_.begin() + static_cast<std::ptrdiff_t>(index), lower.keys[kHalf - 1]);
  leaves_.insert(leaves_.begin() + static_cast<std::ptrdiff_t>(index) + 1, std::move(upper));
}

BlockList::Cursor BlockList::find(const Block* block) const {
  Cursor cursor = lower_bound(key_of(block));
  GM_CHECK(!is_end(cursor) && at(cursor) == block);
  return cursor;
}

void BlockList::move_at(Cursor cursor) {
  Leaf& leaf = *leaves_[cursor.leaf];
  Block* block = leaf.blocks[cursor.slot];
  Key key = key_of(block);
  bool fits_leaf = is_below(key, leaf.keys[cursor.slot]) && (cursor.leaf == 0 || is_below(tops_[cursor.leaf - 1], key));
  if (!fits_leaf) {
    erase_at(cursor);
    insert(block);
    return;
  }
  size_t slot = count_below(leaf.keys, cursor.slot, key);
  std::copy_backward(leaf.keys + slot, leaf.keys + cursor.slot, leaf.keys + cursor.slot + 1);
  std::copy_backward(leaf.blocks + slot, leaf.blocks + cursor.slot, leaf.blocks + cursor.slot + 1);
  leaf.keys[slot] = key;
  leaf.blocks[slot] = block;
  tops_[cursor.leaf] = leaf.keys[leaf.entry_count - 1];
}

void BlockList::erase_at(Cursor cursor) {
  Leaf& leaf = *leaves_[cursor.leaf];
  std::copy(leaf.keys + cursor.slot + 1, leaf.keys + leaf.entry_count, leaf.keys + cursor.slot);
  std::copy(leaf.blocks + cursor.slot + 1, leaf.blocks + leaf.entry_count, leaf.blocks + cursor.slot);
  --leaf.entry_count;
  --block_count_;
  if (leaf.entry_count == 0) {
    leaves_.erase(leaves_.begin() + static_cast<std::ptrdiff_t>(cursor.leaf));
    tops_.erase(tops_.begin() + static_cast<std::ptrdiff_t>(cursor.leaf));
    return;
  }
  tops_[cursor.leaf] = leaf.keys[leaf.entry_count - 1];
  if (leaf.entry_count < kEntriesFew) join_next_leaf(cursor.leaf);
}

void BlockList::join_next_leaf(size_t index) {
  if (index + 1 >= leaves_.size() || leaves_[index + 1]->entry_count >= kEntriesFew) return;
  Leaf& leaf = *leaves_[index];
  const Leaf& next = *leaves_[index + 1];
  std::copy(next.keys, next.keys + next.entry_count, leaf.keys + leaf.entry_count);
  std::copy(next.blocks, next.blocks + next.entry_count, leaf.blocks + leaf.entry_count);
  leaf.entry_count += next.entry_count;
  tops_.erase(tops_.begin() + static_cast<std::ptrdiff_t>(index));
  leaves_.erase(leaves_.begin() + static_cast<std::ptrdiff_t>(index) + 1);
}

Block* BlockList::find_last_up_to(uint64_t address) const {
  Cursor above = lower_bound(Key{address, 0, 1});
  return is_begin(above) || leaves_.empty() ? nullptr : at(before(above));
}

bool BlockList::contains(const Block* block) const {
  Cursor cursor = lower_bound(key_of(block));
  return !is_end(cursor) && at(cursor) == block;
}

BlockList::Cursor BlockList::after(Cursor cursor) const {
  if (cursor.slot + 1 < leaves_[cursor.leaf]->entry_count) return Cursor{cursor.leaf, cursor.slot + 1};
  return Cursor{cursor.leaf + 1, 0};
}

BlockList::Cursor BlockList::before(Cursor cursor) const {
  if (cursor.slot > 0) return Cursor{cursor.leaf, cursor.slot - 1};
  return Cursor{cursor.leaf - 1, leaves_[cursor.leaf - 1]->entry_count - 1};
}

Block* BlockStore::take() {
  if (unused_.empty()) {
    slabs_.push_back(std::make_unique<Block[]>(kSlabBlocks));
    for (size_t i = kSlabBlocks; i > 0; --i) unused_.push_back(&slabs_.back()[i - 1]);
  }
  Block* block = unused_.back();
  unused_.pop_back();
  ++live_count_;
  *block = Block();
  return block;
}

void BlockStore::give_back(Block* block) {
  unused_.push_back(block);
  --live_count_;
}

BlockMap::BlockMap() : entries_(1024), shift_(64 - 10) {}

void BlockMap::insert(Block* block) {
  if ((block_count_ + 1) * 2 > entries_.size()) grow();
  size_t slot = slot_of(block->address);
  while (entries_[slot].block) slot = (slot + 1) & (entries_.size() - 1);
  entries_[slot] = Entry{block->address, block};
  ++block_count_;
}

Block* BlockMap::find(uint64_t address) const {
  size_t slot = slot_of(address);
  while (entries_[slot].block && entries_[slot].address != address) slot = (slot + 1) & (entries_.size() - 1);
  return entries_[slot].block;
}

void BlockMap::erase(uint64_t address) {
  const size_t mask = entries_.size() - 1;
  size_t hole = slot_of(address);
  while (entries_[hole].address != address || !entries_[hole].block) hole = (hole + 1) & mask;
  // Close the gap: whatever was pushed past it moves back, so that no search stops short.
  for (size_t slot = (hole + 1) & mask; entries_[slot].block; slot = (slot + 1) & mask) {
    size_t home = slot_of(entries_[slot].address);
    if (((slot - home) & mask) >= ((slot - hole) & mask)) {
      entries_[hole] = entries_[slot];
      hole = slot;
    }
  }
  entries_[hole].block = nullptr;
  --block_count_;
}

void BlockMap::grow() {
  std::vector<Entry> old(entries_.size() * 2);
  old.swap(entries_);
  --shift_;
  block_count_ = 0;
  for (const Entry& entry : old)
    if (entry.block) insert(entry.block);
}

}  // namespace gpumem
