// Hands every event of PyTorch's own CUDA allocator to the recorder, live.
//
// Owns: the one tracker attached to PyTorch's native caching allocator, the translation of its trace entries, and the
// silence before the border of an attachment in mid-run. Must not know: Python, CUDA (cuda_stand_in/ declares what
// c10's headers mention), files, stacks.
//
// Compiled on the user's machine against the installed torch, so it is written for the headers of many versions: the
// entry's type is deduced and members that some versions lack are detected. The callback runs under the allocator's
// lock of the device: it takes no lock, never waits and never throws.
#include <c10/cuda/CUDACachingAllocator.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <type_traits>
#include <utility>

#include "gpumem.h"

namespace {

using Sink = gm_status (*)(const gm_event*);

template <class Tracker>
struct EntryOf;
template <class Entry>
struct EntryOf<std::function<void(const Entry&)>> {
  using Type = Entry;
};
using TraceEntry = EntryOf<c10::cuda::CUDACachingAllocator::AllocatorTraceTracker>::Type;

// The actions of expandable segments by name, -1 where the version has none.
template <class Entry, class = void>
struct ExpandableActions {
  static constexpr int kMap = -1;
  static constexpr int kUnmap = -1;
};
template <class Entry>
struct ExpandableActions<Entry, std::void_t<decltype(Entry::SEGMENT_MAP), decltype(Entry::SEGMENT_UNMAP)>> {
  static constexpr int kMap = Entry::SEGMENT_MAP;
  static constexpr int kUnmap = Entry::SEGMENT_UNMAP;
};

// Copies the private pool's id, a pair, where the version's entries carry one.
template <class Entry, class = void>
struct PoolOf {
  static void copy(const Entry&, gm_event*) {}
};
template <class Entry>
struct PoolOf<Entry, std::void_t<decltype(std::declval<const Entry&>().mempool_.second)>> {
  static void copy(const Entry& entry, gm_event* event) {
    event->pool_first = entry.mempool_.first;
    event->pool_second = entry.mempool_.second;
  }
};

// The counter of PyTorch's own clock, which it has read for the entry; 0 where that is no counter.
template <class Entry, class = void>
struct TicksOf {
  static uint64_t read(const Entry&) { return 0; }
};
#if defined(C10_RDTSC)
template <class Entry>
struct TicksOf<Entry, std::void_t<decltype(std::declval<const Entry&>().time_.approx_t_)>> {
  static uint64_t read(const Entry& entry) { return static_cast<uint64_t>(entry.time_.approx_t_); }
};
#endif

// The kinds of actions, four bits each from the lowest on: a table would take a cache line of its own in every event.
constexpr uint64_t kind_at(int action, gm_kind kind) {
  return action >= 0 && action < 16 ? uint64_t{kind} << 4 * action : 0;
}
constexpr uint64_t kKinds =
    kind_at(TraceEntry::ALLOC, GM_ALLOC) | kind_at(TraceEntry::FREE_REQUESTED, GM_FREE_REQUESTED) |
    kind_at(TraceEntry::FREE_COMPLETED, GM_FREE_COMPLETED) | kind_at(TraceEntry::SEGMENT_ALLOC, GM_SEGMENT_ALLOC) |
    kind_at(TraceEntry::SEGMENT_FREE, GM_SEGMENT_FREE) | kind_at(ExpandableActions<TraceEntry>::kMap, GM_SEGMENT_MAP) |
    kind_at(ExpandableActions<TraceEntry>::kUnmap, GM_SEGMENT_UNMAP) | kind_at(TraceEntry::SNAPSHOT, GM_SNAPSHOT) |
    kind_at(TraceEntry::OOM, GM_OOM);

// 0 for actions that change nothing in the heap (later versions annotate).
uint8_t kind_of(TraceEntry::Action action) {
  const auto value = static_cast<unsigned>(action);
  return value < 16 ? static_cast<uint8_t>(kKinds >> 4 * value & 15) : uint8_t{0};
}

// Silence. A muted device's events are dropped until the snapshot that the muting thread takes: under the device's lock
// its entry is the exact border between what the snapshot shows and what follows. Invariant: muted_count is the
// number of true elements of muted.
std::array<std::atomic<bool>, 256> muted{};
std::atomic<uint32_t> muted_count{0};
std::atomic<bool> forked{false};  // CUDA does not outlive a fork: what a child frees says nothing
thread_local bool takes_snapshot = false;

[[gnu::cold, gnu::noinline]] bool is_silent(uint8_t device, uint8_t kind) {
  if (forked.load(std::memory_order_relaxed)) return true;
  if (!muted[device].load(std::memory_order_acquire)) return false;
  if (kind != GM_SNAPSHOT || !takes_snapshot) return true;
  if (muted[device].exchange(false)) muted_count.fetch_sub(1);
  return false;
}

void hand_over(Sink sink, const TraceEntry& entry) {
  const uint8_t kind = kind_of(entry.action_);
  const auto device = static_cast<uint8_t>(entry.device_);
  if (kind == 0) return;
  if (muted_count.load(std::memory_order_relaxed) != 0 && is_silent(device, kind)) return;
  gm_event event{};
  event.address = entry.addr_;  // of an OOM: the bytes that the driver had free
  event.requested_bytes = entry.size_;
  event.stream = reinterpret_cast<uint64_t>(entry.stream_);
  PoolOf<TraceEntry>::copy(entry, &event);
  event.device = device;
  event.kind = kind;
  event.ticks = TicksOf<TraceEntry>::read(entry);
  sink(&event);
}

void fall_silent_in_child() {
  forked.store(true);
  muted_count.fetch_add(1);  // makes every callback look at `forked`
}

void copy_first_line(const char* text, char* reason, size_t capacity) {
  if (reason == nullptr || capacity == 0) return;
  const size_t length = std::min(std::strcspn(text, "\n"), capacity - 1);
  std::memcpy(reason, text, length);
  reason[length] = '\0';
}

}  // namespace

