#include "nvml_sampling.h"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>

#include "guarded.h"
#include "journal_file.h"
#include "recorder.h"
#include "segment_signal.h"

namespace gpumem {

namespace {

// NVML's, by their numbers in its documented interface.
constexpr int32_t kSuccess = 0;
constexpr int32_t kInsufficientSize = 7;
constexpr int32_t kFunctionNotFound = 13;

struct MemoryInfo {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct ListedProcess {
  unsigned pid;
  unsigned long long held_bytes;
  unsigned gpu_instance, compute_instance;
};
static_assert(sizeof(MemoryInfo) == 40 && sizeof(ListedProcess) == 24);

using ReadMemory = int (*)(void*, MemoryInfo*);
using ListProcesses = int (*)(void*, unsigned*, ListedProcess*);

constexpr unsigned kFirstRoom = 32;  // processes
// A list that grows faster than its room is given up as NVML's own callers do.
constexpr int kListTries = 4;

void sleep_until(uint64_t instant_ns) {
  const timespec instant = {static_cast<time_t>(instant_ns / 1000000000u), static_cast<long>(instant_ns % 1000000000u)};
  while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &instant, nullptr) == EINTR) {
  }
}

uint64_t count_records() {
  gm_recorder_counts counts;
  return recorder::get_counts(&counts) == GM_OK ? counts.records : 0;
}

bool is_same_process(const gm_nvml_share& share, const gm_nvml_process& process) {
  const bool is_hidden = process.held_bytes == UINT64_MAX;
  return share.pid == process.pid && share.list == process.list && (share.is_hidden != 0) == is_hidden;
}

bool is_as_judged(const gm_nvml_device& judged, const gm_nvml_figures& figures) {
  if (figures.memory_code != judged.memory_code) return false;
  if (!std::equal(figures.list_codes, figures.list_codes + GM_NVML_LISTS, judged.list_codes)) return false;
  if (judged.memory_code != kSuccess) return true;
  const auto rest_bytes = static_cast<int64_t>(figures.total_bytes - figures.free_bytes - figures.used_bytes);
  return figures.total_bytes == judged.total_bytes && figures.reserved_bytes == judged.reserved_bytes &&
         figures.free_bytes != UINT64_MAX && figures.used_bytes != UINT64_MAX &&
         figures.used_bytes >= judged.used_bytes_least && rest_bytes >= judged.rest_bytes_least &&
         rest_bytes <= judged.rest_bytes_most;
}

gm_reading make_reading(const gm_nvml_device& judged, const gm_nvml_figures& figures) {
  gm_reading reading = {};
  reading.time_ns = figures.time_ns;
  reading.event = figures.event;
  reading.total_bytes = figures.total_bytes;
  reading.used_bytes = figures.used_bytes - judged.subtracted_bytes;
  reading.free_bytes = figures.free_bytes;
  reading.reserved_bytes = figures.reserved_bytes;
  reading.device = judged.device;
  reading.unavailable = judged.unavailable;
  return reading;
}

void blank_unavailable(gm_reading* reading) {
  uint64_t* const figures[] = {&reading->total_bytes,    &reading->used_bytes,    &reading->free_bytes,
                               &reading->reserved_bytes, &reading->process_bytes, &reading->other_processes_bytes};
  uint32_t bit = 1;
  for (uint64_t* figure : figures) {
    if (reading->unavailable & bit) *figure = UINT64_MAX;
    bit <<= 1;
  }
}

}  // namespace

NvmlSampling::NvmlSampling(const gm_nvml_functions& functions)
    : functions_(functions), listed_(kFirstRoom * sizeof(ListedProcess)), seen_(segment_event_count()) {}

void NvmlSampling::read(uint64_t handle, gm_nvml_figures* figures) {
  const std::lock_guard<std::mutex> lock(mutex_);
  take_figures(handle, &to_be_judged_, figures);
}

void NvmlSampling::follow(uint64_t generation, const gm_nvml_device* devices, uint32_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  followed_.clear();  // where there is no memory for all of them, each reading is judged
  std::vector<Followed> followed;
  for (uint32_t i = 0; i < count; ++i) {
    const gm_nvml_device& judged = devices[i];
    followed.push_back({judged, {judged.shares, judged.shares + judged.share_count}});
  }
  followed_ = std::move(followed);
  followed_generation_ = generation;
  last_reading_ns_.store(clock_ns(CLOCK_MONOTONIC), std::memory_order_relaxed);
}

gm_nvml_outcome NvmlSampling::sample(uint64_t age_ns_least) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t age_ns = clock_ns(CLOCK_MONOTONIC) - last_reading_ns_.load(std::memory_order_relaxed);
  if (age_ns < age_ns_least) return GM_NVML_YOUNG;
  if (!measure_devices()) return GM_NVML_JUDGE;
  if (!record_readings()) return GM_NVML_GIVEN_UP;
  last_reading_ns_.store(clock_ns(CLOCK_MONOTONIC), std::memory_order_relaxed);
  return GM_NVML_RECORDED;
}

