// The C interface of replay: argument checks and translation, nothing else.
#include <algorithm>

#include "gpumem_policy.h"
#include "policy_translate.h"
#include "replay_seed.h"
#include "replay_session.h"

struct gm_replay {
  gpumem::ReplaySession session;
  mutable bool is_broken = false;  // see guarded_on
};

using gpumem::behaviour_of;
using gpumem::copy_text;
using gpumem::guarded;
using gpumem::guarded_on;
using gpumem::has_columns;

namespace {

gpumem::TraceFollower* follower_of(const gm_replay* replay, uint32_t device) {
  return replay ? replay->session.find_device(device) : nullptr;
}

void fill_counts(const gpumem::Policy& policy, gm_replay_result* result) {
  const gpumem::Statistics& statistics = policy.statistics();
  result->allocated_bytes_end = statistics.all.allocated_bytes.now;
  result->allocated_bytes_peak = statistics.all.allocated_bytes.peak;
  result->active_bytes_end = statistics.all.active_bytes.now;
  result->active_bytes_peak = statistics.all.active_bytes.peak;
  result->requested_bytes_end = statistics.all.requested_bytes.now;
  result->requested_bytes_peak = statistics.all.requested_bytes.peak;
  result->reserved_bytes_end = statistics.all.reserved_bytes.now;
  result->reserved_bytes_peak = statistics.all.reserved_bytes.peak;
  result->cache_hits = statistics.cache_hits;
  result->splits = statistics.splits;
  result->alloc_retries = statistics.alloc_retries;
  result->ooms = statistics.ooms;
  result->device_allocs = statistics.device_allocs;
  result->device_frees = statistics.device_frees;
  gpumem::IdleMeasure idle = policy.measure_idle();
  result->releasable_bytes_end = idle.releasable_bytes;
  result->gap_bytes_end = idle.gap_bytes;
  result->small_free_bytes_max = idle.small_free_bytes_max;
  result->large_free_bytes_max = idle.large_free_bytes_max;
}

void fill_difference(const gpumem::Difference& difference, gm_replay_result* result) {
  result->exact = !difference.found;
  if (!difference.found) return;
  result->difference_position = difference.position;
  result->expected_kind = difference.expected.kind;
  result->expected_address = difference.expected.address;
  result->expected_bytes = difference.expected.bytes;
  result->expected_stream = difference.expected.stream;
  result->got_kind = difference.got.kind;
  result->got_address = difference.got.address;
  result->got_bytes = difference.got.requested_bytes;
  result->got_stream = difference.got.stream;
  copy_text(difference.reason, result->reason, sizeof(result->reason));
}

}  // namespace

gm_status gm_replay_create(gm_replay** replay) {
  if (!replay) return GM_BAD_ARGUMENT;
  return guarded([&]() -> gm_status {
    *replay = new gm_replay();
    return GM_OK;
  });
}

void gm_replay_destroy(gm_replay* replay) {
  delete replay;
}

gm_status gm_replay_add_streams(gm_replay* replay, const uint64_t* handles, uint64_t count) {
  if (!replay || (count && !handles)) return GM_BAD_ARGUMENT;
  return guarded_on(replay, [&]() -> gm_status {
    replay->session.reader().add_streams(handles, count);
    return GM_OK;
  });
}

gm_status gm_replay_add_pools(gm_replay* replay, const uint64_t* first, const uint64_t* second, uint64_t count) {
  if (!replay || (count && (!first || !second))) return GM_BAD_ARGUMENT;
  return guarded_on(replay, [&]() -> gm_status {
    for (uint64_t i = 0; i < count; ++i) replay->session.reader().add_pool(gpumem::PoolId{first[i], second[i]});
    return GM_OK;
  });
}

gm_status gm_replay_add_device(gm_replay* replay, const gm_replay_device* device, char* error, size_t capacity) {
  if (!replay || !device || !device->settings || replay->session.find_device(device->device)) return GM_BAD_ARGUMENT;
  return guarded_on(replay, [&]() -> gm_status {
    gpumem::ReplayOptions options;
    std::string reason;
    bool ok = gpumem::parse_settings(device->settings, &options.settings, &reason);
    copy_text(reason, error, capacity);
    if (!ok) return GM_POLICY_BAD_SETTINGS;
    options.behaviour = behaviour_of(device->behaviour);
    options.limit_bytes = device->limit_bytes;
    options.limit_known = device->limit_known;
    options.capacity_bytes = device->capacity_bytes;
    if (!options.limit_known && options.settings.memory_fraction_set && options.capacity_bytes) {
      options.limit_known = true;
      options.limit_bytes = gpumem::limit_of(GM_NO_LIMIT, options.capacity_bytes, options.settings);
    }
    options.truncated = device->truncated;
    options.check_each_event = device->check_each_event;
    replay->session.add_device(device->device, options);
    return GM_OK;
  });
}

gm_status gm_replay_adopt(gm_replay* replay, uint32_t device, const gm_heap_segments* segments,
                          const gm_heap_blocks* blocks) {
  gpumem::TraceFollower* follower = follower_of(replay, device);
  if (!follower || !segments || !blocks) return GM_BAD_ARGUMENT;
  return guarded_on(replay, [&]() -> gm_status {
    gpumem::Heap heap;
    std::string reason;
    if (!gpumem::read_heap(*segments, *blocks, &heap, &reason)) return GM_BAD_ARGUMENT;
    gpumem::adopt_heap(heap, replay->session.find_options(device)->capacity_bytes, follower);
    return GM_OK;
  });
}

