// A real GPU behind the device seam, through its driver.
//
// Owns: the primary context while it lives, the ranges and events it handed out, the driver's last error. Must not
// know: pools, blocks, who asked. One lock around each call is the caller's.
//
// Each call makes the primary context current for its duration and lets the driver act although some stream may be
// captured into a CUDA graph. Of a stream that the program has destroyed nothing can be learnt any more: the whole
// context is waited for in its place.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda_driver.h"
#include "device.h"
#include "stream_order.h"

namespace gpumem {

// What the driver says of a GPU without a context on it.
struct GpuFacts {
  std::string name;
  std::string uuid;  // in NVML's spelling
  uint64_t memory_bytes = 0;
  bool has_virtual_memory = false;  // memory can be mapped by pages
  bool has_rdma = false;            // … and reached by network cards
};

struct MappedRange {
  uint64_t address;
  uint64_t bytes;
};

class CudaDevice : public Device {
 public:
  // The device of the program's ordinal; null with the reason. `memory_bytes`: pretends that the card has no more; 0
  // takes it as it is.
  static std::unique_ptr<CudaDevice> open(int ordinal, uint64_t memory_bytes, std::string* why);
  ~CudaDevice() override;
  // False with the reason.
  static bool describe(int ordinal, GpuFacts* facts, std::string* why);
  // The program's ordinal of the GPU whose context is current on this thread; -1 where none is.
  static int find_current();

  // Has streams looked at in the order of PyTorch's table, in which `key_of` is a handle's key, else by handle. To be
  // called before the first event.
  void order_streams_by(std::function<uint64_t(uint64_t)> key_of) { key_of_ = std::move(key_of); }

  DeviceStatus alloc_segment(const RangeRequest& request, uint64_t* address) override;
  DeviceStatus free_segment(uint64_t address, uint64_t bytes) override;
  DeviceStatus reserve(const RangeRequest& request, uint64_t* address) override;
  DeviceStatus map(uint64_t address, uint64_t bytes) override;
  DeviceStatus unmap(uint64_t address, uint64_t bytes) override;
  DeviceStatus release_reservation(uint64_t address, uint64_t bytes) override;
  DeviceStatus record_event(uint64_t stream, DeviceEvent* event) override;
  DeviceStatus poll_event(DeviceEvent* event, bool* found) override;
  DeviceStatus wait_event(DeviceEvent* event) override;
  DeviceStatus synchronise(uint64_t stream) override;
  DeviceStatus memory(DeviceMemory* memory) override;

  // Lets another GPU, by the program's ordinal, at what is mapped here: what is so now, and later ranges too.
  DeviceStatus let_in(int ordinal, const std::vector<MappedRange>& mapped_now);

  const std::string& name() const { return facts_.name; }
  const std::string& uuid() const { return facts_.uuid; }
  uint64_t memory_bytes() const { return memory_bytes_; }
  const std::string& last_error() const { return last_error_; }  // "" none

 private:
  class Call;
  struct RecordedEvent {
    cuda::Event event;
    uint64_t value;
  };
  using StreamEvents = std::deque<RecordedEvent>;  // in the order of the stream's work

  CudaDevice(const cuda::Functions* driver, cuda::DeviceNumber device, GpuFacts facts);
  bool start(uint64_t memory_bytes, std::string* why);
  DeviceStatus status_of(const char* call, cuda::Result result);
  bool exceeds_budget(uint64_t bytes) const { return budget_bytes_ != 0 && bytes > budget_bytes_ - used_bytes_; }
  DeviceStatus map_page(uint64_t address, uint64_t page_bytes);
  void unmap_pages(uint64_t address, uint64_t bytes, uint64_t page_bytes);
  uint64_t page_bytes_at(uint64_t address) const;
  DeviceStatus ensure_idle_event();
  DeviceStatus wait_for_destroyed(DeviceEvent* event);
  bool take_over(DeviceEvent* event);
  StreamEvents& events_of(uint64_t stream);
  uint64_t key_of(uint64_t stream);
  // Each stream with its events in order, until `visit` answers true.
  template <class Visit>
  void visit_streams(Visit visit);
  void finish_first(uint64_t stream, StreamEvents* events, DeviceEvent* event);

  const cuda::Functions* driver_;
  cuda::DeviceNumber device_;
  cuda::Context context_ = nullptr;
  GpuFacts facts_;
  uint64_t memory_bytes_ = 0;                      // of the card, or of the smaller one it stands for
  uint64_t budget_bytes_ = 0;                      // 0: the driver alone decides
  uint64_t used_bytes_ = 0;                        // segments and mapped pages
  std::vector<cuda::AccessDescription> accesses_;  // who may read and write what is mapped, itself first
  std::map<uint64_t, uint64_t> reservations_;      // address -> bytes of a page
  std::map<uint64_t, StreamEvents> streams_;       // events not yet reported; never an empty queue
  std::function<uint64_t(uint64_t)> key_of_;       // none: streams go by handle
  std::map<uint64_t, uint64_t> stream_keys_;       // by handle, as they came up
  StreamOrder order_;                              // of streams_, by their keys
  std::deque<uint64_t> over_;                      // events of destroyed streams, not yet reported
  std::vector<cuda::Event> idle_events_;           // kept for later use
  uint64_t next_event_ = 1;
  std::string last_error_;
};

}  // namespace gpumem
