// The walker against a pretended interpreter that says in its table for debuggers where things are, as CPython does
// from 3.13 on. PRETENDED_VERSION says which it is: a process can start the walker of one only.
#include <string>
#include <thread>
#include <vector>

#include "expect.h"
#include "pretended_python.h"
#include "recording.h"

namespace {

constexpr bool kIsTagged = PRETENDED_VERSION >= 0x030e0000;

struct Word {
  uint32_t indices[3];  // in 3.13, 3.14 and 3.15
  uint64_t value;
};

// Where CPython's own headers have these words, and where pretended_python.h puts what they name.
constexpr Word kWords[] = {
    {{1, 1, 1}, PRETENDED_VERSION},
    {{4, 4, 4}, offsetof(Runtime, of_later.finalizing)},        // of the runtime
    {{5, 5, 5}, offsetof(Runtime, of_later.interpreter_head)},  // the first interpreter
    {{22, 25, 25}, 16},                                         // of a thread state: interpreter
    {{23, 26, 26}, 72},                                         // the frame
    {{29, 32, 40}, 8},                                          // of a frame: the caller's
    {{30, 33, 41}, 0},                                          // code object
    {{31, 34, 42}, 56},                                         // instruction
    {{33, 36, 44}, 70},                                         // owner
    {{35, 40, 48}, 112},                                        // of a code object: file
    {{37, 42, 50}, 128},                                        // name
    {{38, 43, 51}, 136},                                        // line table
    {{39, 44, 52}, 68},                                         // first line
    {{43, 48, 56}, 192},                                        // first instruction
    {{65, 75, 87}, 16},                                         // of bytes: length
    {{66, 76, 88}, 32},                                         // start
    {{68, 78, 90}, 32},                                         // of a str: state
    {{69, 79, 91}, 16},                                         // length
    {{70, 80, 92}, 40},                                         // bytes of one that has no characters
};

void fill_table() {
  std::memcpy(_PyRuntime.words, "xdebugpy", 8);
  constexpr uint32_t kMinor = PRETENDED_VERSION >> 16 & 0xff;
  for (const Word& word : kWords) _PyRuntime.words[word.indices[kMinor - 13]] = word.value;
}

const char* with_tag(const char* object, uintptr_t tag) {
  return kIsTagged ? object + tag : object;
}

void show(const char* frame) {
  char* state = keep(80);
  put(state, 16, static_cast<const char*>(g_main_interpreter));
  put(state, 72, frame);
  g_thread_state = state;
}

// A function called by C, called by a function; what stands between them runs no code.
char* make_chain(const char* code, uint32_t offset) {
  char* none = keep(16);
  char* frame = make_frame(code, 10, 0, nullptr);
  put(frame, 0, with_tag(code, 1));
  for (const char owner : {3, 4}) {
    frame = make_frame(none, 0, owner, frame);
    put(frame, 0, with_tag(none, 1));
  }
  return make_frame(code, offset, 0, frame);
}

void test_frames_are_read_as_the_table_says() {
  char* code = simple_code(1);
  char* generator = make_frame(simple_code(2), 0, 1, make_chain(code, 12));
  put(generator, 0, with_tag(get<const char*>(generator, 0), 1));
  show(generator);
  g_holder_state = g_thread_state;
  char reason[256] = "";
  EXPECT_EQUAL(gm_walker_start(reason, sizeof reason), GM_OK);
  EXPECT_EQUAL(std::string(reason), "");
  // Taken away to be found, and given back.
  EXPECT(g_thread_state == g_holder_state && g_others_variable == g_holder_state);
  g_holder_state = nullptr;
  uint64_t codes[8] = {};
  uint32_t offsets[8] = {};
  EXPECT_EQUAL(gm_walker_walk(codes, offsets, 8), 3);
  EXPECT(codes[1] == reinterpret_cast<uintptr_t>(code) && codes[2] == codes[1]);
  EXPECT_EQUAL(offsets[0], 0);
  EXPECT_EQUAL(offsets[1], 12);
  EXPECT_EQUAL(offsets[2], 10);
}

void test_chains_are_remembered(const std::string& folder) {
  const std::string path = folder + "/table.gpumem.journal";
  const gm_recorder_options options = {path.c_str(), nullptr, kTestRunId, 1, 0};
  int32_t errno_value = 0;
  EXPECT_EQUAL(gm_recorder_start(&options, &errno_value), GM_OK);
  const char* code = simple_code(3);
  std::vector<char*> chains;
  std::vector<uint32_t> stacks;
  for (uint32_t offset = 2; offset != 42; offset += 2) {
    chains.push_back(make_chain(code, offset));
    show(chains.back());
    stacks.push_back(gm_walker_intern_current());
    EXPECT_EQUAL(stacks.back(), stacks.front() + static_cast<uint32_t>(stacks.size()) - 1);
  }
  EXPECT(stacks.front() != 0);
  for (uint32_t round = 0; round != 4; ++round) {
    for (size_t number = 0; number != chains.size(); ++number) {
      // How a frame's reference is counted may change, and says nothing of the stack.
      put(chains[number], 0, with_tag(code, round % 2));
      show(chains[number]);
      EXPECT_EQUAL(gm_walker_intern_current(), stacks[number]);
    }
  }
  const int question_count = g_state_question_count;
  EXPECT_EQUAL(gm_walker_intern_current(), stacks.back());
  EXPECT_EQUAL(g_state_question_count.load(), question_count);  // what the functions answer is read in place
  std::thread([&] {
    EXPECT_EQUAL(gm_walker_intern_current(), 0);
    show(chains.front());
    EXPECT_EQUAL(gm_walker_intern_current(), stacks.front());
  }).join();
  show(chains.back());
  g_is_alive = 0;
  EXPECT_EQUAL(gm_walker_intern_current(), 0);
  EXPECT_EQUAL(gm_recorder_stop("exit"), GM_OK);
}

}  // namespace

int main(int, char** arguments) {
  fill_table();
  run_case("frames", test_frames_are_read_as_the_table_says);
  run_case("chains", [&] { test_chains_are_remembered(arguments[1]); });
  return exit_code();
}
