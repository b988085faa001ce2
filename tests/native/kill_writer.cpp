// Records from several threads until it is killed, counting in shared memory every call that has returned.
//
// usage: kill_writer JOURNAL COUNTS DEVICES. COUNTS is a file of DEVICES u64, mapped shared: COUNTS[d] calls of device
// d have returned; call n (from 1) recorded address n. Every eighth event is a free in two halves.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "gpumem.h"

namespace {

void record_for_ever(uint8_t device, std::atomic<uint64_t>* returned) {
  gm_event event = {};
  event.device = device;
  for (uint64_t call = 1;; ++call) {
    event.address = call;
    event.requested_bytes = call * 3 + device;
    event.block_bytes = ~call;
    event.kind = call % 8 ? GM_ALLOC : GM_FREE_REQUESTED;
    if (call % 4096 == 0) gm_record_fact("progress", "1", 1);
    if (gm_record_event(&event) != GM_OK) std::abort();
    returned->store(call, std::memory_order_release);
    if (event.kind != GM_FREE_REQUESTED) continue;
    event.kind = GM_FREE_COMPLETED;
    if (gm_record_event(&event) != GM_OK) std::abort();
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) return 2;
  const auto device_count = static_cast<uint8_t>(std::atoi(arguments[3]));
  const size_t length = device_count * sizeof(uint64_t);
  const int fd = ::open(arguments[2], O_RDWR | O_CREAT, 0644);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(length)) != 0) return 3;
  void* mapping = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  auto* returned = static_cast<std::atomic<uint64_t>*>(mapping);
  const uint8_t run_id[16] = {};
  const gm_recorder_options options = {arguments[1], nullptr, run_id, 0, 0};
  int32_t errno_value;
  if (gm_recorder_start(&options, &errno_value) != GM_OK) return 3;
  std::vector<std::thread> threads;
  for (uint8_t device = 0; device < device_count; ++device) {
    threads.emplace_back(record_for_ever, device, &returned[device]);
  }
  ::pause();
  return 4;
}
