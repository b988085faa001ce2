// Measures the recorder alone: nanoseconds per event, and resident memory at ten instants of the run.
//
// usage: journal_rate FOLDER PAIRS THREADS  ->  one JSON line. Each thread records PAIRS alloc/free pairs on a device
// of its own; the free comes as free_requested and free_completed, as PyTorch's tracker gives it.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gpumem.h"

namespace {

// RssAnon + RssFile + RssShmem of this process.
uint64_t read_resident_kib() {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  char line[256];
  uint64_t kib = 0;
  while (file && std::fgets(line, sizeof line, file)) {
    if (std::strncmp(line, "VmRSS:", 6) == 0) kib = std::strtoull(line + 6, nullptr, 10);
  }
  if (file) std::fclose(file);
  return kib;
}

void record_pairs(uint8_t device, uint64_t pairs) {
  gm_event event = {};
  event.device = device;
  for (uint64_t pair = 0; pair < pairs; ++pair) {
    event.address = 0x7f0000000000ull + (pair % 4096) * 512;
    event.requested_bytes = 512;
    event.kind = GM_ALLOC;
    gm_record_event(&event);
    event.kind = GM_FREE_REQUESTED;
    gm_record_event(&event);
    event.kind = GM_FREE_COMPLETED;
    gm_record_event(&event);
  }
}

double record_on_threads(unsigned thread_count, uint64_t pairs) {
  const uint64_t begin_ns = gm_clock_ns();
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < thread_count; ++i) threads.emplace_back(record_pairs, static_cast<uint8_t>(i), pairs);
  for (std::thread& thread : threads) thread.join();
  return static_cast<double>(gm_clock_ns() - begin_ns);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) return 2;
  const std::string path = std::string(arguments[1]) + "/rate.gpumem.journal";
  const uint64_t pairs = std::strtoull(arguments[2], nullptr, 10);
  const auto thread_count = static_cast<unsigned>(std::strtoul(arguments[3], nullptr, 10));
  const uint8_t run_id[16] = {};
  const uint64_t before_kib = read_resident_kib();
  gm_recorder_options options = {path.c_str(), nullptr, run_id, 0, 0};
  int32_t errno_value;
  const gm_status status = gm_recorder_start(&options, &errno_value);
  if (status != GM_OK) {
    std::fprintf(stderr, "%s: status %d: %s\n", path.c_str(), status, std::strerror(errno_value));
    return 3;
  }
  constexpr unsigned kSteps = 10;
  uint64_t resident_kib = 0, most_kib = 0;
  double elapsed_ns = 0;
  for (unsigned step = 0; step < kSteps; ++step) {
    elapsed_ns += record_on_threads(thread_count, pairs / kSteps);
    resident_kib = read_resident_kib();
    if (resident_kib > most_kib) most_kib = resident_kib;
  }
  gm_recorder_counts counts;
  gm_recorder_get_counts(&counts);
  gm_recorder_stop("exit");
  ::unlink(path.c_str());
  const double events = static_cast<double>(pairs / kSteps * kSteps) * 3 * thread_count;
  std::printf("{\"records\": %llu, \"ns_per_event\": %.1f, \"added_kib_at_end\": %llu, \"added_kib_most\": %llu}\n",
              static_cast<unsigned long long>(counts.records), elapsed_ns / events,
              static_cast<unsigned long long>(resident_kib - before_kib),
              static_cast<unsigned long long>(most_kib - before_kib));
  return 0;
}
