// PyTorch's error classes as its wheels before 2.7 have them: with libstdc++'s older string, and an out-of-memory error
// whose constructor is nowhere but inline.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

static_assert(sizeof(std::string) == sizeof(void*), "compile with -D_GLIBCXX_USE_CXX11_ABI=0");

namespace c10 {

struct SourceLocation {
  const char* function;
  const char* file;
  uint32_t line;
};

class Error : public std::exception {
 public:
  Error(SourceLocation place, std::string text);
  const char* what_without_backtrace() const noexcept { return text_.c_str(); }
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string text_;
  std::string what_;
};

class OutOfMemoryError : public Error {
  using Error::Error;
};

}  // namespace c10
