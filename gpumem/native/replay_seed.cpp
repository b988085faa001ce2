// The heap before a recording began; see the header.
#include "replay_seed.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "gpumem.h"

namespace gpumem {
namespace {

struct StartBlock {
  uint64_t requested_bytes = 0;
  uint64_t bytes = 0;  // 0: not known beyond what the request rounds to
  BlockState state = BlockState::kAllocated;
};

// Segments and mapped ranges by address, as events are undone.
class Ranges {
 public:
  explicit Ranges(const Heap& end) {
    for (const HeapSegment& segment : end.segments) ranges_[segment.description.address] = segment.description;
  }

  // Undoes events[i]; those before it are what tells the pool of a range that was unmapped.
  bool undo(const std::vector<RecordedEvent>& events, size_t i, std::string* reason) {
    const RecordedEvent& event = events[i];
    if (event.kind == GM_SEGMENT_ALLOC || event.kind == GM_SEGMENT_MAP) return remove(event, reason);
    if (event.kind == GM_SEGMENT_FREE) add(event, event.bytes == kSmallSegmentBytes, 0);
    if (event.kind == GM_SEGMENT_UNMAP) {
      bool is_small = was_small(events, i);
      add(event, is_small, is_small ? kSmallSegmentBytes : kLargeSegmentBytes);
    }
    return true;
  }

  const std::map<uint64_t, SegmentDescription>& ranges() const { return ranges_; }

 private:
  bool remove(const RecordedEvent& event, std::string* reason) {
    auto after = ranges_.upper_bound(event.address);
    uint64_t end = event.address + event.bytes;
    if (after == ranges_.begin() || std::prev(after)->second.address + std::prev(after)->second.bytes < end) {
      *reason =
          "event " + std::to_string(event.position) + " made a segment that was neither freed nor there at the end";
      return false;
    }
    SegmentDescription whole = std::prev(after)->second;
    ranges_.erase(std::prev(after));
    insert(whole, whole.address, event.address);
    insert(whole, end, whole.address + whole.bytes);
    return true;
  }

  void add(const RecordedEvent& event, bool is_small, uint64_t page_bytes) {
    SegmentDescription range;
    range.stream = event.stream;
    range.pool = event.pool;
    range.is_small = is_small;
    range.page_bytes = page_bytes;
    insert(range, event.address, event.address + event.bytes);
  }

  // Requests inside the range tell; without any, so do its bytes, as small pages need not add up to large ones.
  static bool was_small(const std::vector<RecordedEvent>& events, size_t unmap) {
    const RecordedEvent& range = events[unmap];
    if (range.bytes % kLargeSegmentBytes != 0) return true;
    constexpr size_t kEventsBackMax = 1 << 16;
    for (size_t i = unmap; i > 0 && unmap - i < kEventsBackMax; --i) {
      const RecordedEvent& event = events[i - 1];
      bool has_request = event.kind == GM_ALLOC || event.kind == GM_FREE || event.kind == GM_FREE_REQUESTED;
      if (has_request && event.address - range.address < range.bytes) return event.bytes <= kSmallRequestBytesMax;
    }
    return false;
  }

  // Ranges of one reservation that touch become one.
  void insert(const SegmentDescription& like, uint64_t begin, uint64_t end) {
    if (begin >= end) return;
    SegmentDescription range = like;
    range.address = begin;
    range.bytes = end - begin;
    auto next = ranges_.lower_bound(begin);
    if (next != ranges_.end() && next->first == end && belongs(next->second, range)) {
      range.bytes += next->second.bytes;
      next = ranges_.erase(next);
    }
    if (next != ranges_.begin()) {
      SegmentDescription& before = std::prev(next)->second;
      if (before.address + before.bytes == begin && belongs(before, range)) {
        before.bytes += range.bytes;
        return;
      }
    }
    ranges_[begin] = range;
  }

  static bool belongs(const SegmentDescription& a, const SegmentDescription& b) {
    return a.page_bytes && a.page_bytes == b.page_bytes && a.stream == b.stream && a.pool == b.pool;
  }

  std::map<uint64_t, SegmentDescription> ranges_;
};

// Blocks that were live at the start, by address.
std::map<uint64_t, StartBlock> find_start_blocks(const Heap& end, const std::vector<RecordedEvent>& events) {
  std::map<uint64_t, StartBlock> blocks;
  std::unordered_set<uint64_t> live;             // allocated in the trace
  std::unordered_map<uint64_t, bool> requested;  // free requested, not completed: of a start block?
  for (const RecordedEvent& event : events) {
    if (event.kind == GM_ALLOC) live.insert(event.address);
    if (event.kind == GM_FREE_COMPLETED && requested.erase(event.address)) continue;
    if (event.kind != GM_FREE && event.kind != GM_FREE_REQUESTED && event.kind != GM_FREE_COMPLETED) continue;
    bool is_start = live.erase(event.address) == 0;
    if (event.kind == GM_FREE_REQUESTED) requested[event.address] = is_start;
    if (!is_start) continue;
    BlockState state = event.kind == GM_FREE_COMPLETED ? BlockState::kPending : BlockState::kAllocated;
    blocks[event.address] = StartBlock{event.bytes, 0, state};
  }
  for (const HeapSegment& segment : end.segments)
    for (const BlockDescription& block : segment.blocks) {
      if (block.state != BlockState::kAllocated && block.state != BlockState::kPending) continue;
      if (live.count(block.address)) continue;
      auto pending = requested.find(block.address);
      if (pending != requested.end() && !pending->second) continue;  // handed out and freed in the trace
      BlockState state = pending != requested.end() ? BlockState::kAllocated : block.state;
      blocks[block.address] = StartBlock{block.requested_bytes, block.bytes, state};
    }
  return blocks;
}

class Tiler {
 public:
  Tiler(const Settings& settings, HeapSegment* segment) : settings_(settings), segment_(segment) {}

