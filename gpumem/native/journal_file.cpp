#include "journal_file.h"

#include <fcntl.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>

namespace gpumem {

namespace {

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0xEDB88320u : 0u);
    table[byte] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

}  // namespace

uint32_t crc32(const void* bytes, size_t length) {
  const auto* byte = static_cast<const uint8_t*>(bytes);
  uint32_t value = 0xFFFFFFFFu;
  for (size_t i = 0; i < length; ++i) value = kCrcTable[(value ^ byte[i]) & 0xFF] ^ (value >> 8);
  return ~value;
}

uint64_t clock_ns(clockid_t clock) {
  timespec now;
  ::clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

uint64_t read_process_start_ticks() {
  const int fd = ::open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[1024];
  const ssize_t length = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  if (length <= 0) return 0;
  text[length] = 0;
  // Field 2 is the program's name in parentheses and may hold anything; field 3 follows the last of them.
  const char* at = std::strrchr(text, ')');
  for (int field = 2; at && field < 22; ++field) at = std::strchr(at + 1, ' ');
  return at ? std::strtoull(at + 1, nullptr, 10) : 0;
}

int open_above_streams(const char* path, int flags) {
  constexpr int kStreams = 3;
  constexpr mode_t kMode = 0644;
  const int fd = ::open(path, flags | O_CLOEXEC, kMode);
  if (fd < 0 || fd >= kStreams) return fd;
  const int above = ::fcntl(fd, F_DUPFD_CLOEXEC, kStreams);
  const int error = errno;
  if (above < 0 && (flags & O_EXCL) != 0) ::unlink(path);
  ::close(fd);
  errno = error;
  return above;
}

FileIdentity read_file_identity(int fd) {
  struct stat status;
  if (::fstat(fd, &status) != 0) return {0, 0};
  return {status.st_dev, status.st_ino};
}

bool is_same_file(int fd, FileIdentity identity) {
  const FileIdentity found = read_file_identity(fd);
  return found.inode == identity.inode && found.device == identity.device;
}

bool reserve_file_bytes(int fd, uint64_t offset, uint64_t bytes) {
  rlimit limit;
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && offset + bytes > limit.rlim_cur) {
    errno = EFBIG;
    return false;
  }
  // fallocate, not posix_fallocate: where the file system cannot reserve, that one writes every block instead.
  int result;
  do {
    result = ::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

gm_status status_of_errno() {
  return errno == ENOSPC || errno == EDQUOT || errno == EFBIG ? GM_DISK_FULL : GM_CANNOT_MAP;
}

void replace_mapping(void* mapping, uint64_t bytes, uint64_t kept_bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return;
  // Word by word and atomically: late threads may still count in it.
  auto* target = static_cast<uint64_t*>(memory);
  const auto* source = static_cast<const uint64_t*>(mapping);
  for (uint64_t i = 0; i < kept_bytes / sizeof *target; ++i) target[i] = __atomic_load_n(source + i, __ATOMIC_RELAXED);
  if (::mremap(memory, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, mapping) == MAP_FAILED) ::munmap(memory, bytes);
}

bool pass_barrier_on_every_thread() {
  const auto call = [](int command) { return ::syscall(SYS_membarrier, command, 0, 0) == 0; };
  if (call(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return true;
  // A process has to say once that it will; the kernel takes milliseconds for that, so it is said when first needed.
  if (errno != EPERM || !call(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)) return false;
  return call(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}

bool start_quiet_thread(std::thread* thread, const char* name, std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  bool is_started = true;
  try {
    *thread = std::thread(std::move(body));
    ::pthread_setname_np(thread->native_handle(), name);
  } catch (const std::system_error&) {
    is_started = false;
  } catch (const std::bad_alloc&) {
    is_started = false;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return is_started;
}

}  // namespace gpumem
