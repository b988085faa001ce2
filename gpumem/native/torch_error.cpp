// PyTorch's own out-of-memory error; see the header.
//
// c10::OutOfMemoryError adds nothing to c10::Error but its type. Newer versions export its constructor; before them the
// base class is constructed and given the derived class's vtable, which is all that its own constructor would do.
// Wheels of PyTorch before 2.7 take libstdc++'s older string: a pointer to characters that their count and owners
// precede.
#include "torch_error.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <typeinfo>

extern "C" {
void* __cxa_allocate_exception(size_t bytes) noexcept;
[[noreturn]] void __cxa_throw(void* exception, void* type, void (*destroy)(void*));  // as compilers declare it
}

namespace gpumem {
namespace {

// c10::SourceLocation.
struct SourceLocation {
  const char* function;
  const char* file;
  uint32_t line;
};

// Strings that are passed by value go by their address.
using Constructor = void (*)(void* self, SourceLocation place, void* text);

// libstdc++'s older string. Whoever takes it frees its buffer by operator delete once no string is left to it, so it is
// allocated that way and never freed here; what the constructor leaves in its place is a constant of its own.
class OldString {
 public:
  explicit OldString(const std::string& text) {
    auto* buffer = static_cast<Buffer*>(::operator new(sizeof(Buffer) + text.size() + 1));
    *buffer = Buffer{text.size(), text.size(), 0};
    characters_ = reinterpret_cast<char*>(buffer + 1);
    std::memcpy(characters_, text.c_str(), text.size() + 1);
  }

 private:
  struct Buffer {
    size_t length;
    size_t capacity;
    ptrdiff_t more_owners;  // beside the first
  };
  char* characters_;
};
static_assert(sizeof(OldString) == sizeof(void*) && std::is_standard_layout<OldString>::value);

constexpr size_t kErrorBytesAtMost = 1024;  // c10::Error has some 250; its size is not ours to know
constexpr size_t kVtableHead = 2;           // offset to top and type information stand before the functions

constexpr const char* kLibraries[] = {"libc10.so", "libc10_cuda.so", "libtorch_cuda.so", "libtorch_python.so"};
#define GM_STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
constexpr const char kOwnConstructor[] = "_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationE" GM_STRING;
constexpr const char* kBaseConstructors[] = {"_ZN3c105ErrorC1ENS_14SourceLocationE" GM_STRING,
                                             "_ZN3c105ErrorC2ENS_14SourceLocationE" GM_STRING};
constexpr const char* kOldConstructors[] = {"_ZN3c105ErrorC1ENS_14SourceLocationESs",
                                            "_ZN3c105ErrorC2ENS_14SourceLocationESs"};
constexpr const char kType[] = "_ZTIN3c1016OutOfMemoryErrorE";
constexpr const char kVtable[] = "_ZTVN3c1016OutOfMemoryErrorE";
#undef GM_STRING

// The symbol in the first loaded library of PyTorch's that exports it; null in none.
void* find_symbol(const char* name) {
  for (const char* library : kLibraries) {
    void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) continue;
    void* symbol = dlsym(handle, name);
    dlclose(handle);
    if (symbol) return symbol;
  }
  return dlsym(RTLD_DEFAULT, name);
}

template <size_t count>
Constructor find_constructor(const char* const (&names)[count]) {
  for (const char* name : names)
    if (void* symbol = find_symbol(name)) return reinterpret_cast<Constructor>(symbol);
  return nullptr;
}

struct ErrorClass {
  Constructor construct = nullptr;
  bool takes_old_string = false;
  void** functions = nullptr;  // the derived class's; null: the constructor sets them
  std::type_info* type = nullptr;

  bool is_known() const { return construct && type; }
};

ErrorClass find_error_class() {
  ErrorClass found;
  found.type = static_cast<std::type_info*>(find_symbol(kType));
  found.construct = reinterpret_cast<Constructor>(find_symbol(kOwnConstructor));
  if (found.construct) return found;
  auto* vtable = static_cast<void**>(find_symbol(kVtable));
  if (!vtable) return ErrorClass();
  found.functions = vtable + kVtableHead;
  found.construct = find_constructor(kBaseConstructors);
  if (!found.construct) {
    found.construct = find_constructor(kOldConstructors);
    found.takes_old_string = true;
  }
  return found;
}

void construct_error(const ErrorClass& error, void* exception, const std::string& text) {
  const SourceLocation place{"malloc", "CUDACachingAllocator", 0};
  std::string passed = text;
  if (error.takes_old_string) {
    OldString old_text(text);
    error.construct(exception, place, &old_text);
  } else {
    error.construct(exception, place, &passed);
  }
  if (error.functions) *static_cast<void***>(exception) = error.functions;
}

// The complete destructor is the first function of a class whose destructor is its first virtual one, as in
// std::exception.
void destroy_virtually(void* exception) {
  using Destroy = void (*)(void*);
  (*static_cast<Destroy**>(exception))[0](exception);
}

}  // namespace

void throw_torch_out_of_memory(const std::string& text) {
  const ErrorClass error = find_error_class();
  if (!error.is_known()) throw std::runtime_error(text);
  void* exception = __cxa_allocate_exception(kErrorBytesAtMost);
  std::memset(exception, 0, kErrorBytesAtMost);
  construct_error(error, exception, text);
  __cxa_throw(exception, error.type, destroy_virtually);
}

}  // namespace gpumem
