// A real GPU behind the device seam; see the header.
#include "cuda_device.h"

#include <cstdio>

#include "check.h"

namespace gpumem {
namespace {

cuda::Stream stream_of(uint64_t handle) {
  return reinterpret_cast<cuda::Stream>(static_cast<uintptr_t>(handle));
}

std::string spell_uuid(const cuda::Uuid& uuid) {
  std::string text = "GPU-";
  char digits[3];
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    std::snprintf(digits, sizeof digits, "%02x", uuid.bytes[i]);
    text += digits;
  }
  return text;
}

bool has_attribute(const cuda::Functions& driver, int attribute, cuda::DeviceNumber device) {
  int value = 0;
  return driver.get_device_attribute(&value, attribute, device) == cuda::kSuccess && value != 0;
}

// The driver's number of the program's ordinal; false with the reason.
bool find_number(const cuda::Functions& driver, int ordinal, cuda::DeviceNumber* number, std::string* why) {
  int count = 0;
  cuda::Result result = driver.get_device_count(&count);
  if (result == cuda::kSuccess && ordinal >= count) {
    *why = "the program sees " + std::to_string(count) + " GPUs";
    return false;
  }
  if (result == cuda::kSuccess) result = driver.get_device(number, ordinal);
  if (result != cuda::kSuccess) *why = cuda::describe(driver, "cuDeviceGet", result);
  return result == cuda::kSuccess;
}

}  // namespace

// The primary context is current, and captures are no hindrance, while one of these lives.
class CudaDevice::Call {
 public:
  explicit Call(CudaDevice* device) : driver_(*device->driver_) {
    cuda::Context current = nullptr;
    if (driver_.get_current_context(&current) != cuda::kSuccess || current != device->context_) {
      cuda::Result result = driver_.push_context(device->context_);
      is_pushed_ = result == cuda::kSuccess;
      is_current_ = is_pushed_;
      if (!is_pushed_) device->last_error_ = cuda::describe(driver_, "cuCtxPushCurrent", result);
    }
    is_relaxed_ = driver_.exchange_capture_mode(&mode_) == cuda::kSuccess;
  }
  ~Call() {
    if (is_relaxed_) driver_.exchange_capture_mode(&mode_);
    cuda::Context popped = nullptr;
    if (is_pushed_) driver_.pop_context(&popped);
  }
  // False: the driver refused to make the context current, and nothing may be asked of it.
  bool is_current() const { return is_current_; }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  const cuda::Functions& driver_;
  int mode_ = cuda::kCaptureRelaxed;
  bool is_current_ = true;
  bool is_pushed_ = false;
  bool is_relaxed_ = false;
};

std::unique_ptr<CudaDevice> CudaDevice::open(int ordinal, uint64_t memory_bytes, std::string* why) {
  GpuFacts facts;
  if (!describe(ordinal, &facts, why)) return nullptr;
  const cuda::Functions* driver = cuda::driver(why);
  cuda::DeviceNumber number = 0;
  find_number(*driver, ordinal, &number, why);
  std::unique_ptr<CudaDevice> device(new CudaDevice(driver, number, std::move(facts)));
  if (!device->start(memory_bytes, why)) return nullptr;
  return device;
}

bool CudaDevice::describe(int ordinal, GpuFacts* facts, std::string* why) {
  const cuda::Functions* driver = cuda::driver(why);
  cuda::DeviceNumber number = 0;
  if (!driver || !find_number(*driver, ordinal, &number, why)) return false;
  char name[256] = "";
  cuda::Uuid uuid{};
  size_t card_bytes = 0;
  const char* call = "cuDeviceGetName";
  cuda::Result result = driver->get_device_name(name, sizeof name, number);
  if (result == cuda::kSuccess) result = driver->get_device_uuid(&uuid, number), call = "cuDeviceGetUuid";
  if (result == cuda::kSuccess) result = driver->get_device_bytes(&card_bytes, number), call = "cuDeviceTotalMem";
  if (result != cuda::kSuccess) {
    *why = cuda::describe(*driver, call, result);
    return false;
  }
  *facts = GpuFacts{name, spell_uuid(uuid), card_bytes, has_attribute(*driver, cuda::kAttributeVirtualMemory, number),
                    has_attribute(*driver, cuda::kAttributeRdmaWithVirtualMemory, number)};
  return true;
}

