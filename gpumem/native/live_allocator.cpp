// The allocator that serves programs; see the header.
#include "live_allocator.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>

#include "gpumem.h"
#include "recorder.h"
#include "session.h"

namespace gpumem {
namespace {

// How often this process has been forked from one that had allocators.
std::atomic<uint32_t> g_generation{0};

void count_fork() {
  g_generation.fetch_add(1);
}

[[maybe_unused]] const int g_fork_hook = pthread_atfork(nullptr, nullptr, count_fork);

uint32_t current_generation() {
  return g_generation.load(std::memory_order_relaxed);
}

uint16_t own_flags(const LiveOptions& options) {
  return static_cast<uint16_t>(GM_FLAG_OWN_ALLOCATOR | options.number << GM_ALLOCATOR_NUMBER_SHIFT);
}

// What is mapped of expandable segments, in whole pages.
std::vector<MappedRange> list_mapped(const Policy& policy) {
  std::vector<MappedRange> ranges;
  uint64_t segment_address = 0;
  policy.visit([&](const SegmentDescription& segment, const BlockDescription& block) {
    if (segment.page_bytes == 0 || block.state == BlockState::kUnmapped) return;
    bool continues = !ranges.empty() && segment.address == segment_address &&
                     ranges.back().address + ranges.back().bytes == block.address;
    segment_address = segment.address;
    if (!continues) ranges.push_back(MappedRange{block.address, 0});
    ranges.back().bytes += block.bytes;
  });
  return ranges;
}

constexpr uint64_t kNoStream = UINT64_MAX;  // captures are found by their filter, not by a stream

}  // namespace

LiveAllocator::LiveAllocator(std::unique_ptr<CudaDevice> device, const LiveOptions& options)
    : device_(std::move(device)),
      cuda_(static_cast<CudaDevice*>(device_.get())),
      ordinal_(options.device),
      own_flags_(own_flags(options)),
      lane_(recorder::claim_lane()),
      generation_(current_generation()),
      policy_(device_.get(), options.settings, options.behaviour, this) {
  policy_.set_limit(options.limit_bytes);
}

LiveAllocator::LiveAllocator(std::unique_ptr<SimulatedDevice> device, const LiveOptions& options)
    : device_(std::move(device)),
      simulated_(static_cast<SimulatedDevice*>(device_.get())),
      ordinal_(options.device),
      own_flags_(own_flags(options)),
      lane_(recorder::claim_lane()),
      generation_(current_generation()),
      policy_(device_.get(), options.settings, options.behaviour, this) {
  policy_.set_limit(options.limit_bytes);
}

LiveAllocator::~LiveAllocator() {
  recorder::give_back_lane(lane_);
}

bool LiveAllocator::is_inherited() const {
  return generation_ != g_generation.load(std::memory_order_relaxed);
}

// The lock of an allocator that can answer.
std::unique_lock<std::mutex> LiveAllocator::enter() {
  if (is_inherited()) throw NotServing();
  std::unique_lock<std::mutex> lock(mutex_);
  if (is_broken_) throw NotServing();
  return lock;
}

// Changes the heap; `otherwise` where the allocator serves no more.
template <typename Change>
Outcome LiveAllocator::change(Outcome otherwise, Change make) {
  if (is_inherited()) return otherwise;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_broken_) return otherwise;
  try {
    return make();
  } catch (const std::bad_alloc&) {
    is_broken_ = true;
    throw;
  }
}

Outcome LiveAllocator::allocate(uint64_t bytes, uint64_t stream, Allocation* allocation) {
  return change(Outcome::kDeviceFailed, [&] {
    Request request;
    request.bytes = bytes;
    request.stream = stream;
    request.pool = captures_.empty() ? nullptr : find_captured_pool(stream);
    return policy_.allocate(request, allocation);
  });
}

const PoolId* LiveAllocator::find_captured_pool(uint64_t stream) const {
  for (auto capture = captures_.rbegin(); capture != captures_.rend(); ++capture)
    if (capture->accepts(stream)) return &capture->pool;
  return nullptr;
}

Outcome LiveAllocator::free(uint64_t address, Outcome otherwise) {
  return change(otherwise, [&] { return policy_.free(address); });
}

Outcome LiveAllocator::record_stream(uint64_t address, uint64_t stream, Outcome otherwise) {
  return change(otherwise, [&] { return policy_.record_stream(address, stream); });
}

Outcome LiveAllocator::empty_cache() {
  return change(Outcome::kOk, [&] { return release_idle(); });
}

// The event stands before the releases that it causes.
Outcome LiveAllocator::release_idle() {
  PolicyEvent event;
  event.kind = GM_EMPTY_CACHE;
  on_event(event);
  ++counts_.full_release_count;
  return policy_.empty_cache();
}

LiveFigures LiveAllocator::take_figures() {
  const std::unique_lock<std::mutex> lock = enter();
  return {counted(), base_, policy_.measure_idle(), policy_.settings().max_split_bytes};
}

void LiveAllocator::take_private_reserves(PrivateReserves* now, PrivateReserves* base) {
  const std::unique_lock<std::mutex> lock = enter();
  *now = policy_.private_reserves();
  *base = private_base_;
}

void LiveAllocator::reset_accumulated() {
  const std::unique_lock<std::mutex> lock = enter();
  private_base_ = policy_.private_reserves();
  base_ = counted();
}

