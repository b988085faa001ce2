// Stands in for PyTorch's CUDA allocator where torch has none: takes the tracker and hands it entries on demand.
//
// Owns: the variable c10::cuda::CUDACachingAllocator::allocator that the tracker asks for. The object behind it has a
// table of virtual functions whose every slot is `take`, so that it fits the interface of every version of torch: the
// tracker calls one function of it, with a std::function by invisible reference.
#include <c10/cuda/CUDACachingAllocator.h>

#include <stdexcept>
#include <type_traits>

namespace {

using Tracker = c10::cuda::CUDACachingAllocator::AllocatorTraceTracker;
template <class T>
struct EntryOf;
template <class Entry>
struct EntryOf<std::function<void(const Entry&)>> {
  using Type = Entry;
};
using Entry = EntryOf<Tracker>::Type;
using Stream = decltype(std::declval<Entry>().stream_);

Tracker* attached = nullptr;
bool refuses = false;

void take(void*, Tracker* tracker) {
  if (refuses) throw std::runtime_error("pretended does not yet support attachAllocatorTraceTracker.\nmore");
  attached = new Tracker(std::move(*tracker));
}

struct Pretended {
  using Slot = void (*)(void*, Tracker*);
  Slot* table;
  Slot slots[256];
  Pretended() : table(slots) {
    for (Slot& slot : slots) slot = &take;
  }
};
Pretended pretended;

template <class E, class... Arguments>
void hand_over(Arguments... arguments) {
  const E entry(arguments...);
  if (attached != nullptr) (*attached)(entry);
}

}  // namespace

namespace c10::cuda::CUDACachingAllocator {
std::atomic<CUDAAllocator*> allocator{reinterpret_cast<CUDAAllocator*>(&pretended)};
}

extern "C" {

void pretended_refuse(int value) {
  refuses = value != 0;
}

// Actions are numbers of TraceEntry::Action, in the order in which every version has begun it.
void pretended_event(int action, int device, size_t address, size_t bytes, size_t stream, size_t pool_first,
                     size_t pool_second) {
  const auto kind = static_cast<Entry::Action>(action);
  const auto index = static_cast<c10::DeviceIndex>(device);
  auto* handle = reinterpret_cast<Stream>(stream);
  const c10::approx_time_t time{};
  using Pool = std::pair<unsigned long long, unsigned long long>;
  if constexpr (std::is_constructible_v<Entry, Entry::Action, c10::DeviceIndex, size_t, size_t, Stream, Pool,
                                        c10::approx_time_t>) {
    hand_over<Entry>(kind, index, address, bytes, handle, Pool(pool_first, pool_second), time);
  } else {
    hand_over<Entry>(kind, index, address, bytes, handle, time);
  }
}
}
