// The walker against a pretended interpreter: chains of frames that it remembers, the shortcut to them, and a forked
// child's.
#include <sys/wait.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "expect.h"
#include "pretended_python.h"
#include "recording.h"

namespace {

void test_it_starts() {
  char reason[256] = "";
  g_thread_state = make_thread_state(make_frame(simple_code(1), 10, 0, nullptr));
  g_holder_state = g_thread_state;
  EXPECT_EQUAL(gm_walker_start(reason, sizeof reason), GM_OK);
  g_holder_state = nullptr;
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
  g_is_alive = 0;
  EXPECT_EQUAL(gm_walker_intern_current(), 0);
  g_is_alive = 1;
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

}  // namespace

int main(int, char** arguments) {
  run_case("start", test_it_starts);
  run_case("chains", [&] { test_chains_and_their_codes(arguments[1]); });
#if !defined(__SANITIZE_THREAD__)  // which starts no threads after a fork
  run_case("fork", [&] { test_a_forked_child_does_not_trust_the_parents_key(arguments[1]); });
#endif
  return exit_code();
}
