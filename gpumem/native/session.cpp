#include "session.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "journal_file.h"
#include "segment_signal.h"

namespace gpumem {

EventLine g_event_line;

namespace {

// Larger facts (the heap's state at an attachment) belong to this process alone, not to its forked children.
constexpr size_t kKeptFactBytesMax = 64 << 10;

// What a child needs to go on recording after fork. Never destroyed: threads may record while the process exits.
struct ChildInheritance {
  std::string path_pattern;                                // empty: children do not record
  uint8_t run_id[16] = {};                                 // as given to start
  bool has_stacks = false;                                 // as given to start
  std::vector<std::pair<std::string, std::string>> facts;  // key, JSON; the latest of each key
};

std::atomic<Session*> g_latest{nullptr};
Session* g_all_sessions = nullptr;  // the newest, of this process and its forefathers; guarded by g_control_mutex
std::atomic<bool> g_is_child_due{false};
std::atomic<uint64_t> g_serial{0};
std::mutex g_control_mutex;  // start, stop, the child's first event, fork; taken before g_facts_mutex
std::mutex g_facts_mutex;    // g_inheritance.facts, and the order of facts in the journal
ChildInheritance& g_inheritance = *new ChildInheritance;

gm_status write_fact(Session* session, const std::string& key, const char* json, size_t json_bytes) {
  const auto key_bytes = static_cast<uint32_t>(key.size());
  std::string payload(reinterpret_cast<const char*>(&key_bytes), sizeof key_bytes);
  payload.append(key).append(json, json_bytes);
  const uint32_t id = session->fact_count.fetch_add(1, std::memory_order_relaxed) + 1;
  return session->journal.append_entry(EntryKind::Fact, id, payload.data(), static_cast<uint32_t>(payload.size()));
}

// g_control_mutex is held.
gm_status open_session(std::string path, int32_t* errno_value) {
  const ChildInheritance& inherited = g_inheritance;
  auto made = std::make_unique<Session>();
  const gm_status status = made->journal.create(path.c_str(), inherited.run_id, errno_value);
  if (status != GM_OK) return status;
  const std::lock_guard<std::mutex> lock(g_facts_mutex);
  try {
    for (const auto& [key, json] : inherited.facts) write_fact(made.get(), key, json.data(), json.size());
  } catch (const std::bad_alloc&) {
    ::unlink(path.c_str());
    throw;
  }
  Session* session = made.release();
  session->serial = g_serial.fetch_add(1, std::memory_order_relaxed) + 1;
  session->has_stacks = inherited.has_stacks;
  session->path = std::move(path);
  session->previous = std::exchange(g_all_sessions, session);
  g_latest.store(session, std::memory_order_release);
  g_event_line.recording.session.store(session, std::memory_order_release);
  return GM_OK;
}

std::string child_path() {
  std::string path = g_inheritance.path_pattern;
  const size_t at = path.find("%d");
  if (at != std::string::npos) path.replace(at, 2, std::to_string(::getpid()));
  return path;
}

Session* open_child_session() {
  const std::lock_guard<std::mutex> lock(g_control_mutex);
  if (!g_is_child_due.exchange(false)) return g_event_line.recording.session.load(std::memory_order_relaxed);
  int32_t errno_value;
  open_session(child_path(), &errno_value);
  return g_event_line.recording.session.load(std::memory_order_relaxed);
}

void before_fork() {
  g_control_mutex.lock();
  g_facts_mutex.lock();
}

void after_fork_in_parent() {
  g_facts_mutex.unlock();
  g_control_mutex.unlock();
}

// The child gives its copy of the session up as it is: locks in it may be held by threads that exist no more.
void after_fork_in_child() {
  Session* session = g_event_line.recording.session.exchange(nullptr);
  g_latest.store(nullptr, std::memory_order_relaxed);
  if (session) {
    session->journal.abandon();
    g_is_child_due.store(!g_inheritance.path_pattern.empty(), std::memory_order_relaxed);
  }
  forget_segment_waiters();
  g_facts_mutex.unlock();
  g_control_mutex.unlock();
}

[[maybe_unused]] const int g_fork_hooks = ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);

}  // namespace

