/* SPDX-License-Identifier: Apache-2.0 */
/** \file dlrover.h
 * C interface of libdlrover: the group's world, checkpoints in the node's memory, progress, membership events.
 *
 * Threads: calls on one context are serialised by a lock inside; a dlrover_save and a dlrover_restore belong to one thread at a time. Memory that is
 *   protected must not be changed by others while it is copied.
 * Fork: a child of fork() (a data-loader worker, say) has no context: every call in it returns DLROVER_E_FORKED, and it holds neither our socket nor our mappings.
 * Errors: a call returns 0 or a negative code; dlrover_error_text() then gives a sentence, per thread, until the next failure.
 * Without a daemon (a laptop, a login node) the same calls work on plain files in $DLROVER_LOCAL_DIR (default ./dlrover-checkpoints), with one warning.
 */
#ifndef DLROVER_H
#define DLROVER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DLROVER_API_VERSION 1

enum dlrover_error {
    DLROVER_OK = 0,
    DLROVER_E_INVALID = -1,     /**< an argument is wrong */
    DLROVER_E_UNAVAILABLE = -2, /**< the daemon is away; it comes back by itself */
    DLROVER_E_STALE = -3,       /**< this process belongs to an old generation: end it, or dlrover_next_generation */
    DLROVER_E_NOT_FOUND = -4,   /**< no such chunk, or nothing to restore */
    DLROVER_E_NO_MEMORY = -5,   /**< arena quota or node memory; the text says what is needed */
    DLROVER_E_CORRUPT = -6,     /**< checksum or table wrong */
    DLROVER_E_SKIPPED = -7,     /**< no slot is free: this save was skipped and counted; training goes on */
    DLROVER_E_FORKED = -8,      /**< called in a forked child */
    DLROVER_E_TIMEOUT = -9,
    DLROVER_E_SYSTEM = -10,
    DLROVER_E_UNSUPPORTED = -11
};

/** Element types; the numbers are those of the object table (docs/format-object.md). */
enum dlrover_dtype {
    DLROVER_BYTES = 0, DLROVER_BOOL, DLROVER_UINT8, DLROVER_INT8, DLROVER_UINT16, DLROVER_INT16, DLROVER_UINT32, DLROVER_INT32,
    DLROVER_UINT64, DLROVER_INT64, DLROVER_FLOAT16, DLROVER_BFLOAT16, DLROVER_FLOAT32, DLROVER_FLOAT64, DLROVER_FLOAT8_E4M3,
    DLROVER_FLOAT8_E5M2, DLROVER_COMPLEX64, DLROVER_COMPLEX128
};

#define DLROVER_MAX_DIMS 16
#define DLROVER_NO_KEEPER UINT32_MAX

typedef struct dlrover_context dlrover_context;
typedef struct dlrover_save dlrover_save;
typedef struct dlrover_restore dlrover_restore;

typedef struct dlrover_world {
    uint32_t rank, world_size, local_rank, local_world_size, group_rank, group_world_size;
    uint64_t generation_term, generation_number;
    uint32_t restart_count; /**< generations before this one */
    int64_t restore_step;   /**< -1: start from the beginning */
    int managed;            /**< 1: under a daemon; 0: plain files */
} dlrover_world;

/** One rectangular, contiguous, row-major piece of a global tensor. Shapes in elements. */
typedef struct dlrover_chunk {
    const char *name;
    uint32_t dtype; /**< enum dlrover_dtype */
    uint32_t ndim;
    uint64_t global_shape[DLROVER_MAX_DIMS], global_offset[DLROVER_MAX_DIMS], local_shape[DLROVER_MAX_DIMS];
    uint32_t replica; /**< 0: the piece to keep; > 0: the same bytes exist on another rank */
} dlrover_chunk;

/** Every rank hears the kinds marked with *, on whatever node; the others are lines of this node's time line ("dlrover events"), most of them on the leader's node
 * alone. */