void LiveAllocator::reset_peaks() {
  const std::unique_lock<std::mutex> lock = enter();
  policy_.reset_peaks();
  for (Counter* counter : {&counts_.oversize_blocks, &counts_.oversize_segments}) counter->peak = counter->now;
}

void LiveAllocator::begin_pool(PoolId pool, std::function<bool(uint64_t)> accepts) {
  change(Outcome::kOk, [&] {
    policy_.create_pool(pool, false, false, false);
    policy_.begin_capture(pool, kNoStream);
    captures_.push_back(Capture{pool, std::move(accepts)});
    return Outcome::kOk;
  });
}

void LiveAllocator::end_pool(PoolId pool) {
  change(Outcome::kOk, [&] {
    policy_.end_route(pool);
    auto last = std::find_if(captures_.rbegin(), captures_.rend(),
                             [&](const Capture& capture) { return capture.pool == pool; });
    if (last != captures_.rend()) captures_.erase(std::next(last).base());
    return Outcome::kOk;
  });
}

void LiveAllocator::release_pool(PoolId pool) {
  change(Outcome::kOk, [&] { return policy_.release_pool(pool); });
}

Outcome LiveAllocator::let_in(int ordinal, std::string* why) {
  return change(Outcome::kOk, [&] {
    if (!cuda_ || cuda_->let_in(ordinal, list_mapped(policy_)) == DeviceStatus::kOk) return Outcome::kOk;
    *why = cuda_->last_error();
    return Outcome::kDeviceFailed;
  });
}

// Live blocks are freed first, so that the recording ends with an empty heap.
void LiveAllocator::close() {
  change(Outcome::kOk, [&] {
    std::vector<uint64_t> live;
    policy_.visit([&](const SegmentDescription&, const BlockDescription& block) {
      if (block.state == BlockState::kAllocated) live.push_back(block.address);
    });
    for (uint64_t address : live) policy_.free(address);
    return policy_.statistics().all.reserved_bytes.now > 0 ? release_idle() : Outcome::kOk;
  });
}

Refusal LiveAllocator::describe_refusal(uint64_t bytes) {
  const std::unique_lock<std::mutex> lock = enter();
  Refusal refusal;
  Policy::Attempt attempt;
  Request request;
  request.bytes = bytes;
  if (policy_.plan(request, &attempt) == Outcome::kOk) refusal.segment_bytes = attempt.segment_bytes;
  DeviceMemory now{0, 0};
  if (device_->memory(&now) != DeviceStatus::kOk) now = DeviceMemory{0, 0};
  refusal.free_bytes = now.free_bytes;
  refusal.memory_bytes = now.total_bytes;
  refusal.limit_bytes = policy_.limit_bytes();
  refusal.allocated_bytes = policy_.statistics().all.allocated_bytes.now;
  refusal.reserved_bytes = policy_.statistics().all.reserved_bytes.now;
  policy_.visit([&](const SegmentDescription& segment, const BlockDescription& block) {
    if (block.state == BlockState::kFree && !segment.pool.is_default()) refusal.private_idle_bytes += block.bytes;
  });
  return refusal;
}

std::string LiveAllocator::describe_failure() {
  if (is_inherited()) {
    return "serving a process forked from the one that the allocator belongs to, which needs one of its own";
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_broken_) return "serving a heap that an earlier call left half changed, as the process had no memory left";
  std::string text = policy_.failed_call();
  if (cuda_ && !cuda_->last_error().empty()) text += ": " + cuda_->last_error();
  return text;
}

DeviceMemory LiveAllocator::memory() {
  const std::unique_lock<std::mutex> lock = enter();
  DeviceMemory now{0, 0};
  if (device_->memory(&now) != DeviceStatus::kOk) now = DeviceMemory{0, 0};
  return now;
}

uint64_t LiveAllocator::find_largest_free(uint64_t driver_free_bytes) {
  const std::unique_lock<std::mutex> lock = enter();
  IdleMeasure idle = policy_.measure_idle();
  return std::max({driver_free_bytes, idle.small_free_bytes_max, idle.large_free_bytes_max});
}

void LiveAllocator::count(const PolicyEvent& event) {
  uint64_t oversize_bytes = policy_.settings().max_split_bytes;
  if (oversize_bytes == kUnlimitedBytes) return;
  if (event.kind == GM_ALLOC && event.block_bytes >= oversize_bytes) counts_.oversize_blocks.add(1);
  if ((event.kind == GM_FREE || event.kind == GM_FREE_REQUESTED) && event.block_bytes >= oversize_bytes)
    counts_.oversize_blocks.remove(1);
  if (event.kind == GM_SEGMENT_ALLOC && event.requested_bytes >= oversize_bytes) counts_.oversize_segments.add(1);
  if (event.kind == GM_SEGMENT_FREE && event.requested_bytes >= oversize_bytes) counts_.oversize_segments.remove(1);
}

// Called with the lock held, by the policy and by release_idle().
void LiveAllocator::on_event(const PolicyEvent& told) {
  count(told);
  gm_event event = {};
  event.kind = told.kind;
  event.flags = told.flags | own_flags_;
  event.device = ordinal_;
  event.address = told.address;
  event.requested_bytes = told.requested_bytes;
  event.block_bytes = told.block_bytes;
  event.split_bytes = told.split_bytes;
  event.stream = told.stream;
  event.pool_first = told.pool.first;
  event.pool_second = told.pool.second;
  recorder::record_own_event(event, lane_);
}

}  // namespace gpumem
