/* Reading NVML without the interpreter: a plain C interface beside gpumem.h, with the same manners.
 *
 * Owns: the exported symbols of NVML's sampling (gm_nvml_*), their layouts. Must not know: Python, what NVML's figures
 * and codes mean: the caller judges figures once, and says how the same kind of figures become readings from then on.
 */
#ifndef GPUMEM_NVML_H
#define GPUMEM_NVML_H

#include "gpumem.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GM_NVML_LISTS 3 /* compute, graphics, MPS, in this order */

enum gm_nvml_outcome {
  GM_NVML_RECORDED = 0,   /* a reading of each device is recorded; of gm_nvml_run: the last one */
  GM_NVML_YOUNG = 1,      /* nothing was read: the last readings are young enough */
  GM_NVML_JUDGE = 2,      /* readings are due, and something is not as it was judged: nothing was recorded */
  GM_NVML_JUDGE_LAST = 3, /* the same, of gm_nvml_run's last reading */
  GM_NVML_GIVEN_UP = 4    /* gm_nvml_give_up came first: nothing was recorded */
};

enum gm_nvml_part {
  GM_NVML_NO_PART = 0,    /* counted already, or not to be counted */
  GM_NVML_OWN_PART = 1,   /* of process_bytes */
  GM_NVML_OTHERS_PART = 2 /* of other_processes_bytes */
};

/* NVML's functions by address, from the library that the caller has opened. */
typedef struct gm_nvml_functions {
  uint64_t read_memory;                   /* nvmlDeviceGetMemoryInfo_v2 */
  uint64_t list_processes[GM_NVML_LISTS]; /* nvmlDeviceGet…RunningProcesses_v3; 0: the library has none */
  uint32_t memory_version;                /* the version field of nvmlMemory_v2_t */
  uint32_t reserved;                      /* 0 */
} gm_nvml_functions;

/* A process in one of the lists. */
typedef struct gm_nvml_process {
  uint64_t held_bytes; /* UINT64_MAX: hidden */
  uint32_t pid;        /* as NVML knows it */
  uint32_t list;       /* position of the list */
} gm_nvml_process;

/* What NVML says of a device, unjudged. */
typedef struct gm_nvml_figures {
  uint64_t time_ns;                  /* as in gm_reading */
  uint64_t event;                    /* … */
  uint64_t total_bytes;              /* of nvmlMemory_v2_t, where memory_code is 0 */
  uint64_t used_bytes;               /* … */
  uint64_t free_bytes;               /* … */
  uint64_t reserved_bytes;           /* … */
  const gm_nvml_process* processes;  /* list by list; valid until the next gm_nvml_read */
  uint32_t process_count;            /* … */
  int32_t memory_code;               /* what the call returned; 0 is success */
  int32_t list_codes[GM_NVML_LISTS]; /* … */
  uint32_t reserved;                 /* 0 */
} gm_nvml_figures;

/* A process that was listed when its device was judged. */
typedef struct gm_nvml_share {
  uint32_t pid;       /* as in gm_nvml_process */
  uint32_t list;      /* … */
  uint32_t is_hidden; /* 1: its held_bytes was UINT64_MAX */
  uint32_t part;      /* gm_nvml_part */
} gm_nvml_share;

/* A device as it was judged. Its figures become a reading as long as the codes, total_bytes, reserved_bytes and the
 * listed processes are these, and used_bytes and total - free - used within their bounds. */
typedef struct gm_nvml_device {
  uint64_t handle;                   /* nvmlDevice_t */
  uint64_t total_bytes;              /* … */
  uint64_t reserved_bytes;           /* … */
  uint64_t subtracted_bytes;         /* used_bytes of the reading is NVML's used less this */
  uint64_t used_bytes_least;         /* … */
  int64_t rest_bytes_least;          /* of total - free - used */
  int64_t rest_bytes_most;           /* … */
  const gm_nvml_share* shares;       /* in the order of the lists; read during the call alone */
  uint32_t share_count;              /* … */
  int32_t memory_code;               /* where it is not 0, no bounds are looked at */
  int32_t list_codes[GM_NVML_LISTS]; /* … */
  uint32_t device;                   /* as in gm_reading */
  uint32_t unavailable;              /* as in gm_reading */
  uint32_t reserved;                 /* 0 */
} gm_nvml_device;

typedef struct gm_nvml gm_nvml;

/* Hex SHA-256 of this header as the library was built. */
GM_API const char* gm_nvml_abi_hash(void);
GM_API gm_status gm_nvml_create(const gm_nvml_functions* functions, gm_nvml** nvml);
/* Not while another thread is in a call on it. */
GM_API void gm_nvml_destroy(gm_nvml* nvml);

/* Reads a device for the caller to judge, record and follow. Calls come one at a time, each figures used up before. */
GM_API gm_status gm_nvml_read(gm_nvml* nvml, uint64_t handle, gm_nvml_figures* figures);
/* Nothing is as it was judged any more; the generation that a judgement begun now has. Waits for nothing. */
GM_API uint64_t gm_nvml_forget(gm_nvml* nvml);
/* Ends a judgement: readings were recorded just now, and from now on devices are read as these say, until they are
 * forgotten; not at all if they were already, after `generation`. No devices: each reading is to be judged. */
GM_API gm_status gm_nvml_follow(gm_nvml* nvml, uint64_t generation, const gm_nvml_device* devices, uint32_t count);

/* One reading of each device now, unless the last is younger than age_ns_least: a gm_nvml_outcome. */
GM_API int32_t gm_nvml_sample(gm_nvml* nvml, uint64_t age_ns_least);
/* Readings at the interval and after segment events, then gap_ns apart at least, until gm_nvml_stop has been called
 * and the last one is recorded, or one is to be judged: a gm_nvml_outcome. */
GM_API int32_t gm_nvml_run(gm_nvml* nvml, uint32_t interval_ms, uint64_t gap_ns);
/* Asks gm_nvml_run to end; to be repeated, since it may be about to wait. */
GM_API void gm_nvml_stop(gm_nvml* nvml);
/* Nothing is recorded any more once this has returned, whatever a call that hangs in the driver brings yet. */
GM_API void gm_nvml_give_up(gm_nvml* nvml);
/* CLOCK_MONOTONIC when the call to the driver that is under way began; 0: none is. */
GM_API uint64_t gm_nvml_call_since_ns(const gm_nvml* nvml);

#ifdef __cplusplus
}
#endif
#endif
