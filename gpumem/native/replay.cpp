// Following a recording request by request.
#include "replay.h"

#include "check.h"
#include "gpumem.h"

namespace gpumem {
namespace {

constexpr size_t kDropFollowedFrom = 65536;

Settings policy_settings(const ReplayOptions& options, bool garbage_from_trace) {
  Settings settings = options.settings;
  if (garbage_from_trace) settings.garbage_collection_threshold = 0.0;
  return settings;
}

// Ages count from the run's start and the trigger from the limit: without both, victims cannot be predicted.
bool needs_garbage_from_trace(const ReplayOptions& options) {
  return options.settings.garbage_collection_threshold > 0.0 && (options.truncated || !options.limit_known);
}

bool is_release(uint8_t kind) {
  return kind == GM_SEGMENT_FREE || kind == GM_SEGMENT_UNMAP;
}

}  // namespace

TraceFollower::TraceFollower(const ReplayOptions& options, DetailSink* details)
    : options_(options),
      details_(details),
      policy_(this, policy_settings(options, needs_garbage_from_trace(options)), options.behaviour, this),
      garbage_from_trace_(needs_garbage_from_trace(options)),
      is_cut_(options.truncated) {
  if (options.limit_known) policy_.set_limit(options.limit_bytes);
}

void TraceFollower::adopt(const SegmentDescription& segment, const std::vector<BlockDescription>& blocks) {
  has_private_pools_ |= !segment.pool.is_default();
  // The policy records one event for each pending block, in this order.
  for (const BlockDescription& block : blocks)
    if (block.state == BlockState::kPending) pending_addresses_.push_back(block.address);
  policy_.adopt(segment, blocks);
}

void TraceFollower::declare_pool(PoolId id, bool no_split) {
  has_private_pools_ = true;
  policy_.create_pool(id, no_split, false, false);
}

void TraceFollower::follow(bool at_end) {
  try {
    while (!result_.difference.found && next_ < events_.size()) {
      size_t before = next_;
      follow_one(at_end);
      if (next_ == before && is_waiting_) break;
      if (next_ == before) part(PolicyEvent(), "the policy does nothing here");
      if (options_.check_each_event) check_heap();
      if (next_ >= kDropFollowedFrom) drop_followed();
    }
  } catch (const Parted&) {
  }
  if (result_.difference.found) next_ = events_.size();
  drop_followed();
  if (at_end && !slack_unknown_.empty()) result_.assumptions |= kSlackUnknown;
}

void TraceFollower::follow_one(bool at_end) {
  const RecordedEvent& event = events_[next_];
  switch (event.kind) {
    case GM_FREE:
    case GM_FREE_REQUESTED:
      return follow_free(event);
    case GM_EMPTY_CACHE:
      return follow_empty_cache(at_end);
    default: {
      Group group = find_group(at_end);
      is_waiting_ = !group.is_complete;
      if (is_waiting_) return;
      return group.has_request ? follow_request(group) : follow_release(group);
    }
  }
}

void TraceFollower::follow_free(const RecordedEvent& event) {
  if (!slack_unknown_.empty()) slack_unknown_.erase(event.address);
  if (event.kind == GM_FREE_REQUESTED) {
    // Any stream but its own makes the block wait; the recording says until when.
    const Block* block = policy_.find_live(event.address);
    if (block) expect(policy_.record_stream(event.address, block->segment->stream + 1), "record_stream");
    pending_addresses_.push_back(event.address);
  }
  if (policy_.free(event.address) != Outcome::kOk) part(PolicyEvent(), "no live block begins at this address");
}

// A recorded call: the policy completes and releases what stands behind it, all of that and nothing else.
void TraceFollower::follow_empty_cache(bool at_end) {
  Group group = find_released(next_ + 1);
  is_waiting_ = group.released_end == events_.size() && !at_end;
  if (is_waiting_) return;
  free_released_pools(group);
  ++next_;
  ++result_.events;
  expect(policy_.empty_cache(), "empty_cache");
  if (next_ < group.released_end) part(PolicyEvent(), "the call gave more back when recorded");
  ++result_.decisions;
}

// Completions and releases from `first` on.
TraceFollower::Group TraceFollower::find_released(size_t first) const {
  Group group;
  size_t i = first;
  while (i < events_.size() && events_[i].kind == GM_FREE_COMPLETED) ++i;
  group.completed_end = i;
  while (i < events_.size() && is_release(events_[i].kind)) ++i;
  group.released_end = i;
  return group;
}

TraceFollower::Group TraceFollower::find_group(bool at_end) const {
  Group group = find_released(next_);
  size_t i = group.released_end;
  for (; i < events_.size(); ++i) {
    uint8_t kind = events_[i].kind;
    group.has_request = kind == GM_ALLOC || kind == GM_OOM;
    if (group.has_request || kind == GM_FREE || kind == GM_FREE_REQUESTED || kind == GM_EMPTY_CACHE) {
      group.is_complete = true;
      break;
    }
  }
  group.last = i;
  group.is_complete |= at_end;
  return group;
}

// An alloc or oom with the events before it that belong to it.
void TraceFollower::follow_request(const Group& group) {
  const RecordedEvent request = events_[group.last];
  PoolId pool = pool_of_request(group);
  bool is_plain = group.last == next_ && slack_unknown_.empty() && !is_cut_;
  Policy::Attempt attempt;
  if (!is_plain) {
    follow_setting(group);
    bool is_served_first = group.released_end == group.completed_end && request.kind == GM_ALLOC;
    if (is_served_first && group.completed_end > next_) {
      expect(policy_.finish_ready_frees(), "finishing frees");
      return;  // what came back counts for the request
    }
    attempt = plan(request, pool);
    if (group.released_end > group.completed_end) {
      free_released_pools(group);
      if (is_explicit_release(group, attempt)) {
        follow_release(group);
        return;  // the rest of the group is a request without releases of its own
      }
      if (garbage_from_trace_ || is_cut_) {
        release_as_recorded(group);
        return;
      }
    }
    if (request.kind == GM_ALLOC) settle_slack(request, attempt);
    if (is_cut_ && group.last == next_) restore_cut_segment(request, attempt);
    if (group.released_end > group.completed_end || request.kind == GM_OOM) attempt_ = &attempt;
  }
  Request asked;
  asked.bytes = request.bytes;
  asked.stream = request.stream;
  asked.pool = &pool;
  asked.may_release_all = !was_release_forbidden(group);
  Allocation allocation;
  Outcome outcome = policy_.allocate(asked, &allocation);
  attempt_ = nullptr;
  is_cut_ = false;
  last_pool_ = pool;
  if (outcome != Outcome::kOk && outcome != Outcome::kOutOfMemory) expect(outcome, "alloc");
}

// Completions and releases that no request explains: an empty_cache call.
void TraceFollower::follow_release(const Group& group) {
  if (group.released_end == group.completed_end) {
    if (group.completed_end == next_) part(PolicyEvent(), "no request explains this event");
    expect(policy_.finish_ready_frees(), "finishing frees");
    return;
  }
  size_t before = next_;
  free_released_pools(group);
  result_.assumptions |= kEmptyCacheInferred;
  result_.empty_cache_positions.push_back(events_[next_].position);
  expect(policy_.empty_cache(), "empty_cache");
  if (next_ == before) part(PolicyEvent(), "nothing was left to release");
}

void TraceFollower::expect(Outcome outcome, const char* what) {
  if (outcome != Outcome::kOk) part(PolicyEvent(), std::string("the replayed heap refused: ") + what);
}

void TraceFollower::part(const PolicyEvent& got, const std::string& reason) {
  Difference& difference = result_.difference;
  difference.found = true;
  difference.got = got;
  difference.reason = reason;
  if (const RecordedEvent* event = next_event()) {
    difference.expected = *event;
    difference.position = event->position;
  } else if (!events_.empty()) {
    difference.position = events_.back().position + 1;
  }
  throw Parted();
}

void TraceFollower::check_heap() {
  std::string why;
  if (!policy_.check(&why)) part(PolicyEvent(), "the heap's equations do not hold: " + why);
}

uint64_t TraceFollower::next_position() const {
  return next_ < events_.size() ? events_[next_].position : UINT64_MAX;
}

void TraceFollower::drop_followed() {
  if (next_ == 0) return;
  events_.erase(events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(next_));
  next_ = 0;
}

}  // namespace gpumem
