// Our allocator in CuPy's place: two Python functions, made without Python's headers.
//
// Owns: Python's objects of the two functions and what they convert. Must not know: CuPy, which hands over the address
// of its question for the current stream; what a failure means to it (`on_failure`, a Python function, does).
//
// A call by ctypes costs several times what it calls; a built-in function's does not. What is used of Python is part of
// its stable interface: the functions found by dlsym, PyMethodDef, the calling convention METH_FASTCALL.
#include <dlfcn.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstring>

#include "gpumem_allocator.h"
#include "live_allocator.h"
#include "policy_translate.h"

namespace {

using gpumem::LiveAllocator;

struct Object;  // PyObject
using Call = Object* (*)(Object * self, Object* const* arguments, ssize_t count);

// PyMethodDef.
struct MethodDef {
  const char* name;
  Call call;
  int flags;
  const char* doc;
};
constexpr int kFastCall = 0x80;  // METH_FASTCALL

constexpr char kCapsuleName[] = "gpumem.cupy";
constexpr size_t kDevicesMax = 128;
constexpr unsigned long long kNoNumber = ~0ull;  // with an error set

struct Python {
  Object* (*make_function)(MethodDef*, Object* self, Object* module);
  Object* (*make_capsule)(void* pointer, const char* name, void* destructor);
  void* (*pointer_of_capsule)(Object* capsule, const char* name);
  unsigned long long (*number_of)(Object* integer);
  Object* (*make_number)(unsigned long long);
  Object* (*error_set)();
  void (*set_error)(Object* type, const char* text);
  void* (*release_lock)();
  void (*take_lock)(void* thread_state);
  Object* (*call)(Object* function, ...);  // arguments, then null
  void (*add_reference)(Object*);
  void (*drop_reference)(Object*);
  Object* none;
  Object** type_error;
};

Python g_python;  // filled before there is any function of ours

bool find_python(Python* python) {
  bool are_found = true;
  const auto find = [&](const char* name, auto* symbol) {
    void* found = dlsym(RTLD_DEFAULT, name);
    static_assert(sizeof found == sizeof *symbol);
    std::memcpy(symbol, &found, sizeof found);
    are_found = are_found && found != nullptr;
  };
  find("PyCFunction_NewEx", &python->make_function);
  find("PyCapsule_New", &python->make_capsule);
  find("PyCapsule_GetPointer", &python->pointer_of_capsule);
  find("PyLong_AsUnsignedLongLong", &python->number_of);
  find("PyLong_FromUnsignedLongLong", &python->make_number);
  find("PyErr_Occurred", &python->error_set);
  find("PyErr_SetString", &python->set_error);
  find("PyEval_SaveThread", &python->release_lock);
  find("PyEval_RestoreThread", &python->take_lock);
  find("PyObject_CallFunctionObjArgs", &python->call);
  find("Py_IncRef", &python->add_reference);
  find("Py_DecRef", &python->drop_reference);
  find("_Py_NoneStruct", &python->none);
  find("PyExc_TypeError", &python->type_error);
  return are_found;
}

// One for each time CuPy is given our allocator; never destroyed, as CuPy frees until the process is gone.
struct Service {
  intptr_t (*current_stream)();  // CuPy's own; -1 where an error is set
  Object* on_failure;            // Python: (bytes, device, status) -> address
  std::array<std::atomic<LiveAllocator*>, kDevicesMax> by_device{};

