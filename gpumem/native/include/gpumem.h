/* The one door into the native core: a plain C interface.
 *
 * Owns: every exported symbol, the record and reading layouts, status codes. Python calls it through
 * gpumem/abi (a test compares both sides); the torch tracker includes it for the event layout.
 * Must not know: Python, CUDA or PyTorch types.
 *
 * Manners: every gm_* function returns a gm_status or a plain value, never throws, never takes the
 * interpreter lock (GIL) and may be called with or without it, from any thread.
 */
#ifndef GPUMEM_H
#define GPUMEM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GM_API __attribute__((visibility("default")))

typedef int32_t gm_status;

enum gm_status_code {
  GM_OK = 0,
  GM_NOT_RECORDING = 1, /* no recorder is running: the call did nothing */
  GM_DISK_FULL = 2,     /* the file system refused more space; recording stopped there */
  GM_CANNOT_CREATE = 3, /* the journal could not be created; errno_value says why */
  GM_CANNOT_MAP = 4,    /* the file system cannot map or reserve files */
  GM_BAD_ARGUMENT = 5,  /* a null or impossible argument: the caller's bug */
  GM_UNSUPPORTED = 6,   /* this interpreter or build cannot do it (stack walking) */
  GM_NO_MEMORY = 7      /* the process has no memory left for it */
};

/* ---- events and records ------------------------------------------------------------------- */

enum gm_kind {
  GM_ALLOC = 1,           /* a block was handed out */
  GM_FREE = 2,            /* a block was freed and returned at once */
  GM_FREE_REQUESTED = 3,  /* freed by the program, another stream still uses it */
  GM_FREE_COMPLETED = 4,  /* the deferred free is over */
  GM_SEGMENT_REQUEST = 5, /* the driver is about to be asked for a segment */
  GM_SEGMENT_ALLOC = 6,   /* the driver gave a segment */
  GM_SEGMENT_FREE = 7,    /* a segment went back to the driver */
  GM_SEGMENT_MAP = 8,     /* an expandable segment grew */
  GM_SEGMENT_UNMAP = 9,   /* an expandable segment shrank */
  GM_EMPTY_CACHE = 10,    /* the program asked for unused segments to be returned */
  GM_OOM = 11,            /* out of memory: requested_bytes, block_bytes = limit, address = free, split_bytes = total */
  GM_MARK = 12,           /* the program's own mark: address = string id of its name */
  GM_STEP = 13,           /* the end of a step: requested_bytes = its number, from 0 */
  GM_SNAPSHOT = 14        /* PyTorch was asked for a snapshot: the border of a mid-run attachment */
};

enum gm_flag {
  GM_FLAG_CACHE_HIT = 1,
  GM_FLAG_SPLIT = 2,
  GM_FLAG_RETRIED = 4,
  GM_FLAG_GARBAGE_COLLECTED = 8,
  GM_FLAG_MERGED_PREVIOUS = 16,
  GM_FLAG_MERGED_NEXT = 32,
  GM_FLAG_OWN_ALLOCATOR = 64 /* gpumem's own allocator did it, whatever else serves the program */
};

/* Of such an event's flags the bits from this one on are the number that the allocator was given, 0 to 255: events of a
 * device that differ in it are of heaps that differ. */
#define GM_ALLOCATOR_NUMBER_SHIFT 8

/* One event as it lies in the journal: 64 bytes, little-endian.
 * Committed when commit == (low 31 bits of the slot number) + 1, stored last with release order. */
typedef struct gm_record {
  uint64_t time_ns;         /* CLOCK_MONOTONIC; never decreases within a device */
  uint64_t address;         /* device address (mark: string id; oom: free bytes) */
  uint64_t requested_bytes; /* what was asked for; for segment events the segment's or range's bytes */
  uint64_t block_bytes;     /* what was handed out; 0 when not known (oom: limit) */
  uint64_t split_bytes;     /* bytes split off and returned to the pool (oom: total) */
  uint32_t stack;           /* stack id, 0 none */
  uint32_t scope;           /* scope id, 0 none */
  uint16_t thread;          /* thread ordinal, from 1 */
  uint16_t stream;          /* stream ordinal, from 1; 0 none */
  uint16_t pool;            /* private pool ordinal, from 1; 0 default pools or not known */
  uint8_t device;           /* the program's device ordinal; 255 for marks and steps */
  uint8_t kind;             /* gm_kind */
  uint16_t flags;           /* gm_flag bits */
  uint16_t reserved;        /* 0 */
  uint32_t commit;          /* see above; 0 not committed */
} gm_record;

