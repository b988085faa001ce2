// What PyTorch hashes a stream by, of a stream's raw handle.
//
// Owns: how PyTorch numbers its streams. Must not know: events, allocators.
#pragma once

#include <cstdint>

namespace gpumem::torch {

uint64_t find_stream_key(int device, uint64_t handle);

}  // namespace gpumem::torch
