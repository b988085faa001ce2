#include "python_layout.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>

#include <cstdio>

namespace gpumem {

namespace {

// Measured with offsetof against 3.11.7 and 3.12.1; CPython keeps them within a minor version.
constexpr PythonLayout kLayout311 = {
    16,                          // thread_interpreter
    56,  8,                      // thread_frame, holder_frame
    48,  32,  0,   56,  69,      // frame_previous, _code, _code_tag, _instruction, _owner
    72,  112, 128, 136, 168, 0,  // code_first_line, _file, _name, _line_table, _first_traceable, _version
    184,                         // code_start
    16,  32,  48,  72,  72,      // text_length, _state, _ascii_start, _compact_start, _pointer
    16,  32,                     // bytes_length, _start
};
constexpr PythonLayout kLayout312 = {
    16,                           // thread_interpreter
    56,  0,                       // thread_frame, holder_frame
    8,   0,   0,   56,  70,       // frame_previous, _code, _code_tag, _instruction, _owner
    68,  112, 128, 136, 176, 92,  // code_first_line, _file, _name, _line_table, _first_traceable, _version
    192,                          // code_start
    16,  32,  40,  56,  56,       // text_length, _state, _ascii_start, _compact_start, _pointer
    16,  32,                      // bytes_length, _start
};

// From 3.13 on CPython begins _PyRuntime with a table of 64-bit words for debuggers; these are the words we read. The
// first lie where they do in every version.
enum RuntimeWord {
  kCookie = 0,
  kVersion = 1,
  kFreeThreaded = 2,
  kRuntimeFinalizing = 4,
  kRuntimeInterpreterHead = 5,
};
constexpr char kDebugCookie[] = "xdebugpy";

// The others come in groups, one for each kind of object: where a group begins is its version's, what follows there is
// the same in all.
struct DebugGroups {
  uint32_t thread;
  uint32_t frame;
  uint32_t code;
  uint32_t bytes;
  uint32_t text;
};
constexpr DebugGroups kGroups313 = {19, 28, 34, 64, 67};
constexpr DebugGroups kGroups314 = {22, 31, 39, 74, 77};
constexpr DebugGroups kGroups315 = {22, 39, 47, 86, 89};

enum ThreadWord { kThreadInterpreter = 3, kThreadFrame = 4 };
enum FrameWord { kFramePrevious = 1, kFrameCode = 2, kFrameInstruction = 3, kFrameOwner = 5 };
enum CodeWord { kCodeFile = 1, kCodeName = 3, kCodeLineTable = 4, kCodeFirstLine = 5, kCodeStart = 9 };
enum BytesWord { kBytesLength = 1, kBytesStart = 2 };
enum TextWord { kTextState = 1, kTextLength = 2, kTextAsciiStart = 3 };

// What the table leaves out lies at fixed distances from what it names, throughout 3.13 to 3.15.
constexpr uint32_t kFirstTraceableBeforeStart = 16;
constexpr uint32_t kVersionAfterFirstLine = 24;
constexpr uint32_t kCompactAfterAscii = 16;
constexpr uint32_t kInitializedBeforeFinalizing = 8;
constexpr uint32_t kCoreInitializedBeforeFinalizing = 12;  // 1 while site is imported too

// Of _PyRuntime: measured with offsetof against 3.12.1.
constexpr uint32_t kInitialized312 = 16;
constexpr uint32_t kInterpreterHead312 = 40;

constexpr uint32_t kReferenceTag = 3;  // from 3.14 on a frame's references say in these bits how they are counted
constexpr uint32_t kObjectType = 8;    // any object: its type, in builds that trace no references

template <typename Symbol>
bool find_symbol(const char* name, Symbol* symbol) {
  void* found = dlsym(RTLD_DEFAULT, name);
  static_assert(sizeof found == sizeof *symbol);
  std::memcpy(symbol, &found, sizeof found);
  return found != nullptr;
}

unsigned minor_of(unsigned long version) {
  return static_cast<unsigned>(version >> 16) & 0xff;
}

gm_status refuse(char* reason, size_t capacity, const char* sentence) {
  std::snprintf(reason, capacity, "%s", sentence);
  return GM_UNSUPPORTED;
}

PythonLayout read_debug_table(const uint64_t* table, const DebugGroups& groups) {
  auto word = [table](uint32_t group, uint32_t index) { return static_cast<uint32_t>(table[group + index]); };
  PythonLayout layout = {};
  layout.thread_interpreter = word(groups.thread, kThreadInterpreter);
  layout.thread_frame = word(groups.thread, kThreadFrame);
  layout.holder_frame = -1;
  layout.frame_previous = word(groups.frame, kFramePrevious);
  layout.frame_code = word(groups.frame, kFrameCode);
  layout.frame_code_tag = table[kVersion] >= 0x030e0000 ? kReferenceTag : 0;
  layout.frame_instruction = word(groups.frame, kFrameInstruction);
  layout.frame_owner = word(groups.frame, kFrameOwner);
  layout.code_first_line = word(groups.code, kCodeFirstLine);
  layout.code_file = word(groups.code, kCodeFile);
  layout.code_name = word(groups.code, kCodeName);
  layout.code_line_table = word(groups.code, kCodeLineTable);
  layout.code_start = word(groups.code, kCodeStart);
  layout.code_first_traceable = layout.code_start - kFirstTraceableBeforeStart;
  layout.code_version = layout.code_first_line + kVersionAfterFirstLine;
  layout.text_length = word(groups.text, kTextLength);
  layout.text_state = word(groups.text, kTextState);
  layout.text_ascii_start = word(groups.text, kTextAsciiStart);
  layout.text_compact_start = layout.text_ascii_start + kCompactAfterAscii;
  layout.text_pointer = layout.text_compact_start;
  layout.bytes_length = word(groups.bytes, kBytesLength);
  layout.bytes_start = word(groups.bytes, kBytesStart);
  return layout;
}

gm_status find_layout_by_table(unsigned long version, const DebugGroups& groups, PythonLayout* layout, char* reason,
                               size_t capacity) {
  const uint64_t* table = nullptr;
  if (!find_symbol("_PyRuntime", &table) || std::memcmp(table, kDebugCookie, sizeof(uint64_t)) != 0 ||
      table[kVersion] != version) {
    std::snprintf(reason, capacity, "Stacks are off: this Python 3.%u hides its table of offsets.", minor_of(version));
    return GM_UNSUPPORTED;
  }
  if (table[kFreeThreaded] != 0) {
    return refuse(reason, capacity,
                  "Stacks are off: this is a free-threaded Python; run the program with the standard build.");
  }
  *layout = read_debug_table(table, groups);
  return GM_OK;
}

gm_status find_layout(unsigned long version, PythonLayout* layout, char* reason, size_t capacity) {
  const unsigned major = static_cast<unsigned>(version >> 24) & 0xff;
  const unsigned minor = minor_of(version);
  const bool is_final_or_candidate = ((version >> 4) & 0xf) >= 0xc;
  if (major == 3 && is_final_or_candidate) {
    if (minor == 13) return find_layout_by_table(version, kGroups313, layout, reason, capacity);
    if (minor == 14) return find_layout_by_table(version, kGroups314, layout, reason, capacity);
    if (minor == 15) return find_layout_by_table(version, kGroups315, layout, reason, capacity);
    if (minor == 11 || minor == 12) {
      *layout = minor == 11 ? kLayout311 : kLayout312;
      return GM_OK;
    }
  }
  std::snprintf(reason, capacity, "Stacks are off: gpumem walks CPython 3.11 to 3.15, this is %u.%u%s.", major, minor,
                is_final_or_candidate ? "" : " before its release");
  return GM_UNSUPPORTED;
}

bool find_functions(Python* python) {
  bool found = find_symbol("PyGILState_GetThisThreadState", &python->find_thread_state) &&
               find_symbol("PyInterpreterState_Head", &python->find_interpreter_head) &&
               find_symbol("Py_IsInitialized", &python->is_initialized) &&
               find_symbol("PyObject_Hash", &python->hash_object) && find_symbol("PyUnicode_Type", &python->text_type);
  find_symbol("Py_IsFinalizing", &python->is_finalizing);
  found = found && (find_symbol("PyThreadState_GetUnchecked", &python->find_holder_state) ||
                    find_symbol("_PyThreadState_UncheckedGet", &python->find_holder_state));
  const char* (*find_main)() = nullptr;
  if (!found || !find_symbol("PyInterpreterState_Main", &find_main)) return false;
  python->main_interpreter = find_main();
  return python->main_interpreter != nullptr;
}

// Whether the thread state in hand says of its interpreter what CPython itself says.
bool is_layout_plausible(const Python& python, const PythonLayout& layout) {
  const char* (*find_interpreter)(const char*) = nullptr;
  const char* state = python.find_thread_state();
  if (state == nullptr || !find_symbol("PyThreadState_GetInterpreter", &find_interpreter)) return false;
  return load<const char*>(state, layout.thread_interpreter) == find_interpreter(state);
}

// Other software keeps the thread's state under keys of its own, as pybind11 does. CPython's key is the one without
// whose value it has no answer: tried by taking the value away for a moment, which nobody but this thread sees.
bool find_state_key(const Python& python, const char* state, uint32_t* key) {
  for (uint32_t candidate = 0; candidate < PTHREAD_KEYS_MAX; ++candidate) {
    if (::pthread_getspecific(candidate) != state || ::pthread_setspecific(candidate, nullptr) != 0) continue;
    const bool is_answered_by = python.find_thread_state() == nullptr;
    ::pthread_setspecific(candidate, state);
    if (!is_answered_by) continue;
    *key = candidate;
    return true;
  }
  return false;
}

// From 3.15 on the state is in a thread-local variable, which has no symbol: found among CPython's in the same way.
bool find_state_variable(const Python& python, const char* state, ThreadValue* place) {
  const auto code = reinterpret_cast<const void*>(python.find_thread_state);
  const ThreadLocals locals = find_thread_locals(code);
  for (size_t offset = 0; offset + sizeof state <= locals.bytes; offset += sizeof state) {
    char* variable = locals.start + offset;
    if (load<const char*>(variable, 0) != state) continue;
    std::memset(variable, 0, sizeof state);
    const bool is_answered_by = python.find_thread_state() == nullptr;
    std::memcpy(variable, &state, sizeof state);
    if (is_answered_by) return place->find_variable(code, offset);
  }
  return false;
}

bool has_type(const char* object, const char* type_symbol) {
  const char* type = nullptr;
  return object != nullptr && find_symbol(type_symbol, &type) && load<const char*>(object, kObjectType) == type;
}

template <typename Value>
bool is_answered(const char* function_symbol, const char* object, Value expected) {
  Value (*ask)(const char*) = nullptr;
  return find_symbol(function_symbol, &ask) && ask(object) == expected;
}

void append_code_point(std::string* utf8, uint32_t point) {
  auto put = [utf8](uint32_t byte) { utf8->push_back(static_cast<char>(byte)); };
  if (point < 0x80) {
    put(point);
  } else if (point < 0x800) {
    put(0xc0 | point >> 6);
    put(0x80 | (point & 0x3f));
  } else if (point >= 0xd800 && point < 0xe000) {
    char escape[8];
    std::snprintf(escape, sizeof escape, "\\u%04x", point);
    utf8->append(escape);
  } else if (point < 0x10000) {
    put(0xe0 | point >> 12);
    put(0x80 | (point >> 6 & 0x3f));
    put(0x80 | (point & 0x3f));
  } else {
    put(0xf0 | point >> 18);
    put(0x80 | (point >> 12 & 0x3f));
    put(0x80 | (point >> 6 & 0x3f));
    put(0x80 | (point & 0x3f));
  }
}

template <typename Unit>
void append_units(std::string* utf8, RawText text) {
  for (size_t index = 0; index < text.count; ++index) {
    append_code_point(utf8, load<Unit>(text.start, static_cast<uint32_t>(index * sizeof(Unit))));
  }
}

}  // namespace

gm_status find_python(Python* python, PythonLayout* layout, char* reason, size_t capacity) {
  const unsigned long* version = nullptr;
  if (!find_symbol("Py_Version", &version) || !find_functions(python)) {
    return refuse(reason, capacity, "Stacks are off: this process exports no CPython 3.11 or later.");
  }
  void* symbol = nullptr;
  if (find_symbol("PyModule_Create2TraceRefs", &symbol)) {
    return refuse(reason, capacity, "Stacks are off: this Python was built to trace references (Py_TRACE_REFS).");
  }
  if (find_symbol("_Py_stackref_get_object", &symbol)) {
    return refuse(reason, capacity, "Stacks are off: this Python was built to check references (Py_STACKREF_DEBUG).");
  }
  const gm_status status = find_layout(*version, layout, reason, capacity);
  if (status != GM_OK) return status;
  python->is_holder_own = *version >= 0x030c0000;
  if (!is_layout_plausible(*python, *layout)) {
    return refuse(reason, capacity, "Stacks are off: this Python's thread state is laid out in an unknown way.");
  }
  return GM_OK;
}

PythonAnswers find_answers(const Python& python) {
  const unsigned long* version = nullptr;
  const char* runtime = nullptr;
  const char* state = python.find_thread_state();
  if (!find_symbol("Py_Version", &version) || !find_symbol("_PyRuntime", &runtime) || state == nullptr) return {};
  const char* initialized = runtime + kInitialized312;
  PythonAnswers answers = {initialized, runtime + kInterpreterHead312, {}};
  if (*version >= 0x030d0000) {
    const uint64_t finalizing = load<uint64_t>(runtime, kRuntimeFinalizing * sizeof(uint64_t));
    initialized = runtime + finalizing - kInitializedBeforeFinalizing;
    answers.initialized = runtime + finalizing - kCoreInitializedBeforeFinalizing;
    answers.interpreter_head = runtime + load<uint64_t>(runtime, kRuntimeInterpreterHead * sizeof(uint64_t));
  }
  const bool is_as_laid_out = load<int>(initialized, 0) == python.is_initialized() &&
                              (load<int>(answers.initialized, 0) != 0) == python.is_alive() &&
                              load<const char*>(answers.interpreter_head, 0) == python.find_interpreter_head();
  if (!is_as_laid_out) return {};
  uint32_t key;
  const bool is_found = find_state_key(python, state, &key) ? answers.state.find(key)
                                                            : find_state_variable(python, state, &answers.state);
  return is_found ? answers : PythonAnswers{};
}

bool is_code_as_laid_out(const PythonLayout& layout, const char* code) {
  if (!has_type(code, "PyCode_Type")) return false;
  const char* file = load<const char*>(code, layout.code_file);
  const char* name = load<const char*>(code, layout.code_name);
  const char* table = load<const char*>(code, layout.code_line_table);
  if (!has_type(file, "PyUnicode_Type") || !has_type(name, "PyUnicode_Type") || !has_type(table, "PyBytes_Type")) {
    return false;
  }
  const RawBytes bytes = read_bytes(layout, table);
  return is_answered("PyUnicode_GetLength", name, read_text(layout, name).count) &&
         is_answered("PyBytes_Size", table, bytes.length) && is_answered("PyBytes_AsString", table, bytes.start);
}

bool is_plain_text(const Python& python, const char* object) {
  return load<const char*>(object, kObjectType) == python.text_type;
}

RawText read_text(const PythonLayout& layout, const char* text) {
  const uint32_t state = load<uint32_t>(text, layout.text_state);
  const uint32_t width = state >> 2 & 7;
  const bool is_compact = (state >> 5 & 1) != 0, is_ascii = (state >> 6 & 1) != 0;
  if (width == 0) return {nullptr, 0, 0};
  RawText raw = {nullptr, load<size_t>(text, layout.text_length), width};
  if (is_compact) {
    raw.start = text + (is_ascii ? layout.text_ascii_start : layout.text_compact_start);
  } else {
    raw.start = load<const char*>(text, layout.text_pointer);
  }
  return raw;
}

RawBytes read_bytes(const PythonLayout& layout, const char* bytes) {
  return {bytes + layout.bytes_start, load<size_t>(bytes, layout.bytes_length)};
}

std::string to_utf8(RawText text) {
  std::string utf8;
  utf8.reserve(text.count + 16);
  if (text.width == 1) append_units<uint8_t>(&utf8, text);
  if (text.width == 2) append_units<uint16_t>(&utf8, text);
  if (text.width == 4) append_units<uint32_t>(&utf8, text);
  return utf8;
}

}  // namespace gpumem
