#include "thread_state.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace gpumem {

[[gnu::tls_model("initial-exec")]] __thread ThreadState* t_state = nullptr;

namespace {

void end_state(void* ended) {
  auto* state = static_cast<ThreadState*>(ended);
  t_state = nullptr;
  for (uint32_t i = 0; i < state->depth; ++i) std::free(state->frames[i].name);
  std::free(state->frames);
  delete state;
}

// Ends a thread's state with it, later than a thread-local object would: what such objects of the program's free as
// they end is the thread's too. What comes later still makes another state, whose end comes in the next round of keys.
struct StateKey {
  StateKey() : is_made(::pthread_key_create(&key, end_state) == 0) {}

  pthread_key_t key = 0;
  bool is_made;
};
const StateKey g_state_key;

#if defined(__x86_64__)
// As the library is loaded, before any event.
[[maybe_unused]] const int32_t g_distance = g_event_line.recording.thread_state_distance =
    static_cast<int32_t>(reinterpret_cast<const char*>(&t_state) - thread_pointer());
#endif

ThreadState* make_state() {
  t_state = new ThreadState;
  if (g_state_key.is_made) ::pthread_setspecific(g_state_key.key, t_state);
  return t_state;
}

ThreadState* own_state() {
  return t_state ? t_state : make_state();
}

void write_thread(Session* session, const ThreadState& state) {
  char name[64];
  if (::pthread_getname_np(::pthread_self(), name, sizeof name) != 0) name[0] = 0;
  const auto system_id = static_cast<uint64_t>(::syscall(SYS_gettid));
  std::string payload(reinterpret_cast<const char*>(&system_id), sizeof system_id);
  payload.append(name);
  session->journal.append_entry(EntryKind::Thread, state.thread, payload.data(), static_cast<uint32_t>(payload.size()));
}

void give_ids(Session* session, ThreadState* state) {
  state->session = session->serial;
  state->thread = session->intern.next_thread_ordinal();
  state->stream = 0;
  state->pool = 0;
  state->chains.forget();
  if (state->thread) write_thread(session, *state);
  state->scope = 0;
  for (uint32_t i = 0; i < state->depth; ++i) {
    state->scope = session->intern.scope_id(state->scope, state->frames[i].name);
    state->frames[i].scope = state->scope;
  }
}

bool grow_frames(ThreadState* state) {
  const uint32_t capacity = state->capacity ? state->capacity * 2 : 16;
  auto* frames = static_cast<ScopeFrame*>(std::realloc(state->frames, capacity * sizeof(ScopeFrame)));
  if (!frames) return false;
  state->frames = frames;
  state->capacity = capacity;
  return true;
}

}  // namespace

uint16_t ThreadState::look_up_stream(Session* session_now, uint16_t device, uint64_t handle) {
  stream = session_now->intern.stream_ordinal(device, handle);
  stream_handle = handle;
  stream_device = device;
  return stream;
}

uint16_t ThreadState::look_up_pool(Session* session_now, uint64_t first, uint64_t second) {
  pool = session_now->intern.pool_ordinal(first, second);
  pool_first = first;
  pool_second = second;
  return pool;
}

ThreadState& join_session(Session* session) {
  ThreadState* state = own_state();
  GM_CHECK(own_state_or_null() == state);
  give_ids(session, state);
  return *state;
}

gm_status push_scope(const char* name, uint32_t* scope) {
  Session* session = open_session_or_null();
  ThreadState* state = session ? &thread_state(session) : own_state();
  char* copy = ::strdup(name);
  if (!copy || (state->depth == state->capacity && !grow_frames(state))) {
    std::free(copy);
    return GM_BAD_ARGUMENT;
  }
  const uint32_t id = session ? session->intern.scope_id(state->scope, name) : 0;
  state->frames[state->depth++] = {copy, id};
  state->scope = id;
  if (scope) *scope = id;
  return session ? GM_OK : GM_NOT_RECORDING;
}

gm_status pop_scope() {
  ThreadState* state = own_state();
  if (state->depth == 0) return GM_BAD_ARGUMENT;
  std::free(state->frames[--state->depth].name);
  state->scope = state->depth ? state->frames[state->depth - 1].scope : 0;
  return open_session_or_null() ? GM_OK : GM_NOT_RECORDING;
}

}  // namespace gpumem
