// Stands in for PyTorch's pluggable allocator where torch has none: its class by name, PyTorch's real DataPtr and
// stream. Compiled twice: as libc10_cuda.so with GM_C10_CUDA, else as libtorch_cuda.so.
//
// Owns: what our allocator looks for in the two libraries, and versions of PyTorch that would do otherwise (Manner).
// The order of its virtual functions is its own: they are looked for by what they are, not by where they stand.
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#define EXPORTED __attribute__((visibility("default")))

#ifdef GM_C10_CUDA

namespace {
thread_local int current = 0;
thread_local uint64_t stream = 0;
}  // namespace

namespace c10::cuda {
DeviceIndex current_device() {
  return static_cast<DeviceIndex>(current);
}
CUDAStream getCurrentCUDAStream(DeviceIndex device) {
  return CUDAStream(Stream(Stream::UNSAFE, Device(DeviceType::CUDA, device), static_cast<StreamId>(stream)));
}
cudaStream_t CUDAStream::stream() const {
  return reinterpret_cast<cudaStream_t>(id());
}
namespace CUDACachingAllocator {
EXPORTED std::atomic<void*> allocator{nullptr};
}
}  // namespace c10::cuda

extern "C" EXPORTED void pretended_current(int device, uint64_t stream_handle) {
  current = device;
  stream = stream_handle;
}

// The runtime's, which libc10_cuda.so brings along.
extern "C" EXPORTED int cudaMemcpyPeerAsync(void*, int, const void*, int, size_t, void*) {
  return 2;
}

#else

namespace c10::cuda {
DeviceIndex current_device();
namespace CUDACachingAllocator {
extern std::atomic<void*> allocator;
}
}  // namespace c10::cuda

namespace torch::cuda::CUDAPluggableAllocator {

enum class Manner { kAsPyTorch, kOtherStream, kOtherContext, kFreesByItself };

void delete_by_current(void* address);
void delete_by_itself(void* address);
void delete_context(void* context);

struct EXPORTED CUDAPluggableAllocator {
  using Malloc = void* (*)(size_t, int, cudaStream_t);
  using Free = void (*)(void*, size_t, int, cudaStream_t);
  struct Row {
    size_t bytes;
    int device;
    cudaStream_t stream;
  };

  virtual ~CUDAPluggableAllocator() = default;
  virtual void raw_delete(void* address);
  virtual void cacheInfo(c10::DeviceIndex device, size_t* largest_bytes);
  virtual void* raw_alloc(size_t bytes);
  virtual c10::DataPtr allocate(size_t bytes);
  virtual void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex accessed_device);
  virtual void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream);
  virtual int memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream,
                          bool is_let_in);

  void* ask(size_t bytes, int device, cudaStream_t stream) {
    void* address = malloc_(bytes, device, stream);
    const std::lock_guard<std::mutex> lock(mutex_);
    rows_.emplace(address, Row{bytes, device, stream});
    return address;
  }

  Row take_row(void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = rows_.find(address);
    if (found == rows_.end()) throw std::runtime_error("Trying to free a pointer not allocated here");
    const Row row = found->second;
    rows_.erase(found);
    return row;
  }

  Malloc malloc_ = nullptr;
  Free free_ = nullptr;
  Manner manner_ = Manner::kAsPyTorch;
  int peer_count_ = 0;
  std::mutex mutex_;
  std::map<void*, Row> rows_;
};

CUDAPluggableAllocator plugged;

cudaStream_t current_stream() {
  return c10::cuda::getCurrentCUDAStream(c10::cuda::current_device()).stream();
}

c10::DataPtr CUDAPluggableAllocator::allocate(size_t bytes) {
  const c10::DeviceIndex device = c10::cuda::current_device();
  const c10::Device on(c10::DeviceType::CUDA, device);
  cudaStream_t stream = manner_ == Manner::kOtherStream ? reinterpret_cast<cudaStream_t>(0x99) : current_stream();
  void* address = ask(bytes, device, stream);
  if (manner_ == Manner::kOtherContext) return {address, new void*(address), &delete_context, on};
  return {address, address, manner_ == Manner::kFreesByItself ? &delete_by_itself : &delete_by_current, on};
}

void* CUDAPluggableAllocator::raw_alloc(size_t bytes) {
  return ask(bytes, c10::cuda::current_device(), current_stream());
}

void* CUDAPluggableAllocator::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  return ask(bytes, c10::cuda::current_device(), stream);
}

void CUDAPluggableAllocator::raw_delete(void* address) {
  const Row row = take_row(address);
  free_(address, row.bytes, row.device, row.stream);
}

void CUDAPluggableAllocator::cacheInfo(c10::DeviceIndex, size_t*) {
  throw std::runtime_error("CUDAPluggableAllocator does not yet support cacheInfo");
}