int CudaDevice::find_current() {
  std::string why;
  const cuda::Functions* driver = cuda::driver(&why);
  cuda::Context context = nullptr;
  cuda::DeviceNumber current = 0;
  int count = 0;
  if (!driver || driver->get_current_context(&context) != cuda::kSuccess || !context) return -1;
  if (driver->get_current_device(&current) != cuda::kSuccess) return -1;
  if (driver->get_device_count(&count) != cuda::kSuccess) return -1;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cuda::DeviceNumber number = 0;
    if (driver->get_device(&number, ordinal) == cuda::kSuccess && number == current) return ordinal;
  }
  return -1;
}

CudaDevice::CudaDevice(const cuda::Functions* driver, cuda::DeviceNumber device, GpuFacts facts)
    : driver_(driver),
      device_(device),
      facts_(std::move(facts)),
      accesses_{{{cuda::kLocationDevice, device}, cuda::kAccessReadWrite}} {}

bool CudaDevice::start(uint64_t memory_bytes, std::string* why) {
  cuda::Result result = driver_->retain_primary_context(&context_, device_);
  if (result != cuda::kSuccess) {
    context_ = nullptr;
    *why = cuda::describe(*driver_, "cuDevicePrimaryCtxRetain", result);
    return false;
  }
  budget_bytes_ = memory_bytes < facts_.memory_bytes ? memory_bytes : 0;
  memory_bytes_ = budget_bytes_ ? budget_bytes_ : facts_.memory_bytes;
  return true;
}

// Memory that is still out goes with the context; errors mean that the driver is going or gone.
CudaDevice::~CudaDevice() {
  if (!context_) return;
  {
    Call call(this);
    for (auto& [handle, events] : streams_)
      for (RecordedEvent& recorded : events) idle_events_.push_back(recorded.event);
    for (cuda::Event event : idle_events_) driver_->destroy_event(event);
  }
  driver_->release_primary_context(device_);
}

DeviceStatus CudaDevice::status_of(const char* call, cuda::Result result) {
  if (result == cuda::kSuccess) return DeviceStatus::kOk;
  if (result == cuda::kOutOfMemory) return DeviceStatus::kNoMemory;
  last_error_ = cuda::describe(*driver_, call, result);
  return DeviceStatus::kFailed;
}

DeviceStatus CudaDevice::alloc_segment(const RangeRequest& request, uint64_t* address) {
  if (exceeds_budget(request.bytes)) return DeviceStatus::kNoMemory;
  Call call(this);
  if (!call.is_current()) return DeviceStatus::kFailed;
  cuda::Address given = 0;
  DeviceStatus status = status_of("cuMemAlloc", driver_->alloc_memory(&given, request.bytes));
  if (status != DeviceStatus::kOk) return status;
  *address = given;
  used_bytes_ += request.bytes;
  return status;
}

DeviceStatus CudaDevice::free_segment(uint64_t address, uint64_t bytes) {
  Call call(this);
  if (!call.is_current()) return DeviceStatus::kFailed;
  DeviceStatus status = status_of("cuMemFree", driver_->free_memory(address));
  if (status == DeviceStatus::kOk) used_bytes_ -= bytes;
  return status;
}

DeviceStatus CudaDevice::reserve(const RangeRequest& request, uint64_t* address) {
  Call call(this);
  if (!call.is_current()) return DeviceStatus::kFailed;
  if (!facts_.has_virtual_memory) {
    last_error_ = "this GPU cannot map memory by pages, which expandable_segments needs";
    return DeviceStatus::kFailed;
  }
  cuda::Address given = 0;
  DeviceStatus status = status_of("cuMemAddressReserve", driver_->reserve_address(&given, request.bytes, 0, 0, 0));
  if (status != DeviceStatus::kOk) return status;
  reservations_[given] = request.page_bytes;
  *address = given;
  return status;
}

uint64_t CudaDevice::page_bytes_at(uint64_t address) const {
  auto after = reservations_.upper_bound(address);
  GM_CHECK(after != reservations_.begin());
  return std::prev(after)->second;
}