enum dlrover_event_kind {
    DLROVER_EVENT_NEW_GENERATION = 1,
    DLROVER_EVENT_RANK_LOST, /**< * a rank ended by itself, and the generation will */
    DLROVER_EVENT_NODE_LOST, /**< * the same of a node; it may come after DLROVER_EVENT_GENERATION_ENDS */
    DLROVER_EVENT_CHECKPOINT_COMPLETE,
    DLROVER_EVENT_ENDING, /**< the group is over */
    DLROVER_EVENT_OTHER,
    DLROVER_EVENT_GENERATION_ENDS,   /**< * this generation: its ranks are about to get SIGTERM; text: why */
    DLROVER_EVENT_CHECKPOINT_SAFE,   /**< * train_step has as many copies (or parities) on other nodes as were asked for */
    DLROVER_EVENT_CHECKPOINT_DURABLE, /**< * train_step is on storage, whole */
    DLROVER_EVENT_ALLOCATION_CHANGED, /**< * nodes have come or gone; text: how many the group has now, its spares too */
    DLROVER_EVENT_DRAINING            /**< * Slurm ends the job soon (its time limit), told about two minutes before; text: in how many seconds */
};
typedef struct dlrover_event {
    uint32_t kind; /**< of a later version's kinds: DLROVER_EVENT_OTHER */
    uint64_t generation_term, generation_number;
    int64_t rank, train_step; /**< -1: none */
    int64_t time_us;          /**< since the epoch */
    char text[256];
    char node[256]; /**< that is lost, or that the rank is on, or that says it; may be empty */
} dlrover_event;

/** Version of the library, "0.1.0". */
const char *dlrover_version(void);
/** What went wrong last in this thread; never NULL. */
const char *dlrover_error_text(void);

/** Connects to the node's daemon (DLROVER_* in the environment, set by the agent), or falls back to files. Owner: the caller; end with dlrover_close, after its
 * saves and restores. */
int dlrover_open(dlrover_context **out);
void dlrover_close(dlrover_context *context);
int dlrover_get_world(dlrover_context *context, dlrover_world *out);

/** This process can go on in the next generation: where its generation ends it is not ended, but has 3 s to leave by dlrover_next_generation. All ranks that one
 * agent runs (one, under srun) have to say so; who does not leave in time is ended and started again, as without it. Say it once, between saves and restores.
 * DLROVER_E_UNSUPPORTED without a daemon. */
int dlrover_stay(dlrover_context *context);
/** Leaves this generation and waits until this process is told what it is in the next one, without limit: who is not needed there gets SIGTERM. Call it when a
 * collective fails, a call says DLROVER_E_STALE, or DLROVER_EVENT_GENERATION_ENDS has come; whatever belongs to the old generation (communicators, PMIx) is to be
 * closed before, and every dlrover_save and dlrover_restore. Where all others go on it counts as this rank's failure after some seconds. `*context` is closed and
 * replaced (NULL where the former is closed and there is no new one); protected memory and dlrover_save_wait are kept, dlrover_event_fd is to be asked for anew. RANK,
 * WORLD_SIZE, MASTER_ADDR, MASTER_PORT, SLURM_*, PMIX_* and the others change in the environment (setenv: no other thread may read it meanwhile). Then restore, as after
 * a start: the ranks go on from one step. DLROVER_E_STALE: the group is over, or the next generation has ended before it had begun here, and this process is being ended.
 * DLROVER_E_UNSUPPORTED without a daemon. */
int dlrover_next_generation(dlrover_context **context);

/** Makes slots of at least `bytes` (data + 1 KiB per chunk is enough) ready in the background. Optional; the first save does it otherwise, slower.
 * DLROVER_E_NO_MEMORY: not even two slots fit, and nothing was taken. */
int dlrover_prepare(dlrover_context *context, uint64_t bytes);
/** The same for saves by dlrover_save_add_cuda: this memory is registered with the driver (pinned), too, as it becomes ready, so that the first of them copies straight
 * into it. `pointer`: any memory of the GPU. DLROVER_E_UNSUPPORTED without NVIDIA's driver library. */
int dlrover_prepare_cuda(dlrover_context *context, uint64_t bytes, const void *pointer);

/** From now on a save that finds no free slot waits up to `milliseconds` for one; 0, the default: it is skipped at once. A slot is free as soon as all ranks
 * have sealed a newer step. For a save that must not be skipped: the last of a training. (Trying a skipped step again by hand is no substitute: once one rank
 * has skipped a step, what the others have saved of it gives way, so a rank that has skipped a step, failed to save it or given it up skips it in all of the
 * generation: use the next step's number.) */
int dlrover_save_wait(dlrover_context *context, uint32_t milliseconds);

/** Begins the checkpoint of training step `step`. `bytes`: upper bound of its data, plus 1 KiB per chunk and the skeleton's length (1 MiB of this
 * is added by itself, so a few hundred chunks need no counting). DLROVER_E_SKIPPED when no slot is free. One save at a time per context. Of a step that is saved
 * twice in one generation the first object counts: the second can ask for storage, its data are not kept. */
