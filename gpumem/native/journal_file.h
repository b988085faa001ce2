// What the journal needs of the operating system: reserving file space, mappings, clocks, a quiet thread, a barrier,
// CRC-32.
//
// Owns: the system calls behind the journal. Must not know: the journal's layout or state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <thread>

#include "gpumem.h"

namespace gpumem {

// CRC-32 as zlib computes it.
uint32_t crc32(const void* bytes, size_t length);

uint64_t clock_ns(clockid_t clock);
// Field 22 of /proc/self/stat; 0 where it cannot be read.
uint64_t read_process_start_ticks();

constexpr uint64_t align_up(uint64_t bytes, uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// Tells the file behind a descriptor from any other.
struct FileIdentity {
  uint64_t device;  // st_dev
  uint64_t inode;   // st_ino
};
FileIdentity read_file_identity(int fd);
// open(2) for a file that no standard stream can be taken for: the descriptor is 3 or more, also in a program that has
// closed one of the first three and would print into whatever comes to lie there.
int open_above_streams(const char* path, int flags);
// Whether `fd` still is that file: programs that become daemons close, and then reuse, descriptors not their own.
bool is_same_file(int fd, FileIdentity identity);

// Allocates the range on disk and extends the file over it; false with errno. Never raises SIGXFSZ.
bool reserve_file_bytes(int fd, uint64_t offset, uint64_t bytes);
// The status that errno stands for when a file could not be reserved or mapped.
gm_status status_of_errno();

// Puts private memory in the place of a mapping, in one step; it keeps the first `kept_bytes`, a multiple of 8.
void replace_mapping(void* mapping, uint64_t bytes, uint64_t kept_bytes);

// Has every thread of the process pass a full memory barrier; false where the kernel does not do that.
bool pass_barrier_on_every_thread();

// Starts a thread that receives no signals; false when the system gives none, or no memory for it.
bool start_quiet_thread(std::thread* thread, const char* name, std::function<void()> body);

}  // namespace gpumem
