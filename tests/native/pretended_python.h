// A pretended CPython in this process: the symbols the walker looks up, and objects laid out as it expects. 3.12,
// unless the program defines PRETENDED_VERSION before.
//
// A test program includes this, exports its symbols and so decides what the walker finds: versions that do not exist
// here, frames that no real program could hold still.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#define PRETENDED __attribute__((visibility("default")))
#ifndef PRETENDED_VERSION
#define PRETENDED_VERSION 0x030c01f0
#endif

using Object = std::vector<char>;

// 3.12's first words; or the table for debuggers of later ones, which says where behind it the others are.
constexpr bool kHasTable = PRETENDED_VERSION >= 0x030d0000;
union Runtime {
  struct {
    uint64_t unknown[2];
    int initialized;
    uint64_t unknown_too[2];
    const char* interpreter_head;
  } of_312;
  struct {
    uint64_t table[123];
    int preinitialized;
    int core_initialized;
    int initialized;
    const char* finalizing;
    uint64_t unknown;
    const char* interpreter_head;
  } of_later;
  uint64_t words[128];
};

extern "C" {
PRETENDED unsigned long Py_Version = PRETENDED_VERSION;
PRETENDED Runtime _PyRuntime = {};
PRETENDED char PyCode_Type[8] = {};
PRETENDED char PyUnicode_Type[8] = {};
PRETENDED char PyBytes_Type[8] = {};
}

inline char g_main_interpreter[8];
inline char g_other_interpreter[8];
inline int& g_is_alive = kHasTable ? _PyRuntime.of_later.core_initialized : _PyRuntime.of_312.initialized;
inline const char*& g_head_interpreter =
    kHasTable ? _PyRuntime.of_later.interpreter_head : _PyRuntime.of_312.interpreter_head;

// CPython keeps the calling thread's state under a pthread key, from 3.15 on in a variable; other software does too.
inline pthread_key_t g_others_key;
inline pthread_key_t g_state_key = [] {
  pthread_key_t key;
  pthread_key_create(&g_others_key, nullptr);
  pthread_key_create(&key, nullptr);
  g_is_alive = 1;
  g_head_interpreter = g_main_interpreter;
  return key;
}();
inline thread_local const char* g_others_variable = nullptr;
inline thread_local const char* g_state_variable = nullptr;
constexpr bool kHasStateVariable = PRETENDED_VERSION >= 0x030f0000;
class ThreadStatePointer {
 public:
  ThreadStatePointer& operator=(const char* state) {
    pthread_setspecific(g_others_key, state);
    g_others_variable = state;
    if (kHasStateVariable) {
      g_state_variable = state;
    } else {
      pthread_setspecific(g_state_key, state);
    }
    return *this;
  }
  operator const char*() const {
    return kHasStateVariable ? g_state_variable : static_cast<const char*>(pthread_getspecific(g_state_key));
  }
};
inline ThreadStatePointer g_thread_state;
inline std::atomic<int> g_state_question_count{0};  // how often CPython was asked for the calling thread's state
inline const char* g_holder_state = nullptr;
inline int (*g_code_watcher)(int event, const char* code) = nullptr;

template <typename Value>
void put(char* object, size_t offset, Value value) {
  std::memcpy(object + offset, &value, sizeof value);
}

template <typename Value>
Value get(const char* object, size_t offset) {
  Value value;
  std::memcpy(&value, object + offset, sizeof value);
  return value;
}