  // The allocator of a device; null where there is none yet, or an error is set.
  LiveAllocator* allocator_of(Object* device) const {
    const unsigned long long ordinal = g_python.number_of(device);
    return ordinal < kDevicesMax ? by_device[ordinal].load(std::memory_order_acquire) : nullptr;
  }
};

bool has_error() {
  return g_python.error_set() != nullptr;
}

Service* find_service(Object* self) {
  return static_cast<Service*>(g_python.pointer_of_capsule(self, kCapsuleName));
}

gm_status allocate(LiveAllocator* allocator, uint64_t bytes, uint64_t stream, uint64_t* address) {
  // Whoever holds the allocator's lock may wait for the driver, and the driver for a callback in Python.
  void* thread_state = g_python.release_lock();
  const gm_status status = gpumem::guarded([&] {
    gpumem::Allocation allocation;
    const gpumem::Outcome outcome = allocator->allocate(bytes, stream, &allocation);
    *address = allocation.address;
    return gpumem::status_of(outcome);
  });
  g_python.take_lock(thread_state);
  return status;
}

Object* report_failure(const Service& service, Object* const* arguments, gm_status status) {
  Object* number = g_python.make_number(static_cast<unsigned long long>(status));
  if (number == nullptr) return nullptr;
  Object* result = g_python.call(service.on_failure, arguments[0], arguments[1], number, nullptr);
  g_python.drop_reference(number);
  return result;
}

Object* refuse_arguments() {
  g_python.set_error(*g_python.type_error, "two integers are wanted");
  return nullptr;
}

Object* malloc_for_cupy(Object* self, Object* const* arguments, ssize_t count) {
  Service* service = find_service(self);
  if (service == nullptr) return nullptr;
  if (count != 2) return refuse_arguments();
  LiveAllocator* allocator = service->allocator_of(arguments[1]);
  if (allocator == nullptr) {
    return has_error() ? nullptr : report_failure(*service, arguments, GM_ALLOCATOR_NO_DEVICE);
  }
  const unsigned long long bytes = g_python.number_of(arguments[0]);
  if (bytes == kNoNumber && has_error()) return nullptr;
  const intptr_t stream = service->current_stream();
  if (stream == -1 && has_error()) return nullptr;
  uint64_t address = 0;
  const gm_status status = allocate(allocator, bytes, static_cast<uint64_t>(stream), &address);
  return status == GM_OK ? g_python.make_number(address) : report_failure(*service, arguments, status);
}

Object* free_for_cupy(Object* self, Object* const* arguments, ssize_t count) {
  Service* service = find_service(self);
  if (service == nullptr) return nullptr;
  if (count != 2) return refuse_arguments();
  const unsigned long long address = g_python.number_of(arguments[0]);
  if (address == kNoNumber && has_error()) return nullptr;
  LiveAllocator* allocator = service->allocator_of(arguments[1]);
  if (allocator == nullptr && has_error()) return nullptr;
  if (allocator != nullptr) {
    void* thread_state = g_python.release_lock();
    gpumem::guarded([&] { return gpumem::status_of(allocator->free(address)); });
    g_python.take_lock(thread_state);
  }
  g_python.add_reference(g_python.none);
  return g_python.none;
}

MethodDef g_malloc = {"malloc", malloc_for_cupy, kFastCall, "malloc(bytes, device) -> address, from gpumem"};
MethodDef g_free = {"free", free_for_cupy, kFastCall, "free(address, device), to gpumem"};

Object* make_function(gm_cupy* cupy, MethodDef* method) {
  auto* service = reinterpret_cast<Service*>(cupy);
  Object* capsule = g_python.make_capsule(service, kCapsuleName, nullptr);
  if (capsule == nullptr) return nullptr;
  Object* function = g_python.make_function(method, capsule, nullptr);
  g_python.drop_reference(capsule);
  return function;
}

}  // namespace

gm_status gm_cupy_create(void* current_stream, void* on_failure, gm_cupy** cupy) {
  if (!current_stream || !on_failure || !cupy) return GM_BAD_ARGUMENT;
  return gpumem::guarded([&]() -> gm_status {
    if (!find_python(&g_python)) return GM_UNSUPPORTED;
    auto service = std::make_unique<Service>();
    static_assert(sizeof current_stream == sizeof service->current_stream);
    std::memcpy(&service->current_stream, &current_stream, sizeof current_stream);
    service->on_failure = static_cast<Object*>(on_failure);
    g_python.add_reference(service->on_failure);
    *cupy = reinterpret_cast<gm_cupy*>(service.release());
    return GM_OK;
  });
}

void* gm_cupy_malloc_function(gm_cupy* cupy) {
  return cupy ? make_function(cupy, &g_malloc) : nullptr;
}

void* gm_cupy_free_function(gm_cupy* cupy) {
  return cupy ? make_function(cupy, &g_free) : nullptr;
}

gm_status gm_cupy_serve(gm_cupy* cupy, uint32_t device, gm_allocator* allocator) {
  if (!cupy || !allocator || device >= kDevicesMax) return GM_BAD_ARGUMENT;
  reinterpret_cast<Service*>(cupy)->by_device[device].store(reinterpret_cast<LiveAllocator*>(allocator),
                                                            std::memory_order_release);
  return GM_OK;
}
