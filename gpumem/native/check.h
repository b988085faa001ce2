// GM_CHECK: our own bugs end the process with a sentence; the world's failures are gm_status values. GM_LIKELY and
// GM_UNLIKELY: what the compiler is to lay in the straight line of an event's code, and what out of it. (What every
// event runs is [[gnu::hot]] besides: it then lies together on few pages.)
//
// Owns: these macros. Must not know: anything else.
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

#define GM_LIKELY(condition) __builtin_expect(static_cast<bool>(condition), 1)
#define GM_UNLIKELY(condition) __builtin_expect(static_cast<bool>(condition), 0)
