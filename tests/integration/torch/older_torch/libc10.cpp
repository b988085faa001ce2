// libc10.so of an older PyTorch, as far as errors go: the base class's constructor, the derived class's type.
#include <c10/util/Exception.h>

#include <utility>

namespace c10 {

Error::Error(SourceLocation place, std::string text) : text_(std::move(text)) {
  what_ = text_ + "\nfrom " + place.function;
}

// Where its type stands, in PyTorch's allocator, it is thrown too.
[[noreturn]] void run_out_of_memory() {
  throw OutOfMemoryError(SourceLocation{"malloc", "CUDACachingAllocator", 0}, "CUDA out of memory.");
}

}  // namespace c10