  bool tile(std::map<uint64_t, StartBlock>::const_iterator first, std::map<uint64_t, StartBlock>::const_iterator last) {
    uint64_t position = segment_->description.address;
    uint64_t end = position + segment_->description.bytes;
    for (auto block = first; block != last; ++block) {
      if (block->first < position) return false;
      add_free(position, block->first);
      uint64_t limit = std::next(block) == last ? end : std::next(block)->first;
      position = block->first + bytes_of(block->first, block->second, limit);
      if (position > limit) return false;
      segment_->blocks.push_back(
          BlockDescription{block->first, position - block->first, block->second.requested_bytes, block->second.state});
    }
    add_free(position, end);
    return true;
  }

 private:
  void add_free(uint64_t begin, uint64_t end) {
    if (begin < end) segment_->blocks.push_back(BlockDescription{begin, end - begin, 0, BlockState::kFree});
  }

  // `limit`: where the next live block or the segment's end stands.
  uint64_t bytes_of(uint64_t address, const StartBlock& block, uint64_t limit) {
    if (block.bytes) return block.bytes;
    uint64_t rounded_bytes = round_request(settings_, block.requested_bytes);
    const SegmentDescription& segment = segment_->description;
    if (segment.is_small || segment.page_bytes || settings_.expandable_segments) return rounded_bytes;
    if (rounded_bytes >= settings_.max_split_bytes) return limit - address;
    uint64_t gap_bytes = limit - address - std::min(limit - address, rounded_bytes);
    if (gap_bytes <= kSmallRequestBytesMax) return rounded_bytes + gap_bytes;
    segment_->slack_unknown.push_back(address);
    return rounded_bytes;
  }