int dlrover_save_begin(dlrover_context *context, uint64_t step, uint64_t bytes, dlrover_save **out);
/** Copies `bytes` from `data` (NULL only where bytes is 0). bytes must be the product of local_shape and the element size. The data may change afterwards. */
int dlrover_save_add(dlrover_save *save, const dlrover_chunk *chunk, const void *data, uint64_t bytes);
/** The same for `count` chunks at once: larger ones are shared by several threads (DLROVER_COPY_THREADS). */
int dlrover_save_add_many(dlrover_save *save, uint64_t count, const dlrover_chunk *chunks, const void *const *data, const uint64_t *bytes);
/** The same for memory of one CUDA device; `stream`: the CUstream (cudaStream_t) whose work so far makes the data (NULL: the device's legacy default
 * stream). The copies are made on a stream of our own, behind that work, and are NOT made when this returns: the memory must neither change nor be freed until
 * dlrover_wait_staged, or work behind dlrover_fence_staged, or dlrover_save_commit. NVIDIA's driver library is loaded at the first call; without it
 * DLROVER_E_UNSUPPORTED. DLROVER_E_INVALID, and the capture is left as it was, where `stream` is being captured into a graph. */
int dlrover_save_add_cuda(dlrover_save *save, uint64_t count, const dlrover_chunk *chunks, const void *const *data, const uint64_t *bytes, void *stream);
/** For chunks that several ranks hold alike (replicas), all with the same list: deals those of 64 KiB and more out among the ranks of the set on this node, so that each
 * is kept once there; time and memory are shared evenly. `ranks`: the set, this rank in it (NULL with 0: all of the world). keepers[i] becomes the rank that is to keep
 * chunk i, or DLROVER_NO_KEEPER (each its own: small ones, or no other rank of the set here, or no daemon); chunks[i].replica is set, so that storage gets one copy.
 * The answer depends on ranks, names, places and sizes alone. Then add all of them by dlrover_save_add_shared, and the bytes of those with keeper this rank or
 * DLROVER_NO_KEEPER by any of the calls above; only these count for dlrover_save_begin and dlrover_prepare. */
int dlrover_share(dlrover_context *context, uint64_t rank_count, const uint32_t *ranks, uint64_t count, dlrover_chunk *chunks, uint32_t *keepers);
/** Says who keeps what, as dealt; before the bytes are added. Those of other ranks are then in this checkpoint, too. dlrover_save_commit fails with DLROVER_E_INVALID
 * where this rank's own were not added, or a rank of the node that has saved the step says otherwise (its list was another). */
int dlrover_save_add_shared(dlrover_save *save, uint64_t rank_count, const uint32_t *ranks, uint64_t count, const dlrover_chunk *chunks,
                            const uint32_t *keepers);
/** Blocks until what dlrover_save_add_cuda has begun in the context's open save is copied; 0 at once where there is nothing. A failure of these copies is told here
 * and by dlrover_save_commit. Any thread, also while another is in dlrover_save_commit. */
int dlrover_wait_staged(dlrover_context *context);
/** The same for a stream: work that it is given from now on runs behind those copies. Blocks only for what goes through the small buffer (docs/c-api.md), and
 * where `stream` is being captured. NULL: the default stream of each device concerned. */
int dlrover_fence_staged(dlrover_context *context, void *stream);
/** JSON of the saved structure (Python); optional, at most 64 MiB. */
int dlrover_save_skeleton(dlrover_save *save, const char *json, uint64_t bytes);
/** Position in the data, opaque to us, at most 64 KiB. */
int dlrover_save_ledger(dlrover_save *save, const void *data, uint64_t bytes);
/** Asks that this step go to storage as soon as every rank has saved it, whatever --dlrover-ckpt-every says; one rank's word is enough, and nobody waits. Call it
 * right after dlrover_save_begin: DLROVER_E_UNSUPPORTED where there is no --dlrover-ckpt-dir, and the save can still be committed to memory, or aborted. Plain files
 * (no daemon) are on storage anyway. */
int dlrover_save_to_storage(dlrover_save *save);
/** Checksums are done, the table is written, the daemon told: the object is sealed. Frees `save`, whatever the result. */
int dlrover_save_commit(dlrover_save *save);
void dlrover_save_abort(dlrover_save *save);

/** Opens what this rank resumes from; the table and every chunk's checksum are verified before it returns. DLROVER_E_NOT_FOUND: start from the
 * beginning. The views live until dlrover_restore_close (their slot is not reused meanwhile). One restore at a time per context. */
