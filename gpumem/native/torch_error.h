// PyTorch's own out-of-memory error, thrown from a library that is not built against it.
//
// Owns: the search for c10's error classes among the libraries that the process has loaded. Must not know: allocators.
#pragma once

#include <string>

namespace gpumem {

// Throws what PyTorch turns into torch.OutOfMemoryError, or where its class cannot be found, an exception that it
// turns into RuntimeError with the same text.
[[noreturn]] void throw_torch_out_of_memory(const std::string& text);

}  // namespace gpumem
