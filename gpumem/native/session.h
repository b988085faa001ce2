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

#include "gpumem.h"
#include "intern.h"
#include "journal.h"
#include "walker.h"

namespace gpumem {

// What a device's events have to know of the one before, on a cache line of its own.
struct alignas(64) DeviceState {
  std::atomic<uint64_t> open_free{0};       // a free_requested record that the next event may turn into a free:
                                            // window << 32 | slot, with bit 63 set; 0 none
  std::atomic<uint64_t> time_ns_latest{0};  // of its events
};

struct alignas(64) Session {
  Session() : intern(journal) {}

  // Settles the open frees and closes the journal; later calls do nothing.
  void end(const char* ended_by);
  // Counts an event that the stopped journal refused; the first one ends the session.
  gm_status refuse(gm_status status);
  // Takes the open free of a device, if there is one: whoever takes it has to settle it.
  bool take_open_free(uint32_t device, RecordPlace* place) {
    std::atomic<uint64_t>& open = devices[device].open_free;
    if (open.load(std::memory_order_relaxed) == 0) return false;
    const uint64_t taken = open.exchange(0, std::memory_order_acq_rel);
    *place = place_of(taken);
    return taken != 0;
  }
  void leave_open_free(uint32_t device, RecordPlace place) {
    const uint64_t left = kIsOpen | static_cast<uint64_t>(place.window) << 32 | place.slot;
    const uint64_t found = devices[device].open_free.exchange(left, std::memory_order_acq_rel);
    // Two allocators on one device have two locks: the one that came first is not to be forgotten.
    if (found) journal.settle(place_of(found));
  }
  // The time of a device's next event: a thread's clock says `now_ns`, another's may have been a little ahead.
  uint64_t next_time_ns(uint32_t device, uint64_t now_ns) {
    std::atomic<uint64_t>& latest = devices[device].time_ns_latest;
    const uint64_t latest_ns = latest.load(std::memory_order_relaxed);
    const uint64_t time_ns = now_ns > latest_ns ? now_ns : latest_ns;
    latest.store(time_ns, std::memory_order_relaxed);
    return time_ns;
  }

  uint64_t serial = 0;      // tells sessions apart, across forks too
  bool has_stacks = false;  // walk Python stacks
  Journal journal;
  Intern intern;
  WalkerCaches walker_caches;
  Session* previous = nullptr;             // the one before: all of them stay within reach of leak checkers
  std::string path;                        // of the journal
  DeviceState devices[256];                // by ordinal
  std::atomic<uint64_t> refused_count{0};  // events that came after the journal had stopped
  std::atomic<uint32_t> reading_count{0};  // ids given to readings
  std::atomic<uint32_t> fact_count{0};     // ids given to facts
  std::mutex marks_mutex;                  // keeps the times of marks in order
  std::mutex end_mutex;                    // guards is_ended
  bool is_ended = false;                   // end() has run

 private:
  static constexpr uint64_t kIsOpen = 1ull << 63;

  static RecordPlace place_of(uint64_t open_free) {
    return {static_cast<uint32_t>((open_free & ~kIsOpen) >> 32), static_cast<uint32_t>(open_free)};
  }
};

// What every event looks at first.
struct alignas(64) Recording {
  std::atomic<Session*> session{nullptr};  // the one that is open, if any: session.cpp's to set
  std::atomic<bool> is_enabled{true};      // false: events are dropped
};
extern Recording g_recording;

gm_status start_session(const gm_recorder_options& options, int32_t* errno_value);
gm_status stop_session(const char* ended_by);
// In a forked child the first call makes the child's own session; null when there is to be none.
Session* find_child_session();
// The session events go to, a forked child's own too. Null when nothing is recorded.
inline Session* current_session() {
  Session* session = g_recording.session.load(std::memory_order_acquire);
  return session ? session : find_child_session();
}
// As current_session, but never makes one.
inline Session* open_session_or_null() {
  return g_recording.session.load(std::memory_order_acquire);
}
// The session that is or was; null before the first (and in a child before its own).
Session* latest_session();
gm_status keep_fact(const char* key, const char* json, size_t json_bytes);

}  // namespace gpumem