extern "C" {
PRETENDED const char* PyGILState_GetThisThreadState() {
  ++g_state_question_count;
  return g_thread_state;
}
PRETENDED const char* _PyThreadState_UncheckedGet() {
  return g_holder_state;
}
PRETENDED const char* PyInterpreterState_Main() {
  return g_main_interpreter;
}
PRETENDED const char* PyInterpreterState_Head() {
  return g_head_interpreter;
}
PRETENDED int Py_IsInitialized() {
  return kHasTable ? _PyRuntime.of_later.initialized : g_is_alive;
}
#if PRETENDED_VERSION >= 0x030d0000
PRETENDED int Py_IsFinalizing() {
  return g_is_alive == 0;
}
#endif
PRETENDED const char* PyThreadState_GetInterpreter(const char* state) {
  return get<const char*>(state, 16);
}
PRETENDED int64_t PyUnicode_GetLength(const char* text) {
  return get<int64_t>(text, 16);
}
// Hashes and keeps the hash, as CPython does for str and bytes; knows the storage that make_ascii and make_bytes use.
PRETENDED int64_t PyObject_Hash(char* object) {
  const char* start = object + (get<const char*>(object, 8) == PyBytes_Type ? 32 : 40);
  uint64_t hash = 7;
  for (int64_t at = 0; at < get<int64_t>(object, 16); ++at) hash = hash * 31 + static_cast<uint8_t>(start[at]);
  put(object, 24, hash);
  return static_cast<int64_t>(hash);
}
PRETENDED int64_t PyBytes_Size(const char* bytes) {
  return get<int64_t>(bytes, 16);
}
PRETENDED int PyCode_AddWatcher(int (*watcher)(int, const char*)) {
  g_code_watcher = watcher;
  return 0;
}
PRETENDED void PyErr_Clear() {}
PRETENDED const char* PyBytes_AsString(const char* bytes) {
  return bytes + 32;
}
}

// Objects live until the program ends.
inline char* keep(size_t bytes) {
  static std::deque<Object>* kept = new std::deque<Object>;
  kept->emplace_back(bytes);
  return kept->back().data();
}

enum class Storage { Ascii, Compact, Elsewhere };

// A str of `units`, each `sizeof(Unit)` bytes wide.
template <typename Unit>
char* make_text(const std::vector<Unit>& units, Storage storage = Storage::Compact) {
  const size_t start = storage == Storage::Ascii ? 40 : 56;
  const size_t length = units.size() * sizeof(Unit);
  char* text = keep(storage == Storage::Elsewhere ? 64 : start + length);
  put(text, 8, static_cast<const char*>(PyUnicode_Type));
  put(text, 16, units.size());
  put(text, 24, int64_t{-1});
  const auto flags = storage == Storage::Elsewhere ? 0u : storage == Storage::Ascii ? 3u : 1u;
  put(text, 32, static_cast<uint32_t>(sizeof(Unit)) << 2 | flags << 5);
  char* content = storage == Storage::Elsewhere ? keep(length) : text + start;
  if (length) std::memcpy(content, units.data(), length);
  if (storage == Storage::Elsewhere) put(text, 56, content);
  return text;
}

inline char* make_ascii(const std::string& text) {
  return make_text(std::vector<uint8_t>(text.begin(), text.end()), Storage::Ascii);
}

inline char* make_bytes(const std::string& content) {
  char* bytes = keep(32 + content.size() + 1);
  put(bytes, 8, static_cast<const char*>(PyBytes_Type));
  put(bytes, 16, content.size());
  put(bytes, 24, int64_t{-1});
  std::memcpy(bytes + 32, content.data(), content.size());
  return bytes;
}

// A code object whose first traceable instruction is its second.
inline char* make_code(const char* file, const char* name, int first_line, uint32_t version) {
  char* code = keep(256);
  put(code, 8, static_cast<const char*>(PyCode_Type));
  put(code, 68, first_line);
  put(code, 92, version);
  put(code, 112, file);
  put(code, 128, name);
  put(code, 136, make_bytes(std::string("\x80\x00", 2)));
  put(code, 176, 1);
  return code;
}

inline char* make_frame(const char* code, uint32_t offset, char owner, const char* previous) {
  char* frame = keep(80);
  put(frame, 0, code);
  put(frame, 8, previous);
  put(frame, 56, code + 192 + offset);
  put(frame, 70, owner);
  return frame;
}

// What CPython says before it gives a code object's memory back.
inline void end_code(const char* code) {
  g_code_watcher(1, code);
}

// The calling thread's state, with `frame` on top.
inline char* make_thread_state(const char* frame, const char* interpreter = g_main_interpreter) {
  char* holder = keep(8);
  put(holder, 0, frame);
  char* state = keep(64);
  put(state, 16, interpreter);
  put(state, 56, holder);
  return state;
}

inline char* simple_code(uint32_t version) {
  return make_code(make_ascii("a.py"), make_ascii("f"), 1, version);
}
