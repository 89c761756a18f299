/* CUDA driver on host memory: it checks and records calls, and runs kernels that are C functions.
 *
 * A kernel has a declaration: its name, and a letter for each parameter, P for an address and M for a tensor map. Known
 * names compute; others are recorded only. Of the nodes of a graph that may run, the last one added runs first, so that
 * a missing dependency shows.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_calls.h"

#define FAKE __attribute__((visibility("default")))

enum { MAX_KERNELS = 4096, MAX_PARAMETERS = 64, MAX_NAME = 128, MAX_DEPENDENCIES = 4096, MAX_BYTES = 1 << 26 };

typedef struct fake_kernel {
    char name[MAX_NAME], kinds[MAX_PARAMETERS];
    void (*run)(const uint64_t *values); /* or null */
} fake_kernel;

typedef struct fake_module {
    const char *content;
} fake_module;

typedef struct fake_node {
    char kind; /* K: kernel, C: copy, E: empty, G: graph */
    cuda_kernel_params kernel;
    cuda_copy_params copy;
    uint64_t values[MAX_PARAMETERS];
    struct fake_node **waits;
    size_t wait_count;
    int is_early, has_run;
    struct fake_graph *child;
} fake_node;

typedef struct fake_graph {
    fake_node **nodes;
    size_t count;
    int is_executable;
} fake_graph;

static fake_kernel kernels[MAX_KERNELS];
static int kernel_count, capability = 90, context_depth, live_allocations, live_modules, live_graphs;
static char *text;
static size_t text_used, text_room;
static const char *failing = "";
static double busy_seconds;
static int is_quiet, is_idle; /* without a log; without execution of graphs */
static uint64_t update_count;
static cuda_stream captured_stream;
static fake_graph *captured; /* what a test records on that stream */
static cuda_node front[MAX_DEPENDENCIES];
static size_t front_count;

static void note(const char *format, ...) {
    if (is_quiet) return;
    if (text_room - text_used < 4096) text = realloc(text, text_room = 2 * text_room + 8192);
    va_list values;
    va_start(values, format);
    text_used += (size_t)vsnprintf(text + text_used, text_room - text_used, format, values);
    va_end(values);
}

static int fails(const char *call) {
    return strcmp(call, failing) == 0;
}

