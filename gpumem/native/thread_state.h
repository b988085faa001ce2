// What the recorder keeps per thread: its ordinal, its scopes, the stream and pool it used last.
//
// Owns: the thread-local state and its entries in the journal. Must not know: events, files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "chain_memo.h"
#include "check.h"
#include "event_line.h"
#include "gpumem.h"
#include "session.h"
#include "thread_value.h"
#include "tick_clock.h"

namespace gpumem {

struct ScopeFrame {
  char* name;      // own copy, 0-terminated
  uint32_t scope;  // id in the session of ThreadState::session, 0 where it has none
};

// Ids are those of the session whose serial is `session`; another session makes them anew. What an event needs lies on
// the first cache line, down to the memo's first word.
struct alignas(64) ThreadState {
  uint64_t session = 0;          // serial of the session that the ids belong to; 0 none
  TickClock clock;               // of this thread's events
  uint64_t stream_handle = 0;    // stream looked up last
  uint32_t scope = 0;            // scope in force
  uint16_t stream_device = 0;    // device of the stream looked up last
  uint16_t stream = 0;           // ordinal of the stream looked up last; 0 none yet
  uint16_t pool = 0;             // ordinal of the pool looked up last; 0 none yet
  uint16_t thread = 0;           // ordinal of this thread
  ChainMemo chains;              // stacks met of late
  uint64_t pool_first = 0;       // pool looked up last
  uint64_t pool_second = 0;      // its second half
  ScopeFrame* frames = nullptr;  // pushed scopes, outermost first
  uint32_t depth = 0;            // of them
  uint32_t capacity = 0;         // room in frames

  uint16_t stream_ordinal(Session* session_now, uint16_t device, uint64_t handle) {
    if (GM_LIKELY(stream && stream_handle == handle && stream_device == device)) return stream;
    return look_up_stream(session_now, device, handle);
  }
  uint16_t pool_ordinal(Session* session_now, uint64_t first, uint64_t second) {
    if (GM_LIKELY((first | second) == 0)) return 0;
    if (pool && pool_first == first && pool_second == second) return pool;
    return look_up_pool(session_now, first, second);
  }

 private:
  [[gnu::cold]] uint16_t look_up_stream(Session* session_now, uint16_t device, uint64_t handle);
  [[gnu::noinline]] uint16_t look_up_pool(Session* session_now, uint64_t first, uint64_t second);
};

static_assert(offsetof(ThreadState, chains) + sizeof(void*) <= 64);

// Null before a thread's first call. A plain pointer, because a thread-local object with a destructor costs a guard on
// every event; and one word, which the loader has room for beside the program's own, so that reading it takes no call.
[[gnu::tls_model("initial-exec")]] extern __thread ThreadState* t_state;

// Makes the calling thread's state, or one it has known to `session`.
[[gnu::cold]] ThreadState& join_session(Session* session);
// The calling thread's t_state: what the loader says of its place lies on a cache line and a page of its own.
inline ThreadState* own_state_or_null() {
#if defined(__x86_64__)
  ThreadState* state;
  std::memcpy(&state, thread_pointer() + g_event_line.recording.thread_state_distance, sizeof state);
  return state;
#else
  return t_state;
#endif
}
// The calling thread's state, known to `session`.
inline ThreadState& thread_state(Session* session) {
  ThreadState* state = own_state_or_null();
  return GM_LIKELY(state && state->session == session->serial) ? *state : join_session(session);
}

gm_status push_scope(const char* name, uint32_t* scope);
gm_status pop_scope();

}  // namespace gpumem