int dlrover_restore_open(dlrover_context *context, dlrover_restore **out);
/** Opens a checkpoint on storage by its place instead, with or without a daemon, in a world of any size: `folder` is a lineage's folder (its newest complete
 * one) or that of one checkpoint. Nothing is this rank's own there: dlrover_restore_count is 0, skeleton and ledger are those of the rank of the same number, in
 * a world of another size rank 0's; read by dlrover_restore_read and dlrover_restore_rank_read. DLROVER_E_NOT_FOUND: there is none. */
int dlrover_restore_open_folder(dlrover_context *context, const char *folder, dlrover_restore **out);
int64_t dlrover_restore_step(const dlrover_restore *restore);
uint64_t dlrover_restore_count(const dlrover_restore *restore);
/** Chunk `index`; the name and data pointers belong to `restore`, read-only. */
int dlrover_restore_chunk(const dlrover_restore *restore, uint64_t index, dlrover_chunk *chunk, const void **data, uint64_t *bytes);
/** First chunk of that name (any global offset). */
int dlrover_restore_find(const dlrover_restore *restore, const char *name, dlrover_chunk *chunk, const void **data, uint64_t *bytes);
int dlrover_restore_skeleton(const dlrover_restore *restore, const char **json, uint64_t *bytes);
int dlrover_restore_ledger(const dlrover_restore *restore, const void **data, uint64_t *bytes);
/** How many ranks saved the checkpoint. Where that is not this world's size (from storage, or from memory with copies on other nodes) this rank has no chunks of its
 * own: dlrover_restore_count is 0, skeleton and ledger are rank 0's, and what is needed is read by dlrover_restore_read. */
int dlrover_restore_world_size(const dlrover_restore *restore);
/** Fills `out` with a box of the global tensor `name`, from whichever ranks' pieces hold it; elements in row-major order, `bytes` exactly theirs. From storage,
 * and from what another number of ranks saved in memory with copies on other nodes, any box; else from memory a box that lies in this rank's own chunks, or
 * DLROVER_E_UNSUPPORTED. All or nothing: after an error `out` is worth nothing. All of it is verified: of a piece that is wanted in part
 * the blocks of 1 MiB that hold some of the box are read, or the whole piece where its table does not tell their checksums (DLROVER_VERIFY_PARTS=0: only the bytes of
 * the box, then unverified unless a whole piece is wanted). Blocks. */
int dlrover_restore_read(dlrover_restore *restore, const char *name, uint32_t dtype, uint32_t ndim, const uint64_t *global_offset, const uint64_t *local_shape,
                         void *out, uint64_t bytes);
/** The global tensors, in order of name: from storage those that the ranks' pieces make up without hole or contradiction, from memory those that this rank has
 * a chunk of. From storage the first of these calls (or dlrover_restore_read) reads all ranks' tables. */
int dlrover_restore_global_count(dlrover_restore *restore, uint64_t *count);
/** Name (valid until dlrover_restore_close), dtype and global shape of one; local_shape is the same, the offsets are 0. */
int dlrover_restore_global(dlrover_restore *restore, uint64_t index, dlrover_chunk *chunk);
/** What rank `rank` of those that saved the checkpoint put into it: from storage any of them, from memory and plain files this rank alone, else
 * DLROVER_E_UNSUPPORTED. The name lives until dlrover_restore_close. */
int dlrover_restore_rank_count(dlrover_restore *restore, uint32_t rank, uint64_t *count);
int dlrover_restore_rank_chunk(dlrover_restore *restore, uint32_t rank, uint64_t index, dlrover_chunk *chunk, uint64_t *bytes);
/** Copies that chunk as a whole and verifies it; `bytes` is exactly its size. */
int dlrover_restore_rank_read(dlrover_restore *restore, uint32_t rank, uint64_t index, void *out, uint64_t bytes);
int dlrover_restore_rank_skeleton(dlrover_restore *restore, uint32_t rank, const char **json, uint64_t *bytes);
/** Pointers into `restore` end here. The daemon is told of the end, and of damage that was found. */
void dlrover_restore_close(dlrover_restore *restore);

/* Protected memory: a program registers its variables once and says "checkpoint"; at the start it says "restart". The memory stays the program's, in
 * host memory; it is read only inside dlrover_checkpoint and dlrover_save_add_protected, written only inside dlrover_restart, and no call but these keeps a
 * pointer in use after it returned. These calls wait for each other: after dlrover_unprotect, or after registering another pointer, the old memory may be freed. */

