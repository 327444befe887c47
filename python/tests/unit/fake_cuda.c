/* A stand-in for libcuda.so.1: it records every call as a line of text, copies with memcpy and fails where it is told to.
 * DRIVER is the number that cuDriverGetVersion gives; from 13000 on the batch functions are those of CUDA 13 as well.
 * Types are spelt out as in cuda.h, so that the compiler lays out what the Python side has to match. */
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef unsigned long long CUdeviceptr;
typedef int CUdevice;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct { int type; int id; } CUmemLocation;
typedef struct { int srcAccessOrder; CUmemLocation srcLocHint, dstLocHint; unsigned int flags; } CUmemcpyAttributes;
typedef struct { size_t width, height, depth; } CUextent3D;
typedef struct { size_t x, y, z; } CUoffset3D;
typedef struct {
    int type;
    union {
        struct { CUdeviceptr ptr; size_t rowLength, layerHeight; CUmemLocation locHint; } ptr;
        struct { void *array; CUoffset3D offset; } array;
    } op;
} CUmemcpy3DOperand;
typedef struct { CUmemcpy3DOperand src, dst; CUextent3D extent; int srcAccessOrder; unsigned int flags; } CUDA_MEMCPY3D_BATCH_OP;

#define NOT_OPENED 999
#define LINE(...) (used += (size_t)snprintf(record + used, sizeof record - used, __VA_ARGS__))
#define CALLED(format, ...) do { LINE("%s" format "\n", __func__, ##__VA_ARGS__); if (fails(__func__)) return failing_code; } while (0)

static char record[1 << 16];
static size_t used;
static char failing[64];
static int failing_code;
static size_t failing_copy = (size_t)-1;
static __thread CUcontext current;
static char context_memory[8];
static pthread_mutex_t gate_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_opens = PTHREAD_COND_INITIALIZER;
static int gate_open;

static int fails(const char *name) { return failing_code != 0 && strcmp(name, failing) == 0; }

const char *fake_record(void) { return record; }
void fake_forget(void) { used = 0; record[0] = 0; }
void fake_fail(const char *name, int code, size_t copy) {
    snprintf(failing, sizeof failing, "%s", name);
    failing_code = code;
    failing_copy = copy;
}
void fake_reset(void) { fake_forget(); fake_fail("", 0, (size_t)-1); current = NULL; gate_open = 0; }
void *fake_context(void) { return context_memory; }
void *fake_current(void) { return current; }
void fake_open(void) {
    pthread_mutex_lock(&gate_lock);
    gate_open = 1;
    pthread_cond_broadcast(&gate_opens);
    pthread_mutex_unlock(&gate_lock);
}

