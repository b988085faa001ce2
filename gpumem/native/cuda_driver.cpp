// The CUDA driver, opened at run time; see the header.
#include "cuda_driver.h"

#include <dlfcn.h>

#include <atomic>

namespace gpumem::cuda {
namespace {

struct Opened {
  Functions functions{};
  std::string why;  // "" when the driver answers
};

// False, and the first name that is missing in `why`, where the library lacks a function.
class Loader {
 public:
  Loader(void* library, std::string* why) : library_(library), why_(why) {}

  template <typename Function>
  Loader& take(const char* name, Function** function) {
    *function = reinterpret_cast<Function*>(dlsym(library_, name));
    if (!*function && why_->empty()) *why_ = std::string("the driver has no ") + name + "; update it";
    return *this;
  }

 private:
  void* library_;
  std::string* why_;
};

void load(void* library, Functions* functions, std::string* why) {
  Loader(library, why)
      .take("cuInit", &functions->init)
      .take("cuGetErrorName", &functions->get_error_name)
      .take("cuGetErrorString", &functions->get_error_text)
      .take("cuDeviceGet", &functions->get_device)
      .take("cuDeviceGetCount", &functions->get_device_count)
      .take("cuDeviceGetName", &functions->get_device_name)
      .take("cuDeviceGetUuid_v2", &functions->get_device_uuid)
      .take("cuDeviceTotalMem_v2", &functions->get_device_bytes)
      .take("cuDeviceGetAttribute", &functions->get_device_attribute)
      .take("cuDevicePrimaryCtxRetain", &functions->retain_primary_context)
      .take("cuDevicePrimaryCtxRelease_v2", &functions->release_primary_context)
      .take("cuCtxGetCurrent", &functions->get_current_context)
      .take("cuCtxGetDevice", &functions->get_current_device)
      .take("cuCtxPushCurrent_v2", &functions->push_context)
      .take("cuCtxPopCurrent_v2", &functions->pop_context)
      .take("cuThreadExchangeStreamCaptureMode", &functions->exchange_capture_mode)
      .take("cuMemAlloc_v2", &functions->alloc_memory)
      .take("cuMemFree_v2", &functions->free_memory)
      .take("cuMemGetInfo_v2", &functions->get_memory_info)
      .take("cuMemAddressReserve", &functions->reserve_address)
      .take("cuMemAddressFree", &functions->free_address)
      .take("cuMemCreate", &functions->create_memory)
      .take("cuMemRelease", &functions->release_memory)
      .take("cuMemMap", &functions->map_memory)
      .take("cuMemUnmap", &functions->unmap_memory)
      .take("cuMemSetAccess", &functions->set_access)
      .take("cuEventCreate", &functions->create_event)
      .take("cuEventDestroy_v2", &functions->destroy_event)
      .take("cuEventRecord", &functions->record_event)
      .take("cuEventQuery", &functions->query_event)
      .take("cuEventSynchronize", &functions->wait_event)
      .take("cuStreamSynchronize", &functions->wait_stream)
      .take("cuCtxSynchronize", &functions->wait_context);
}

Opened open_driver() {
  Opened opened;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    opened.why = "there is no CUDA driver (libcuda.so.1)";
    return opened;
  }
  load(library, &opened.functions, &opened.why);
  if (!opened.why.empty()) return opened;
  Result result = opened.functions.init(0);
  if (result != kSuccess) opened.why = describe(opened.functions, "cuInit", result);
  return opened;
}

}  // namespace

const Functions* driver(std::string* why) {
  // Never destroyed, as threads may use it while the process exits. Two that come at once open it twice; a lock could
  // be inherited, held for ever, by a child forked meanwhile.
  static std::atomic<const Opened*> kept{nullptr};
  const Opened* opened = kept.load(std::memory_order_acquire);
  if (!opened) {
    const auto* mine = new Opened(open_driver());
    if (kept.compare_exchange_strong(opened, mine, std::memory_order_acq_rel)) {
      opened = mine;
    } else {
      delete mine;
    }
  }
  *why = opened->why;
  return opened->why.empty() ? &opened->functions : nullptr;
}

std::string describe(const Functions& functions, const char* call, Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  std::string described = std::string(call) + ": ";
  if (functions.get_error_name(result, &name) != kSuccess || !name) return described + std::to_string(result);
  described += name;
  if (functions.get_error_text(result, &text) == kSuccess && text) described += std::string(" (") + text + ")";
  return described;
}

}  // namespace gpumem::cuda