// Page by page, since a page is given back alone later. What was mapped before a failure is unmapped again.
DeviceStatus CudaDevice::map(uint64_t address, uint64_t bytes) {
  if (exceeds_budget(bytes)) return DeviceStatus::kNoMemory;
  Call call(this);
  if (!call.is_current()) return DeviceStatus::kFailed;
  uint64_t page_bytes = page_bytes_at(address);
  DeviceStatus status = DeviceStatus::kOk;
  uint64_t mapped_bytes = 0;
  while (status == DeviceStatus::kOk && mapped_bytes < bytes) {
    status = map_page(address + mapped_bytes, page_bytes);
    if (status == DeviceStatus::kOk) mapped_bytes += page_bytes;
  }
  if (status == DeviceStatus::kOk)
    status = status_of("cuMemSetAccess", driver_->set_access(address, bytes, accesses_.data(), accesses_.size()));
  if (status != DeviceStatus::kOk)
    unmap_pages(address, mapped_bytes, page_bytes);
  else
    used_bytes_ += bytes;
  return status;
}

DeviceStatus CudaDevice::let_in(int ordinal, const std::vector<MappedRange>& mapped_now) {
  cuda::DeviceNumber number = 0;
  if (!find_number(*driver_, ordinal, &number, &last_error_)) return DeviceStatus::kFailed;
  Call call(this);
  if (!call.is_current()) return DeviceStatus::kFailed;
  accesses_.push_back(cuda::AccessDescription{{cuda::kLocationDevice, number}, cuda::kAccessReadWrite});
  DeviceStatus status = DeviceStatus::kOk;
  for (const MappedRange& range : mapped_now)
    if (status == DeviceStatus::kOk)
      status = status_of("cuMemSetAccess", driver_->set_access(range.address, range.bytes, &accesses_.back(), 1));
  if (status != DeviceStatus::kOk) accesses_.pop_back();
  return status;
}

// The handle is let go at once: the memory lives as long as it is mapped.
DeviceStatus CudaDevice::map_page(uint64_t address, uint64_t page_bytes) {
  cuda::AllocationProperties properties{};
  properties.type = cuda::kAllocationPinned;
  properties.location = {cuda::kLocationDevice, device_};
  properties.rdma_capable = facts_.has_rdma;
  cuda::MemoryHandle handle = 0;
  DeviceStatus status = status_of("cuMemCreate", driver_->create_memory(&handle, page_bytes, &properties, 0));
  if (status != DeviceStatus::kOk) return status;
  status = status_of("cuMemMap", driver_->map_memory(address, page_bytes, 0, handle, 0));
  driver_->release_memory(handle);
  return status;
}

void CudaDevice::unmap_pages(uint64_t address, uint64_t bytes, uint64_t page_bytes) {
  for (uint64_t offset = 0; offset < bytes; offset += page_bytes) driver_->unmap_memory(address + offset, page_bytes);
}

// A page that cannot be unmapped means a broken context, in which nothing else works either.
DeviceStatus CudaDevice::unmap(uint64_t address, uint64_t bytes) {
  Call call(this);
  if (!call.is_current()) return DeviceStatus::kFailed;
  uint64_t page_bytes = page_bytes_at(address);
  for (uint64_t offset = 0; offset < bytes; offset += page_bytes) {
    DeviceStatus status = status_of("cuMemUnmap", driver_->unmap_memory(address + offset, page_bytes));
    if (status != DeviceStatus::kOk) return DeviceStatus::kFailed;
  }
  used_bytes_ -= bytes;
  return DeviceStatus::kOk;
}

DeviceStatus CudaDevice::release_reservation(uint64_t address, uint64_t bytes) {
  Call call(this);
  if (!call.is_current()) return DeviceStatus::kFailed;
  DeviceStatus status = status_of("cuMemAddressFree", driver_->free_address(address, bytes));
  if (status == DeviceStatus::kOk) reservations_.erase(address);
  return status;
}

DeviceStatus CudaDevice::ensure_idle_event() {
  if (!idle_events_.empty()) return DeviceStatus::kOk;
  idle_events_.reserve(1);
  cuda::Event made = nullptr;
  DeviceStatus status = status_of("cuEventCreate", driver_->create_event(&made, cuda::kEventWithoutTiming));
  if (status == DeviceStatus::kOk) idle_events_.push_back(made);
  return status;
}

DeviceStatus CudaDevice::record_event(uint64_t stream, DeviceEvent* event) {
  Call call(this);
  if (!call.is_current() || ensure_idle_event() != DeviceStatus::kOk) return DeviceStatus::kFailed;
  cuda::Event idle = idle_events_.back();
  cuda::Result result = driver_->record_event(idle, stream_of(stream));
  if (result == cuda::kInvalidHandle) return wait_for_destroyed(event);
  if (status_of("cuEventRecord", result) != DeviceStatus::kOk) return DeviceStatus::kFailed;
  event->value = next_event_++;
  events_of(stream).push_back(RecordedEvent{idle, event->value});
  idle_events_.pop_back();  // not before: it would be lost where there is no memory for the queue
  return DeviceStatus::kOk;
}

