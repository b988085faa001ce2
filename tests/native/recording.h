// Shorthand of the native tests for recording: start, events, stop.
#pragma once

#include <unistd.h>

#include <string>

#include "expect.h"
#include "gpumem.h"

inline const uint8_t kTestRunId[16] = {9, 9, 9};

inline void start_recording(const std::string& path, const char* fork_pattern = nullptr) {
  ::unlink(path.c_str());
  const gm_recorder_options options = {path.c_str(), fork_pattern, kTestRunId, 0, 0};
  int32_t errno_value = 0;
  EXPECT_EQUAL(gm_recorder_start(&options, &errno_value), GM_OK);
}

inline gm_status record(uint8_t kind, uint8_t device, uint64_t address, uint16_t flags = 0) {
  gm_event event = {};
  event.kind = kind;
  event.device = device;
  event.address = address;
  event.requested_bytes = 512;
  event.flags = flags;
  return gm_record_event(&event);
}
