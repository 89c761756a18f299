/* Runs on host memory: through device memory of the session, where the device does not share the host's. */
#include "session.h"
#include "status.h"

/* Whether kernels use host memory where it lies. */
static int is_shared(const cuts_session *session, const void *data) {
    const driver_calls *calls = calls_of(session->plan);
    return calls->shares_host_memory(session->plan->device) && (uintptr_t)data % ALIGNMENT == 0;
}

static cuts_status bind_copy(cuts_session *session, const tensor_record *tensor) {
    const driver_calls *calls = calls_of(session->plan);
    device_memory *copy = session->copies + tensor->block;
    cuts_device place = {.type = calls->device_type, .ordinal = 0};
    if (!*copy) TRY(calls->allocate(session->plan->device, tensor->nbytes, copy));
    return bind_memory(session, tensor, &place, (void *)(uintptr_t)*copy);
}

static cuts_status bind_host(cuts_session *session, cuts_role role, const void *const *given, const uint64_t *nbytes,
                             uint32_t count) {
    TRY(check_count(session, role, count, nbytes ? (const void *)given : NULL));
    for (uint32_t n = 0; n < count; n++) {
        const tensor_record *tensor = find_tensor(&session->plan->file, role, n);
        TRY(check_bytes(session, tensor, nbytes[n]));
        if (is_shared(session, given[n]) || !given[n])
            TRY(bind_memory(session, tensor, NULL, (void *)given[n]));
        else
            TRY(bind_copy(session, tensor));
    }
    return CUTS_OK;
}

/* Copies the tensors of a role that are not shared, to the device or back. */
static cuts_status copy_tensors(cuts_session *session, cuts_role role, const void *const *given, uint32_t count) {
    const driver_calls *calls = calls_of(session->plan);
    device *device = session->plan->device;
    for (uint32_t n = 0; n < count; n++) {
        const tensor_record *tensor = find_tensor(&session->plan->file, role, n);
        device_memory copy = session->copies[tensor->block];
        if (!given[n] || is_shared(session, given[n])) continue;
        if (role == CUTS_INPUT)
            TRY(calls->upload(device, copy, 0, given[n], tensor->nbytes));
        else
            TRY(calls->download(device, (void *)given[n], copy, 0, tensor->nbytes));
    }
    return CUTS_OK;
}

static cuts_status run_on_host(cuts_session *session, const void *const *inputs, const uint64_t *input_bytes,
                               uint32_t input_count, const void *const *outputs, const uint64_t *output_bytes,
                               uint32_t output_count) {
    const driver_calls *calls = calls_of(session->plan);
    TRY(bind_host(session, CUTS_INPUT, inputs, input_bytes, input_count));
    TRY(bind_host(session, CUTS_OUTPUT, outputs, output_bytes, output_count));
    TRY(calls->wait(session->sequence)); /* an earlier run may still read the copies */
    TRY(copy_tensors(session, CUTS_INPUT, inputs, input_count));
    TRY(launch_session(session, NULL));
    TRY(calls->wait(session->sequence));
    return copy_tensors(session, CUTS_OUTPUT, outputs, output_count);
}

cuts_status cuts_session_run_host(cuts_session *session, const void *const *inputs, const uint64_t *input_bytes,
                                  uint32_t input_count, void *const *outputs, const uint64_t *output_bytes,
                                  uint32_t output_count) {
    if (!session) return fail(CUTS_ERROR_ARGUMENT, "cuts_session_run_host: expected a session, found null");
    pthread_mutex_lock(&session->mutex);
    cuts_status status = run_on_host(session, inputs, input_bytes, input_count, (const void *const *)outputs,
                                     output_bytes, output_count);
    pthread_mutex_unlock(&session->mutex);
    return status;
}
