#include "driver.h"

#include <dlfcn.h>
#include <string.h>

#include "status.h"

cuts_status load_functions(const char *path, const char *const *names, void **functions, int required, int count,
                           void **library) {
    *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!*library)
        return fail(CUTS_ERROR_DRIVER, "the driver cannot be opened: %s; install it, or name its library", dlerror());
    for (int n = 0; n < count; n++) {
        functions[n] = dlsym(*library, names[n]);
        if (!functions[n] && n < required) {
            dlclose(*library);
            return fail(CUTS_ERROR_DRIVER, "the driver %s has no function %s: install a newer one", path, names[n]);
        }
    }
    return CUTS_OK;
}
