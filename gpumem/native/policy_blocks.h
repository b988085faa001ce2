// The heap's parts: blocks, segments, free lists, pools.
//
// Owns: what a block and a segment are and which equations hold between them. Must not know: which block a request
// gets (policy_search.cpp), when anything is released (policy_release.cpp), devices, events.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace gpumem {

// A private pool's id as PyTorch gives it: (n, 0) a CUDA graph's, (0, n) a MemPool's, (0, 0) the default pools.
struct PoolId {
  uint64_t first = 0;
  uint64_t second = 0;
  bool is_default() const { return first == 0 && second == 0; }
  bool operator==(const PoolId& other) const { return first == other.first && second == other.second; }
  bool operator<(const PoolId& other) const {
    return first != other.first ? first < other.first : second < other.second;
  }
};

enum class BlockState : uint8_t {
  kFree = 0,       // mapped, in its pool's free list
  kAllocated = 1,  // the program holds it
  kPending = 2,    // freed by the program, another stream still uses it
  kUnmapped = 3    // address space of an expandable segment without memory
};

struct Segment;

// A stretch of a segment.
//   blocks of a segment: first.address = segment.address; next.address = address + bytes; sum(bytes) = segment.bytes
//   kFree, kUnmapped: no neighbour in the same state
//   kAllocated, kPending: requested_bytes <= bytes; slack = bytes - requested_bytes
//   kPending: event_count > 0, or a capture holds back its events
struct Block {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t requested_bytes = 0;  // what was asked; once free, what its last owner had asked
  uint64_t number = 0;           // among equally large ones the lowest comes first: its age, its segment's, or 0
  uint64_t age_base = 0;         // its pool's search_count when it was last put into the free list
  Segment* segment = nullptr;    // the segment it lies in
  Block* previous = nullptr;     // the block before it in the segment
  Block* next = nullptr;         // the block after it
  uint32_t event_count = 0;      // other streams' events it still waits for
  BlockState state = BlockState::kFree;
  bool has_stream_uses = false;  // record_stream named another stream since it was handed out
};

// The free (or the unmapped) blocks of one stream in one pool, in the order of (bytes, number, address), or of address
// alone.
// A sorted list of short sorted leaves: a search is two short binary searches, an insertion moves half a leaf.
//   every leaf holds 1 to kEntriesMax entries; leaves and the entries in them ascend
//   tops[i] = key of the last entry of leaf i; block_count = sum of entry_count
class BlockList {
 public:
  enum class Order : uint8_t { kBytes, kAddress };
  struct Cursor {
    size_t leaf = 0;
    size_t slot = 0;
  };

  explicit BlockList(Order order) : order_(order) {}

  [[gnu::hot]] void insert(Block* block);
  void erase(Block* block) { erase_at(find(block)); }
  bool contains(const Block* block) const;
  size_t block_count() const { return block_count_; }

  // First block with at least `bytes` (kBytes); the end when there is none.
  Cursor find_at_least(uint64_t bytes) const { return lower_bound(Key{bytes, 0, 0}); }
  // Last block that begins at `address` or before it (kAddress); null when there is none.
  Block* find_last_up_to(uint64_t address) const;
  Cursor begin() const { return Cursor{0, 0}; }
  Cursor end() const { return Cursor{leaves_.size(), 0}; }
  bool is_end(Cursor cursor) const { return cursor.leaf == leaves_.size(); }
  bool is_begin(Cursor cursor) const { return cursor.leaf == 0 && cursor.slot == 0; }
  Block* at(Cursor cursor) const { return leaves_[cursor.leaf]->blocks[cursor.slot]; }
  [[gnu::hot]] void erase_at(Cursor cursor);
  // Puts a block whose bytes and address have changed to its new place; mostly that is near the old one.
  void move_at(Cursor cursor);
  Cursor after(Cursor cursor) const;
  Cursor before(Cursor cursor) const;

 private:
  static constexpr size_t kEntriesMax = 16;
  struct Key {
    uint64_t major;   // bytes, or address
    uint64_t number;  // the block's, or 0
    uint64_t minor;   // address, or 0
  };
  static bool is_below(const Key& a, const Key& b) {
    bool is_minor_below = (a.number < b.number) | ((a.number == b.number) & (a.minor < b.minor));
    return (a.major < b.major) | ((a.major == b.major) & is_minor_below);
  }
  struct Leaf {
    size_t entry_count = 0;
    Key keys[kEntriesMax];
    Block* blocks[kEntriesMax];  // blocks[i] has keys[i]
  };