/* One event as an allocator or tracker hands it over; the recorder adds time, stack, scope, thread. */
typedef struct gm_event {
  uint64_t address;         /* as in gm_record */
  uint64_t requested_bytes; /* as in gm_record */
  uint64_t block_bytes;     /* as in gm_record */
  uint64_t split_bytes;     /* as in gm_record */
  uint64_t stream;          /* raw stream handle */
  uint64_t pool_first;      /* private pool id, (0, 0) for the default pools */
  uint64_t pool_second;     /* second half of it */
  uint16_t flags;           /* gm_flag bits */
  uint8_t device;           /* the program's device ordinal */
  uint8_t kind;             /* gm_kind */
  uint32_t reserved;        /* 0 */
  uint64_t ticks;           /* x86 time stamp counter when it happened; 0: it is read when the event is recorded */
} gm_event;

/* One NVML reading of one device; UINT64_MAX means not available (a fact entry says why). */
typedef struct gm_reading {
  uint64_t time_ns;               /* CLOCK_MONOTONIC, when the reading was taken */
  uint64_t event;                 /* records committed when it was taken: the reading follows event - 1 */
  uint64_t total_bytes;           /* nvmlDeviceGetMemoryInfo_v2 total */
  uint64_t used_bytes;            /* … used, the driver's reserve not counted */
  uint64_t free_bytes;            /* … free */
  uint64_t reserved_bytes;        /* … the driver's reserve */
  uint64_t process_bytes;         /* this process on this device */
  uint64_t other_processes_bytes; /* the sum over the other processes listed */
  uint32_t device;                /* the program's device ordinal; the NVML index where CUDA has not started */
  uint32_t unavailable;           /* bit per missing field, in the order total … other_processes (bit 0 = total) */
} gm_reading;

/* ---- library ------------------------------------------------------------------------------ */

/* Hex SHA-256 of this header as the library was built. */
GM_API const char* gm_abi_hash(void);
/* CLOCK_MONOTONIC in nanoseconds: the clock of every record. */
GM_API uint64_t gm_clock_ns(void);

/* ---- recorder: one per process ------------------------------------------------------------ */

typedef struct gm_recorder_options {
  const char* journal_path;      /* the journal to create; must not exist */
  const char* fork_path_pattern; /* journal of a forked child: "%d" becomes its pid; null: children do not record */
  const uint8_t* run_id;         /* 16 bytes that name the run, copied into the header */
  uint32_t stacks;               /* 1: walk Python stacks (after gm_walker_start succeeded) */
  uint32_t reserved;             /* 0 */
} gm_recorder_options;

/* Creates the journal and starts recording. On failure errno_value holds errno. */
GM_API gm_status gm_recorder_start(const gm_recorder_options* options, int32_t* errno_value);
/* Ends recording and writes ended_by into the header ("exit", "disk_full", …). Idempotent. */
GM_API gm_status gm_recorder_stop(const char* ended_by);
/* 1 while a journal is open in this process (after fork: from the child's first event on). */
GM_API int32_t gm_recorder_is_active(void);
/* Switches events on (1) and off (0): one atomic flag, read by every gm_record_event. */
GM_API void gm_recorder_set_enabled(int32_t enabled);

typedef struct gm_recorder_counts {
  uint64_t records;         /* records committed */
  uint64_t segment_events;  /* segment_alloc, free, map, unmap so far */
  uint64_t journal_bytes;   /* bytes reserved in the journal file */
  uint64_t stacks;          /* distinct stacks */
  uint64_t records_refused; /* events that came once the disk was full or memory had run out */
  int32_t status;           /* GM_OK, or GM_DISK_FULL … once recording stopped itself */
  int32_t errno_value;      /* errno behind status */
} gm_recorder_counts;
GM_API gm_status gm_recorder_get_counts(gm_recorder_counts* counts);
/* Path of the journal this process writes; 0-terminated, cut to capacity. */
GM_API gm_status gm_recorder_get_path(char* path, size_t capacity);

/* An event of an allocator; called under that allocator's device lock. A free_completed that directly
 * follows its own free_requested on the device turns that record into one GM_FREE in place. */
GM_API gm_status gm_record_event(const gm_event* event);
/* The program's mark (GM_MARK), or the end of step number `step` (GM_STEP, name may be null).
 * position gets the record's event number. */
GM_API gm_status gm_record_mark(uint8_t kind, const char* name, uint64_t step, uint64_t* position);
GM_API gm_status gm_record_reading(const gm_reading* reading);
/* A fact for meta.json: a key and a JSON value. A later fact of the same key replaces the earlier. */
GM_API gm_status gm_record_fact(const char* key, const char* json, size_t json_bytes);
/* Scopes are a stack per thread. Push returns the id now in force through scope (may be null). */
GM_API gm_status gm_scope_push(const char* name, uint32_t* scope);
GM_API gm_status gm_scope_pop(void);

/* Waits until segment_events differs from `seen`, the waits are ended or timeout_ms passed; the count now. */
GM_API uint64_t gm_wait_segment_event(uint64_t seen, uint32_t timeout_ms);
/* Ends every such wait under way. */
GM_API void gm_wake_segment_waiters(void);

/* ---- stack walker ------------------------------------------------------------------------- */

