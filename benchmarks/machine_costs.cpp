// What a machine takes for the things that a recorder cannot do without: two clocks, a locked instruction, the first
// write to a page of a mapped file. Figures of two machines can be compared by it.
//
// usage: machine_costs FOLDER
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace {

constexpr uint64_t kCalls = 2'000'000;
constexpr size_t kFileBytes = 64u << 20;
constexpr size_t kPageBytes = 4096;

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

template <typename Body>
void report(const char* what, uint64_t calls, Body body) {
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    const uint64_t started = now_ns();
    for (uint64_t call = 0; call < calls; ++call) body(call);
    const double each = static_cast<double>(now_ns() - started) / static_cast<double>(calls);
    best = each < best ? each : best;
  }
  std::printf("%-36s %8.1f ns\n", what, best);
}

void report_first_writes(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (fd < 0 || ::fallocate(fd, 0, 0, kFileBytes) != 0) return;
  void* mapping = ::mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED) return;
  auto* bytes = static_cast<volatile uint8_t*>(mapping);
  const uint64_t started = now_ns();
  for (size_t at = 0; at < kFileBytes; at += kPageBytes) bytes[at] = 1;
  std::printf("%-36s %8.1f ns\n", "first write to a page of a file",
              static_cast<double>(now_ns() - started) / static_cast<double>(kFileBytes / kPageBytes));
  ::munmap(mapping, kFileBytes);
  ::close(fd);
  ::unlink(path.c_str());
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  std::atomic<uint64_t> counter{0};
  volatile uint64_t kept = 0;
#if defined(__x86_64__)
  report("time stamp counter", kCalls, [&](uint64_t) { kept = __rdtsc(); });
#endif
  report("clock_gettime", kCalls, [&](uint64_t) { kept = now_ns(); });
  report("locked addition", kCalls, [&](uint64_t) { counter.fetch_add(1, std::memory_order_relaxed); });
  report_first_writes(std::string(arguments[1]) + "/first_writes");
}
