/* Runs a packed plan on inputs from files: `run_plan PLAN FOLDER [DRIVER]`.
 *
 *     cuts compile model.onnx -o model.plan && cuts export model.plan -o model.cutsplan
 *     python -m cuts.runtime.native build
 *     cc -Ibackends/native/source examples/native/run_plan.c -Lbuild -lcuts_run -o run_plan
 *
 * Each input is the file NAME.bin of the folder, dense and in its element type; each output is written so. The plan is
 * one for OpenCL, whose kernels use host memory; a plan for CUDA takes addresses of GPU memory in its place.
 */
#include <stdio.h>
#include <stdlib.h>

#include "cuts_run.h"

enum { ALIGNMENT = 64, MAX_PATH = 4096 };

/* Ends the program where a call of the library failed. */
static void check(cuts_status status) {
    if (status == CUTS_OK) return;
    fprintf(stderr, "%s: %s\n", cuts_status_name(status), cuts_last_error());
    exit(1);
}

/* Opens the file of a tensor. */
static FILE *open_file(const char *folder, const cuts_tensor_info *tensor, const char *mode) {
    char path[MAX_PATH];
    snprintf(path, sizeof path, "%s/%s.bin", folder, tensor->name);
    FILE *file = fopen(path, mode);
    if (!file) {
        perror(path);
        exit(1);
    }
    return file;
}

/* Returns a dense tensor in host memory, for an input or an output. */
static cuts_tensor make_tensor(const cuts_tensor_info *info) {
    size_t room = (info->nbytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    return (cuts_tensor){
        .data = aligned_alloc(ALIGNMENT, room),
        .device = {.type = 1, .ordinal = 0},
        .ndim = info->ndim,
        .dtype = info->dtype,
        .shape = (int64_t *)info->shape,
    };
}

static cuts_tensor *make_tensors(const cuts_plan *plan, cuts_role role, uint32_t count) {
    cuts_tensor *tensors = calloc(count + 1, sizeof *tensors);
    for (uint32_t n = 0; n < count; n++) {
        cuts_tensor_info info;
        check(cuts_plan_tensor(plan, role, n, &info));
        tensors[n] = make_tensor(&info);
    }
    return tensors;
}

static void read_inputs(const cuts_plan *plan, const char *folder, cuts_tensor *inputs, uint32_t count) {
    for (uint32_t n = 0; n < count; n++) {
        cuts_tensor_info info;
        check(cuts_plan_tensor(plan, CUTS_INPUT, n, &info));
        FILE *file = open_file(folder, &info, "rb");
        if (fread(inputs[n].data, 1, info.nbytes, file) != info.nbytes) {
            fprintf(stderr, "input %s: expected %llu bytes\n", info.name, (unsigned long long)info.nbytes);
            exit(1);
        }
        fclose(file);
    }
}

static void write_outputs(const cuts_plan *plan, const char *folder, cuts_tensor *outputs, uint32_t count) {
    for (uint32_t n = 0; n < count; n++) {
        cuts_tensor_info info;
        check(cuts_plan_tensor(plan, CUTS_OUTPUT, n, &info));
        FILE *file = open_file(folder, &info, "wb");
        fwrite(outputs[n].data, 1, info.nbytes, file);
        fclose(file);
    }
}

static void free_tensors(cuts_tensor *tensors, uint32_t count) {
    for (uint32_t n = 0; n < count; n++) free(tensors[n].data);
    free(tensors);
}

int main(int count, char **words) {
    cuts_options options;
    cuts_plan *plan;
    cuts_session *session;
    cuts_plan_info info;
    if (count < 3) {
        fprintf(stderr, "usage: %s PLAN FOLDER [DRIVER]\n", words[0]);
        return 2;
    }
    cuts_options_default(&options);
    if (count > 3) options.library = words[3];
    check(cuts_plan_open(words[1], &options, &plan));
    check(cuts_plan_describe(plan, &info));
    check(cuts_session_create(plan, &session));
    cuts_tensor *inputs = make_tensors(plan, CUTS_INPUT, info.inputs);
    cuts_tensor *outputs = make_tensors(plan, CUTS_OUTPUT, info.outputs);
    read_inputs(plan, words[2], inputs, info.inputs);
    check(cuts_session_run(session, inputs, info.inputs, outputs, info.outputs, NULL));
    write_outputs(plan, words[2], outputs, info.outputs);
    printf("%s: %u kernels, %u launches\n", info.name, info.kernels, info.launches);
    free_tensors(inputs, info.inputs);
    free_tensors(outputs, info.outputs);
    cuts_session_destroy(session);
    cuts_plan_close(plan);
    return 0;
}