  const Settings& settings_;
  HeapSegment* segment_;
};

uint64_t round_up(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

uint64_t reservation_bytes(uint64_t capacity_bytes, uint64_t page_bytes) {
  uint64_t bytes = capacity_bytes ? capacity_bytes + capacity_bytes / 8 : kReservationBytesUnknownCard;
  return round_up(bytes, page_bytes);
}

// A reservation from its mapped ranges, which ascend; between and behind them lies unmapped space.
void adopt_reservation(const std::vector<const HeapSegment*>& ranges, uint64_t capacity_bytes,
                       TraceFollower* follower) {
  SegmentDescription reservation = ranges.front()->description;
  reservation.bytes = reservation_bytes(capacity_bytes, reservation.page_bytes);
  std::vector<BlockDescription> blocks;
  uint64_t position = reservation.address;
  auto add_unmapped = [&](uint64_t end) {
    if (position < end) blocks.push_back(BlockDescription{position, end - position, 0, BlockState::kUnmapped});
  };
  for (const HeapSegment* range : ranges) {
    add_unmapped(range->description.address);
    blocks.insert(blocks.end(), range->blocks.begin(), range->blocks.end());
    position = range->description.address + range->description.bytes;
  }
  add_unmapped(reservation.address + reservation.bytes);
  follower->adopt(reservation, blocks);
}

}  // namespace

bool read_heap(const gm_heap_segments& segments, const gm_heap_blocks& blocks, Heap* heap, std::string* reason) {
  uint64_t row = 0;
  for (uint64_t i = 0; i < segments.count; ++i) {
    HeapSegment segment;
    SegmentDescription& description = segment.description;
    description.address = segments.address[i];
    description.bytes = segments.bytes[i];
    description.stream = segments.stream[i];
    description.pool = PoolId{segments.pool_first[i], segments.pool_second[i]};
    description.is_small = segments.is_small[i];
    if (segments.is_expandable[i])
      description.page_bytes = description.is_small ? kSmallSegmentBytes : kLargeSegmentBytes;
    uint64_t position = description.address;
    uint64_t end = position + description.bytes;
    for (; row < blocks.count && position < end && blocks.address[row] == position; ++row) {
      if (blocks.bytes[row] == 0 || blocks.bytes[row] > end - position || blocks.bytes[row] % kBlockUnitBytes) break;
      if (blocks.state[row] > GM_BLOCK_PENDING) break;
      segment.blocks.push_back(BlockDescription{position, blocks.bytes[row], blocks.requested_bytes[row],
                                                static_cast<BlockState>(blocks.state[row])});
      position += blocks.bytes[row];
    }
    bool overlaps =
        !heap->segments.empty() &&
        heap->segments.back().description.address + heap->segments.back().description.bytes > description.address;
    constexpr uint64_t kAddressEnd = uint64_t{1} << 57;
    overlaps |= end > kAddressEnd || description.address % kBlockUnitBytes != 0;
    if (position != end || end == description.address || end < description.address || overlaps) {
      *reason = "segment " + std::to_string(i) + " is not tiled by its blocks";
      return false;
    }
    heap->segments.push_back(std::move(segment));
  }
  if (row != blocks.count) *reason = "block " + std::to_string(row) + " lies in no segment";
  return row == blocks.count;
}

std::map<uint64_t, PoolId> find_segment_pools(const Heap& end, const std::vector<RecordedEvent>& events) {
  std::map<uint64_t, PoolId> pools;
  std::map<uint64_t, const SegmentDescription*> alive;
  for (const HeapSegment& segment : end.segments) alive[segment.description.address] = &segment.description;
  for (auto event = events.rbegin(); event != events.rend(); ++event) {
    if (event->pool_known || (event->kind != GM_SEGMENT_ALLOC && event->kind != GM_SEGMENT_MAP)) continue;
    auto after = alive.upper_bound(event->address);
    if (after == alive.begin()) continue;
    const SegmentDescription* segment = std::prev(after)->second;
    if (event->address - segment->address >= segment->bytes || event->stream != segment->stream) continue;
    pools[event->position] = segment->pool;
    if (event->kind == GM_SEGMENT_ALLOC) alive.erase(std::prev(after));
  }
  return pools;
}

std::set<PoolId> find_unsplit_pools(const Heap& end, const Settings& settings) {
  std::set<PoolId> pools;
  for (const HeapSegment& segment : end.segments) {
    const SegmentDescription& description = segment.description;
    if (description.pool.is_default()) continue;
    for (const BlockDescription& block : segment.blocks) {
      if (block.state != BlockState::kAllocated) continue;
      uint64_t rounded_bytes = round_request(settings, block.requested_bytes);
      if (block.bytes <= rounded_bytes) continue;
      uint64_t slack_bytes = block.bytes - rounded_bytes;
      bool splits_fine = description.is_small || settings.expandable_segments;
      bool would_split =
          splits_fine || (rounded_bytes < settings.max_split_bytes && slack_bytes > kSmallRequestBytesMax);
      if (would_split) pools.insert(description.pool);
    }
  }
  return pools;
}

bool find_start(const Heap& end, const std::vector<RecordedEvent>& events, const Settings& settings, Heap* start,
                std::string* reason) {
  Ranges ranges(end);
  for (size_t i = events.size(); i > 0; --i)
    if (!ranges.undo(events, i - 1, reason)) return false;
  std::map<uint64_t, StartBlock> blocks = find_start_blocks(end, events);
  size_t placed_count = 0;
  uint64_t last_end = 0;
  for (const auto& [address, description] : ranges.ranges()) {
    if (address < last_end || description.bytes == 0 || address + description.bytes < address) {
      *reason = "segments overlap when the history begins, at " + std::to_string(address);
      return false;
    }
    last_end = address + description.bytes;
    HeapSegment segment;
    segment.description = description;
    auto first = blocks.lower_bound(address);
    auto last = blocks.lower_bound(address + description.bytes);
    if (!Tiler(settings, &segment).tile(first, last)) {
      *reason = "the blocks that were live when the history began do not fit the segment at " + std::to_string(address);
      return false;
    }
    placed_count += static_cast<size_t>(std::distance(first, last));
    start->segments.push_back(std::move(segment));
  }
  if (placed_count != blocks.size()) *reason = "a block that was live when the history began lies in no segment";
  return placed_count == blocks.size();
}

void adopt_heap(const Heap& heap, uint64_t capacity_bytes, TraceFollower* follower) {
  // Ranges of one stream, pool and page size within reach of the first are one reservation.
  std::vector<std::vector<const HeapSegment*>> reservations;
  std::map<std::tuple<uint64_t, PoolId, uint64_t>, size_t> last_of;
  for (const HeapSegment& segment : heap.segments) {
    const SegmentDescription& range = segment.description;
    for (uint64_t address : segment.slack_unknown) follower->set_slack_unknown(address);
    if (!range.page_bytes) {
      follower->adopt(range, segment.blocks);
      continue;
    }
    auto [last, is_first] = last_of.try_emplace({range.stream, range.pool, range.page_bytes}, reservations.size());
    bool is_near = !is_first && range.address - reservations[last->second].front()->description.address <
                                    reservation_bytes(capacity_bytes, range.page_bytes);
    if (!is_near) {
      last->second = reservations.size();
      reservations.emplace_back();
    }
    reservations[last->second].push_back(&segment);
  }
  for (const auto& ranges : reservations) adopt_reservation(ranges, capacity_bytes, follower);
}

}  // namespace gpumem
