// What a recording does not say and its events tell: pools, empty_cache calls, collected segments, old slack.
#include <algorithm>

#include "check.h"
#include "gpumem.h"
#include "replay.h"

namespace gpumem {

Policy::Attempt TraceFollower::plan(const RecordedEvent& recorded, const PoolId& pool) {
  Request request;
  request.bytes = recorded.bytes;
  request.stream = recorded.stream;
  request.pool = &pool;
  Policy::Attempt attempt;
  expect(policy_.plan(request, &attempt), "the request");
  return attempt;
}

// Where a request landed tells its pool; a new segment's pool is told by its last state, or by what cannot be.
PoolId TraceFollower::pool_of_request(const Group& group) {
  const RecordedEvent& request = events_[group.last];
  if (request.pool_known) {
    if (!request.pool.is_default() && !policy_.has_pool(request.pool)) declare_pool(request.pool, false);
    return request.pool;
  }
  for (size_t i = group.released_end; i < group.last; ++i)
    if (events_[i].kind == GM_SEGMENT_ALLOC || events_[i].kind == GM_SEGMENT_MAP)
      return pool_of_new_segment(group, events_[i]);
  if (!has_private_pools_) return PoolId();
  const Segment* segment = request.kind == GM_ALLOC ? policy_.find_segment_at(request.address) : nullptr;
  if (!segment || !segment->pool->owner) return PoolId();
  result_.assumptions |= kPoolsInferred;
  return segment->pool->owner->id;
}

// A segment whose pool nobody knows belonged to a pool that is gone. It cannot be one in which the request fits;
// a capture goes on in its pool, so the pool of the request before comes first.
PoolId TraceFollower::pool_of_new_segment(const Group& group, const RecordedEvent& segment_event) {
  if (segment_event.pool_known) {
    if (!segment_event.pool.is_default() && !policy_.has_pool(segment_event.pool))
      declare_pool(segment_event.pool, false);
    if (!segment_event.pool.is_default()) result_.assumptions |= kPoolsInferred;
    return segment_event.pool;
  }
  const RecordedEvent& request = events_[group.last];
  std::vector<PoolId> candidates{last_pool_, PoolId()};
  for (uint64_t i = invented_pools_; i > 0; --i) candidates.push_back(PoolId{UINT64_MAX, i});
  for (const PoolId& candidate : candidates) {
    if (!candidate.is_default() && !policy_.has_pool(candidate)) continue;
    bool may_free_first = group.released_end > next_ || !slack_unknown_.empty();
    if (!may_free_first && policy_.find_fit(plan(request, candidate))) continue;
    return candidate;
  }
  return invent_pool();
}

PoolId TraceFollower::invent_pool() {
  constexpr uint64_t kInventedMax = 256;
  if (invented_pools_ == kInventedMax) part(PolicyEvent(), "no pool explains this segment");
  PoolId invented{UINT64_MAX, ++invented_pools_};
  declare_pool(invented, false);
  result_.assumptions |= kPoolsInvented;
  return invented;
}

// The default pools' large segments go back before their small ones, and these before any private pool's, which go back
// small ones first: a large segment behind a small one was a private pool's, though the request for it did not show it.
void TraceFollower::find_pools_by_order(const Group& group) {
  const Segment* small = nullptr;
  for (size_t i = group.completed_end; i < group.released_end; ++i) {
    const RecordedEvent& event = events_[i];
    const Segment* segment = policy_.find_segment_at(event.address);
    if (event.kind != GM_SEGMENT_FREE || event.pool_known || !segment || segment->is_expandable()) continue;
    if (segment->pool->is_small) small = segment;
    if (segment->pool->is_small || segment->pool->owner || !small) continue;
    policy_.move_to_pool(segment, small->pool->owner ? small->pool->owner->id : invent_pool());
  }
}

// Releases before a request: its own doing, or an empty_cache before it?
bool TraceFollower::is_explicit_release(const Group& group, const Policy::Attempt& attempt) {
  if (policy_.find_fit(attempt)) return true;  // it would have been served without any release
  if (events_[group.last].kind == GM_OOM && group.released_end == group.last) return false;
  if (garbage_from_trace_ || is_cut_) return false;
  std::vector<Block*> garbage = policy_.find_garbage();
  if (!garbage.empty()) return !predicts_release(garbage, group);
  if (options_.limit_known) {
    if (policy_.is_over_limit(attempt)) return false;
    // Below the limit only the card itself can refuse.
    uint64_t wanted_bytes = policy_.statistics().all.reserved_bytes.now + attempt.segment_bytes;
    if (options_.capacity_bytes == 0 || wanted_bytes <= options_.capacity_bytes / 16 * 15) return true;
    return false;
  }
  bool enough = false;
  if (predicts_release(policy_.find_oversize(attempt, &enough), group)) return false;
  // Either explains it and both leave the same heap. A reserve that was reached before cannot have been refused.
  uint64_t wanted_bytes = policy_.statistics().all.reserved_bytes.now + attempt.segment_bytes;
  if (wanted_bytes <= result_.reserved_bytes_accepted_max) return true;
  result_.assumptions |= kReleaseAmbiguous;
  return true;
}

// A refusal before which nothing came back though something could: a capture or a pool in force forbade it.
bool TraceFollower::was_release_forbidden(const Group& group) const {
  if (events_[group.last].kind != GM_OOM || group.released_end > group.completed_end) return false;
  const PoolStatistics& all = policy_.statistics().all;
  bool was_pending = all.active_bytes.now > all.allocated_bytes.now && group.completed_end == next_;
  return was_pending || policy_.measure_idle().releasable_bytes > 0;
}

bool TraceFollower::predicts_release(const std::vector<Block*>& victims, const Group& group) const {
  if (victims.empty() || victims.size() > group.released_end - group.completed_end) return false;
  for (size_t i = 0; i < victims.size(); ++i)
    if (events_[group.completed_end + i].address != victims[i]->address) return false;
  return true;
}

// Collected or released, in the recorded order: which of them is not known here, and makes no difference to the heap.
void TraceFollower::release_as_recorded(const Group& group) {
  expect(policy_.finish_ready_frees(), "finishing frees");
  for (size_t i = group.completed_end; i < group.released_end; ++i) {
    if (events_[i].kind != GM_SEGMENT_FREE) return follow_release(group);
    uint64_t address = events_[i].address;
    if (!policy_.release_free_segment(address)) part(PolicyEvent(), "this segment is not free");
  }
  if (garbage_from_trace_) result_.assumptions |= kGarbageFromTrace;
}

// The history may begin between a segment and the alloc that it was made for. A search need not find such a segment
// (it may be too large to be handed out anew), so it is made once more, unseen.
void TraceFollower::restore_cut_segment(const RecordedEvent& alloc, const Policy::Attempt& attempt) {
  const Segment* segment = policy_.find_segment_at(alloc.address);
  if (policy_.find_fit(attempt) || !segment || segment->bytes != attempt.segment_bytes) return;
  cut_segment_ = alloc.address;
  if (!policy_.release_free_segment(alloc.address)) cut_segment_ = 0;
}

// A private pool's segment goes back only when nobody holds the pool any more.
void TraceFollower::free_released_pools(const Group& group) {
  find_pools_by_order(group);
  if (!has_private_pools_) return;
  for (size_t i = group.completed_end; i < group.released_end; ++i) {
    const Segment* segment = policy_.find_segment_at(events_[i].address);
    if (segment && segment->pool->owner) policy_.set_pool_use_count(segment->pool->owner->id, 0);
  }
}

// A kind of segment that the settings rule out shows that they were changed.
void TraceFollower::follow_setting(const Group& group) {
  for (size_t i = group.released_end; i < group.last; ++i) {
    bool is_map = events_[i].kind == GM_SEGMENT_MAP;
    if (!is_map && events_[i].kind != GM_SEGMENT_ALLOC) continue;
    if (is_map == policy_.settings().expandable_segments) continue;
    Settings settings = policy_.settings();
    settings.expandable_segments = is_map;
    policy_.set_settings(settings);
    result_.assumptions |= kSettingsChanged;
  }
}

// An old block's slack ends where the first alloc behind it begins; and it is at least so large that no request is
// placed into the gap behind it where the recording placed none.
void TraceFollower::settle_slack(const RecordedEvent& alloc, const Policy::Attempt& attempt) {
  if (slack_unknown_.empty()) return;
  auto after = slack_unknown_.upper_bound(alloc.address);
  if (after != slack_unknown_.begin()) {
    Block* owner = policy_.find_live(*std::prev(after));
    const Block* gap = owner ? owner->next : nullptr;
    if (gap && gap->state == BlockState::kFree && alloc.address - gap->address < gap->bytes) {
      if (alloc.address > gap->address) move_border(owner, alloc.address - gap->address);
      slack_unknown_.erase(owner->address);
    }
  }
  for (Block* fit = policy_.find_fit(attempt); fit; fit = policy_.find_fit(attempt)) {
    Block* owner = fit->previous;
    bool is_unknown = owner && slack_unknown_.count(owner->address);
    if (fit->address == alloc.address || !is_unknown) return;
    if (!move_border(owner, fit->bytes - attempt.rounded_bytes + kBlockUnitBytes)) return;
  }
}

// False: a live block's slack is at most 1 MiB, and something must be left behind it.
bool TraceFollower::move_border(Block* owner, uint64_t slack_bytes) {
  uint64_t known_bytes = round_request(policy_.settings(), owner->requested_bytes);
  if (slack_bytes >= owner->next->bytes) return false;
  if (owner->bytes + slack_bytes > known_bytes + kSmallRequestBytesMax) return false;
  policy_.move_border(owner, owner->bytes + slack_bytes);
  return true;
}

}  // namespace gpumem
