// What NVML lists as in use by processes on a GPU, for the text of an out-of-memory error.
//
// Owns: NVML's library, opened at run time when first asked, and the few of its functions that this takes. Must not
// know: allocators. Nothing here is called with an allocator's lock held.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpumem {

struct ProcessMemory {
  uint32_t pid = 0;
  uint64_t bytes = 0;
};

// The processes on the GPU with this uuid, in NVML's spelling and order; none where NVML does not say.
std::vector<ProcessMemory> list_process_memory(const std::string& gpu_uuid);

}  // namespace gpumem
