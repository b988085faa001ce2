// The process has no memory left, at every allocation of every exported function in turn: a status comes back, nothing
// is thrown, and where a handle lived on it works once there is memory again.
//
// The journal's helper thread is spared.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "expect.h"
#include "gpumem_allocator.h"
#include "gpumem_nvml.h"
#include "journal_reading.h"
#include "recording.h"
#include "refused_memory.h"

extern "C" {
void pretend_card(size_t card_bytes, int device_count);
void pretend_finish(uint64_t stream);
void pretend_devices(int count);
void* pretend_handle(int device);
int nvmlDeviceGetMemoryInfo_v2(void*, void*);
int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned*, void*);

void* gm_torch_malloc(size_t bytes, int device, void* stream);
void gm_torch_free(void* address, size_t bytes, int device, void* stream);
void gm_torch_record_stream(void* address, void* stream);
void gm_torch_release_pool(int device, std::pair<unsigned long long, unsigned long long> pool);
}

namespace {

constexpr uint64_t kMiB = 1024 * 1024;

bool has_file(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

gm_status record_on(uint8_t device, uint64_t number) {
  gm_event event = {};
  event.kind = GM_ALLOC;
  event.device = device;
  event.address = number;
  event.stream = number;
  event.pool_first = number;
  return gm_record_event(&event);
}

void test_recorder(const std::string& folder) {
  const std::string path = folder + "/no_memory.gpumem.journal";
  const gm_recorder_options options = {path.c_str(), nullptr, kTestRunId, 0, 0};
  uint64_t round = 0;
  without_memory([&] {
    ::unlink(path.c_str());
    int32_t errno_value = 0;
    uint32_t scope = 0;
    gm_recorder_counts counts = {};
    ++round;
    const gm_status started = HELD(gm_recorder_start(&options, &errno_value));
    EXPECT(has_file(path) == (started == GM_OK));
    HELD(gm_record_fact("key of more bytes than a short string holds", "{}", 2));
    for (uint64_t i = 1; i < 20; ++i) HELD(record_on(static_cast<uint8_t>(i), round * 100 + i));
    HELD(gm_record_mark(GM_MARK, "a mark", 0, nullptr));
    HELD(gm_scope_push("a scope of more bytes than a short string holds", &scope));
    HELD(gm_scope_pop());
    const gm_reading reading = {};
    HELD(gm_record_reading(&reading));
    HELD(gm_recorder_get_counts(&counts));
    if (HELD(gm_recorder_stop("exit")) == GM_NO_MEMORY) gm_recorder_stop("exit");
    EXPECT_EQUAL(gm_recorder_is_active(), 0);
  });
}

#if !defined(__SANITIZE_THREAD__)  // its runtime allows no new threads after a fork
// In the forked child, at its first event: what its exit code shall be.
int record_without_memory(const std::string& path, uint64_t nth) {
  t_refused_count = 0;
  t_left = nth;
  record_on(0, 1);
  t_left = 0;
  const bool is_sound = !has_file(path) || gm_recorder_is_active() || read_journal(path).ended_by == "no_memory";
  return !is_sound ? 2 : t_refused_count > 0 ? 1 : 0;
}

// Its own recording has its parent's facts from the start, or there is no file of it.
void test_forked_child(const std::string& folder) {
  const std::string child_path = folder + "/child.gpumem.journal";
  start_recording(folder + "/parent.gpumem.journal", child_path.c_str());
  EXPECT_EQUAL(gm_record_fact("key of more bytes than a short string holds", "{}", 2), GM_OK);
  int outcome = 1;
  uint64_t nth = 0;
  while (outcome == 1 && nth < kAllocationsMax) {
    ::unlink(child_path.c_str());
    const pid_t child = ::fork();
    if (child == 0) ::_exit(record_without_memory(child_path, nth + 1));
    int status = 0;
    EXPECT_EQUAL(::waitpid(child, &status, 0), child);
    outcome = WIFEXITED(status) ? WEXITSTATUS(status) : 2;
    ++nth;
  }
  EXPECT_EQUAL(outcome, 0);
  EXPECT(nth > 1);
  EXPECT_EQUAL(read_journal(child_path).payloads(gpumem::EntryKind::Fact).size(), 1);
  gm_recorder_stop("exit");
}
#endif

// A history that lacks an event is none.
void test_recording_ends_at_the_event_that_is_lost(const std::string& folder) {
  const std::string path = folder + "/ended.gpumem.journal";
  start_recording(path);
  EXPECT_EQUAL(record_on(0, 1), GM_OK);
  t_is_for_good = true;
  t_left = 1;
  uint64_t recorded_count = 1, lost_count = 0, refused_count = 0;
  for (uint64_t i = 2; i < 1000; ++i) {
    const gm_status status = record_on(0, i);
    ++(status == GM_OK ? recorded_count : status == GM_NO_MEMORY ? lost_count : refused_count);
  }
  t_left = 0;
  EXPECT_EQUAL(record_on(0, 1), GM_NOT_RECORDING);
  EXPECT_EQUAL(lost_count, 1);
  EXPECT_EQUAL(recorded_count + lost_count + refused_count, 999);
  gm_recorder_counts counts = {};
  EXPECT_EQUAL(gm_recorder_get_counts(&counts), GM_OK);
  EXPECT_EQUAL(counts.records, recorded_count);
  EXPECT_EQUAL(counts.records_refused, 1000 - recorded_count);
  gm_recorder_stop("exit");
  const JournalContents contents = read_journal(path);
  EXPECT(contents.is_whole && contents.is_closed);
  EXPECT_EQUAL(contents.ended_by, "no_memory");
  EXPECT_EQUAL(contents.records.size(), recorded_count);
  for (const auto& [event, record] : contents.records) EXPECT_EQUAL(record.address, event + 1);
}

void test_journal(const std::string& folder) {
  const std::string path = folder + "/alone.gpumem.journal";
  without_memory([&] {
    ::unlink(path.c_str());
    int32_t errno_value = 0;
    gm_journal* journal = nullptr;
    gm_record record = {};
    const gm_status created = HELD(gm_journal_create(path.c_str(), kTestRunId, &errno_value, &journal));
    EXPECT(has_file(path) == (created == GM_OK));
    HELD(gm_journal_append(journal, &record, nullptr));
    HELD(gm_journal_append_entry(journal, 1, 1, "text", 4));
    if (HELD(gm_journal_close(journal, "exit")) != GM_OK && journal) gm_journal_close(journal, "exit");
  });
}

void work_on(gm_allocator* allocator) {
  uint64_t address[8] = {};
  for (uint64_t i = 0; i < 8; ++i) HELD(gm_allocator_alloc(allocator, (i + 1) * kMiB, i % 3, &address[i]));
  for (uint64_t one : address) HELD(gm_allocator_record_stream(allocator, one, 7));
  for (uint64_t one : address) HELD(gm_allocator_free(allocator, one));
  gm_allocator_statistics statistics;
  gm_allocator_device device;
  char text[256];
  HELD(gm_allocator_get_statistics(allocator, &statistics));
  HELD(gm_allocator_get_device(allocator, &device));
  HELD(gm_allocator_get_failure(allocator, text, sizeof text));
  HELD(gm_allocator_check(allocator, text, sizeof text));
  const auto take = [](void*, const gm_heap_segments*, const gm_heap_blocks*, uint64_t) {};
  HELD(gm_allocator_take_heap(allocator, take, nullptr));
  HELD(gm_allocator_reset_peaks(allocator));
  HELD(gm_allocator_empty_cache(allocator));
}

void test_allocator(uint32_t kind, const char* settings) {
  const gm_allocator_options options = {settings, 64 * kMiB, GM_NO_LIMIT, kind, 0, 0, 0};
  pretend_card(64 * kMiB, 1);
  without_memory([&] {
    gm_allocator* allocator = nullptr;
    char error[256] = "";
    HELD(gm_allocator_create(&options, &allocator, error, sizeof error));
    work_on(allocator);
    HELD((gm_allocator_destroy(allocator), 0));
    uint32_t count = 0;
    gm_allocator_gpu gpu;
    HELD(gm_allocator_count_gpus(&count, error, sizeof error));
    HELD(gm_allocator_get_gpu(0, &gpu, error, sizeof error));
  });
}

// Beside allocators that serve no more and answer for every block, a device's own one is told of the stream.
void expect_own_word_of_each_device(int device) {
  void* block = gm_torch_malloc(3 * kMiB, device, nullptr);
  gm_torch_record_stream(block, &block);
  gm_torch_free(block, 0, device, nullptr);
  gm_allocator_statistics found = {};
  EXPECT_EQUAL(gm_allocator_get_statistics(gm_torch_allocator(static_cast<uint32_t>(device)), &found), GM_OK);
  EXPECT_EQUAL(found.all.allocated_bytes.current, 0);
  EXPECT_EQUAL(found.all.active_bytes.current, 3 * kMiB);  // till the stream is done
}

// PyTorch takes an exception from where a tensor is made, not from where one ends.
void test_torch_frees() {
  constexpr int kDevices = 128;
  pretend_card(1024 * kMiB, kDevices);
  char error[256];
  EXPECT_EQUAL(gm_torch_prepare("", 0, 0, error, sizeof error), GM_OK);
  int device = 0;  // another one each time: an allocator that lost memory in the midst of a change serves no more
  without_memory([&] {
    ++device;
    EXPECT(device < kDevices);
    void* blocks[4] = {};
    with_memory([&] {
      for (void*& block : blocks) block = gm_torch_malloc(3 * kMiB, device, nullptr);
      for (void* block : blocks) gm_torch_record_stream(block, blocks);  // their frees are put off
    });
    for (void* block : blocks) HELD((gm_torch_free(block, 0, device, nullptr), 0));
    HELD((gm_torch_release_pool(device, {1, 2}), 0));
    with_memory([&] { pretend_finish(reinterpret_cast<uintptr_t>(blocks)); });  // the driver's memory is no matter here
  });
  expect_own_word_of_each_device(device + 1);
}

void test_nvml(const std::string& folder) {
  start_recording(folder + "/nvml.gpumem.journal");
  pretend_devices(1);
  gm_nvml_functions functions = {};
  functions.read_memory = reinterpret_cast<uint64_t>(&nvmlDeviceGetMemoryInfo_v2);
  functions.list_processes[0] = reinterpret_cast<uint64_t>(&nvmlDeviceGetComputeRunningProcesses_v3);
  functions.memory_version = 0x02000028;
  const auto handle = reinterpret_cast<uint64_t>(pretend_handle(0));
  without_memory([&] {
    gm_nvml* nvml = nullptr;
    gm_nvml_figures figures = {};
    HELD(gm_nvml_create(&functions, &nvml));
    HELD(gm_nvml_read(nvml, handle, &figures));
    gm_nvml_device judged = {};
    judged.handle = handle;
    judged.total_bytes = figures.total_bytes;
    judged.reserved_bytes = figures.reserved_bytes;
    judged.rest_bytes_least = INT64_MIN;
    judged.rest_bytes_most = INT64_MAX;
    const uint64_t generation = HELD(gm_nvml_forget(nvml));
    HELD(gm_nvml_follow(nvml, generation, &judged, 1));
    const int32_t outcome = HELD(gm_nvml_sample(nvml, 0));
    EXPECT(!nvml || outcome == GM_NVML_RECORDED || outcome == GM_NVML_JUDGE);
    HELD((gm_nvml_stop(nvml), 0));
    const int32_t last = HELD(gm_nvml_run(nvml, 1, 0));
    EXPECT(!nvml || last == GM_NVML_RECORDED || last == GM_NVML_JUDGE_LAST);
    gm_nvml_destroy(nvml);
  });
  gm_recorder_stop("exit");
}

void ignore_event(void*, const gm_event*) {}

void test_policy() {
  const gm_policy_options options = {"expandable_segments:True", 64 * kMiB, GM_NO_LIMIT, 1, 0, 0};
  without_memory([&] {
    gm_policy* policy = nullptr;
    char error[256];
    gm_policy_allocation made = {};
    gm_policy_statistics statistics;
    HELD(gm_policy_create(&options, ignore_event, nullptr, &policy, error, sizeof error));
    HELD(gm_policy_create_pool(policy, 1, 2, 0, 0));
    for (uint64_t i = 1; i < 4; ++i) HELD(gm_policy_alloc(policy, i * kMiB, i, 1, &made));
    HELD(gm_policy_record_stream(policy, made.address, 9));
    HELD(gm_policy_free(policy, made.address));
    HELD(gm_policy_empty_cache(policy));
    HELD(gm_policy_get_statistics(policy, &statistics));
    HELD(gm_policy_check(policy, error, sizeof error));
    gm_policy_destroy(policy);
  });
}

// Three events on two streams and in two pools, in columns that outlive the calls that take them.
struct Fed {
  uint64_t streams[2] = {0, 7}, zero[1] = {0}, one[1] = {1}, two[1] = {2};
  std::vector<uint8_t> kinds = {GM_SEGMENT_ALLOC, GM_ALLOC, GM_FREE}, devices = std::vector<uint8_t>(3);
  std::vector<uint16_t> stream = std::vector<uint16_t>(3), pool = std::vector<uint16_t>(3);
  std::vector<uint64_t> address = std::vector<uint64_t>(3, 0x10000000), bytes = {2 * kMiB, 512, 512};
  gm_replay_events events = {3, kinds.data(), devices.data(), stream.data(), pool.data(), address.data(), bytes.data()};
};

void test_replay() {
  const Fed fed;
  // At the end a private pool holds a block that any other pool would have split.
  uint64_t kept[] = {0x20000000}, kept_bytes[] = {2 * kMiB}, asked_bytes[] = {512}, first[] = {1}, second[] = {2};
  uint64_t no_stream[] = {0};
  uint8_t small[] = {1}, expandable[] = {0}, state[] = {GM_BLOCK_ALLOCATED};
  const gm_heap_segments end_segments = {1, kept, kept_bytes, no_stream, first, second, small, expandable};
  const gm_heap_blocks end_blocks = {1, kept, kept_bytes, asked_bytes, state};
  gm_replay_device device = {};
  device.settings = "";
  device.capacity_bytes = 64 * kMiB;
  without_memory([&] {
    gm_replay* replay = nullptr;
    char error[256];
    uint64_t segments = 0, blocks = 0, block_bytes[3], split_bytes[3];
    uint16_t flags[3];
    gm_replay_result result;
    HELD(gm_replay_create(&replay));
    HELD(gm_replay_add_streams(replay, fed.streams, 2));
    HELD(gm_replay_add_pools(replay, fed.zero, fed.zero, 1));
    HELD(gm_replay_add_device(replay, &device, error, sizeof error));
    HELD(gm_replay_adopt_from_end(replay, 0, &end_segments, &end_blocks, &fed.events, error, sizeof error));
    HELD(gm_replay_feed(replay, &fed.events));
    HELD(gm_replay_finish(replay));
    HELD(gm_replay_take(replay, HELD(gm_replay_ready(replay)), block_bytes, split_bytes, flags));
    HELD(gm_replay_get_result(replay, 0, &result));
    HELD(gm_replay_count_heap(replay, 0, &segments, &blocks));
    gm_replay_destroy(replay);
  });
}

void test_what_if() {
  const Fed fed;
  gm_what_if_options options = {};
  options.settings = "";
  options.memory_bytes = 64 * kMiB;
  options.limit_bytes = GM_NO_LIMIT;
  without_memory([&] {
    gm_what_if* what_if = nullptr;
    gm_what_if_result served;
    char error[256];
    HELD(gm_what_if_create(&options, &what_if, error, sizeof error));
    HELD(gm_what_if_add_streams(what_if, fed.streams, 2));
    HELD(gm_what_if_add_pools(what_if, fed.one, fed.two, 1));
    HELD(gm_what_if_add_empty_caches(what_if, fed.one, 1));
    HELD(gm_what_if_feed(what_if, &fed.events));
    HELD(gm_what_if_get_result(what_if, &served));
    gm_what_if_destroy(what_if);
  });
}

void test_pickles() {
  // [{}] with a memo, protocol 4.
  const std::string written =
      "\x80\x04]\x94}\x94"
      "a.";
  without_memory([&] {
    char pickle[16] = {};
    std::memcpy(pickle, written.data(), written.size());
    gm_pickle_report report;
    HELD(gm_pickle_check(pickle, written.size(), &report));
    gm_snapshot_skim* skim = nullptr;
    gm_snapshot_parts parts;
    if (HELD(gm_snapshot_skim_create(pickle, written.size(), &skim)) == GM_OK) HELD(gm_snapshot_skim_get(skim, &parts));
    gm_snapshot_skim_free(skim);
  });
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const std::string folder = arguments[1];
  run_case("the recorder", [&] { test_recorder(folder); });
  run_case("a recording ends at the event that is lost",
           [&] { test_recording_ends_at_the_event_that_is_lost(folder); });
#if !defined(__SANITIZE_THREAD__)
  run_case("a forked child", [&] { test_forked_child(folder); });
#endif
  run_case("a journal alone", [&] { test_journal(folder); });
  run_case("an allocator on the simulated device", [] { test_allocator(GM_DEVICE_SIMULATED, ""); });
  run_case("an allocator on a GPU", [] { test_allocator(GM_DEVICE_CUDA, "expandable_segments:True"); });
  run_case("what PyTorch frees", test_torch_frees);
  run_case("NVML's sampling", [&] { test_nvml(folder); });
  run_case("the policy", test_policy);
  run_case("replay", test_replay);
  run_case("what-if", test_what_if);
  run_case("pickles", test_pickles);
  return exit_code();
}
