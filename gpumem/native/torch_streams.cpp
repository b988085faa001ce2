// PyTorch's numbers of streams; see the header.
//
// A number tells the default stream (0), one of PyTorch's own (its place in the pool, the pool by priority, 1), or
// another library's (the handle). PyTorch says the handle of a number and not the number of a handle: all are asked.
#include "torch_streams.h"

#include "torch_object.h"

namespace gpumem::torch {
namespace {

// c10::cuda::CUDAStream.
struct Stream {
  int8_t device_type;
  int8_t device;
  int64_t number;
};

using HandleOf = void* (*)(const Stream* stream);

constexpr const char kHandleOfStream[] = "_ZNK3c104cuda10CUDAStream6streamEv";
constexpr int8_t kCuda = 1;  // c10::DeviceType::CUDA
constexpr int64_t kPriorities = 4;
constexpr int64_t kStreamsOfPool = 32;

// 0: it is none of PyTorch's.
int64_t find_number(HandleOf handle_of, int8_t device, uint64_t handle) {
  try {
    for (int64_t priority = 1; priority <= kPriorities; ++priority)
      for (int64_t place = 0; place < kStreamsOfPool; ++place) {
        const Stream stream{kCuda, device, place << 5 | priority << 1 | 1};
        if (reinterpret_cast<uintptr_t>(handle_of(&stream)) == handle) return stream.number;
      }
  } catch (...) {  // PyTorch has fewer priorities here
  }
  return 0;
}

}  // namespace

uint64_t find_stream_key(int device, uint64_t handle) {
  const auto handle_of = reinterpret_cast<HandleOf>(find_exported("libc10_cuda.so", kHandleOfStream));
  int64_t number = 0;
  if (handle != 0 && handle_of) number = find_number(handle_of, static_cast<int8_t>(device), handle);
  if (number == 0) number = static_cast<int64_t>(handle);
  constexpr uint64_t kNumberBits = (uint64_t{1} << 48) - 1;
  return static_cast<uint64_t>(kCuda) << 56 | static_cast<uint64_t>(device) << 48 |
         (static_cast<uint64_t>(number) & kNumberBits);
}

}  // namespace gpumem::torch
