// Where exceptions end: what an exported function of the C interfaces does runs in guarded().
//
// Owns: which status stands for which exception. Must not know: what a call does.
#pragma once

#include <new>
#include <system_error>

#include "gpumem.h"

namespace gpumem {

// Nothing leaves through the C interface but a status: memory is all that can run out here, and what the system needs
// for threads and locks. Any other exception is our own bug.
template <typename Body>
gm_status guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return GM_NO_MEMORY;
  } catch (const std::system_error&) {
    return GM_NO_MEMORY;
  }
}

// The same for a call that changes what a handle holds: a change that was left half made is the last one.
template <typename Handle, typename Body>
gm_status guarded_on(Handle* handle, Body body) noexcept {
  if (handle->is_broken) return GM_NO_MEMORY;
  const gm_status status = guarded(body);
  if (status == GM_NO_MEMORY) handle->is_broken = true;
  return status;
}

// The same as guarded() for a call that has a value instead of a status: `value` gets it, or stays.
template <typename Value, typename Body>
Value guarded_value(Value value, Body body) noexcept {
  guarded([&]() -> gm_status {
    value = body();
    return GM_OK;
  });
  return value;
}

}  // namespace gpumem
