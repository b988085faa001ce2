#include "recorder.h"

#include <atomic>
#include <cstdio>
#include <cstring>

#include "check.h"
#include "record_hold.h"
#include "segment_signal.h"
#include "session.h"
#include "thread_state.h"
#include "walker.h"

namespace gpumem::recorder {

namespace {

constexpr uint8_t kNoDevice = 255;

static_assert(kOwnLanes <= 64);
std::atomic<uint64_t> g_claimed_lanes{0};  // bit per lane behind the devices'

bool is_segment_event(uint8_t kind) {
  return kind >= GM_SEGMENT_ALLOC && kind <= GM_SEGMENT_UNMAP;
}

// Turns the lane's open free_requested into a free where `event` is its completion, unless the hold was taken back:
// then the completion becomes a record of its own. Either way nothing is open after that: the lane's next event has
// come.
[[gnu::always_inline]] inline bool complete_open_free(RecordHold* open_free, const gm_event& event) {
  if (GM_LIKELY(!open_free->is_open())) return false;
  gm_record* record = event.kind == GM_FREE_COMPLETED ? open_free->begin_change() : nullptr;
  const bool is_completed = record && record->address == event.address;
  if (is_completed) {
    const auto flags = static_cast<uint16_t>(record->flags | event.flags);
    __atomic_store_n(&record->flags, flags, __ATOMIC_RELAXED);
    __atomic_store_n(&record->kind, static_cast<uint8_t>(GM_FREE), __ATOMIC_RELEASE);
  }
  open_free->let_go();
  return is_completed;
}

// Cold only so that the compiler lays it out of an event's straight line, and what it needs besides.
[[gnu::cold, gnu::noinline]] uint32_t find_stack(Session* session, ThreadState* thread) {
  return gpumem::find_stack(session->intern, session->walker_caches, thread->chains);
}

[[gnu::always_inline]] inline gm_status append_event(Session* session, RecordHold* open_free, const gm_event& event) {
  ThreadState& thread = thread_state(session);
  uint32_t stack = 0;
  if (GM_LIKELY(session->has_stacks)) {
    stack = find_stack_near(thread.chains);
    if (GM_UNLIKELY(stack == 0)) stack = find_stack(session, &thread);
  }
  const uint16_t stream = thread.stream_ordinal(session, event.device, event.stream);
  const uint16_t pool = thread.pool_ordinal(session, event.pool_first, event.pool_second);
  const uint64_t time_ns = session->next_time_ns(event.device, thread.clock.time_ns(event.ticks));
  const RecordPlace place = session->journal.take();
  if (GM_UNLIKELY(place.record == nullptr)) return session->refuse_stopped();
  gm_record* record = place.record;
  record->time_ns = time_ns;
  record->address = event.address;
  record->requested_bytes = event.requested_bytes;
  record->block_bytes = event.block_bytes;
  record->split_bytes = event.split_bytes;
  record->stack = stack;
  record->scope = thread.scope;
  record->thread = thread.thread;
  record->stream = stream;
  record->pool = pool;
  record->device = event.device;
  record->kind = event.kind;
  record->flags = event.flags;
  if (event.kind == GM_FREE_REQUESTED && open_free) open_free->open(place.window, place.record);
  session->journal.commit(place);
  if (GM_UNLIKELY(is_segment_event(event.kind))) signal_segment_event();
  return GM_OK;
}

// The same code for PyTorch's own allocator as for ours, laid out in each one's way: an event takes few calls.
[[gnu::always_inline]] inline gm_status record_on_lane(const gm_event& event, uint32_t lane) {
  const Recording& recording = g_event_line.recording;
  if (!recording.is_enabled.load(std::memory_order_relaxed)) return GM_NOT_RECORDING;
  Session* session = current_session();
  if (GM_UNLIKELY(!session)) return GM_NOT_RECORDING;
  if (GM_UNLIKELY(!session->journal.is_open())) return session->refuse_stopped();
  RecordHold* open_free = GM_UNLIKELY(lane == kNoLane) ? nullptr : &session->lanes[lane].open_free;
  if (open_free && complete_open_free(open_free, event)) return GM_OK;
  return append_event(session, open_free, event);
}

}  // namespace

gm_status start(const gm_recorder_options& options, int32_t* errno_value) {
  set_enabled(true);
  return start_session(options, errno_value);
}

gm_status stop(const char* ended_by) {
  return stop_session(ended_by);
}

bool is_active() {
  const Session* session = open_session_or_null();
  return session && session->journal.is_open();
}

void set_enabled(bool enabled) {
  g_event_line.recording.is_enabled.store(enabled, std::memory_order_relaxed);
}

gm_status get_counts(gm_recorder_counts* counts) {
  *counts = {};
  const Session* session = latest_session();
  if (!session) return GM_NOT_RECORDING;
  counts->records = session->journal.record_count();
  counts->segment_events = segment_event_count();
  counts->journal_bytes = session->journal.reserved_bytes();
  counts->stacks = session->intern.stack_count();
  counts->records_refused = session->refused_count.load(std::memory_order_relaxed);
  counts->status = session->journal.status();
  counts->errno_value = session->journal.errno_value();
  return GM_OK;
}

gm_status get_path(char* path, size_t capacity) {
  const Session* session = latest_session();
  std::snprintf(path, capacity, "%s", session ? session->path.c_str() : "");
  return session ? GM_OK : GM_NOT_RECORDING;
}

uint32_t claim_lane() {
  for (uint32_t lane = 0; lane < kOwnLanes; ++lane) {
    const uint64_t bit = uint64_t{1} << lane;
    if ((g_claimed_lanes.fetch_or(bit, std::memory_order_acquire) & bit) == 0) return kDeviceLanes + lane;
  }
  return kNoLane;
}

void give_back_lane(uint32_t lane) {
  if (lane == kNoLane) return;
  if (Session* session = open_session_or_null()) session->lanes[lane].open_free.let_go();
  g_claimed_lanes.fetch_and(~(uint64_t{1} << (lane - kDeviceLanes)), std::memory_order_release);
}

gm_status record_own_event(const gm_event& event, uint32_t lane) {
  return guarded_recording([&] { return record_on_lane(event, lane); });
}

gm_status record_mark(uint8_t kind, const char* name, uint64_t step, uint64_t* position) {
  Session* session = current_session();
  if (!session) return GM_NOT_RECORDING;
  const ThreadState& thread = thread_state(session);
  gm_record record = {};
  record.address = name ? session->intern.string_id(name) : 0;
  record.requested_bytes = kind == GM_STEP ? step : 0;
  record.scope = thread.scope;
  record.thread = thread.thread;
  record.device = kNoDevice;
  record.kind = kind;
  const std::lock_guard<std::mutex> lock(session->marks_mutex);
  record.time_ns = clock_ns(CLOCK_MONOTONIC);
  const gm_status status = session->journal.append(record, position);
  return status == GM_OK ? status : session->refuse(status);
}

gm_status record_reading(const gm_reading& reading) {
  Session* session = open_session_or_null();
  if (!session) return GM_NOT_RECORDING;
  const uint32_t id = session->reading_count.fetch_add(1, std::memory_order_relaxed) + 1;
  return session->journal.append_entry(EntryKind::Reading, id, &reading, sizeof reading);
}

uint32_t intern_current_stack() {
  Session* session = open_session_or_null();
  if (!session) return 0;
  ThreadState& thread = thread_state(session);
  const uint32_t stack = find_stack_near(thread.chains);
  return stack != 0 ? stack : find_stack(session, &thread);
}

}  // namespace gpumem::recorder

// Here and not among the other exported functions, so that the tracker's call is the only one of an event.
extern "C" [[gnu::hot]] gm_status gm_record_event(const gm_event* event) {
  if (!event) return GM_BAD_ARGUMENT;
  return gpumem::guarded_recording([&] { return gpumem::recorder::record_on_lane(*event, event->device); });
}