#define BEGIN(call) \
    if (fails(#call)) return 999
#define WITHIN_CONTEXT(call) \
    BEGIN(call);             \
    if (!context_depth) return 201

/* Interface of tests. */

FAKE void fake_reset(void) {
    text_used = 0;
    kernel_count = 0;
    capability = 90;
    failing = "";
    is_quiet = is_idle = 0;
    update_count = 0;
    captured = NULL;
    live_allocations = live_modules = live_graphs = context_depth = 0;
    if (text) *text = 0;
}

FAKE const char *fake_log(void) {
    return text && text_used ? text : "";
}

FAKE void *fake_declare(const char *name, const char *kinds) {
    fake_kernel *made = kernels + kernel_count++;
    snprintf(made->name, MAX_NAME, "%s", name);
    snprintf(made->kinds, MAX_PARAMETERS, "%s", kinds);
    made->run = NULL;
    return made;
}

/* Lets a kernel run a function over the values of its parameters. */
FAKE void fake_define(void *kernel, void (*run)(const uint64_t *)) {
    ((fake_kernel *)kernel)->run = run;
}

FAKE void fake_set(int new_capability, const char *new_failing, int quiet, int idle) {
    capability = new_capability;
    failing = new_failing;
    is_quiet = quiet;
    is_idle = idle;
}

/* Allocations, modules, graphs and contexts that were not given back. */
FAKE int fake_live(void) {
    return live_allocations + live_modules + live_graphs + context_depth;
}

FAKE uint64_t fake_update_count(void) {
    return update_count;
}

FAKE double fake_busy_seconds(void) {
    return busy_seconds;
}

/* Devices and contexts. */

FAKE cuda_result cuInit(unsigned flags) {
    (void)flags;
    BEGIN(cuInit);
    return 0;
}

FAKE cuda_result cuGetErrorName(cuda_result code, const char **name) {
    *name = code == 999 ? "CUDA_ERROR_UNKNOWN" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OTHER";
    return 0;
}

FAKE cuda_result cuDeviceGet(cuda_device_id *device, int ordinal) {
    *device = ordinal;
    return ordinal ? 101 : 0;
}

FAKE cuda_result cuDeviceGetName(char *name, int room, cuda_device_id device) {
    (void)device;
    snprintf(name, (size_t)room, "Fake GPU");
    return 0;
}

FAKE cuda_result cuDeviceGetAttribute(int *value, int attribute, cuda_device_id device) {
    (void)device;
    switch (attribute) {
        case CUDA_CAPABILITY_MAJOR: *value = capability / 10; return 0;
        case CUDA_CAPABILITY_MINOR: *value = capability % 10; return 0;
        case CUDA_SHARED_BYTES_OPTIN: *value = 232448; return 0;
        case CUDA_WINDOW_BYTES: *value = 1 << 20; return 0;
    }
    return 1;
}

FAKE cuda_result cuDevicePrimaryCtxRetain(cuda_context *context, cuda_device_id device) {
    (void)device;
    BEGIN(cuDevicePrimaryCtxRetain);
    *context = (cuda_context)&capability;
    return 0;
}

FAKE cuda_result cuDevicePrimaryCtxRelease_v2(cuda_device_id device) {
    (void)device;
    return 0;
}

FAKE cuda_result cuCtxPushCurrent_v2(cuda_context context) {
    BEGIN(cuCtxPushCurrent_v2);
    context_depth++;
    return context == (cuda_context)&capability ? 0 : 201;
}

FAKE cuda_result cuCtxPopCurrent_v2(cuda_context *context) {
    *context = (cuda_context)&capability;
    context_depth--;
    return 0;
}

FAKE cuda_result cuCtxSynchronize(void) {
    WITHIN_CONTEXT(cuCtxSynchronize);
    return 0;
}

FAKE cuda_result cuStreamSynchronize(cuda_stream stream) {
    note("synchronize %p\n", (void *)stream);
    return 0;
}

/* Memory. */

FAKE cuda_result cuMemAlloc_v2(cuda_address *address, size_t nbytes) {
    WITHIN_CONTEXT(cuMemAlloc_v2);
    if (nbytes > MAX_BYTES) return 2;
    void *memory = NULL;
    if (posix_memalign(&memory, 256, nbytes)) return 2;
    *address = (cuda_address)(uintptr_t)memory;
    live_allocations++;
    return 0;
}

FAKE cuda_result cuMemFree_v2(cuda_address address) {
    free((void *)(uintptr_t)address);
    live_allocations--;
    return 0;
}

FAKE cuda_result cuMemsetD8_v2(cuda_address address, unsigned char value, size_t nbytes) {
    WITHIN_CONTEXT(cuMemsetD8_v2);
    memset((void *)(uintptr_t)address, value, nbytes);
    return 0;
}

FAKE cuda_result cuMemcpyHtoD_v2(cuda_address target, const void *source, size_t nbytes) {
    WITHIN_CONTEXT(cuMemcpyHtoD_v2);
    memcpy((void *)(uintptr_t)target, source, nbytes);
    note("upload %zu\n", nbytes);
    return 0;
}

FAKE cuda_result cuMemcpyDtoH_v2(void *target, cuda_address source, size_t nbytes) {
    WITHIN_CONTEXT(cuMemcpyDtoH_v2);
    memcpy(target, (void *)(uintptr_t)source, nbytes);
    return 0;
}

static void copy_rows(const cuda_copy_params *copy) {
    char *target = (char *)(uintptr_t)copy->target.device;
    const char *source = (char *)(uintptr_t)copy->source.device;
    for (size_t row = 0; row < copy->height; row++)
        memmove(target + row * copy->target.pitch, source + row * copy->source.pitch, copy->width);
    note("copy %zu x %zu\n", copy->height, copy->width);
}

FAKE cuda_result cuMemcpy3DAsync_v2(const cuda_copy_params *copy, cuda_stream stream) {
    (void)stream;
    copy_rows(copy);
    return 0;
}

/* Modules and kernels. */

FAKE cuda_result cuModuleLoadData(cuda_module *module, const void *content) {
    WITHIN_CONTEXT(cuModuleLoadData);
    fake_module *made = malloc(sizeof *made);
    made->content = content;
    *module = (cuda_module)made;
    live_modules++;
    note("module %.8s\n", made->content);
    return 0;
}

FAKE cuda_result cuModuleUnload(cuda_module module) {
    free(module);
    live_modules--;
    return 0;
}

FAKE cuda_result cuModuleGetFunction(cuda_function *function, cuda_module module, const char *name) {
    (void)module;
    WITHIN_CONTEXT(cuModuleGetFunction);
    for (int n = 0; n < kernel_count; n++) {
        if (strcmp(kernels[n].name, name)) continue;
        *function = (cuda_function)(kernels + n);
        return 0;
    }
    return 500;
}

FAKE cuda_result cuFuncSetAttribute(cuda_function function, int attribute, int value) {
    note("attribute %s %d %d\n", ((fake_kernel *)function)->name, attribute, value);
    return 0;
}

/* The kernels of the hand-made plan. */
static void run_known(const fake_kernel *kernel, const uint64_t *values) {
    float *p[3] = {(float *)(uintptr_t)values[0], (float *)(uintptr_t)values[1], (float *)(uintptr_t)values[2]};
    for (int i = 0; i < 32; i++) {
        if (!strcmp(kernel->name, "k_add")) p[2][i] = p[0][i] + p[1][i] * 3.0f;
        if (!strcmp(kernel->name, "k_double")) p[1][i / 8 * 16 + i % 8] = p[0][i] * 2.0f;
        if (!strcmp(kernel->name, "k_sum") && i < 4) p[2][i] = p[0][i] + p[1][i];
    }
}

static void run_kernel(const cuda_kernel_params *params, const uint64_t *values) {
    const fake_kernel *kernel = (const fake_kernel *)params->function;
    note("launch %s %u,%u,%u %u,%u,%u %u", kernel->name, params->grid[0], params->grid[1], params->grid[2],
         params->block[0], params->block[1], params->block[2], params->shared_bytes);
    for (int n = 0; kernel->kinds[n]; n++) note(" %llx", (unsigned long long)values[n]);
    note("\n");
    if (kernel->run)
        kernel->run(values);
    else if (*kernel->kinds)
        run_known(kernel, values);
}

/* Reads the parameters now, as the driver does. Of a tensor map this is the address that it was encoded for. */
static void read_values(const cuda_kernel_params *params, uint64_t *values) {
    const fake_kernel *kernel = (const fake_kernel *)params->function;
    for (int n = 0; kernel->kinds[n]; n++) memcpy(values + n, params->parameters[n], sizeof *values);
}

FAKE cuda_result cuLaunchKernel(cuda_function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                unsigned bz, unsigned shared, cuda_stream stream, void **parameters, void **extra) {
    WITHIN_CONTEXT(cuLaunchKernel);
    uint64_t values[MAX_PARAMETERS] = {0};
    cuda_kernel_params params = {function, {gx, gy, gz}, {bx, by, bz}, shared, parameters, extra};
    (void)stream;
    read_values(&params, values);
    run_kernel(&params, values);
    return 0;
}

FAKE cuda_result cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *extents,
                                        const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                                        int interleave, int swizzle, int promotion, int fill) {
    if ((uintptr_t)map % 64 || (uintptr_t)address % 16) return 1;
    memset(map, 0, CUDA_MAP_BYTES);
    memcpy(map, &address, sizeof address);
    note("map type %d swizzle %d promotion %d %d %d dims", type, swizzle, promotion, interleave, fill);
    for (uint32_t n = 0; n < rank; n++)
        note(" %llu/%llu/%u/%u", (unsigned long long)extents[n], n ? (unsigned long long)strides[n - 1] : 0ull, box[n],
             steps[n]);
    note("\n");
    return 0;
}

FAKE cuda_result cuTensorMapEncodeIm2col(void *map, int type, uint32_t rank, void *address, const uint64_t *extents,
                                         const uint64_t *strides, const int *starts, const int *ends,
                                         uint32_t channels, uint32_t pixels, const uint32_t *steps, int interleave,
                                         int swizzle, int promotion, int fill) {
    if ((uintptr_t)map % 64 || (uintptr_t)address % 16) return 1;
    memset(map, 0, CUDA_MAP_BYTES);
    memcpy(map, &address, sizeof address);
    note("map type %d swizzle %d promotion %d %d %d walks %u %u", type, swizzle, promotion, interleave, fill, channels,
         pixels);
    for (uint32_t n = 0; n < rank; n++)
        note(" %llu/%llu/%u", (unsigned long long)extents[n], n ? (unsigned long long)strides[n - 1] : 0ull, steps[n]);
    for (uint32_t n = 0; n + 2 < rank; n++) note(" %d..%d", starts[n], ends[n]);
    note("\n");
    return 0;
}

/* Graphs. */

FAKE cuda_result cuGraphCreate(cuda_graph *graph, unsigned flags) {
    (void)flags;
    WITHIN_CONTEXT(cuGraphCreate);
    *graph = calloc(1, sizeof(fake_graph));
    live_graphs++;
    return 0;
}

static void free_graph(fake_graph *graph) {
    for (size_t n = 0; n < graph->count; n++) {
        if (graph->nodes[n]->child) free_graph(graph->nodes[n]->child);
        free(graph->nodes[n]->waits);
        free(graph->nodes[n]);
    }
    free(graph->nodes);
    free(graph);
}

FAKE cuda_result cuGraphDestroy(cuda_graph graph) {
    free_graph((fake_graph *)graph);
    live_graphs--;
    return 0;
}

FAKE cuda_result cuGraphExecDestroy(cuda_executable executable) {
    (void)executable;
    live_graphs--;
    return 0;
}

static void add_waits(fake_node *node, const cuda_node *waits, size_t count) {
    if (count) node->waits = realloc(node->waits, (node->wait_count + count) * sizeof *node->waits);
    for (size_t n = 0; n < count; n++) node->waits[node->wait_count++] = (fake_node *)waits[n];
}

static fake_node *add_node(fake_graph *graph, char kind, const cuda_node *waits, size_t count, cuda_node *made) {
    fake_node *node = calloc(1, sizeof *node);
    node->kind = kind;
    add_waits(node, waits, count);
    graph->nodes = realloc(graph->nodes, (graph->count + 1) * sizeof *graph->nodes);
    graph->nodes[graph->count++] = node;
    *made = (cuda_node)node;
    return node;
}

static void set_kernel(fake_node *node, const cuda_kernel_params *params) {
    node->kernel = *params;
    read_values(params, node->values);
}

FAKE cuda_result cuGraphAddKernelNode(cuda_node *made, cuda_graph graph, const cuda_node *waits, size_t count,
                                      const cuda_kernel_params *params) {
    WITHIN_CONTEXT(cuGraphAddKernelNode);
    set_kernel(add_node((fake_graph *)graph, 'K', waits, count, made), params);
    return 0;
}

FAKE cuda_result cuGraphAddMemcpyNode(cuda_node *made, cuda_graph graph, const cuda_node *waits, size_t count,
                                      const cuda_copy_params *params, cuda_context context) {
    WITHIN_CONTEXT(cuGraphAddMemcpyNode);
    if (context != (cuda_context)&capability || params->depth != 1) return 1;
    if (params->source.memory_type != CUDA_MEMORY_DEVICE || params->target.memory_type != CUDA_MEMORY_DEVICE) return 1;
    add_node((fake_graph *)graph, 'C', waits, count, made)->copy = *params;
    return 0;
}

FAKE cuda_result cuGraphAddEmptyNode(cuda_node *made, cuda_graph graph, const cuda_node *waits, size_t count) {
    add_node((fake_graph *)graph, 'E', waits, count, made);
    return 0;
}

/* Returns the nodes in order without their edges. */
static fake_graph *clone(const fake_graph *graph) {
    fake_graph *made = calloc(1, sizeof *made);
    made->nodes = calloc(graph->count + 1, sizeof *made->nodes);
    for (made->count = 0; made->count < graph->count; made->count++) {
        fake_node *node = made->nodes[made->count] = malloc(sizeof *node);
        *node = *graph->nodes[made->count];
        node->waits = NULL;
        node->wait_count = 0;
    }
    return made;
}

FAKE cuda_result cuGraphAddChildGraphNode(cuda_node *made, cuda_graph graph, const cuda_node *waits, size_t count,
                                          cuda_graph child) {
    WITHIN_CONTEXT(cuGraphAddChildGraphNode);
    add_node((fake_graph *)graph, 'G', waits, count, made)->child = clone((fake_graph *)child);
    return 0;
}

FAKE cuda_result cuGraphExecChildGraphNodeSetParams(cuda_executable executable, cuda_node node, cuda_graph child) {
    (void)executable;
    WITHIN_CONTEXT(cuGraphExecChildGraphNodeSetParams);
    free_graph(((fake_node *)node)->child);
    ((fake_node *)node)->child = clone((fake_graph *)child);
    update_count++;
    return 0;
}

#ifndef OLD_DRIVER
FAKE cuda_result cuGraphAddDependencies_v2(cuda_graph graph, const cuda_node *from, const cuda_node *to,
                                           const cuda_edge *edges, size_t count) {
    (void)graph;
    for (size_t n = 0; n < count; n++) {
        fake_node *before = (fake_node *)from[n], *after = (fake_node *)to[n];
        int is_early = edges[n].from_port == 1 && edges[n].type == 1 && !edges[n].to_port;
        if (!is_early || before->kind != 'K' || after->kind != 'K' || after->wait_count) return 1;
        add_waits(after, from + n, 1);
        after->is_early = 1;
        note("early edge\n");
    }
    return 0;
}

FAKE cuda_result cuStreamGetCaptureInfo_v3(cuda_stream stream, int *state, uint64_t *id, cuda_graph *graph,
                                           const cuda_node **nodes, const cuda_edge **edges, size_t *count) {
    WITHIN_CONTEXT(cuStreamGetCaptureInfo_v3);
    if (!captured || stream != captured_stream || id) return 1;
    *state = CUDA_CAPTURE_ACTIVE;
    *graph = (cuda_graph)captured;
    *nodes = front;
    *edges = NULL;
    *count = front_count;
    return 0;
}

FAKE cuda_result cuStreamUpdateCaptureDependencies_v2(cuda_stream stream, cuda_node *nodes, const cuda_edge *edges,
                                                      size_t count, unsigned flags) {
    WITHIN_CONTEXT(cuStreamUpdateCaptureDependencies_v2);
    if (stream != captured_stream || flags != CUDA_SET_DEPENDENCIES || count > MAX_DEPENDENCIES) return 1;
    for (size_t n = 0; n < count; n++)
        if (edges[n].type || edges[n].from_port || edges[n].to_port) return 1;
    memcpy(front, nodes, count * sizeof *front);
    front_count = count;
    return 0;
}
#endif

FAKE cuda_result cuStreamIsCapturing(cuda_stream stream, int *state) {
    WITHIN_CONTEXT(cuStreamIsCapturing);
    *state = captured && stream == captured_stream ? CUDA_CAPTURE_ACTIVE : 0;
    return 0;
}

FAKE cuda_result cuGraphKernelNodeSetAttribute(cuda_node node, int attribute, const cuda_attribute *value) {
    (void)node;
    note("window %d %zu %g %d %d\n", attribute, value->nbytes, (double)value->hit_ratio, value->hit, value->miss);
    return 0;
}

static const char *name_of(const fake_node *node) {
    static char kinds[][2] = {"C", "E", "G"};
    if (node->kind == 'K') return ((fake_kernel *)node->kernel.function)->name;
    return kinds[node->kind == 'C' ? 0 : node->kind == 'E' ? 1 : 2];
}

static void note_edges(const fake_graph *graph) {
    for (size_t n = 0; n < graph->count; n++)
        for (size_t w = 0; w < graph->nodes[n]->wait_count; w++)
            note("edge %s %s %d\n", name_of(graph->nodes[n]->waits[w]), name_of(graph->nodes[n]),
                 graph->nodes[n]->is_early);
}

FAKE cuda_result cuGraphInstantiateWithFlags(cuda_executable *executable, cuda_graph graph, unsigned long long flags) {
    (void)flags;
    WITHIN_CONTEXT(cuGraphInstantiateWithFlags);
    *executable = (cuda_executable)graph;
    note("graph of %zu nodes\n", ((fake_graph *)graph)->count);
    note_edges((fake_graph *)graph);
    live_graphs++;
    return 0;
}

FAKE cuda_result cuGraphExecKernelNodeSetParams(cuda_executable executable, cuda_node node,
                                                const cuda_kernel_params *params) {
    (void)executable;
    WITHIN_CONTEXT(cuGraphExecKernelNodeSetParams);
    set_kernel((fake_node *)node, params);
    update_count++;
    return 0;
}

FAKE cuda_result cuGraphExecMemcpyNodeSetParams(cuda_executable executable, cuda_node node,
                                                const cuda_copy_params *params, cuda_context context) {
    (void)executable, (void)context;
    WITHIN_CONTEXT(cuGraphExecMemcpyNodeSetParams);
    ((fake_node *)node)->copy = *params;
    update_count++;
    return 0;
}

static int may_run(const fake_node *node) {
    for (size_t n = 0; n < node->wait_count; n++)
        if (!node->waits[n]->has_run) return 0;
    return !node->has_run;
}

static void run_node(fake_node *node) {
    node->has_run = 1;
    if (node->kind == 'K') run_kernel(&node->kernel, node->values);
    if (node->kind == 'C') copy_rows(&node->copy);
    for (size_t n = 0; node->kind == 'G' && n < node->child->count; n++) run_node(node->child->nodes[n]);
}

static void run_graph(fake_graph *graph) {
    for (size_t n = 0; n < graph->count; n++) graph->nodes[n]->has_run = 0;
    for (size_t left = graph->count; left && !is_idle; left--)
        for (size_t n = graph->count; n-- > 0;)
            if (may_run(graph->nodes[n])) {
                run_node(graph->nodes[n]);
                break;
            }
}

FAKE cuda_result cuGraphLaunch(cuda_executable executable, cuda_stream stream) {
    WITHIN_CONTEXT(cuGraphLaunch);
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    note("run on %p\n", (void *)stream);
    run_graph((fake_graph *)executable);
    clock_gettime(CLOCK_MONOTONIC, &end);
    busy_seconds += (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    return 0;
}

/* Recordings of a test. */

/* Begins to record a stream, with a node of the test's own. */
FAKE void fake_begin(cuda_stream stream) {
    captured_stream = stream;
    captured = calloc(1, sizeof *captured);
    add_node(captured, 'E', NULL, 0, front);
    front_count = 1;
}

/* Ends a recording, runs it once, and returns the number of nodes that a next one would follow. */
FAKE int fake_end(void) {
    fake_graph *graph = captured;
    captured = NULL;
    note("recorded %zu nodes\n", graph->count);
    note_edges(graph);
    run_graph(graph);
    free_graph(graph);
    return (int)front_count;
}

/* Returns a graph of one kernel with one parameter, which the caller destroys. */
FAKE void *fake_graph_of(void *kernel, uint64_t value) {
    fake_graph *graph = calloc(1, sizeof *graph);
    void *parameters[] = {&value};
    cuda_node made;
    set_kernel(add_node(graph, 'K', NULL, 0, &made), &(cuda_kernel_params){.function = kernel, .parameters = parameters});
    live_graphs++;
    return graph;
}
