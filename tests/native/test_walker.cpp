// The walker against a pretended interpreter: what it refuses, which frames it shows, how names are written, and
// the cache of ids with many threads in it.
#include <sys/wait.h>

#include <algorithm>
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
  const std::string known = "Stacks are off: gpumem walks CPython 3.11 to 3.13, this is ";
  Py_Version = 0x030a0df0;
  EXPECT_EQUAL(start_refused(), known + "3.10.");
  Py_Version = 0x030e00f0;
  EXPECT_EQUAL(start_refused(), known + "3.14.");
  Py_Version = 0x040c00f0;
  EXPECT_EQUAL(start_refused(), known + "4.12.");
  Py_Version = 0x030c00b2;
  EXPECT_EQUAL(start_refused(), known + "3.12 before its release.");
}

void test_a_313_without_its_table_or_lock_is_refused() {
  Py_Version = 0x030d00f0;
  const std::string hidden = "Stacks are off: this Python 3.13 hides its table of offsets.";
  EXPECT_EQUAL(start_refused(), hidden);
  std::memcpy(_PyRuntime.words, "xdebugpy", 8);
  _PyRuntime.words[1] = 0x030d01f0;
  EXPECT_EQUAL(start_refused(), hidden);
  _PyRuntime.words[1] = Py_Version;
  _PyRuntime.words[2] = 1;
  EXPECT_EQUAL(start_refused(),
               "Stacks are off: this is a free-threaded Python; run the program with the standard build.");
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

char* simple_code(uint32_t version) {
  return make_code(make_ascii("a.py"), make_ascii("f"), 1, version);
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
  g_is_initialized = 0;
  EXPECT_EQUAL(depth_now(), 0);
  g_is_initialized = 1;
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

// Stack of a chain of frames, asked for often enough to be remembered.
uint32_t remembered_stack(const char* innermost) {
  g_thread_state = make_thread_state(innermost);
  const uint32_t stack = gm_walker_intern_current();
  for (int i = 0; i < 4; ++i) EXPECT_EQUAL(gm_walker_intern_current(), stack);
  return stack;
}

void test_a_remembered_chain_is_compared_frame_by_frame() {
  char* code = make_code(make_ascii("chain.py"), make_ascii("f"), 1, 101);
  char* hidden = make_code(make_ascii("chain.py"), make_ascii("hidden"), 1, 102);
  for (const uint32_t depth : {1u, 2u, 40u, 128u, 129u, 700u}) {
    std::vector<char*> frames;
    for (uint32_t i = 0; i < depth; ++i) {
      frames.push_back(make_frame(code, 2 * (i + 1), 0, i ? frames[i - 1] : nullptr));
    }
    const uint32_t stack = remembered_stack(frames.back());
    EXPECT(stack != 0);
    for (const uint32_t changed : {0u, depth / 2, depth - 1}) {
      char* frame = frames[changed];
      const Object kept(frame, frame + 80);
      put(frame, 56, code + 192 + 2 * depth + 10);
      EXPECT(remembered_stack(frames.back()) != stack);
      std::copy(kept.begin(), kept.end(), frame);
      EXPECT_EQUAL(remembered_stack(frames.back()), stack);
      put(frame, 8, static_cast<const char*>(make_frame(code, 2, 0, get<const char*>(frame, 8))));
      EXPECT(remembered_stack(frames.back()) != stack);
      // A frame in between that is not shown: another chain, the same stack.
      put(frame, 8, static_cast<const char*>(make_frame(hidden, 0, 0, get<const char*>(kept.data(), 8))));
      EXPECT_EQUAL(remembered_stack(frames.back()), stack);
      // Shown as soon as a generator owns it, at the same place.
      put(const_cast<char*>(get<const char*>(frame, 8)), 70, char{1});
      EXPECT(remembered_stack(frames.back()) != stack);
      std::copy(kept.begin(), kept.end(), frame);
      EXPECT_EQUAL(remembered_stack(frames.back()), stack);
    }
  }
}

// More chains than are remembered, alike but for one frame each, in one order and then in another.
void test_many_chains_keep_their_stacks() {
  constexpr uint32_t kChains = 700;
  char* code = make_code(make_ascii("many.py"), make_ascii("f"), 1, 301);
  std::vector<const char*> innermost;
  for (uint32_t i = 0; i < kChains; ++i) {
    char* own = make_frame(code, 2 * (i + 1), 0, make_frame(code, 2, 0, nullptr));
    char* frame = i % 3 == 0 ? own : make_frame(code, 4, 0, make_frame(code, 6, 0, own));
    for (uint32_t more = 0; more < i % 5; ++more) frame = make_frame(code, 8, 0, frame);
    innermost.push_back(frame);
  }
  std::vector<uint32_t> stacks;
  for (uint32_t round = 0; round < 6; ++round) {
    for (uint32_t i = 0; i < kChains; ++i) {
      const uint32_t number = round < 4 ? i : i * 11 % kChains;
      g_thread_state = make_thread_state(innermost[number]);
      const uint32_t stack = gm_walker_intern_current();
      if (round == 0) stacks.push_back(stack);
      EXPECT_EQUAL(stack, stacks[number]);
    }
  }
  std::sort(stacks.begin(), stacks.end());
  EXPECT(stacks.front() != 0);
  EXPECT(std::adjacent_find(stacks.begin(), stacks.end()) == stacks.end());
}

// Chains of so many frames that the memo has no room for all of them.
void test_deep_chains_keep_their_stacks() {
  constexpr uint32_t kChains = 600, kDepth = 120;
  char* code = make_code(make_ascii("deep.py"), make_ascii("f"), 1, 302);
  std::vector<const char*> innermost;
  for (uint32_t i = 0; i < kChains; ++i) {
    const char* frame = make_frame(code, 2 * (i + 1), 0, nullptr);
    for (uint32_t more = 1; more < kDepth; ++more) frame = make_frame(code, 8, 0, frame);
    innermost.push_back(frame);
  }
  std::vector<uint32_t> stacks;
  for (const char* frame : innermost) stacks.push_back(remembered_stack(frame));
  for (uint32_t i = 0; i < kChains; ++i) EXPECT_EQUAL(remembered_stack(innermost[i]), stacks[i]);
  std::sort(stacks.begin(), stacks.end());
  EXPECT(stacks.front() != 0);
  EXPECT(std::adjacent_find(stacks.begin(), stacks.end()) == stacks.end());
}

void test_code_that_ended_is_not_taken_for_what_follows_it() {
  char* outer = make_code(make_ascii("ended.py"), make_ascii("outer"), 1, 201);
  char* code = make_code(make_ascii("ended.py"), make_ascii("first"), 1, 202);
  const char* frame = make_frame(outer, 10, 0, make_frame(code, 10, 0, nullptr));
  const uint32_t first = remembered_stack(frame);
  end_code(code);
  put(code, 92, 203u);
  put(code, 128, static_cast<const char*>(make_ascii("second")));
  const uint32_t second = remembered_stack(frame);
  EXPECT(second != first);
  end_code(simple_code(1));
  EXPECT_EQUAL(remembered_stack(frame), second);
  uint32_t elsewhere = 0;
  const char* state = g_thread_state;
  std::thread([&] {
    g_thread_state = state;
    elsewhere = gm_walker_intern_current();
  }).join();
  EXPECT_EQUAL(elsewhere, second);
}

// Asked often enough to be found by the shortcut, then under conditions that close it for a while or for good.
void test_the_shortcut_gives_no_stack_rather_than_a_wrong_one() {
  char* code = make_code(make_ascii("short.py"), make_ascii("f"), 1, 401);
  const char* frame = make_frame(code, 10, 0, make_frame(code, 20, 0, nullptr));
  const uint32_t stack = remembered_stack(frame);
  EXPECT(stack != 0);
  const int question_count = g_state_question_count;
  EXPECT_EQUAL(gm_walker_intern_current(), stack);
  EXPECT_EQUAL(g_state_question_count.load(), question_count);  // the shortcut is in use
  g_is_initialized = 0;
  EXPECT_EQUAL(gm_walker_intern_current(), 0);
  g_is_initialized = 1;
  g_head_interpreter = g_other_interpreter;
  EXPECT_EQUAL(gm_walker_intern_current(), 0);
  g_holder_state = g_thread_state;
  EXPECT_EQUAL(gm_walker_intern_current(), stack);
  g_holder_state = nullptr;
  g_head_interpreter = g_main_interpreter;
  EXPECT_EQUAL(gm_walker_intern_current(), stack);
  g_thread_state = make_thread_state(nullptr);
  EXPECT_EQUAL(gm_walker_intern_current(), 0);
  g_thread_state = nullptr;
  EXPECT_EQUAL(gm_walker_intern_current(), 0);
}

#if !defined(__SANITIZE_THREAD__)
// CPython takes a new key for its threads' states in a child: the old one may be anybody's by then.
void test_a_forked_child_does_not_trust_the_parents_key(const std::string& folder) {
  const std::string pattern = folder + "/forked.%d.gpumem.journal";
  const std::string path = folder + "/forking.gpumem.journal";
  const gm_recorder_options options = {path.c_str(), pattern.c_str(), kTestRunId, 1, 0};
  int32_t errno_value = 0;
  EXPECT_EQUAL(gm_recorder_start(&options, &errno_value), GM_OK);
  char* code = make_code(make_ascii("fork.py"), make_ascii("f"), 1, 501);
  const uint32_t stack = remembered_stack(make_frame(code, 10, 0, nullptr));
  EXPECT(stack != 0);
  const pid_t child = fork();
  if (child == 0) {
    const char* state = g_thread_state;
    const pthread_key_t parents_key = g_state_key;
    pthread_key_create(&g_state_key, nullptr);
    g_thread_state = state;
    pthread_setspecific(parents_key, reinterpret_cast<const void*>(8));
    for (int i = 0; i < 4; ++i) record(GM_ALLOC, 0, 4096 + 512 * i);
    const uint32_t own = gm_walker_intern_current();
    gm_recorder_stop("exit");
    _exit(own == 1 ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQUAL(waitpid(child, &status, 0), child);
  EXPECT_EQUAL(status, 0);
  EXPECT_EQUAL(gm_recorder_stop("exit"), GM_OK);
}
#endif

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

void test_chains_and_their_codes(const std::string& folder) {
  for (const char* name : {"/chains.gpumem.journal", "/chains_again.gpumem.journal"}) {
    const std::string path = folder + name;
    const gm_recorder_options options = {path.c_str(), nullptr, kTestRunId, 1, 0};
    int32_t errno_value = 0;
    EXPECT_EQUAL(gm_recorder_start(&options, &errno_value), GM_OK);
    test_a_remembered_chain_is_compared_frame_by_frame();
    test_many_chains_keep_their_stacks();
    test_deep_chains_keep_their_stacks();
    test_code_that_ended_is_not_taken_for_what_follows_it();
    test_the_shortcut_gives_no_stack_rather_than_a_wrong_one();
    EXPECT_EQUAL(gm_recorder_stop("exit"), GM_OK);
  }
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
  run_case("3.13 without table or lock", test_a_313_without_its_table_or_lock_is_refused);
  run_case("other layouts", test_objects_laid_out_otherwise_are_refused);
  run_case("frames left out", test_frames_without_meaning_are_left_out);
  run_case("1024 frames", test_the_innermost_1024_frames_are_kept);
  run_case("no stack", test_no_stack_rather_than_a_wrong_one);
  run_case("names", [&] { test_names_of_every_width_are_utf8(arguments[1]); });
  run_case("chains", [&] { test_chains_and_their_codes(arguments[1]); });
#if !defined(__SANITIZE_THREAD__)  // which starts no threads after a fork
  run_case("fork", [&] { test_a_forked_child_does_not_trust_the_parents_key(arguments[1]); });
#endif
  run_case("cache", test_the_cache_never_gives_another_keys_id);
  run_case("stopped", test_stopped_is_for_good);
  return exit_code();
}
