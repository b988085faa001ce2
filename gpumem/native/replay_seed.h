// The heap before a recording began, worked out from the heap at its end and the events between.
//
// Owns: undoing events and finding what was live at the start. Must not know: how events are followed.
//
// Segments at the start = segments at the end - those made + those freed; mapped ranges likewise, backwards.
// Live at the start = freed without an alloc (address and request known) + active at the end without an alloc
// (size known). Everything between is free. One thing stays unknown: the slack, up to 1 MiB, of an old large block
// with a free right neighbour; the follower settles it as it goes.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "gpumem_policy.h"
#include "replay.h"

namespace gpumem {

// A segment, or one contiguous mapped range of a reservation (page_bytes not 0), with its blocks.
struct HeapSegment {
  SegmentDescription description;
  std::vector<BlockDescription> blocks;  // ascending; they tile the segment
  std::vector<uint64_t> slack_unknown;   // addresses of live blocks that may end later
};

struct Heap {
  std::vector<HeapSegment> segments;  // ascending
};

// False, with the reason, when the blocks do not tile the segments.
bool read_heap(const gm_heap_segments& segments, const gm_heap_blocks& blocks, Heap* heap, std::string* reason);

// Pools of the segment_alloc and segment_map events whose segment is still there at the end, by event position.
std::map<uint64_t, PoolId> find_segment_pools(const Heap& end, const std::vector<RecordedEvent>& events);

// Private pools with a live block that any other pool would have split.
std::set<PoolId> find_unsplit_pools(const Heap& end, const Settings& settings);

bool find_start(const Heap& end, const std::vector<RecordedEvent>& events, const Settings& settings, Heap* start,
                std::string* reason);

// Hands a heap to a follower, mapped ranges joined to reservations.
void adopt_heap(const Heap& heap, uint64_t capacity_bytes, TraceFollower* follower);

}  // namespace gpumem
