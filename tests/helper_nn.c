#include "helper_nn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "helper_check.h"

ls_model nn_preset(const char *name)
{
    ls_model m;

    OK(ls_model_preset(name, &m));
    OK(ls_model_check(&m));
    return m;
}
