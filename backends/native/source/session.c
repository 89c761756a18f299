/* Sessions: memory of one run, state, and the caller's tensors of the last run. */
#include "session.h"

#include <stdlib.h>
#include <string.h>

#include "status.h"
#include "tensor_checks.h"

static cuts_status allocate_blocks(cuts_session *session) {
    const plan_file *file = &session->plan->file;
    for (uint64_t n = 0; n < file->block_count; n++) {
        if (file->blocks[n].kind == BLOCK_CONSTANTS) session->blocks[n] = session->plan->constants[n];
        if (file->blocks[n].kind == BLOCK_SESSION)
            TRY(calls_of(session->plan)->allocate(session->plan->device, file->blocks[n].nbytes, session->blocks + n));
    }
    return upload_images(session->plan, BLOCK_SESSION, session->blocks, NULL);
}

static cuts_status fill_session(cuts_session *session) {
    size_t count = session->plan->file.block_count + 1;
    session->blocks = calloc(count, sizeof *session->blocks);
    session->callers = calloc(count, sizeof *session->callers);
    session->copies = calloc(count, sizeof *session->copies);
    session->is_moved = malloc(count);
    if (!session->blocks || !session->callers || !session->copies || !session->is_moved)
        return fail(CUTS_ERROR_MEMORY, "too little memory for a session");
    memset(session->is_moved, 1, count);
    TRY(allocate_blocks(session));
    return calls_of(session->plan)->prepare(session->plan->device, &session->plan->file, &session->sequence);
}

cuts_status cuts_session_create(cuts_plan *plan, cuts_session **created) {
    if (!plan || !created)
        return fail(CUTS_ERROR_ARGUMENT, "cuts_session_create: expected a plan and a place, found null");
    *created = NULL;
    if (!plan->device) return fail(CUTS_ERROR_ARGUMENT, "the plan was opened without a device, to describe it");
    cuts_session *session = calloc(1, sizeof *session);
    if (!session) return fail(CUTS_ERROR_MEMORY, "too little memory for a session");
    atomic_fetch_add(&plan->owner_count, 1);
    session->plan = plan;
    pthread_mutex_init(&session->mutex, NULL);
    cuts_status status = fill_session(session);
    if (status == CUTS_OK)
        *created = session;
    else
        cuts_session_destroy(session);
    return status;
}

/* Whether memory of the plan or the session is freed with it, which runs may still use. */
static int owns_memory(const plan_file *file) {
    for (uint64_t n = 0; n < file->block_count; n++)
        if (file->blocks[n].kind < BLOCK_INPUT) return 1;
    return 0;
}

static void release_block(cuts_session *session, uint64_t number) {
    const driver_calls *calls = calls_of(session->plan);
    uint32_t kind = session->plan->file.blocks[number].kind;
    if (!session->blocks[number] || kind == BLOCK_CONSTANTS) return;
    (kind == BLOCK_SESSION ? calls->release : calls->disown)(session->plan->device, session->blocks[number]);
}

void cuts_session_destroy(cuts_session *session) {
    if (!session) return;
    const driver_calls *calls = calls_of(session->plan);
    if (session->sequence) {
        if (owns_memory(&session->plan->file)) calls->wait(session->sequence);
        calls->discard(session->sequence);
    }
    for (uint64_t n = 0; session->blocks && n < session->plan->file.block_count; n++) {
        release_block(session, n);
        if (session->copies && session->copies[n]) calls->release(session->plan->device, session->copies[n]);
    }
    free(session->blocks);
    free(session->callers);
    free(session->copies);
    free(session->is_moved);
    pthread_mutex_destroy(&session->mutex);
    release_plan(session->plan);
    free(session);
}

cuts_status bind_memory(cuts_session *session, const tensor_record *tensor, const cuts_device *place, void *data) {
    const char *role = role_name(tensor->role), *name = text_of(&session->plan->file, tensor->name);
    uint32_t block = tensor->block;
    if (session->blocks[block] && session->callers[block] == data) return CUTS_OK;
    if (!data && tensor->nbytes) return fail(CUTS_ERROR_TENSOR, "%s '%s' is missing: its address is null", role, name);
    int is_address = !place || place->type != OPENCL_DEVICE; /* a `cl_mem` is a handle */
    if (is_address && (uintptr_t)data % ALIGNMENT && tensor->nbytes)
        return fail(CUTS_ERROR_TENSOR, "%s '%s' begins at %p, expected a multiple of %d", role, name, data, ALIGNMENT);
    device_memory memory;
    TRY(calls_of(session->plan)->adopt(session->plan->device, place, data, tensor->nbytes, &memory));
    if (session->blocks[block]) release_block(session, block);
    session->blocks[block] = memory;
    session->callers[block] = data;
    session->is_moved[block] = 1;
    return CUTS_OK;
}

