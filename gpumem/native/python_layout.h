// Where CPython keeps what the stack walker reads: functions found by dlsym, offsets by version.
//
// Owns: the version table, reading of CPython's str and bytes objects in place. Must not know: walking, ids,
// journals. Includes no Python header; nothing here takes the interpreter lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "gpumem.h"
#include "thread_value.h"

namespace gpumem {

// What of a frame tells chains of frames apart, as offsets in it.
struct FrameLinks {
  uint16_t previous;     // the caller's frame
  uint16_t instruction;  // the instruction under way
};

template <typename Value>
inline Value load(const char* object, uint32_t offset) {
  Value value;
  std::memcpy(&value, object + offset, sizeof value);
  return value;
}

// Offsets in bytes from the start of the object named first.
struct PythonLayout {
  uint32_t thread_interpreter;    // thread state: its interpreter
  uint32_t thread_frame;          // thread state: the current frame, or where it is held (see holder_frame)
  int32_t holder_frame;           // 3.11, 3.12: the holder's current frame; -1: thread_frame is the frame itself
  uint32_t frame_previous;        // frame: the caller's
  uint32_t frame_code;            // frame: its code object, see code_of
  uint32_t frame_code_tag;        // of that word: bits that are no address's
  uint32_t frame_instruction;     // frame: the instruction under way
  uint32_t frame_owner;           // frame: one byte, see FrameOwner
  uint32_t code_first_line;       // code object: int
  uint32_t code_file;             // code object: str
  uint32_t code_name;             // code object: str, qualified
  uint32_t code_line_table;       // code object: bytes
  uint32_t code_first_traceable;  // code object: int, in code units
  uint32_t code_version;          // code object: u32, another for each code object made; 0: there is none
  uint32_t code_start;            // code object: the first instruction
  uint32_t text_length;           // str: characters; its hash follows
  uint32_t text_state;            // str: u32 of bits
  uint32_t text_ascii_start;      // str, compact and ASCII: the characters
  uint32_t text_compact_start;    // str, compact: the characters
  uint32_t text_pointer;          // str, not compact: where the characters are
  uint32_t bytes_length;          // bytes: length; its hash follows
  uint32_t bytes_start;           // bytes: the bytes

  const char* code_of(const char* frame) const {
    return reinterpret_cast<const char*>(load<uintptr_t>(frame, frame_code) & ~uintptr_t{frame_code_tag});
  }
  // Frames are short.
  FrameLinks links() const { return {static_cast<uint16_t>(frame_previous), static_cast<uint16_t>(frame_instruction)}; }
};

// Who holds a frame, as CPython numbers it. From kFirstHiddenOwner on that is the C stack or the interpreter, and the
// frame stands between those of Python code and runs none.
enum FrameOwner : uint8_t { kOwnedByThread = 0, kOwnedByGenerator = 1, kOwnedByFrameObject = 2, kFirstHiddenOwner = 3 };

constexpr uint32_t kCodeUnitBytes = 2;

// The interpreter of this process: what to call.
struct Python {
  const char* (*find_thread_state)();      // the calling thread's, without the lock; null without Python
  const char* (*find_holder_state)();      // 3.11: of the thread holding the lock; 3.12+: the caller's, if it holds it
  const char* (*find_interpreter_head)();  // the newest interpreter
  int64_t (*hash_object)(const char*);  // of an immutable object of a built-in type: takes no reference, raises nothing
  int (*is_initialized)();              // 0 from the start of finalisation on, and in 3.15 while site is imported
  int (*is_finalizing)();               // 1 from the start of finalisation on; null: Python is older than 3.13
  const char* text_type;                // str
  const char* main_interpreter;         // the first interpreter
  bool is_holder_own;                   // find_holder_state tells the caller's state: 3.12+

  // False from the start of finalisation on; true as long as code runs before.
  bool is_alive() const { return is_finalizing != nullptr ? is_finalizing() == 0 : is_initialized() != 0; }
};

// Where three of those answers lie. To read them there takes two cache lines where the calls take a
// dozen, which a program's own work between two events seldom leaves in the nearest caches.
struct PythonAnswers {
  const char* initialized;       // an int, 0 where is_alive answers false; null: the functions have to be asked
  const char* interpreter_head;  // a pointer: what find_interpreter_head answers
  ThreadValue state;             // find_thread_state's answer to each thread
};

// GM_UNSUPPORTED with a sentence in `reason` when this process's interpreter is none we know.
gm_status find_python(Python* python, PythonLayout* layout, char* reason, size_t capacity);

// Compared with what the functions answer here and now: nothing is found where anything differs. CPython keeps the
// places within a minor version, the key until it forks.
PythonAnswers find_answers(const Python& python);

// Whether a code object of this process holds what the layout says, as far as CPython's own answers show.
bool is_code_as_laid_out(const PythonLayout& layout, const char* code);

// The bytes of a bytes object, or of a str as it lies in memory.
struct RawBytes {
  const char* start;
  size_t length;
};

// A str object's characters as they lie in memory: `width` bytes each (1, 2 or 4; 0 when it has none yet).
struct RawText {
  const char* start;
  size_t count;
  uint32_t width;
};

// Whether an object is a str and of no derived type.
bool is_plain_text(const Python& python, const char* object);
RawText read_text(const PythonLayout& layout, const char* text);
RawBytes read_bytes(const PythonLayout& layout, const char* bytes);

// UTF-8; lone surrogates become \udcXX in ASCII, as Python's "backslashreplace" writes them.
std::string to_utf8(RawText text);

}  // namespace gpumem