/* Reads the interpreter's frame layout (CPython 3.11 to 3.15, symbols by dlsym). GM_UNSUPPORTED
 * with a sentence in `reason` for another version or a free-threaded build. */
GM_API gm_status gm_walker_start(char* reason, size_t capacity);
/* Interns the calling thread's stack; 0 when it has no Python frames or walking is off. */
GM_API uint32_t gm_walker_intern_current(void);
/* For the self-check and tests: walks the calling thread into (code address, instruction byte
 * offset) pairs, innermost first; returns the depth, at most `capacity` pairs are written. */
GM_API uint32_t gm_walker_walk(uint64_t* code_addresses, uint32_t* instruction_offsets, uint32_t capacity);
/* Switches walking off for good; events then have stack 0. */
GM_API void gm_walker_stop(void);

/* ---- the journal on its own (tests, benchmarks) -------------------------------------------- */

typedef struct gm_journal gm_journal;
GM_API gm_status gm_journal_create(const char* path, const uint8_t* run_id, int32_t* errno_value, gm_journal** journal);
/* Takes a slot, copies the record, commits it; position gets its number. Any number of threads. */
GM_API gm_status gm_journal_append(gm_journal* journal, const gm_record* record, uint64_t* position);
/* Appends one entry; it is readable once the call has returned. */
GM_API gm_status gm_journal_append_entry(gm_journal* journal, uint16_t kind, uint32_t id, const void* bytes,
                                         uint32_t length);
GM_API gm_status gm_journal_close(gm_journal* journal, const char* ended_by);

/* ---- pickles ------------------------------------------------------------------------------ */

enum gm_pickle_verdict {
  GM_PICKLE_PLAIN = 0,     /* dicts, lists, tuples, strings and numbers only; keys are strings or small numbers */
  GM_PICKLE_CUT_OFF = 1,   /* ends before its STOP, or an argument is longer than the rest */
  GM_PICKLE_NOT_PLAIN = 2, /* names or calls code, or asks for data from elsewhere */
  GM_PICKLE_DAMAGED = 3    /* what no pickler writes for plain data */
};

typedef struct gm_pickle_report {
  uint64_t offset;       /* of the STOP, or of the opcode refused */
  uint64_t loaded_bytes; /* memory that Python will need for the values, estimated */
  uint64_t byte_count;   /* bytes left once frame headers were taken out */
  uint32_t verdict;      /* gm_pickle_verdict */
  uint32_t opcode;       /* the opcode at offset; 0 behind the end */
} gm_pickle_report;

/* Walks a pickle of protocol 0 to 5 without making any value, and takes its frame headers out of the bytes: what is
 * left, byte_count bytes, is the same pickle. */
GM_API gm_status gm_pickle_check(void* bytes, uint64_t byte_count, gm_pickle_report* report);

/* An entry of a snapshot's device_traces. */
typedef struct gm_snapshot_entry {
  int64_t address;          /* addr; of an oom device_free */
  int64_t bytes;            /* size */
  int64_t stream;           /* the raw handle */
  int64_t time_us;          /* since 1970; -1 where not recorded */
  uint64_t pool_first;      /* pool_id */
  uint64_t pool_second;     /* … */
  uint32_t frames;          /* 0 none, else 1 + position among the lists of frames left in device_traces */
  uint32_t compile_context; /* row of texts, 0 none */
  uint32_t metadata;        /* row of texts, 0 none */
  uint8_t kind;             /* gm_kind; free_requested + free_completed are one GM_FREE */
  uint8_t device;           /* position in device_traces */
  uint8_t has_pool;         /* 1: pool_id was there */
  uint8_t has_category;     /* 1: category was there, which only the profiler writes */
} gm_snapshot_entry;

typedef struct gm_snapshot_parts {
  const gm_snapshot_entry* entries; /* all devices', one behind the other */
  uint64_t entry_count;             /* … */
  const void* rest;                 /* a pickle of the same without entries: device_traces hold lists of frames */
  uint64_t rest_bytes;              /* … */
  const uint64_t* texts;            /* offset in the pickle and length, in turn */
  uint64_t text_count;              /* … */
  uint32_t trace_count;             /* lists in device_traces */
  uint32_t frames_count;            /* lists of frames in them */
} gm_snapshot_parts;

/* Takes the entries out of a snapshot's pickle that gm_pickle_check found plain; the bytes must stay as they are until
 * it is freed. GM_UNSUPPORTED when an entry is not as PyTorch writes it: then load the pickle whole. */
typedef struct gm_snapshot_skim gm_snapshot_skim;
GM_API gm_status gm_snapshot_skim_create(const void* bytes, uint64_t byte_count, gm_snapshot_skim** skim);
GM_API gm_status gm_snapshot_skim_get(const gm_snapshot_skim* skim, gm_snapshot_parts* parts);
GM_API void gm_snapshot_skim_free(gm_snapshot_skim* skim);

#ifdef __cplusplus
}
#endif
#endif