void CUDAPluggableAllocator::enablePeerAccess(c10::DeviceIndex, c10::DeviceIndex) {
  ++peer_count_;
}

int CUDAPluggableAllocator::memcpyAsync(void*, int, const void*, int, size_t, cudaStream_t, bool) {
  return 1;
}

CUDAPluggableAllocator* in_use() {
  return static_cast<CUDAPluggableAllocator*>(c10::cuda::CUDACachingAllocator::allocator.load());
}

void delete_by_current(void* address) {
  in_use()->raw_delete(address);
}

void delete_by_itself(void* address) {
  plugged.CUDAPluggableAllocator::raw_delete(address);
}

void delete_context(void* context) {
  void* address = *static_cast<void**>(context);
  delete static_cast<void**>(context);
  plugged.CUDAPluggableAllocator::raw_delete(address);
}

}  // namespace torch::cuda::CUDAPluggableAllocator

extern "C" void pretended_current(int device, uint64_t stream_handle);

using torch::cuda::CUDAPluggableAllocator::in_use;
using torch::cuda::CUDAPluggableAllocator::plugged;
using Pluggable = torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;

namespace {
std::map<void*, c10::DataPtr> live;

// A torch::Tensor's memory: the deleter is in the DataPtr.
template <class Body>
auto or_refusal(Body body, decltype(body()) refused) {
  try {
    return body();
  } catch (const std::exception&) {
    return refused;
  }
}
}  // namespace

extern "C" {

EXPORTED void pretended_plug(Pluggable::Malloc ask, Pluggable::Free give_back, int manner) {
  plugged.malloc_ = ask;
  plugged.free_ = give_back;
  plugged.manner_ = static_cast<torch::cuda::CUDAPluggableAllocator::Manner>(manner);
  c10::cuda::CUDACachingAllocator::allocator.store(&plugged);
}

// Blocks that PyTorch's own table knows.
EXPORTED size_t pretended_rows() {
  return plugged.rows_.size();
}

// The address that a tensor of this many bytes gets, null when it is refused; its device through `device`.
EXPORTED void* pretended_tensor(size_t bytes, int* device) {
  return or_refusal(
      [&]() -> void* {
        c10::DataPtr made = in_use()->allocate(bytes);
        void* address = made.get();
        *device = made.device().is_cuda() ? made.device().index() : -1;
        live.insert_or_assign(address, std::move(made));
        return address;
      },
      nullptr);
}

EXPORTED void pretended_end_tensor(void* address) {
  live.erase(address);
}

// Threads that make tensors from one moment on, on two devices and in both ways, and end one another's.
EXPORTED void pretended_threads(int thread_count, int tensor_count) {
  std::mutex mutex;
  std::vector<c10::DataPtr> made;
  std::atomic<int> waiting{thread_count};
  const auto work = [&](int number) {
    waiting.fetch_sub(1);
    while (waiting.load() > 0) std::this_thread::yield();
    for (int i = 0; i < tensor_count; ++i) {
      pretended_current((number + i) % 2, 0x10 * static_cast<uint64_t>(number));
      const auto bytes = static_cast<size_t>(512 * (1 + i % 20));
      c10::DataPtr one = in_use()->allocate(bytes);
      in_use()->raw_delete(in_use()->raw_alloc(bytes));
      const std::lock_guard<std::mutex> lock(mutex);
      made.push_back(std::move(one));
      std::swap(made[static_cast<size_t>(i) % made.size()], one);
      if (made.size() > 20) made.pop_back();
    }
  };
  std::vector<std::thread> threads;
  for (int number = 0; number < thread_count; ++number) threads.emplace_back(work, number);
  for (std::thread& thread : threads) thread.join();
}

// How often PyTorch's own function has been asked.
EXPORTED int pretended_enable_peer_access(int device, int accessed_device) {
  in_use()->enablePeerAccess(static_cast<c10::DeviceIndex>(device), static_cast<c10::DeviceIndex>(accessed_device));
  return plugged.peer_count_;
}

// 1 by PyTorch's own function, 2 by the runtime's for copies between GPUs.
EXPORTED int pretended_copy(int to_device, int from_device, int is_let_in) {
  return in_use()->memcpyAsync(nullptr, to_device, nullptr, from_device, 1, nullptr, is_let_in != 0);
}

EXPORTED void* pretended_raw_alloc(size_t bytes) {
  return in_use()->raw_alloc(bytes);
}

EXPORTED void* pretended_raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  return in_use()->raw_alloc_with_stream(bytes, stream);
}

// False: PyTorch refuses to free it.
EXPORTED bool pretended_raw_delete(void* address) {
  return or_refusal([&] { return in_use()->raw_delete(address), true; }, false);
}
}

#endif