gm_nvml_outcome NvmlSampling::run(uint32_t interval_ms, uint64_t gap_ns) {
  for (;;) {
    seen_ = wait_segment_event(seen_, is_stopping_.load(std::memory_order_relaxed) ? 0 : interval_ms);
    const bool is_last = is_stopping_.load(std::memory_order_relaxed);
    if (!is_last) sleep_until(last_reading_ns_.load(std::memory_order_relaxed) + gap_ns);
    const gm_nvml_outcome outcome = guarded_value(GM_NVML_JUDGE, [this] { return sample(0); });
    if (outcome == GM_NVML_JUDGE) return is_last ? GM_NVML_JUDGE_LAST : GM_NVML_JUDGE;
    if (is_last || outcome == GM_NVML_GIVEN_UP) return outcome;
  }
}

void NvmlSampling::stop() {
  is_stopping_.store(true, std::memory_order_relaxed);
  wake_segment_waiters();
}

void NvmlSampling::give_up() {
  const std::lock_guard<std::mutex> lock(record_mutex_);
  is_given_up_ = true;
}

// Fills readings_; false where a device is not as it was judged.
bool NvmlSampling::measure_devices() {
  readings_.clear();
  const auto is_current = [this] { return followed_generation_ == generation_.load(std::memory_order_seq_cst); };
  if (followed_.empty() || !is_current()) return false;
  for (const auto& [judged, shares] : followed_) {
    gm_nvml_figures figures;
    take_figures(judged.handle, &processes_, &figures);
    if (!is_as_judged(judged, figures) || shares.size() != processes_.size()) return false;
    gm_reading reading = make_reading(judged, figures);
    for (size_t i = 0; i < shares.size(); ++i) {
      if (!is_same_process(shares[i], processes_[i])) return false;
      if (shares[i].part == GM_NVML_OWN_PART) reading.process_bytes += processes_[i].held_bytes;
      if (shares[i].part == GM_NVML_OTHERS_PART) reading.other_processes_bytes += processes_[i].held_bytes;
    }
    blank_unavailable(&reading);
    readings_.push_back(reading);
  }
  return is_current();
}

bool NvmlSampling::record_readings() {
  const std::lock_guard<std::mutex> lock(record_mutex_);
  if (is_given_up_) return false;
  for (const gm_reading& reading : readings_) recorder::record_reading(reading);
  return true;
}

void NvmlSampling::take_figures(uint64_t handle, std::vector<gm_nvml_process>* processes, gm_nvml_figures* figures) {
  void* const device = reinterpret_cast<void*>(handle);
  *figures = {};
  figures->event = count_records();
  figures->time_ns = clock_ns(CLOCK_MONOTONIC);
  figures->memory_code = take_memory(device, figures);
  processes->clear();
  for (uint32_t list = 0; list < GM_NVML_LISTS; ++list) {
    figures->list_codes[list] = take_list(device, list, processes);
    // Without the first list nothing can be said, whatever is in the others.
    if (figures->list_codes[0] != kSuccess) break;
  }
  figures->processes = processes->data();
  figures->process_count = static_cast<uint32_t>(processes->size());
}

int32_t NvmlSampling::take_memory(void* device, gm_nvml_figures* figures) {
  MemoryInfo memory = {};
  memory.version = functions_.memory_version;
  const auto read_memory = reinterpret_cast<ReadMemory>(functions_.read_memory);
  const int32_t code = call_driver([&] { return read_memory(device, &memory); });
  if (code != kSuccess) return code;
  figures->total_bytes = memory.total;
  figures->used_bytes = memory.used;
  figures->free_bytes = memory.free;
  figures->reserved_bytes = memory.reserved;
  return code;
}

int32_t NvmlSampling::take_list(void* device, uint32_t list, std::vector<gm_nvml_process>* processes) {
  const auto list_processes = reinterpret_cast<ListProcesses>(functions_.list_processes[list]);
  if (!list_processes) return kFunctionNotFound;
  for (int tries_left = kListTries;; --tries_left) {
    auto* const listed = reinterpret_cast<ListedProcess*>(listed_.data());
    auto count = static_cast<unsigned>(listed_.size() / sizeof(ListedProcess));
    const int32_t code = call_driver([&] { return list_processes(device, &count, listed); });
    if (code == kInsufficientSize && tries_left > 1) {
      listed_.resize((count * size_t{2} + 5) * sizeof(ListedProcess));
      continue;
    }
    if (code != kSuccess) return code;
    for (unsigned i = 0; i < count; ++i) processes->push_back({listed[i].held_bytes, listed[i].pid, list});
    return code;
  }
}

template <typename Call>
int32_t NvmlSampling::call_driver(Call call) {
  call_since_ns_.store(clock_ns(CLOCK_MONOTONIC), std::memory_order_relaxed);
  const int32_t code = call();
  call_since_ns_.store(0, std::memory_order_relaxed);
  return code;
}

}  // namespace gpumem
