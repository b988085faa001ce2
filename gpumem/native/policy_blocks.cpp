// Containers of blocks: sorted lists, the address map, the store.
#include "policy_blocks.h"

#include <algorithm>

#include "check.h"

namespace gpumem {
namespace {

constexpr size_t kLeafEntriesMax = 64;
constexpr size_t kLeafEntriesFew = 12;
constexpr size_t kSlabBlocks = 512;

}  // namespace

BlockList::Cursor BlockList::lower_bound(Key key) const {
  // The first leaf whose last entry is not below the key holds the answer.
  auto leaf = std::lower_bound(leaves_.begin(), leaves_.end(), key,
                               [](const Leaf& candidate, const Key& wanted) { return candidate.entries.back().key < wanted; });
  if (leaf == leaves_.end()) return end();
  auto entry = std::lower_bound(leaf->entries.begin(), leaf->entries.end(), key,
                                [](const Entry& candidate, const Key& wanted) { return candidate.key < wanted; });
  return Cursor{static_cast<size_t>(leaf - leaves_.begin()), static_cast<size_t>(entry - leaf->entries.begin())};
}

void BlockList::insert(Block* block) {
  Key key = key_of(block);
  ++block_count_;
  Cursor cursor = lower_bound(key);
  if (is_end(cursor)) {
    if (leaves_.empty()) {
      leaves_.emplace_back();
      leaves_.back().entries.reserve(kLeafEntriesMax);
    }
    cursor = Cursor{leaves_.size() - 1, leaves_.back().entries.size()};
  }
  auto* entries = &leaves_[cursor.leaf].entries;
  if (entries->size() == kLeafEntriesMax) {
    Leaf upper;
    upper.entries.reserve(kLeafEntriesMax);
    constexpr size_t kHalf = kLeafEntriesMax / 2;
    upper.entries.assign(entries->begin() + kHalf, entries->end());
    entries->resize(kHalf);
    leaves_.insert(leaves_.begin() + static_cast<std::ptrdiff_t>(cursor.leaf) + 1, std::move(upper));
    if (cursor.slot > kHalf) cursor = Cursor{cursor.leaf + 1, cursor.slot - kHalf};
    entries = &leaves_[cursor.leaf].entries;
  }
  entries->insert(entries->begin() + static_cast<std::ptrdiff_t>(cursor.slot), Entry{key, block});
}

void BlockList::erase(Block* block) {
  Cursor cursor = lower_bound(key_of(block));
  GM_CHECK(!is_end(cursor) && at(cursor) == block);
  auto& entries = leaves_[cursor.leaf].entries;
  entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(cursor.slot));
  --block_count_;
  auto leaf = leaves_.begin() + static_cast<std::ptrdiff_t>(cursor.leaf);
  if (entries.empty()) {
    leaves_.erase(leaf);
  } else if (entries.size() < kLeafEntriesFew && cursor.leaf + 1 < leaves_.size() &&
             leaf[1].entries.size() < kLeafEntriesFew) {
    entries.insert(entries.end(), leaf[1].entries.begin(), leaf[1].entries.end());
    leaves_.erase(leaf + 1);
  }
}

bool BlockList::contains(const Block* block) const {
  Cursor cursor = lower_bound(key_of(block));
  return !is_end(cursor) && at(cursor) == block;
}

BlockList::Cursor BlockList::after(Cursor cursor) const {
  if (cursor.slot + 1 < leaves_[cursor.leaf].entries.size()) return Cursor{cursor.leaf, cursor.slot + 1};
  return Cursor{cursor.leaf + 1, 0};
}

BlockList::Cursor BlockList::before(Cursor cursor) const {
  if (cursor.slot > 0) return Cursor{cursor.leaf, cursor.slot - 1};
  return Cursor{cursor.leaf - 1, leaves_[cursor.leaf - 1].entries.size() - 1};
}

StreamBlocks& BlockPool::blocks_of(uint64_t stream) {
  auto found = std::lower_bound(streams.begin(), streams.end(), stream,
                                [](const StreamBlocks& blocks, uint64_t wanted) { return blocks.stream < wanted; });
  if (found == streams.end() || found->stream != stream) {
    found = streams.insert(found, StreamBlocks());
    found->stream = stream;
  }
  return *found;
}

const StreamBlocks* BlockPool::find_blocks_of(uint64_t stream) const {
  for (const StreamBlocks& blocks : streams)
    if (blocks.stream == stream) return &blocks;
  return nullptr;
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