extern "C" {

// Attaches the tracker for the rest of the process; call once, after CUDA started. `reason` gets PyTorch's own words
// when it refuses (GM_UNSUPPORTED: another allocator backend than the native one).
GM_API gm_status gm_torch_tracker_attach(gm_status (*sink)(const gm_event*), char* reason, size_t capacity) {
  if (sink == nullptr) return GM_BAD_ARGUMENT;
  try {
    c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(
        [sink](const TraceEntry& entry) { hand_over(sink, entry); });
  } catch (const std::exception& error) {
    copy_first_line(error.what(), reason, capacity);
    return GM_UNSUPPORTED;
  } catch (...) {
    copy_first_line("an exception of unknown type", reason, capacity);
    return GM_UNSUPPORTED;
  }
  pthread_atfork(nullptr, nullptr, fall_silent_in_child);
  return GM_OK;
}

// Drops the events of devices [0, device_count) until the calling thread takes a snapshot of each.
GM_API gm_status gm_torch_tracker_mute_until_snapshot(uint32_t device_count) {
  if (device_count > muted.size()) return GM_BAD_ARGUMENT;
  takes_snapshot = true;
  for (uint32_t device = 0; device < device_count; ++device) {
    if (!muted[device].exchange(true)) muted_count.fetch_add(1);
  }
  return GM_OK;
}

// Ends the silence of every device, and how many still kept it through `silent_count` (may be null).
GM_API gm_status gm_torch_tracker_unmute(uint32_t* silent_count) {
  uint32_t count = 0;
  for (auto& device : muted) {
    if (device.exchange(false)) ++count;
  }
  muted_count.fetch_sub(count);
  takes_snapshot = false;
  if (silent_count != nullptr) *silent_count = count;
  return GM_OK;
}
}
