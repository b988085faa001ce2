// The walker against a pretended interpreter: what it refuses, which frames it shows, how names are written, and
// the cache of ids with many threads in it. Chains that it remembers: test_walker_chains.cpp.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "expect.h"
#include "id_cache.h"
#include "journal_reading.h"
#include "pretended_python.h"
#include "recording.h"

namespace {

using gpumem::Hash128;
using gpumem::IdCache;

std::string start_refused() {
  char reason[256] = "";
  EXPECT_EQUAL(gm_walker_start(reason, sizeof reason), GM_UNSUPPORTED);
  return reason;
}

void test_unknown_versions_are_refused_with_a_sentence() {
  const std::string known = "Stacks are off: gpumem walks CPython 3.11 to 3.15, this is ";
  Py_Version = 0x030a0df0;
  EXPECT_EQUAL(start_refused(), known + "3.10.");
  Py_Version = 0x031300f0;
  EXPECT_EQUAL(start_refused(), known + "3.19.");
  Py_Version = 0x040c00f0;
  EXPECT_EQUAL(start_refused(), known + "4.12.");
  Py_Version = 0x030c00b2;
  EXPECT_EQUAL(start_refused(), known + "3.12 before its release.");
}

void test_a_python_without_its_table_or_lock_is_refused() {
  for (const unsigned long version : {0x030d00f0, 0x030e00f0, 0x030f00f0}) {
    _PyRuntime.words[0] = 0;
    Py_Version = version;
    const std::string hidden =
        "Stacks are off: this Python 3." + std::to_string(version >> 16 & 0xff) + " hides its table of offsets.";
    EXPECT_EQUAL(start_refused(), hidden);
    std::memcpy(_PyRuntime.words, "xdebugpy", 8);
    _PyRuntime.words[1] = version + 0x100;
    EXPECT_EQUAL(start_refused(), hidden);
    _PyRuntime.words[1] = version;
    _PyRuntime.words[2] = 1;
    EXPECT_EQUAL(start_refused(),
                 "Stacks are off: this is a free-threaded Python; run the program with the standard build.");
  }
}

// In a child: a library whose symbol was found stays loaded.
void test_a_python_that_checks_its_references_is_refused() {
  const pid_t child = fork();
  if (child == 0) {
    Py_Version = 0x030e00f0;
    EXPECT(::dlopen(CHECKED_REFERENCES, RTLD_NOW | RTLD_GLOBAL) != nullptr);
    EXPECT_EQUAL(start_refused(), "Stacks are off: this Python was built to check references (Py_STACKREF_DEBUG).");
    std::fflush(nullptr);
    _exit(exit_code());
  }
  int status = -1;
  EXPECT_EQUAL(waitpid(child, &status, 0), child);
  EXPECT_EQUAL(status, 0);
}

void test_objects_laid_out_otherwise_are_refused() {
  Py_Version = 0x030c01f0;
  const std::string state_unknown = "Stacks are off: this Python's thread state is laid out in an unknown way.";
  const std::string code_unknown = "Stacks are off: this Python's code objects are laid out in an unknown way.";
  g_thread_state = nullptr;
  EXPECT_EQUAL(start_refused(), state_unknown);
  for (const size_t offset : {8, 112, 128, 136}) {
    char* code = make_code(make_ascii("a.py"), make_ascii("f"), 1, 1);
    put(code, offset, static_cast<const char*>(make_ascii("neither")));
    if (offset == 112 || offset == 128) put(code, offset, static_cast<const char*>(make_bytes("neither")));
    g_thread_state = make_thread_state(make_frame(code, 4, 0, nullptr));
    EXPECT_EQUAL(start_refused(), code_unknown);
  }
}

void test_frames_without_meaning_are_left_out() {
  char* shown = simple_code(1);
  char* generator = simple_code(2);
  char* hidden = simple_code(3);
  const char* frame = make_frame(shown, 10, 0, nullptr);
  frame = make_frame(hidden, 10, 3, frame);    // on the C stack
  frame = make_frame(generator, 0, 1, frame);  // a generator at its first instruction
  frame = make_frame(hidden, 0, 0, frame);     // being set up
  frame = make_frame(shown, 2, 2, frame);      // just set up
  g_thread_state = make_thread_state(frame);
  char reason[256] = "";
  g_holder_state = g_thread_state;
  EXPECT_EQUAL(gm_walker_start(reason, sizeof reason), GM_OK);
  EXPECT(pthread_getspecific(g_others_key) == g_thread_state);
  EXPECT(g_code_watcher != nullptr);
  g_holder_state = nullptr;
  uint64_t codes[8] = {};
  uint32_t offsets[8] = {};
  EXPECT_EQUAL(gm_walker_walk(codes, offsets, 8), 3);
  EXPECT(codes[0] == reinterpret_cast<uintptr_t>(shown) && offsets[0] == 2);
  EXPECT(codes[1] == reinterpret_cast<uintptr_t>(generator) && offsets[1] == 0);
  EXPECT(codes[2] == reinterpret_cast<uintptr_t>(shown) && offsets[2] == 10);
  codes[2] = 0;
  EXPECT_EQUAL(gm_walker_walk(codes, offsets, 2), 3);
  EXPECT_EQUAL(codes[2], 0);
}

void test_the_innermost_1024_frames_are_kept() {
  char* code = simple_code(1);
  const char* frame = nullptr;
  for (uint32_t depth = 0; depth < 1500; ++depth) frame = make_frame(code, 2 * (depth + 1), 0, frame);
  g_thread_state = make_thread_state(frame);
  std::vector<uint64_t> codes(2000);
  std::vector<uint32_t> offsets(2000);
  EXPECT_EQUAL(gm_walker_walk(codes.data(), offsets.data(), 2000), 1024);
  EXPECT_EQUAL(offsets[0], 3000);
  EXPECT_EQUAL(offsets[1023], 2 * (1500 - 1023));
  EXPECT_EQUAL(codes[1024], 0);
}

uint32_t depth_now() {
  return gm_walker_walk(nullptr, nullptr, 0);
}

void test_no_stack_rather_than_a_wrong_one() {
  const char* frame = make_frame(simple_code(1), 10, 0, nullptr);
  g_thread_state = make_thread_state(frame);
  EXPECT_EQUAL(depth_now(), 1);
  g_is_alive = 0;
  EXPECT_EQUAL(depth_now(), 0);
  g_is_alive = 1;
  // A sub-interpreter exists: only while this thread's state is known to run is its stack known.
  g_head_interpreter = g_other_interpreter;
  EXPECT_EQUAL(depth_now(), 0);
  g_holder_state = g_thread_state;
  EXPECT_EQUAL(depth_now(), 1);
  g_holder_state = nullptr;
  g_head_interpreter = g_main_interpreter;
  g_thread_state = make_thread_state(frame, g_other_interpreter);
  EXPECT_EQUAL(depth_now(), 0);
  g_thread_state = make_thread_state(nullptr);
  EXPECT_EQUAL(depth_now(), 0);
  std::thread([] { EXPECT_EQUAL(depth_now(), 0); }).join();
}

// Records one event with `code` on top and returns its stack.
uint32_t stack_of(const char* code, uint32_t offset = 10) {
  g_thread_state = make_thread_state(make_frame(code, offset, 0, nullptr));
  return gm_walker_intern_current();
}

void test_stacks_that_say_the_same_have_one_id() {
  const char* file = make_ascii("a.py");
  const char* name = make_ascii("f");
  char* code = make_code(file, name, 1, 1);
  const uint32_t stack = stack_of(code);
  EXPECT(stack != 0);
  EXPECT_EQUAL(stack_of(code), stack);
  EXPECT(stack_of(code, 12) != stack);
  EXPECT_EQUAL(stack_of(make_code(make_ascii("a.py"), make_ascii("f"), 1, 2)), stack);
  // Another code object where the first one lay: its version tells.
  end_code(code);
  put(code, 92, 77u);
  put(code, 112, static_cast<const char*>(make_ascii("b.py")));
  EXPECT(stack_of(code) != stack);
  // Without versions its texts do, though all addresses are the same.
  end_code(code);
  put(code, 92, 0u);
  const uint32_t unversioned = stack_of(code);
  end_code(code);
  EXPECT_EQUAL(stack_of(code), unversioned);
  char* reused = get<char*>(code, 112);
  EXPECT(get<int64_t>(reused, 24) != -1);
  end_code(code);
  std::memcpy(reused + 40, "c.py", 4);
  put(reused, 24, int64_t{-1});
  const uint32_t renamed = stack_of(code);
  EXPECT(renamed != unversioned);
  end_code(code);
  // A name of another type is never asked for its hash: found by what it says, each time.
  put(reused, 8, static_cast<const char*>(PyBytes_Type));
  put(reused, 24, int64_t{-1});
  EXPECT_EQUAL(stack_of(code), renamed);
  EXPECT_EQUAL(get<int64_t>(reused, 24), -1);
}

void test_names_of_every_width_are_utf8(const std::string& folder) {
  const std::string path = folder + "/names.gpumem.journal";
  const gm_recorder_options options = {path.c_str(), nullptr, kTestRunId, 1, 0};
  int32_t errno_value = 0;
  EXPECT_EQUAL(gm_recorder_start(&options, &errno_value), GM_OK);
  test_stacks_that_say_the_same_have_one_id();
  const char* none = make_text(std::vector<uint8_t>{});
  const char* latin = make_text(std::vector<uint8_t>{'d', 0xe9, 0xff});
  const char* wide = make_text(std::vector<uint16_t>{0x7ff, 0x800, 0xdcff, 0xffff});
  const char* widest = make_text(std::vector<uint32_t>{0x10380, 0x10ffff, 0xd800, 0x80});
  const char* elsewhere = make_text(std::vector<uint16_t>{0x65e5, 'x'}, Storage::Elsewhere);
  char* unready = make_text(std::vector<uint8_t>{'x'});
  put(unready, 32, 0u);
  EXPECT(stack_of(make_code(none, latin, 7, 10)) != 0);
  EXPECT(stack_of(make_code(wide, widest, 7, 11)) != 0);
  EXPECT(stack_of(make_code(elsewhere, unready, 7, 12)) != 0);
  EXPECT(stack_of(make_code(make_ascii(std::string(70'000, 'y')), none, 7, 0)) != 0);
  EXPECT_EQUAL(gm_recorder_stop("exit"), GM_OK);
  EXPECT_EQUAL(gm_walker_intern_current(), 0);
  const std::vector<std::string> strings = read_journal(path).payloads(gpumem::EntryKind::String);
  const std::string last = strings.empty() ? "" : strings.back();
  EXPECT_EQUAL(last, std::string(65'536, 'y'));
  std::string joined;
  for (size_t i = 0; i + 1 < strings.size(); ++i) joined += strings[i] + "|";
  EXPECT_EQUAL(joined,
               "a.py|f|b.py|c.py||d\u00e9\u00ff|\u07ff\u0800\\udcff\uffff|\U00010380\U0010ffff\\ud800\u0080|\u65e5x|");
}

Hash128 key_of(uint64_t number) {
  return gpumem::Hash128{number * 0x9ddfea08eb382d69u, number * 0xc949d7c7509e6557u ^ number >> 7};
}

void test_the_cache_never_gives_another_keys_id() {
  static IdCache cache;
  constexpr uint32_t kKeys = 400'000;  // three times what it holds
  std::vector<std::thread> threads;
  std::atomic<uint64_t> found{0}, wrong{0};
  for (uint32_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint32_t number = 1 + thread % 2; number <= kKeys; number += 2) {
        uint32_t id = cache.find(key_of(number));
        if (id == 0) cache.insert(key_of(number), number);
        id = cache.find(key_of(number / 2 + 1));
        if (id != 0) ++found;
        if (id != 0 && id != number / 2 + 1) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQUAL(wrong.load(), 0);
  EXPECT(found.load() > kKeys / 10);
  cache.insert(key_of(kKeys), kKeys);  // others may have come after it
  Hash128 near = key_of(kKeys);
  near.high ^= 1;
  cache.insert(key_of(kKeys), kKeys);  // a thread that lagged behind may have taken its place
  EXPECT_EQUAL(cache.find(key_of(kKeys)), kKeys);
  EXPECT_EQUAL(cache.find(near), 0);
}

void test_stopped_is_for_good() {
  gm_walker_stop();
  g_thread_state = make_thread_state(make_frame(simple_code(1), 10, 0, nullptr));
  EXPECT_EQUAL(depth_now(), 0);
  EXPECT_EQUAL(start_refused(), "Stacks are off: they were switched off earlier in this process.");
}

}  // namespace

int main(int, char** arguments) {
  run_case("unknown versions", test_unknown_versions_are_refused_with_a_sentence);
  run_case("without table or lock", test_a_python_without_its_table_or_lock_is_refused);
  run_case("checked references", test_a_python_that_checks_its_references_is_refused);
  run_case("other layouts", test_objects_laid_out_otherwise_are_refused);
  run_case("frames left out", test_frames_without_meaning_are_left_out);
  run_case("1024 frames", test_the_innermost_1024_frames_are_kept);
  run_case("no stack", test_no_stack_rather_than_a_wrong_one);
  run_case("names", [&] { test_names_of_every_width_are_utf8(arguments[1]); });
  run_case("cache", test_the_cache_never_gives_another_keys_id);
  run_case("stopped", test_stopped_is_for_good);
  return exit_code();
}