DeviceStatus CudaDevice::wait_for_destroyed(DeviceEvent* event) {
  if (status_of("cuCtxSynchronize", driver_->wait_context()) != DeviceStatus::kOk) return DeviceStatus::kFailed;
  event->value = next_event_++;
  over_.push_back(event->value);
  return DeviceStatus::kOk;
}

bool CudaDevice::take_over(DeviceEvent* event) {
  if (over_.empty()) return false;
  event->value = over_.front();
  over_.pop_front();
  return true;
}

uint64_t CudaDevice::key_of(uint64_t stream) {
  auto found = stream_keys_.find(stream);
  if (found == stream_keys_.end()) found = stream_keys_.emplace(stream, key_of_(stream)).first;
  return found->second;
}

CudaDevice::StreamEvents& CudaDevice::events_of(uint64_t stream) {
  auto [found, is_new] = streams_.try_emplace(stream);
  if (is_new && key_of_) order_.insert(key_of(stream), stream);
  return found->second;
}

template <class Visit>
void CudaDevice::visit_streams(Visit visit) {
  if (!key_of_) {
    for (auto& [stream, events] : streams_)
      if (visit(stream, &events)) return;
    return;
  }
  for (const StreamOrder::Slot& slot : order_.slots())
    if (!slot.is_empty() && visit(slot.stream, &streams_.at(slot.stream))) return;
}

void CudaDevice::finish_first(uint64_t stream, StreamEvents* events, DeviceEvent* event) {
  event->value = events->front().value;
  idle_events_.push_back(events->front().event);
  events->pop_front();
  if (!events->empty()) return;
  if (key_of_) order_.erase(key_of(stream));
  streams_.erase(stream);
}

DeviceStatus CudaDevice::poll_event(DeviceEvent* event, bool* found) {
  *found = take_over(event);
  if (*found || streams_.empty()) return DeviceStatus::kOk;
  Call call(this);
  if (!call.is_current()) return DeviceStatus::kFailed;
  DeviceStatus status = DeviceStatus::kOk;
  visit_streams([&](uint64_t stream, StreamEvents* events) {
    cuda::Result result = driver_->query_event(events->front().event);
    if (result == cuda::kNotReady) return false;
    *found = result == cuda::kSuccess;
    if (*found)
      finish_first(stream, events, event);
    else
      status = status_of("cuEventQuery", result);
    return true;
  });
  return status;
}

DeviceStatus CudaDevice::wait_event(DeviceEvent* event) {
  if (take_over(event)) return DeviceStatus::kOk;
  GM_CHECK(!streams_.empty());
  Call call(this);
  if (!call.is_current()) return DeviceStatus::kFailed;
  DeviceStatus status = DeviceStatus::kOk;
  visit_streams([&](uint64_t stream, StreamEvents* events) {
    status = status_of("cuEventSynchronize", driver_->wait_event(events->front().event));
    if (status == DeviceStatus::kOk) finish_first(stream, events, event);
    return true;
  });
  return status;
}

DeviceStatus CudaDevice::synchronise(uint64_t stream) {
  Call call(this);
  if (!call.is_current()) return DeviceStatus::kFailed;
  cuda::Result result = driver_->wait_stream(stream_of(stream));
  if (result == cuda::kInvalidHandle) return status_of("cuCtxSynchronize", driver_->wait_context());
  return status_of("cuStreamSynchronize", result);
}

DeviceStatus CudaDevice::memory(DeviceMemory* memory) {
  Call call(this);
  if (!call.is_current()) return DeviceStatus::kFailed;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  DeviceStatus status = status_of("cuMemGetInfo", driver_->get_memory_info(&free_bytes, &total_bytes));
  if (status != DeviceStatus::kOk) return status;
  *memory = DeviceMemory{free_bytes, total_bytes};
  if (budget_bytes_)
    *memory = DeviceMemory{free_bytes < budget_bytes_ - used_bytes_ ? free_bytes : budget_bytes_ - used_bytes_,
                           budget_bytes_};
  return status;
}

}  // namespace gpumem