int cuDriverGetVersion(int *version) { CALLED(""); *version = DRIVER; return 0; }
int cuGetErrorName(int code, const char **text) {
    *text = code == 1 ? "CUDA_ERROR_INVALID_VALUE" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : NULL;
    return *text ? 0 : 1;
}
int cuGetErrorString(int code, const char **text) {
    *text = code == 1 ? "invalid argument" : code == 2 ? "out of memory" : NULL;
    return *text ? 0 : 1;
}
int cuInit(unsigned int flags) { CALLED(" %u", flags); return 0; }
int cuDeviceGet(CUdevice *device, int ordinal) { CALLED(" %d", ordinal); *device = ordinal + 40; return 0; }
int cuDeviceGetPCIBusId(char *text, int size, CUdevice device) {
    CALLED(" %d", device);
    snprintf(text, (size_t)size, "0000:1B:00.0");
    return 0;
}
int cuDevicePrimaryCtxRetain(CUcontext *made, CUdevice device) {
    CALLED(" %d", device);
    *made = (CUcontext)context_memory;
    return 0;
}
int cuCtxGetCurrent(CUcontext *found) { CALLED(""); *found = current; return 0; }
int cuCtxSetCurrent(CUcontext wanted) {
    CALLED(" %s", (char *)wanted == context_memory ? "primary" : "another");
    current = wanted;
    return 0;
}
int cuThreadExchangeStreamCaptureMode(int *mode) { CALLED(" %d", *mode); *mode = 0; return 0; }
int cuCtxGetStreamPriorityRange(int *least, int *greatest) { CALLED(""); *least = 0; *greatest = -5; return 0; }
int cuMemHostRegister_v2(void *address, size_t size, unsigned int flags) {
    CALLED(" %p %zu %u", address, size, flags);
    return 0;
}
int cuMemHostUnregister(void *address) { CALLED(" %p", address); return 0; }
int cuMemAlloc_v2(CUdeviceptr *made, size_t size) { CALLED(" %zu", size); *made = 0x7f1234567000ULL; return 0; }
int cuMemFree_v2(CUdeviceptr address) { CALLED(" %#llx", address); return 0; }
int cuStreamCreateWithPriority(CUstream *made, unsigned int flags, int priority) {
    CALLED(" %u %d", flags, priority);
    *made = (CUstream)0x7f0000000010ULL;
    return 0;
}
int cuStreamDestroy_v2(CUstream stream) { CALLED(" %p", (void *)stream); return 0; }
int cuEventCreate(CUevent *made, unsigned int flags) {
    CALLED(" %u", flags);
    *made = (CUevent)0x7f0000000020ULL;
    return 0;
}
int cuEventDestroy_v2(CUevent event) { CALLED(" %p", (void *)event); return 0; }
int cuEventRecord(CUevent event, CUstream stream) { CALLED(" %p %p", (void *)event, (void *)stream); return 0; }
int cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    CALLED(" %p %p %u", (void *)stream, (void *)event, flags);
    return 0;
}
/* Waits until fake_open is called, and for at most ten seconds: whoever calls it needs the interpreter meanwhile. */
int cuEventSynchronize(CUevent event) {
    struct timespec end;
    int late = 0;
    CALLED(" %p", (void *)event);
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 10;
    pthread_mutex_lock(&gate_lock);
    while (!gate_open && !late) late = pthread_cond_timedwait(&gate_opens, &gate_lock, &end);
    pthread_mutex_unlock(&gate_lock);
    return late ? NOT_OPENED : 0;
}
int cuEventQuery(CUevent event) { CALLED(" %p", (void *)event); return 0; }
int cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end) {
    CALLED(" %p %p", (void *)begin, (void *)end);
    *milliseconds = 1.5f;
    return 0;
}

#ifndef LACKS_BATCHES
static void copy_all(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *a,
                     size_t *firsts, size_t attributes, CUstream stream) {
    LINE("batch of %zu on %p:", count, (void *)stream);
    for (size_t i = 0; i < attributes; i++)
        LINE(" from %zu order %d hints %d %d %d %d flags %u", firsts[i], a[i].srcAccessOrder, a[i].srcLocHint.type,
             a[i].srcLocHint.id, a[i].dstLocHint.type, a[i].dstLocHint.id, a[i].flags);
    LINE("\n");
    for (size_t i = 0; i < count; i++) memcpy((void *)dsts[i], (void *)srcs[i], sizes[i]);
}

static void copy_rows(size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags, CUstream stream) {
    LINE("%zu strided on %p flags %llu:", count, (void *)stream, flags);
    for (size_t i = 0; i < count; i++) {
        CUDA_MEMCPY3D_BATCH_OP *o = &ops[i];
        LINE(" types %d %d depth %zu order %d flags %u rows %zu %zu hints %d %d", o->src.type, o->dst.type, o->extent.depth,
             o->srcAccessOrder, o->flags, o->src.op.ptr.layerHeight, o->dst.op.ptr.layerHeight,
             o->src.op.ptr.locHint.type, o->dst.op.ptr.locHint.id);
        for (size_t row = 0; row < o->extent.height; row++)
            memcpy((char *)o->dst.op.ptr.ptr + row * o->dst.op.ptr.rowLength,
                   (char *)o->src.op.ptr.ptr + row * o->src.op.ptr.rowLength, o->extent.width);
    }
    LINE("\n");
}

int cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attrs,
                       size_t *attrsIdxs, size_t numAttrs, size_t *failIdx, CUstream stream) {
    *failIdx = failing_copy;
    CALLED("");
    copy_all(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, stream);
    return 0;
}
int cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, size_t *failIdx, unsigned long long flags, CUstream stream) {
    *failIdx = failing_copy;
    CALLED("");
    copy_rows(count, ops, flags, stream);
    return 0;
}
#if DRIVER >= 13000
int cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attrs,
                          size_t *attrsIdxs, size_t numAttrs, CUstream stream) {
    CALLED("");
    copy_all(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, stream);
    return 0;
}
int cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags, CUstream stream) {
    CALLED("");
    copy_rows(count, ops, flags, stream);
    return 0;
}
#endif
#endif