/** Registers `count` elements at `ptr` under the program's own number `id`, or registers them anew: other pointer, count or type, at any time; what was saved
 * before stays as it is. ptr may be NULL only where count is 0. The memory is this rank's own: it is restored to this rank, in a world of the same size. Its
 * chunk is called "protected.ID". A refused call changes nothing. */
int dlrover_protect(dlrover_context *context, int id, void *ptr, uint64_t count, uint32_t dtype);
/** The same for one piece of a global array (shapes in elements, as in dlrover_chunk, `ndim` numbers each, copied; 0 dimensions: one element, the three may
 * be NULL). In a checkpoint a piece is known by name and global offset, not by id; two ids can not be the same piece. Names beginning with "protected." are
 * taken. Only such arrays can be put together for a world of another size. What all ranks hold alike (a step, a table) is an array of which each has the whole;
 * their bytes must be the same. */
int dlrover_protect_array(dlrover_context *context, int id, const char *name, void *ptr, uint32_t dtype, uint32_t ndim, const uint64_t *global_shape,
                          const uint64_t *global_offset, const uint64_t *local_shape);
/** DLROVER_E_NOT_FOUND: nothing has this id. Checkpoints that are there keep what they have. */
int dlrover_unprotect(dlrover_context *context, int id);
/** Bytes that a checkpoint of all protected memory needs now, for dlrover_prepare and dlrover_save_begin; 0: nothing is protected. */
uint64_t dlrover_protected_bytes(dlrover_context *context);

/** Saves all protected memory, and nothing else, as the checkpoint of step `step`: begin, add, commit in one call. It has been copied when this returns.
 * DLROVER_E_SKIPPED as dlrover_save_begin; DLROVER_E_INVALID when nothing is protected. */
int dlrover_checkpoint(dlrover_context *context, uint64_t step);
/** Adds all protected memory to an open save, for who saves a ledger or other chunks with it. A failure spoils the save, as in dlrover_save_add. */
int dlrover_save_add_protected(dlrover_save *save);

/** 1: there is a checkpoint to go on from; 0: start from the beginning; negative: an error. */
int dlrover_restart_available(dlrover_context *context);
/** The step that dlrover_restart goes on from; -1: none, or it can not be told (dlrover_restart_available says which). Its data is not read. */
int64_t dlrover_restart_step(dlrover_context *context);
/** Elements saved for `id`, so that memory can be allocated, protected and then filled. An array's id must be protected (its pointer and local shape may
 * still change). The checkpoint is opened and verified once, and stays open for dlrover_restart; a save or dlrover_restore_open closes it.
 * DLROVER_E_NOT_FOUND: no checkpoint, or the id is not in it. In a world of another size it is the size that the array's id is protected with;
 * DLROVER_E_INVALID: it is not protected. */
int dlrover_restart_size(dlrover_context *context, int id, uint64_t *count);
/** Fills all protected memory from what this rank resumes from; what was saved and is not protected is left alone, so it can be called in stages. All or
 * nothing: checksums, ids, types, counts and shapes are checked before a byte is written; DLROVER_E_INVALID then names the id and both sizes.
 * DLROVER_E_NOT_FOUND: start from the beginning. Meant for the start of a program: under a daemon it is always the step that this generation began with,
 * and after newer checkpoints that one's memory may be used again. No restore may be open.
 * A checkpoint that another number of ranks has saved fills arrays (dlrover_protect_array) by their places, from storage and from memory with copies on other
 * nodes, and needs as much memory again meanwhile. DLROVER_E_UNSUPPORTED, with nothing written: other memory is protected too (dlrover_protect), or an array is
 * none there (its pieces leave a hole, overlap, or are not alike). */
int dlrover_restart(dlrover_context *context);

/** The optimizer finished training step `step`. No system call but the clock. */
int dlrover_report_step(dlrover_context *context, uint64_t step);
/** Between begin and end nobody expects steps (evaluation, compilation). Nests. */
int dlrover_phase_begin(dlrover_context *context, const char *name);
int dlrover_phase_end(dlrover_context *context);

/** Descriptor that becomes readable when dlrover_next_event has something; -1 without a daemon, or where this rank's generation is over. Belongs to the context. The
 * first call subscribes: when it returns the daemon has taken note, and what happens from then on is heard; where the daemon is away just then, from its return on. */
int dlrover_event_fd(dlrover_context *context);
/** DLROVER_E_NOT_FOUND: nothing now. */
int dlrover_next_event(dlrover_context *context, dlrover_event *out);

#ifdef __cplusplus
}
#endif
#endif
