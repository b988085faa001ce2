// PyTorch's pluggable allocator as an object whose virtual functions can be exchanged for ours.
//
// Owns: finding its class and exported functions, the copy of its table. Must not know: what ours do.
#pragma once

#include <cstddef>
#include <initializer_list>

namespace gpumem::torch {

// A function of the class by its symbol, ours in its place, and where PyTorch's own is to be kept.
struct Exchange {
  const char* symbol;
  void* ours;
  void** original;  // may be null
};

// What a loaded library of PyTorch's exports under this name; null: nothing.
void* find_exported(const char* library, const char* symbol);

// Exchanges all of these in the allocator that PyTorch uses, or none: then the reason. Only while nobody asks it for
// anything. Checked first: the symbols are exported, the object is of exactly the class CUDAPluggableAllocator, and
// each function stands in its table once.
const char* exchange_functions(std::initializer_list<Exchange> exchanges);

}  // namespace gpumem::torch
