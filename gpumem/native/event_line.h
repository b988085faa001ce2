// What every event looks at first, on one cache line: between two events a program's own work leaves little in the
// caches, and every line and page that an event needs besides costs it some nanoseconds.
//
// Owns: that these words lie together. Must not know: what is done with them. session.cpp and recorder.cpp set the
// recording's, walker.cpp the shortcut's.
#pragma once

#include <atomic>
#include <cstdint>

#include "python_layout.h"

namespace gpumem {

struct Session;

// Whether events are recorded, and into what.
struct Recording {
  std::atomic<Session*> session{nullptr};  // the one that is open, if any
  std::atomic<bool> is_enabled{true};      // false: events are dropped
  int32_t thread_state_distance = 0;       // from each thread's thread pointer to its t_state: thread_state.cpp's
};

// All that it takes to find the calling thread's innermost frame in a few steps.
struct WalkerShortcut {
  std::atomic<bool> is_open{false};          // the walker is on, code is watched, the rest is known
  FrameLinks links = {0, 0};                 // as in PythonLayout
  uint16_t thread_frame = 0;                 // likewise
  int16_t holder_frame = 0;                  // likewise
  ThreadValue state;                         // as in PythonAnswers
  std::atomic<uint64_t> code_generation{0};  // see watch_code; 0 while nothing is watched
  const char* main_interpreter = nullptr;    // as in Python
  const char* initialized = nullptr;         // as in PythonAnswers
  const char* interpreter_head = nullptr;    // likewise
};

// Ready before the library's first initializer runs: all of it is constant at first.
struct alignas(64) EventLine {
  Recording recording;
  WalkerShortcut shortcut;
};
static_assert(sizeof(EventLine) == 64);

extern EventLine g_event_line;

}  // namespace gpumem