gm_status gm_replay_adopt_from_end(gm_replay* replay, uint32_t device, const gm_heap_segments* segments,
                                   const gm_heap_blocks* blocks, const gm_replay_events* events, char* error,
                                   size_t capacity) {
  gpumem::TraceFollower* follower = follower_of(replay, device);
  if (!follower || !segments || !blocks || !has_columns(events)) return GM_BAD_ARGUMENT;
  return guarded_on(replay, [&]() -> gm_status {
    gpumem::Heap end;
    std::string reason;
    if (!gpumem::read_heap(*segments, *blocks, &end, &reason)) {
      copy_text(reason, error, capacity);
      return GM_BAD_ARGUMENT;
    }
    std::vector<gpumem::RecordedEvent> own = replay->session.reader().select(*events, device, 0);
    const gpumem::ReplayOptions& options = *replay->session.find_options(device);
    replay->session.reader().set_segment_pools(gpumem::find_segment_pools(end, own));
    for (const gpumem::PoolId& pool : gpumem::find_unsplit_pools(end, options.settings))
      follower->declare_pool(pool, true);
    if (!options.truncated) return GM_OK;
    gpumem::Heap start;
    if (!gpumem::find_start(end, own, options.settings, &start, &reason)) {
      copy_text(reason, error, capacity);
      return GM_BAD_ARGUMENT;
    }
    gpumem::adopt_heap(start, options.capacity_bytes, follower);
    return GM_OK;
  });
}

gm_status gm_replay_feed(gm_replay* replay, const gm_replay_events* events) {
  if (!replay || !has_columns(events)) return GM_BAD_ARGUMENT;
  return guarded_on(replay, [&]() -> gm_status {
    replay->session.feed(*events);
    return GM_OK;
  });
}

gm_status gm_replay_finish(gm_replay* replay) {
  if (!replay) return GM_BAD_ARGUMENT;
  return guarded_on(replay, [&]() -> gm_status {
    replay->session.finish();
    return GM_OK;
  });
}

gm_status gm_replay_settle(gm_replay* replay, uint64_t position) {
  if (!replay) return GM_BAD_ARGUMENT;
  return guarded_on(replay, [&]() -> gm_status {
    replay->session.settle(position);
    return GM_OK;
  });
}

uint64_t gm_replay_ready(const gm_replay* replay) {
  return replay && !replay->is_broken ? replay->session.ready_count() : 0;
}

gm_status gm_replay_take(gm_replay* replay, uint64_t count, uint64_t* block_bytes, uint64_t* split_bytes,
                         uint16_t* flags) {
  if (!replay || count > gm_replay_ready(replay)) return GM_BAD_ARGUMENT;
  if (count && (!block_bytes || !split_bytes || !flags)) return GM_BAD_ARGUMENT;
  return guarded_on(replay, [&]() -> gm_status {
    replay->session.take(count, block_bytes, split_bytes, flags);
    return GM_OK;
  });
}

gm_status gm_replay_get_result(const gm_replay* replay, uint32_t device, gm_replay_result* result) {
  const gpumem::TraceFollower* follower = follower_of(replay, device);
  if (!follower || !result) return GM_BAD_ARGUMENT;
  return guarded_on(replay, [&]() -> gm_status {
    const gpumem::ReplayResult& told = follower->result();
    *result = gm_replay_result();
    result->decisions = told.decisions;
    result->events = told.events;
    result->limit_bytes_min = told.reserved_bytes_accepted_max;
    result->limit_bytes_max = told.reserved_bytes_refused_min;
    result->empty_cache_count = told.empty_cache_positions.size();
    result->assumptions = told.assumptions;
    fill_counts(follower->policy(), result);
    fill_difference(told.difference, result);
    return GM_OK;
  });
}

gm_status gm_replay_get_empty_caches(const gm_replay* replay, uint32_t device, uint64_t* positions, uint64_t capacity) {
  const gpumem::TraceFollower* follower = follower_of(replay, device);
  if (!follower || (capacity && !positions)) return GM_BAD_ARGUMENT;
  const auto& told = follower->result().empty_cache_positions;
  std::copy_n(told.begin(), std::min<size_t>(told.size(), capacity), positions);
  return GM_OK;
}

gm_status gm_replay_count_heap(const gm_replay* replay, uint32_t device, uint64_t* segments, uint64_t* blocks) {
  const gpumem::TraceFollower* follower = follower_of(replay, device);
  if (!follower || !segments || !blocks) return GM_BAD_ARGUMENT;
  return guarded_on(replay, [&]() -> gm_status {
    gm_heap_segments segment_rows = {};
    gm_heap_blocks block_rows = {};
    gpumem::list_heap(follower->policy(), &segment_rows, &block_rows);
    *segments = segment_rows.count;
    *blocks = block_rows.count;
    return GM_OK;
  });
}

gm_status gm_replay_get_heap(const gm_replay* replay, uint32_t device, gm_heap_segments* segments,
                             gm_heap_blocks* blocks) {
  const gpumem::TraceFollower* follower = follower_of(replay, device);
  if (!follower || !segments || !blocks || !segments->address || !blocks->address) return GM_BAD_ARGUMENT;
  return guarded_on(replay, [&]() -> gm_status {
    gpumem::list_heap(follower->policy(), segments, blocks);
    return GM_OK;
  });
}