bool Session::is_held(const void* session, uint32_t window) {
  for (const Lane& lane : static_cast<const Session*>(session)->lanes) {
    if (lane.open_free.is_in(window)) return true;
  }
  return false;
}

bool Session::take_back(void* session, uint32_t window) {
  auto& lanes = static_cast<Session*>(session)->lanes;
  for (Lane& lane : lanes) lane.open_free.take_back(window);
  if (!pass_barrier_on_every_thread()) return false;
  return std::none_of(std::begin(lanes), std::end(lanes),
                      [window](const Lane& lane) { return lane.open_free.is_changing_in(window); });
}

void Session::end(const char* ended_by) {
  const std::lock_guard<std::mutex> lock(end_mutex);
  if (std::exchange(is_ended, true)) return;
  journal.close(ended_by);
  walker_caches.chains.forget();
  walker_caches.stacks.forget();
  walker_caches.codes.forget();
  wake_segment_waiters();
}

gm_status Session::refuse(gm_status status) {
  refused_count.fetch_add(1, std::memory_order_relaxed);
  if (journal.status() != GM_OK) end(journal.status() == GM_DISK_FULL ? "disk_full" : "cannot_map");
  return status;
}

gm_status end_for_want_of_memory() {
  if (Session* session = open_session_or_null()) {
    session->refused_count.fetch_add(1, std::memory_order_relaxed);
    session->end("no_memory");
  }
  return GM_NO_MEMORY;
}

gm_status start_session(const gm_recorder_options& options, int32_t* errno_value) {
  const std::lock_guard<std::mutex> lock(g_control_mutex);
  if (g_event_line.recording.session.load(std::memory_order_relaxed)) return GM_BAD_ARGUMENT;
  ChildInheritance& inherited = g_inheritance;
  inherited.path_pattern = options.fork_path_pattern ? options.fork_path_pattern : "";
  std::memcpy(inherited.run_id, options.run_id, sizeof inherited.run_id);
  inherited.has_stacks = options.stacks != 0;
  {
    const std::lock_guard<std::mutex> facts_lock(g_facts_mutex);
    inherited.facts.clear();
  }
  g_is_child_due.store(false, std::memory_order_relaxed);
  return open_session(options.journal_path, errno_value);
}

gm_status stop_session(const char* ended_by) {
  const std::lock_guard<std::mutex> lock(g_control_mutex);
  g_is_child_due.store(false, std::memory_order_relaxed);
  Session* session = g_event_line.recording.session.exchange(nullptr);
  if (!session) return GM_NOT_RECORDING;
  session->end(ended_by);
  return GM_OK;
}

Session* find_child_session() {
  return g_is_child_due.load(std::memory_order_relaxed) ? open_child_session() : nullptr;
}

Session* latest_session() {
  return g_latest.load(std::memory_order_acquire);
}

gm_status keep_fact(const char* key, const char* json, size_t json_bytes) {
  const std::lock_guard<std::mutex> lock(g_facts_mutex);
  Session* session = g_event_line.recording.session.load(std::memory_order_acquire);
  if (!session && !g_is_child_due.load(std::memory_order_relaxed)) return GM_NOT_RECORDING;
  if (json_bytes <= kKeptFactBytesMax) {
    auto& facts = g_inheritance.facts;
    size_t at = 0;
    while (at < facts.size() && facts[at].first != key) ++at;
    if (at == facts.size()) facts.emplace_back(key, std::string());
    facts[at].second.assign(json, json_bytes);
  }
  return session ? write_fact(session, key, json, json_bytes) : static_cast<gm_status>(GM_OK);
}

}  // namespace gpumem
