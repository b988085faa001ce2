// What the journal does when the world refuses: a full disk, a limit on file length, a folder it cannot use.
#include <fcntl.h>
#include <pthread.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "expect.h"
#include "journal_reading.h"
#include "recording.h"

namespace {

constexpr uint64_t kSlots = gpumem::kRecordWindowBytes / sizeof(gm_record);

// Threads record past what fits: what was accepted is there, the rest is refused and counted, the program goes on.
void record_past_the_end(const std::string& path) {
  start_recording(path);
  gm_record_fact("program", "{}", 2);
  constexpr uint8_t kThreads = 3;
  uint64_t accepted[kThreads] = {}, refused[kThreads] = {};
  std::vector<std::thread> threads;
  for (uint8_t device = 0; device < kThreads; ++device) {
    threads.emplace_back([&, device] {
      for (uint64_t i = 0; i < kSlots; ++i) {
        // Frees in two halves, the last of which stays open, so that the end has something to settle.
        const gm_status status = record(i % 2 ? GM_FREE_REQUESTED : GM_ALLOC, device, i);
        ++(status == GM_OK ? accepted[device] : refused[device]);
        if (status != GM_OK) EXPECT_EQUAL(status, GM_DISK_FULL);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  gm_recorder_counts counts;
  EXPECT_EQUAL(gm_recorder_get_counts(&counts), GM_OK);
  EXPECT_EQUAL(counts.status, GM_DISK_FULL);
  EXPECT(counts.errno_value == ENOSPC || counts.errno_value == EFBIG);
  EXPECT_EQUAL(counts.records_refused, refused[0] + refused[1] + refused[2]);
  EXPECT(counts.records_refused > 0);
  EXPECT_EQUAL(gm_recorder_is_active(), 0);
  EXPECT_EQUAL(gm_record_fact("late", "1", 1), GM_DISK_FULL);
  const JournalContents contents = read_journal(path);
  EXPECT(contents.is_whole && contents.is_closed);
  EXPECT_EQUAL(contents.ended_by, "disk_full");
  EXPECT_EQUAL(contents.records.size(), accepted[0] + accepted[1] + accepted[2]);
  EXPECT_EQUAL(contents.records.size() % kSlots, 0);
  EXPECT_EQUAL(contents.torn_count, 0);
  EXPECT_EQUAL(contents.hole_count, 0);
  EXPECT_EQUAL(counts.records, contents.records.size());
  EXPECT_EQUAL(gm_recorder_stop("exit"), GM_OK);
  EXPECT_EQUAL(read_journal(path).ended_by, "disk_full");
}

void test_full_disk_stops_the_recording_alone(const std::string& folder) {
  const std::string mount_point = folder + "/small";
  ::mkdir(mount_point.c_str(), 0755);
  if (::mount("tmpfs", mount_point.c_str(), "tmpfs", 0, "size=42m") != 0) {
    std::printf("  cannot mount a tmpfs: %s\n", std::strerror(errno));
    ++g_failure_count;
    return;
  }
  record_past_the_end(mount_point + "/full.gpumem.journal");
  // Nothing is left of an attempt that fails from the start.
  const std::string ballast = mount_point + "/ballast";
  ::unlink((mount_point + "/full.gpumem.journal").c_str());
  const int fd = ::open(ballast.c_str(), O_RDWR | O_CREAT, 0644);
  EXPECT_EQUAL(::fallocate(fd, 0, 0, 30 << 20), 0);
  ::close(fd);
  const std::string path = mount_point + "/none.gpumem.journal";
  const gm_recorder_options options = {path.c_str(), nullptr, kTestRunId, 0, 0};
  int32_t errno_value = 0;
  EXPECT_EQUAL(gm_recorder_start(&options, &errno_value), GM_DISK_FULL);
  EXPECT_EQUAL(errno_value, ENOSPC);
  EXPECT_EQUAL(::access(path.c_str(), F_OK), -1);
  EXPECT_EQUAL(::umount2(mount_point.c_str(), MNT_DETACH), 0);
}

// A file system that cannot reserve space: said so at once, with nothing left behind.
void test_file_system_without_reservation_is_refused(const std::string& folder) {
  const std::string mount_point = folder + "/ramfs";
  ::mkdir(mount_point.c_str(), 0755);
  EXPECT_EQUAL(::mount("ramfs", mount_point.c_str(), "ramfs", 0, nullptr), 0);
  const std::string path = mount_point + "/a.gpumem.journal";
  const gm_recorder_options options = {path.c_str(), nullptr, kTestRunId, 0, 0};
  int32_t errno_value = 0;
  EXPECT_EQUAL(gm_recorder_start(&options, &errno_value), GM_CANNOT_MAP);
  EXPECT_EQUAL(errno_value, EOPNOTSUPP);
  EXPECT_EQUAL(::access(path.c_str(), F_OK), -1);
  EXPECT_EQUAL(::umount2(mount_point.c_str(), MNT_DETACH), 0);
}

// A program that closes every descriptor, as daemons do, and opens a file of its own under the same number.
void test_descriptor_closed_by_the_program(const std::string& folder) {
  const std::string path = folder + "/closed.gpumem.journal", own = folder + "/own";
  start_recording(path);
  for (int fd = 3; fd < 64; ++fd) ::close(fd);
  int own_fds[32];
  for (int& fd : own_fds) fd = ::open(own.c_str(), O_RDWR | O_CREAT, 0644);
  for (uint64_t i = 0; i < kSlots * 2; ++i) EXPECT_EQUAL(record(GM_ALLOC, 0, i), GM_OK);
  gm_recorder_stop("exit");
  struct stat status;
  EXPECT_EQUAL(::stat(own.c_str(), &status), 0);
  EXPECT_EQUAL(status.st_size, 0);
  for (const int fd : own_fds) EXPECT_EQUAL(::close(fd), 0);
  EXPECT_EQUAL(read_journal(path).records.size(), kSlots * 2);
  // The same once the journal's path is gone: recording stops by itself.
  start_recording(path);
  ::unlink(path.c_str());
  for (int fd = 3; fd < 64; ++fd) ::close(fd);
  gm_status last = GM_OK;
  for (uint64_t i = 0; i < kSlots * 2 && last == GM_OK; ++i) last = record(GM_ALLOC, 0, i);
  EXPECT_EQUAL(last, GM_CANNOT_MAP);
  gm_recorder_stop("exit");
}

// SIGXFSZ keeps its default action, which would end the program.
void test_file_length_limit_stops_the_recording_alone(const std::string& folder) {
  rlimit before;
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {42 << 20, before.rlim_max};
  ::signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQUAL(::setrlimit(RLIMIT_FSIZE, &small), 0);
  record_past_the_end(folder + "/limited.gpumem.journal");
  ::setrlimit(RLIMIT_FSIZE, &before);
}

// Stacks of a size that no machine has, for the journal's thread alone.
void start_recording_without_helper(const std::string& path) {
  pthread_attr_t before, huge;
  EXPECT_EQUAL(::pthread_getattr_default_np(&before), 0);
  ::pthread_attr_init(&huge);
  EXPECT_EQUAL(::pthread_attr_setstacksize(&huge, size_t{1} << 50), 0);
  EXPECT_EQUAL(::pthread_setattr_default_np(&huge), 0);
  start_recording(path);
  EXPECT_EQUAL(::pthread_setattr_default_np(&before), 0);
  ::pthread_attr_destroy(&huge);
  ::pthread_attr_destroy(&before);
}

size_t count_threads() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(threads), end(threads)));
}

// Whoever records does the work of the thread that the system does not give, until the recording stops in its midst:
// when a window's slots are all taken, it is looked through.
void test_journal_without_a_thread_of_its_own(const std::string& folder) {
  const std::string path = folder + "/no_helper.gpumem.journal";
  for (int round = 0; round < 3; ++round) {
    const size_t threads_before = count_threads();
    start_recording_without_helper(path);
    EXPECT_EQUAL(count_threads(), threads_before);
    for (uint64_t i = 0; i < kSlots; ++i) record(GM_ALLOC, 0, i);
    EXPECT_EQUAL(read_journal(path).states[0], gpumem::WindowState::Full);
    std::atomic<uint64_t> accepted{kSlots};
    std::atomic<bool> is_over{false};
    std::vector<std::thread> threads;
    for (uint8_t device = 0; device < 3; ++device) {
      threads.emplace_back([&, device] {
        for (uint64_t i = 0; !is_over.load(std::memory_order_relaxed); ++i) {
          const uint8_t kind = i % 3 == 0 ? GM_ALLOC : i % 3 == 1 ? GM_FREE_REQUESTED : GM_FREE_COMPLETED;
          if (record(kind, device, i / 3) == GM_OK) accepted.fetch_add(kind != GM_FREE_COMPLETED ? 1 : 0);
        }
      });
    }
    gm_recorder_counts counts = {};
    while (counts.records < kSlots * 2) gm_recorder_get_counts(&counts);
    gm_recorder_stop("exit");
    is_over.store(true);
    for (std::thread& thread : threads) thread.join();
    const JournalContents contents = read_journal(path);
    EXPECT(contents.is_closed);
    EXPECT_EQUAL(contents.torn_count, 0);
    EXPECT_EQUAL(contents.committed_count, contents.records.size());
    // Calls under way during the stop may have returned after the file was closed.
    EXPECT(contents.records.size() <= accepted.load() && contents.records.size() + 3 >= accepted.load());
  }
}

gm_status start_at(const std::string& path, int32_t* errno_value) {
  const gm_recorder_options options = {path.c_str(), nullptr, kTestRunId, 0, 0};
  return gm_recorder_start(&options, errno_value);
}

void test_places_where_no_journal_can_be(const std::string& folder) {
  int32_t errno_value = 0;
  EXPECT_EQUAL(start_at(folder + "/missing/a.gpumem.journal", &errno_value), GM_CANNOT_CREATE);
  EXPECT_EQUAL(errno_value, ENOENT);
  const std::string existing = folder + "/existing.gpumem.journal";
  ::close(::open(existing.c_str(), O_RDWR | O_CREAT, 0644));
  EXPECT_EQUAL(start_at(existing, &errno_value), GM_CANNOT_CREATE);
  EXPECT_EQUAL(errno_value, EEXIST);
  // Root may write anywhere but into /proc: a folder that refuses everyone.
  EXPECT_EQUAL(start_at("/proc/self/a.gpumem.journal", &errno_value), GM_CANNOT_CREATE);
  EXPECT(errno_value == ENOENT || errno_value == EACCES);
  const std::string closed_folder = folder + "/closed";
  ::mkdir(closed_folder.c_str(), 0555);
  if (::geteuid() != 0) {
    EXPECT_EQUAL(start_at(closed_folder + "/a.gpumem.journal", &errno_value), GM_CANNOT_CREATE);
    EXPECT_EQUAL(errno_value, EACCES);
  }
  EXPECT_EQUAL(record(GM_ALLOC, 0, 1), GM_NOT_RECORDING);
}

void test_arguments_that_are_impossible() {
  int32_t errno_value;
  EXPECT_EQUAL(gm_recorder_start(nullptr, &errno_value), GM_BAD_ARGUMENT);
  EXPECT_EQUAL(gm_record_event(nullptr), GM_BAD_ARGUMENT);
  EXPECT_EQUAL(gm_record_mark(GM_MARK, nullptr, 0, nullptr), GM_BAD_ARGUMENT);
  EXPECT_EQUAL(gm_record_mark(GM_ALLOC, "x", 0, nullptr), GM_BAD_ARGUMENT);
  EXPECT_EQUAL(gm_recorder_get_path(nullptr, 0), GM_BAD_ARGUMENT);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const std::string folder = arguments[1];
  run_case("places where no journal can be", [&] { test_places_where_no_journal_can_be(folder); });
  run_case("arguments that are impossible", test_arguments_that_are_impossible);
  run_case("a descriptor closed by the program", [&] { test_descriptor_closed_by_the_program(folder); });
  run_case("a journal without a thread of its own", [&] { test_journal_without_a_thread_of_its_own(folder); });
  run_case("a file length limit stops the recording alone",
           [&] { test_file_length_limit_stops_the_recording_alone(folder); });
  if (::geteuid() == 0) {
    run_case("a file system without reservation is refused",
             [&] { test_file_system_without_reservation_is_refused(folder); });
    run_case("a full disk stops the recording alone", [&] { test_full_disk_stops_the_recording_alone(folder); });
  }
  return exit_code();
}
