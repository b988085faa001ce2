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

struct Session {
  Session() : intern(journal) {}

  // Settles the open frees and closes the journal; later calls do nothing.
  void end(const char* ended_by);
  // Counts an event that the stopped journal refused; the first one ends the session.
  gm_status refuse(gm_status status);
  // Takes the open free of a device, if there is one: whoever takes it has to settle it.
  bool take_open_free(uint32_t device, RecordPlace* place);
  void leave_open_free(uint32_t device, RecordPlace place);
  // The time of a device's next event: a thread's clock says `now_ns`, another's may have been a little ahead.
  uint64_t next_time_ns(uint32_t device, uint64_t now_ns);

  Session* previous = nullptr;  // the one before: all of them stay within reach of leak checkers
  Journal journal;
  Intern intern;
  WalkerCaches walker_caches;
  uint64_t serial = 0;                     // tells sessions apart, across forks too
  bool has_stacks = false;                 // walk Python stacks
  std::string path;                        // of the journal
  DeviceState devices[256];                // by ordinal
  std::atomic<uint64_t> refused_count{0};  // events that came after the journal had stopped
  std::atomic<uint32_t> reading_count{0};  // ids given to readings
  std::atomic<uint32_t> fact_count{0};     // ids given to facts
  std::mutex marks_mutex;                  // keeps the times of marks in order
  std::mutex end_mutex;                    // guards is_ended
  bool is_ended = false;                   // end() has run
};

gm_status start_session(const gm_recorder_options& options, int32_t* errno_value);
gm_status stop_session(const char* ended_by);
// The session events go to; in a forked child the first call makes the child's own. Null when nothing is recorded.
Session* current_session();
// As current_session, but never makes one.
Session* open_session_or_null();
// The session that is or was; null before the first (and in a child before its own).
Session* latest_session();
gm_status keep_fact(const char* key, const char* json, size_t json_bytes);

}  // namespace gpumem
