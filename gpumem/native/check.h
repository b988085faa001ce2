// GM_CHECK: our own bugs end the process with a sentence; the world's failures are gm_status values.
//
// Owns: the one macro. Must not know: anything else.
#pragma once

#include <cstdio>
#include <cstdlib>

#define GM_CHECK(condition)                                                                          \
  do {                                                                                               \
    if (!(condition)) {                                                                              \
      std::fprintf(stderr, "gpumem: internal error at %s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                                  \
    }                                                                                                \
  } while (false)
