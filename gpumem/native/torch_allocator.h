// PyTorch's requests as our allocators take them, for the files that stand in PyTorch's place.
//
// Owns: the declarations of what torch_allocator.cpp does. Must not know: how PyTorch comes to ask.
#pragma once

#include <cstddef>

namespace gpumem::torch {

// Serves a request on the device and stream that PyTorch has current; throws PyTorch's own errors.
[[gnu::hot]] void* serve(size_t bytes, int device, void* stream);

// Takes a block back, whichever device's it is; false: none of our allocators handed it out.
[[gnu::hot]] bool take_back(void* address);

// Lets a GPU at the memory of a device, now and when its allocator comes to be; throws where the driver refuses.
void let_in(int device, int peer);

// The calling thread's last request by way of gm_torch_malloc.
struct Asked {
  int device = -1;
  void* stream = nullptr;
  void* address = nullptr;
};
Asked last_asked();

}  // namespace gpumem::torch