cuts_status check_count(const cuts_session *session, cuts_role role, uint32_t count, const void *list) {
    uint32_t expected = session->plan->file.role_counts[role];
    if (count != expected || (count && !list))
        return fail(CUTS_ERROR_TENSOR, "expected %u %ss, found %u", expected, role_name(role), list ? count : 0);
    return CUTS_OK;
}

cuts_status check_bytes(const cuts_session *session, const tensor_record *tensor, uint64_t nbytes) {
    if (nbytes >= tensor->nbytes) return CUTS_OK;
    return fail(CUTS_ERROR_TENSOR, "%s '%s' has %llu bytes, expected %llu", role_name(tensor->role),
                text_of(&session->plan->file, tensor->name), (unsigned long long)nbytes,
                (unsigned long long)tensor->nbytes);
}

static cuts_status bind_tensor(cuts_session *session, const tensor_record *tensor, const cuts_tensor *given) {
    TRY(check_tensor(&session->plan->file, tensor, given));
    void *data = given->data ? (char *)given->data + given->byte_offset : NULL;
    return bind_memory(session, tensor, &given->device, data);
}

static cuts_status bind_tensors(cuts_session *session, cuts_role role, const cuts_tensor *given, uint32_t count) {
    TRY(check_count(session, role, count, given));
    for (uint32_t n = 0; n < count; n++)
        TRY(bind_tensor(session, find_tensor(&session->plan->file, role, n), given + n));
    return CUTS_OK;
}

static cuts_status bind_pointers(cuts_session *session, cuts_role role, void *const *given, const uint64_t *nbytes,
                                 uint32_t count) {
    TRY(check_count(session, role, count, nbytes ? (const void *)given : NULL));
    for (uint32_t n = 0; n < count; n++) {
        const tensor_record *tensor = find_tensor(&session->plan->file, role, n);
        TRY(check_bytes(session, tensor, nbytes[n]));
        TRY(bind_memory(session, tensor, NULL, given[n]));
    }
    return CUTS_OK;
}

/* Lets the next values of state be the present ones, without a copy: the blocks of both take turns. */
static void swap_states(cuts_session *session) {
    const tensor_record *state;
    for (uint32_t n = 0; (state = find_tensor(&session->plan->file, CUTS_STATE, n)); n++) {
        if (state->partner == NO_NUMBER) continue;
        device_memory now = session->blocks[state->block];
        session->blocks[state->block] = session->blocks[state->partner];
        session->blocks[state->partner] = now;
        session->is_moved[state->block] = session->is_moved[state->partner] = 1;
    }
}

cuts_status launch_session(cuts_session *session, void *stream) {
    TRY(calls_of(session->plan)->launch(session->sequence, session->blocks, session->is_moved, stream));
    swap_states(session);
    return CUTS_OK;
}

static cuts_status run_on_tensors(cuts_session *session, const cuts_tensor *inputs, uint32_t input_count,
                                  const cuts_tensor *outputs, uint32_t output_count, void *stream) {
    TRY(bind_tensors(session, CUTS_INPUT, inputs, input_count));
    TRY(bind_tensors(session, CUTS_OUTPUT, outputs, output_count));
    return launch_session(session, stream);
}

cuts_status cuts_session_run(cuts_session *session, const cuts_tensor *inputs, uint32_t input_count,
                             const cuts_tensor *outputs, uint32_t output_count, void *stream) {
    if (!session) return fail(CUTS_ERROR_ARGUMENT, "cuts_session_run: expected a session, found null");
    pthread_mutex_lock(&session->mutex);
    cuts_status status = run_on_tensors(session, inputs, input_count, outputs, output_count, stream);
    pthread_mutex_unlock(&session->mutex);
    return status;
}

static cuts_status run_on_pointers(cuts_session *session, void *const *inputs, const uint64_t *input_bytes,
                                   uint32_t input_count, void *const *outputs, const uint64_t *output_bytes,
                                   uint32_t output_count, void *stream) {
    TRY(bind_pointers(session, CUTS_INPUT, inputs, input_bytes, input_count));
    TRY(bind_pointers(session, CUTS_OUTPUT, outputs, output_bytes, output_count));
    return launch_session(session, stream);
}