  Key key_of(const Block* block) const;
  static size_t count_below(const Key* keys, size_t count, const Key& key);
  [[gnu::hot]] Cursor lower_bound(const Key& key) const;
  Cursor find(const Block* block) const;
  void split_leaf(size_t leaf);
  void join_next_leaf(size_t leaf);

  Order order_;
  size_t block_count_ = 0;
  std::vector<Key> tops_;
  std::vector<std::unique_ptr<Leaf>> leaves_;
};

struct PrivatePool;

// One stream's share of a pool.
struct StreamBlocks {
  BlockList free{BlockList::Order::kBytes};
  BlockList unmapped{BlockList::Order::kAddress};
};

// Small or large blocks of the default pools or of a private pool.
//   a block is in `free` of its segment's stream exactly while kFree, in `unmapped` exactly while kUnmapped
//   small: every segment is kSmallSegmentBytes, or a reservation with pages of that many
struct BlockPool {
  bool is_small = false;
  PrivatePool* owner = nullptr;              // null: the default pools
  uint64_t search_count = 0;                 // searches while garbage collection is armed; ages are counted in them
  std::map<uint64_t, StreamBlocks> streams;  // by raw handle, ascending: the order of every walk over the pool
};

// A pool of its own for CUDA graphs or a MemPool.
//   segment_count = ordinary segments in both pools
struct PrivatePool {
  PoolId id;
  uint32_t use_count = 1;      // holders: captures and MemPool objects; 0: its memory may be released
  uint64_t segment_count = 0;  // ordinary segments it holds
  bool no_split = false;       // blocks are handed out whole
  bool use_on_oom = false;     // the default pools may take its free blocks before they give up
  bool own_allocator = false;  // the program brings segments itself: no expandable segments inside
  BlockPool small;
  BlockPool large;
};

// Memory from the driver (ordinary), or a reservation of address space that is mapped page by page (expandable).
//   ordinary: mapped_bytes = bytes
//   expandable: mapped_bytes = bytes of its blocks that are not kUnmapped; both are multiples of page_bytes
struct Segment {
  uint64_t address = 0;
  uint64_t bytes = 0;         // tiled by its blocks
  uint64_t mapped_bytes = 0;  // backed by memory
  uint64_t stream = 0;        // raw handle
  uint64_t page_bytes = 0;    // 0: ordinary
  uint64_t number = 0;        // of all segments in the order they came
  BlockPool* pool = nullptr;
  StreamBlocks* lists = nullptr;  // its stream's share of the pool
  Block* first = nullptr;
  bool is_expandable() const { return page_bytes != 0; }
};

inline BlockList::Key BlockList::key_of(const Block* block) const {
  if (order_ == Order::kAddress) return Key{block->address, 0, 0};
  return Key{block->bytes, block->number, block->address};
}

inline bool is_whole_segment(const Block* block) {
  return !block->previous && !block->next;
}

// Blocks in slabs, recycled: a block's address never changes while it lives.
class BlockStore {
 public:
  Block* take();
  void give_back(Block* block);
  size_t live_count() const { return live_count_; }

 private:
  std::vector<std::unique_ptr<Block[]>> slabs_;
  std::vector<Block*> unused_;
  size_t live_count_ = 0;
};

// Live blocks by address: open addressing, linear probing, no tombstones.
class BlockMap {
 public:
  BlockMap();
  [[gnu::hot]] void insert(Block* block);
  [[gnu::hot]] Block* find(uint64_t address) const;
  [[gnu::hot]] void erase(uint64_t address);
  size_t block_count() const { return block_count_; }

 private:
  struct Entry {
    uint64_t address;  // meaningless while block is null
    Block* block;
  };
  size_t slot_of(uint64_t address) const { return static_cast<size_t>((address >> 9) * 0x9E3779B97F4A7C15u >> shift_); }
  void grow();

  std::vector<Entry> entries_;
  unsigned shift_;
  size_t block_count_ = 0;
};

}  // namespace gpumem
