// One recording of this process: its journal, intern tables and facts; how it begins, ends and passes a fork.
//
// Owns: which session is current, the facts kept for forked children. Must not know: events, threads' scopes.
//
// Sessions are never destroyed: a thread may be about to record into one that another thread has just ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "check.h"
#include "event_line.h"
#include "gpumem.h"
#include "guarded.h"
#include "intern.h"
#include "journal.h"
#include "record_hold.h"
#include "walker.h"

namespace gpumem {

// Allocators record side by side: PyTorch's own of each device, known by the device's ordinal, and ours. Each calls
// under its own lock, so that what a lane holds has one writer at a time.
constexpr uint32_t kDeviceLanes = 256;
constexpr uint32_t kOwnLanes = 64;
constexpr uint32_t kNoLane = UINT32_MAX;  // of an allocator of ours beyond that number: its frees stay in two halves

// What an event's source keeps from one to the next, on a cache line of its own.
struct alignas(64) Lane {
  RecordHold open_free;                     // free_requested that the next event may turn into a free
  std::atomic<uint64_t> time_ns_latest{0};  // lanes of devices: of the device's events, whatever their lane
};

struct alignas(64) Session {
  Session() : journal({this, is_held, take_back}), intern(journal) {}

  // Closes the journal; later calls do nothing.
  void end(const char* ended_by);
  // Counts an event that the stopped journal refused; the first one ends the session.
  [[gnu::cold]] gm_status refuse(gm_status status);
  [[gnu::cold]] gm_status refuse_stopped() { return refuse(journal.stopped_status()); }
  // The time of a device's next event: a thread's clock says `now_ns`, another's may have been a little ahead.
  uint64_t next_time_ns(uint32_t device, uint64_t now_ns) {
    std::atomic<uint64_t>& latest = lanes[device].time_ns_latest;
    const uint64_t latest_ns = latest.load(std::memory_order_relaxed);
    const uint64_t time_ns = now_ns > latest_ns ? now_ns : latest_ns;
    latest.store(time_ns, std::memory_order_relaxed);
    return time_ns;
  }

  uint64_t serial = 0;      // tells sessions apart, across forks too
  bool has_stacks = false;  // walk Python stacks
  Journal journal;
  Lane lanes[kDeviceLanes + kOwnLanes];  // a device's lane is its ordinal; near what every event needs of the journal
  Intern intern;
  WalkerCaches walker_caches;
  Session* previous = nullptr;             // the one before: all of them stay within reach of leak checkers
  std::string path;                        // of the journal
  std::atomic<uint64_t> refused_count{0};  // events that came after the journal had stopped
  std::atomic<uint32_t> reading_count{0};  // ids given to readings
  std::atomic<uint32_t> fact_count{0};     // ids given to facts
  std::mutex marks_mutex;                  // keeps the times of marks in order
  std::mutex end_mutex;                    // guards is_ended
  bool is_ended = false;                   // end() has run

 private:
  static bool is_held(const void* session, uint32_t window);
  static bool take_back(void* session, uint32_t window);
};

gm_status start_session(const gm_recorder_options& options, int32_t* errno_value);
gm_status stop_session(const char* ended_by);
// In a forked child the first call makes the child's own session; null when there is to be none.
[[gnu::cold]] Session* find_child_session();
// The session events go to, a forked child's own too. Null when nothing is recorded.
inline Session* current_session() {
  Session* session = g_event_line.recording.session.load(std::memory_order_acquire);
  return GM_LIKELY(session) ? session : find_child_session();
}
// As current_session, but never makes one.
inline Session* open_session_or_null() {
  return g_event_line.recording.session.load(std::memory_order_acquire);
}
// The session that is or was; null before the first (and in a child before its own).
Session* latest_session();
// The process has no memory left for what an event needs: as on a full disk the recording ends there, since a history
// that lacks an event is none, and the program goes on. Counts the event as refused; GM_NO_MEMORY.
gm_status end_for_want_of_memory();
// guarded() for a call that records an event.
template <typename Body>
gm_status guarded_recording(Body body) noexcept {
  const gm_status status = guarded(body);
  return GM_UNLIKELY(status == GM_NO_MEMORY) ? guarded(end_for_want_of_memory) : status;
}
gm_status keep_fact(const char* key, const char* json, size_t json_bytes);

}  // namespace gpumem
