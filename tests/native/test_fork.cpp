// The recorder across fork and at exit. Not run under the thread sanitizer, which allows no threads after a fork.
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "expect.h"
#include "journal_reading.h"
#include "recording.h"

namespace {

using gpumem::EntryKind;

// Whether this process has the file mapped or open.
bool holds_file(const std::string& path) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(path) != std::string::npos) return true;
  }
  for (int fd = 0; fd < 1024; ++fd) {
    char target[4096] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (::readlink(link.c_str(), target, sizeof target - 1) > 0 && path == target) return true;
  }
  return false;
}

// The child's wait status. One that hangs, on a lock that it inherited for one, is killed after a minute.
int wait_for_child(pid_t child) {
  int status = -1;
  for (int left_ms = 60000; left_ms > 0; --left_ms) {
    if (::waitpid(child, &status, WNOHANG) == child) return status;
    ::usleep(1000);
  }
  std::printf("  the forked child %d has not ended within a minute\n", child);
  ++g_failure_count;
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  return status;
}

// The address sanitizer's allocator does not survive a fork while another thread is inside it (GCC 12): under it the
// forks fall between the other threads' calls.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kForksBetweenCalls = true;
#else
constexpr bool kForksBetweenCalls = false;
#endif

// Waits until the journal's helper thread, which has just been started, waits for something to do.
void wait_for_helper() {
  for (int left_ms = 60000; left_ms > 0; --left_ms) {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream stat(task.path() / "stat");
      std::string line;
      std::getline(stat, line);
      if (line.find("(gpumem-journal) S ") != std::string::npos) return;
    }
    ::usleep(1000);
  }
  EXPECT(!"the journal's helper thread waits");
}

int child_records(const std::string& path, const std::string& path_of_parent) {
  g_failure_count = 0;
  EXPECT_EQUAL(holds_file(path_of_parent), false);
  EXPECT_EQUAL(gm_recorder_is_active(), 0);
  gm_record_fact("rank", "1", 1);
  std::thread other([] { record(GM_ALLOC, 7, 0x77); });
  other.join();
  EXPECT_EQUAL(gm_recorder_is_active(), 1);
  record(GM_ALLOC, 1, 0x99);
  gm_record_mark(GM_MARK, "of the child", 0, nullptr);
  char own_path[4096];
  gm_recorder_get_path(own_path, sizeof own_path);
  EXPECT_EQUAL(own_path, path);
  gm_recorder_stop("exit");
  return g_failure_count;
}

// What a thread records while its process forks; with `calls` held where forks come between calls.
void record_until(const std::atomic<bool>& is_over, std::atomic<bool>& has_begun, std::mutex& calls) {
  for (uint64_t i = 0; !is_over.load(); ++i) {
    std::unique_lock<std::mutex> lock(calls, std::defer_lock);
    if (kForksBetweenCalls) lock.lock();
    has_begun.store(true);
    record(GM_ALLOC, 0, i);
    gm_record_fact("busy", "1", 1);
    gm_scope_push(std::to_string(i % 1000).c_str(), nullptr);
    gm_scope_pop();
  }
}

void expect_own_journal(const std::string& path, pid_t child) {
  const JournalContents of_child = read_journal(path);
  EXPECT(of_child.is_closed);
  EXPECT_EQUAL(of_child.pid, child);
  EXPECT_EQUAL(of_child.records.size(), 3);
  if (of_child.records.size() != 3) return;
  EXPECT_EQUAL(of_child.records.at(0).address, 0x77);
  EXPECT_EQUAL(of_child.records.at(1).scope, 1);
  EXPECT_EQUAL(of_child.payloads(EntryKind::Scope).size(), 1);
  const std::vector<std::string> facts = of_child.payloads(EntryKind::Fact);
  EXPECT_EQUAL(facts.front().substr(4), "program{\"rank\": 0}");
}

// A fork while other threads record: the child has a journal of its own with the facts and its scope; the parent's
// holds nothing of it.
void test_forked_child_records_into_its_own_journal(const std::string& folder) {
  const std::string path = folder + "/fork.gpumem.journal";
  const std::string pattern = folder + "/fork.%d.gpumem.journal";
  start_recording(path, pattern.c_str());
  gm_record_fact("program", "{\"rank\": 0}", 11);
  gm_scope_push("training", nullptr);
  EXPECT(holds_file(path));
  wait_for_helper();
  std::atomic<bool> is_over{false};
  std::atomic<bool> has_begun{false};
  std::mutex calls;
  std::thread busy([&] { record_until(is_over, has_begun, calls); });
  while (kForksBetweenCalls && !has_begun.load()) ::usleep(1000);  // a thread allocates as it starts
  for (int round = 0; round < 5; ++round) {
    std::unique_lock<std::mutex> lock(calls, std::defer_lock);
    if (kForksBetweenCalls) lock.lock();
    const pid_t child = ::fork();
    if (child == 0) ::_exit(child_records(folder + "/fork." + std::to_string(::getpid()) + ".gpumem.journal", path));
    if (kForksBetweenCalls) lock.unlock();
    EXPECT_EQUAL(wait_for_child(child), 0);
    expect_own_journal(folder + "/fork." + std::to_string(child) + ".gpumem.journal", child);
  }
  is_over.store(true);
  busy.join();
  gm_scope_pop();
  gm_recorder_stop("exit");
  uint64_t foreign_count = 0;
  for (const auto& [event, record] : read_journal(path).records) foreign_count += record.device != 0 ? 1 : 0;
  EXPECT_EQUAL(foreign_count, 0);
}

void test_child_without_a_pattern_does_not_record(const std::string& folder) {
  const std::string path = folder + "/no_pattern.gpumem.journal";
  start_recording(path);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(record(GM_ALLOC, 0, 1) == GM_NOT_RECORDING ? 0 : 1);
  EXPECT_EQUAL(wait_for_child(child), 0);
  record(GM_ALLOC, 0, 2);
  gm_recorder_stop("exit");
  EXPECT_EQUAL(read_journal(path).records.size(), 1);
}

// A process of its own, so that what it inherits is no part of the matter.
[[noreturn]] void end_while_threads_record(const std::string& path) {
  start_recording(path);
  for (uint8_t device = 0; device < 3; ++device) {
    std::thread([device] {
      for (uint64_t i = 0;; ++i) record(GM_ALLOC, device, i);
    }).detach();
  }
  gm_recorder_counts counts = {};
  while (counts.records < 10000) gm_recorder_get_counts(&counts);
  std::exit(7);  // static destructors run while the threads go on
}

void test_process_ends_while_threads_record(const std::string& folder) {
  const std::string path = folder + "/ending.gpumem.journal";
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl("/proc/self/exe", "test_fork", "ending", path.c_str(), nullptr);
    ::_exit(127);
  }
  const int status = wait_for_child(child);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  EXPECT_EQUAL(read_journal(path).torn_count, 0);
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 3) end_while_threads_record(arguments[2]);
  if (count != 2) return 2;
  const std::string folder = arguments[1];
  run_case("a forked child records into its own journal",
           [&] { test_forked_child_records_into_its_own_journal(folder); });
  run_case("a child without a pattern does not record", [&] { test_child_without_a_pattern_does_not_record(folder); });
  run_case("the process ends while threads record", [&] { test_process_ends_while_threads_record(folder); });
  return exit_code();
}