cuts_status cuts_session_run_pointers(cuts_session *session, void *const *inputs, const uint64_t *input_bytes,
                                      uint32_t input_count, void *const *outputs, const uint64_t *output_bytes,
                                      uint32_t output_count, void *stream) {
    if (!session) return fail(CUTS_ERROR_ARGUMENT, "cuts_session_run_pointers: expected a session, found null");
    pthread_mutex_lock(&session->mutex);
    cuts_status status =
        run_on_pointers(session, inputs, input_bytes, input_count, outputs, output_bytes, output_count, stream);
    pthread_mutex_unlock(&session->mutex);
    return status;
}

cuts_status cuts_session_set_graph(cuts_session *session, uint32_t index, void *graph) {
    if (!session || !graph)
        return fail(CUTS_ERROR_ARGUMENT, "cuts_session_set_graph: expected a session and a graph, found null");
    const plan_file *file = &session->plan->file;
    if (index >= file->launch_count || file->launches[index].kernel != NO_NUMBER)
        return fail(CUTS_ERROR_ARGUMENT, "launch %u of %llu is no graph of the caller's", index,
                    (unsigned long long)file->launch_count);
    pthread_mutex_lock(&session->mutex);
    cuts_status status = calls_of(session->plan)->set_child(session->sequence, index, graph);
    pthread_mutex_unlock(&session->mutex);
    return status;
}

cuts_status cuts_session_synchronize(cuts_session *session) {
    if (!session) return fail(CUTS_ERROR_ARGUMENT, "cuts_session_synchronize: expected a session, found null");
    return calls_of(session->plan)->wait(session->sequence);
}

/* Finds state and waits for the runs that use it. The session is locked on success. */
static cuts_status lock_state(cuts_session *session, uint32_t index, const void *memory, uint64_t nbytes,
                              const tensor_record **state) {
    if (!session) return fail(CUTS_ERROR_ARGUMENT, "expected a session, found null");
    *state = find_tensor(&session->plan->file, CUTS_STATE, index);
    if (!*state) return fail(CUTS_ERROR_ARGUMENT, "the plan has no state %u", index);
    if (nbytes != (*state)->nbytes || (nbytes && !memory))
        return fail(CUTS_ERROR_TENSOR, "state '%s' has %llu bytes, found %llu",
                    text_of(&session->plan->file, (*state)->name), (unsigned long long)(*state)->nbytes,
                    (unsigned long long)(memory ? nbytes : 0));
    pthread_mutex_lock(&session->mutex);
    cuts_status status = calls_of(session->plan)->wait(session->sequence);
    if (status != CUTS_OK) pthread_mutex_unlock(&session->mutex);
    return status;
}

cuts_status cuts_session_read_state(cuts_session *session, uint32_t index, void *target, uint64_t nbytes) {
    const tensor_record *state;
    TRY(lock_state(session, index, target, nbytes, &state));
    cuts_status status =
        calls_of(session->plan)
            ->download(session->plan->device, target, session->blocks[state->block], state->offset, nbytes);
    pthread_mutex_unlock(&session->mutex);
    return status;
}

cuts_status cuts_session_write_state(cuts_session *session, uint32_t index, const void *source, uint64_t nbytes) {
    const tensor_record *state;
    TRY(lock_state(session, index, source, nbytes, &state));
    cuts_status status =
        calls_of(session->plan)
            ->upload(session->plan->device, session->blocks[state->block], state->offset, source, nbytes);
    pthread_mutex_unlock(&session->mutex);
    return status;
}

static cuts_status reset_all(cuts_session *session) {
    TRY(calls_of(session->plan)->wait(session->sequence));
    const tensor_record *state;
    for (uint32_t n = 0; (state = find_tensor(&session->plan->file, CUTS_STATE, n)); n++)
        TRY(upload_images(session->plan, BLOCK_SESSION, session->blocks, state));
    return CUTS_OK;
}

cuts_status cuts_session_reset_state(cuts_session *session) {
    if (!session) return fail(CUTS_ERROR_ARGUMENT, "cuts_session_reset_state: expected a session, found null");
    pthread_mutex_lock(&session->mutex);
    cuts_status status = reset_all(session);
    pthread_mutex_unlock(&session->mutex);
    return status;
}
