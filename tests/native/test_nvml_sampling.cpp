// NVML's sampling in the core: what becomes a reading, what is handed up to be judged, when it reads and how it ends.
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "expect.h"
#include "gpumem_nvml.h"
#include "journal_reading.h"
#include "recording.h"

extern "C" {
void pretend_devices(int count);
void pretend_memory(int device, unsigned long long total, unsigned long long used, unsigned long long free,
                    unsigned long long reserved, int code);
void pretend_list(int device, int list, const unsigned* pids, const unsigned long long* bytes, unsigned count,
                  int code);
void pretend_growth(int device, unsigned growth, unsigned calls);
void pretend_hang(int is_hanging);
int pretend_hanging();
void* pretend_handle(int device);
int nvmlDeviceGetMemoryInfo_v2(void*, void*);
int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned*, void*);
int nvmlDeviceGetGraphicsRunningProcesses_v3(void*, unsigned*, void*);
}

namespace {

constexpr uint64_t kHidden = UINT64_MAX;
constexpr uint64_t kGapNs = 5000000;

// Three processes: this one, another in two lists, and one more.
void set_processes() {
  const unsigned compute[] = {100, 7, 8}, graphics[] = {7};
  const unsigned long long compute_bytes[] = {518, 10, 1}, graphics_bytes[] = {10};
  pretend_list(0, 0, compute, compute_bytes, 3, 0);
  pretend_list(0, 1, graphics, graphics_bytes, 1, 0);
}

gm_nvml* make_sampling() {
  gm_nvml_functions functions = {};
  functions.read_memory = reinterpret_cast<uint64_t>(&nvmlDeviceGetMemoryInfo_v2);
  functions.list_processes[0] = reinterpret_cast<uint64_t>(&nvmlDeviceGetComputeRunningProcesses_v3);
  functions.list_processes[1] = reinterpret_cast<uint64_t>(&nvmlDeviceGetGraphicsRunningProcesses_v3);
  functions.memory_version = 0x02000028;
  gm_nvml* nvml = nullptr;
  EXPECT_EQUAL(gm_nvml_create(&functions, &nvml), GM_OK);
  return nvml;
}

uint64_t handle_of(int device) {
  return reinterpret_cast<uint64_t>(pretend_handle(device));
}

// Judges a device as its figures are now, as the caller would: pid 100 is this process, each counts once.
void follow_as_it_is(gm_nvml* nvml, uint64_t generation, uint32_t unavailable = 0) {
  gm_nvml_figures figures;
  EXPECT_EQUAL(gm_nvml_read(nvml, handle_of(0), &figures), GM_OK);
  std::vector<gm_nvml_share> shares;
  for (uint32_t i = 0; i < figures.process_count; ++i) {
    const gm_nvml_process& process = figures.processes[i];
    const bool is_counted = process.list == (process.pid == 7 ? 1u : 0u);
    const uint32_t part = !is_counted ? GM_NVML_NO_PART : process.pid == 100 ? GM_NVML_OWN_PART : GM_NVML_OTHERS_PART;
    shares.push_back({process.pid, process.list, process.held_bytes == kHidden, part});
  }
  gm_nvml_device judged = {};
  judged.handle = handle_of(0);
  judged.total_bytes = figures.total_bytes;
  judged.reserved_bytes = figures.reserved_bytes;
  judged.subtracted_bytes = 3;
  judged.used_bytes_least = 3;
  judged.rest_bytes_least = INT64_MIN;
  judged.rest_bytes_most = static_cast<int64_t>(figures.reserved_bytes);
  judged.shares = shares.data();
  judged.share_count = static_cast<uint32_t>(shares.size());
  judged.memory_code = figures.memory_code;
  std::memcpy(judged.list_codes, figures.list_codes, sizeof judged.list_codes);
  judged.device = 2;
  judged.unavailable = unavailable;
  EXPECT_EQUAL(gm_nvml_follow(nvml, generation, &judged, 1), GM_OK);
}

std::vector<gm_reading> readings_of(const std::string& path) {
  std::vector<gm_reading> readings;
  for (const std::string& payload : read_journal(path).payloads(gpumem::EntryKind::Reading)) {
    gm_reading reading;
    EXPECT_EQUAL(payload.size(), sizeof reading);
    std::memcpy(&reading, payload.data(), sizeof reading);
    readings.push_back(reading);
  }
  return readings;
}

void test_figures_of_the_judged_kind_become_readings(const std::string& folder) {
  const std::string path = folder + "/judged.gpumem.journal";
  start_recording(path);
  record(GM_ALLOC, 0, 0x1000);
  pretend_devices(1);
  set_processes();
  pretend_memory(0, 1000, 300, 600, 100, 0);
  gm_nvml* nvml = make_sampling();
  EXPECT_EQUAL(gm_nvml_sample(nvml, 0), GM_NVML_JUDGE);
  follow_as_it_is(nvml, gm_nvml_forget(nvml));
  pretend_memory(0, 1000, 340, 560, 100, 0);
  EXPECT_EQUAL(gm_nvml_sample(nvml, 0), GM_NVML_RECORDED);
  EXPECT_EQUAL(gm_nvml_sample(nvml, UINT64_MAX), GM_NVML_YOUNG);
  follow_as_it_is(nvml, gm_nvml_forget(nvml), 1 << 1 | 1 << 5);
  EXPECT_EQUAL(gm_nvml_sample(nvml, 0), GM_NVML_RECORDED);
  gm_nvml_destroy(nvml);
  gm_recorder_stop("exit");
  const std::vector<gm_reading> readings = readings_of(path);
  EXPECT_EQUAL(readings.size(), 2u);
  const gm_reading& first = readings.at(0);
  EXPECT_EQUAL(first.event, 1u);
  EXPECT_EQUAL(first.device, 2u);
  EXPECT_EQUAL(first.unavailable, 0u);
  EXPECT_EQUAL(first.total_bytes, 1000u);
  EXPECT_EQUAL(first.used_bytes, 337u);
  EXPECT_EQUAL(first.free_bytes, 560u);
  EXPECT_EQUAL(first.reserved_bytes, 100u);
  EXPECT_EQUAL(first.process_bytes, 518u);
  EXPECT_EQUAL(first.other_processes_bytes, 11u);
  EXPECT_EQUAL(readings.at(1).used_bytes, UINT64_MAX);
  EXPECT_EQUAL(readings.at(1).other_processes_bytes, UINT64_MAX);
  EXPECT_EQUAL(readings.at(1).process_bytes, 518u);
}

void test_every_other_kind_is_handed_up(const std::string& folder) {
  const std::string path = folder + "/other_kind.gpumem.journal";
  start_recording(path);
  gm_nvml* nvml = make_sampling();
  const auto is_handed_up = [&](auto change) {
    pretend_devices(1);
    set_processes();
    pretend_memory(0, 1000, 300, 600, 100, 0);
    follow_as_it_is(nvml, gm_nvml_forget(nvml));
    change();
    return gm_nvml_sample(nvml, 0) == GM_NVML_JUDGE;
  };
  EXPECT(!is_handed_up([] {}));
  EXPECT(is_handed_up([] { pretend_memory(0, 1001, 300, 600, 100, 0); }));
  EXPECT(is_handed_up([] { pretend_memory(0, 1000, 300, 600, 99, 0); }));
  EXPECT(is_handed_up([] { pretend_memory(0, 1000, 300, 599, 100, 0); }));
  EXPECT(is_handed_up([] { pretend_memory(0, 1000, 2, 998, 100, 0); }));
  EXPECT(is_handed_up([] { pretend_memory(0, 1000, 300, kHidden, 100, 0); }));
  EXPECT(is_handed_up([] { pretend_memory(0, 1000, 300, 600, 100, 3); }));
  EXPECT(is_handed_up([] { pretend_list(0, 0, nullptr, nullptr, 0, 4); }));
  EXPECT(is_handed_up([] { pretend_list(0, 1, nullptr, nullptr, 0, 4); }));
  EXPECT(is_handed_up([] { pretend_list(0, 1, nullptr, nullptr, 0, 0); }));
  const unsigned other[] = {9}, same[] = {7};
  const unsigned long long known[] = {10}, hidden[] = {kHidden};
  EXPECT(is_handed_up([&] { pretend_list(0, 1, other, known, 1, 0); }));
  EXPECT(is_handed_up([&] { pretend_list(0, 1, same, hidden, 1, 0); }));
  EXPECT(is_handed_up([&] { gm_nvml_forget(nvml); }));
  const uint64_t generation = gm_nvml_forget(nvml);
  gm_nvml_forget(nvml);
  follow_as_it_is(nvml, generation);
  EXPECT_EQUAL(gm_nvml_sample(nvml, 0), GM_NVML_JUDGE);
  gm_nvml_destroy(nvml);
  gm_recorder_stop("exit");
  EXPECT_EQUAL(readings_of(path).size(), 1u);
}

void test_list_that_grows_between_calls_is_read_whole(const std::string& folder) {
  start_recording(folder + "/growth.gpumem.journal");
  pretend_devices(1);
  pretend_growth(0, 60, 2);
  gm_nvml* nvml = make_sampling();
  gm_nvml_figures figures;
  gm_nvml_read(nvml, handle_of(0), &figures);
  EXPECT_EQUAL(figures.list_codes[0], 0);
  EXPECT_EQUAL(figures.process_count, 120u);
  pretend_growth(0, 4000, 1000);
  gm_nvml_read(nvml, handle_of(0), &figures);
  gm_nvml_read(nvml, handle_of(0), &figures);
  EXPECT_EQUAL(figures.list_codes[0], 0);
  gm_nvml_destroy(nvml);
  gm_recorder_stop("exit");
}

void test_refused_list_says_so_and_leaves_the_rest_unasked(const std::string&) {
  pretend_devices(1);
  set_processes();
  pretend_list(0, 0, nullptr, nullptr, 0, 4);
  gm_nvml* nvml = make_sampling();
  gm_nvml_figures figures;
  gm_nvml_read(nvml, handle_of(0), &figures);
  EXPECT_EQUAL(figures.list_codes[0], 4);
  EXPECT_EQUAL(figures.process_count, 0u);
  pretend_list(0, 0, nullptr, nullptr, 0, 0);
  gm_nvml_read(nvml, handle_of(0), &figures);
  EXPECT_EQUAL(figures.list_codes[2], 13);
  EXPECT_EQUAL(figures.process_count, 1u);
  gm_nvml_destroy(nvml);
}

void test_run_reads_at_the_interval_and_after_segment_events(const std::string& folder) {
  const std::string path = folder + "/run.gpumem.journal";
  start_recording(path);
  pretend_devices(1);
  set_processes();
  gm_nvml* nvml = make_sampling();
  follow_as_it_is(nvml, gm_nvml_forget(nvml));
  int32_t outcome = -1;
  std::thread thread([&] { outcome = gm_nvml_run(nvml, 3600000, kGapNs); });
  const auto wait_for = [&](size_t count) {
    while (readings_of(path).size() < count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  record(GM_SEGMENT_ALLOC, 0, 0x1000);
  wait_for(1);
  record(GM_SEGMENT_FREE, 0, 0x1000);
  wait_for(2);
  gm_nvml_stop(nvml);
  thread.join();
  EXPECT_EQUAL(outcome, GM_NVML_RECORDED);
  const std::vector<gm_reading> readings = readings_of(path);
  EXPECT_EQUAL(readings.size(), 3u);
  EXPECT(readings.at(1).time_ns - readings.at(0).time_ns >= kGapNs);
  EXPECT_EQUAL(readings.at(2).event, 2u);
  pretend_list(0, 0, nullptr, nullptr, 0, 0);
  EXPECT_EQUAL(gm_nvml_run(nvml, 1, kGapNs), GM_NVML_JUDGE_LAST);
  gm_nvml_destroy(nvml);
  gm_recorder_stop("exit");
}

void test_call_that_hangs_is_seen_and_given_up(const std::string& folder) {
  const std::string path = folder + "/hanging.gpumem.journal";
  start_recording(path);
  pretend_devices(1);
  set_processes();
  gm_nvml* nvml = make_sampling();
  follow_as_it_is(nvml, gm_nvml_forget(nvml));
  EXPECT_EQUAL(gm_nvml_call_since_ns(nvml), 0u);
  pretend_hang(1);
  int32_t outcome = -1;
  std::thread thread([&] { outcome = gm_nvml_run(nvml, 1, 0); });
  while (pretend_hanging() == 0) std::this_thread::yield();
  const uint64_t since_ns = gm_nvml_call_since_ns(nvml);
  EXPECT(since_ns != 0 && since_ns <= gm_clock_ns());
  gm_nvml_stop(nvml);
  gm_nvml_give_up(nvml);
  pretend_hang(0);
  thread.join();
  EXPECT_EQUAL(outcome, GM_NVML_GIVEN_UP);
  EXPECT_EQUAL(readings_of(path).size(), 0u);
  gm_nvml_destroy(nvml);
  gm_recorder_stop("exit");
}

// For the thread sanitizer: marks' readings, new judgements and events beside the thread that reads.
void test_threads_sample_judge_and_record_at_once(const std::string& folder) {
  const std::string path = folder + "/threads.gpumem.journal";
  start_recording(path);
  pretend_devices(1);
  set_processes();
  gm_nvml* nvml = make_sampling();
  follow_as_it_is(nvml, gm_nvml_forget(nvml));
  std::atomic<bool> is_over{false};
  std::atomic<size_t> recorded{0};
  std::thread reader([&] {
    while (!is_over) gm_nvml_run(nvml, 1, 0);
  });
  std::thread marker([&] {
    while (!is_over) recorded += gm_nvml_sample(nvml, 0) == GM_NVML_RECORDED;
  });
  for (int i = 0; i < 200; ++i) {
    record(i % 2 ? GM_SEGMENT_FREE : GM_SEGMENT_ALLOC, 0, 0x1000);
    follow_as_it_is(nvml, gm_nvml_forget(nvml));
    gm_nvml_call_since_ns(nvml);
  }
  while (recorded == 0) std::this_thread::yield();
  is_over = true;
  gm_nvml_stop(nvml);
  marker.join();
  reader.join();
  gm_nvml_destroy(nvml);
  gm_recorder_stop("exit");
  const std::vector<gm_reading> readings = readings_of(path);
  EXPECT(readings.size() >= recorded);
  for (const gm_reading& reading : readings) EXPECT_EQUAL(reading.other_processes_bytes, 11u);
}

}  // namespace

int main(int argument_count, char** arguments) {
  const std::string folder = argument_count > 1 ? arguments[1] : ".";
  run_case("judged kind", [&] { test_figures_of_the_judged_kind_become_readings(folder); });
  run_case("other kinds", [&] { test_every_other_kind_is_handed_up(folder); });
  run_case("growing list", [&] { test_list_that_grows_between_calls_is_read_whole(folder); });
  run_case("refused list", [&] { test_refused_list_says_so_and_leaves_the_rest_unasked(folder); });
  run_case("run", [&] { test_run_reads_at_the_interval_and_after_segment_events(folder); });
  run_case("hanging call", [&] { test_call_that_hangs_is_seen_and_given_up(folder); });
  run_case("threads", [&] { test_threads_sample_judge_and_record_at_once(folder); });
  return exit_code();
}
