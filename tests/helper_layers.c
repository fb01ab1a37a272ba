#include "helper_layers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>

#include "helper_check.h"
#include "lockstep/ops.h"

ls_store *layers_store(ls_dtype type)
{
    ls_store *s;

    OK(ls_store_new(&(ls_store_options){ "cpu", type, 0, 7, 0 }, &s));
    return s;
}

ls_value layers_layer(ls_program *p, const char *name, ls_value x, size_t in, size_t out)
{
    char w[64], b[64];

    snprintf(w, sizeof w, "%s.weight", name);
    snprintf(b, sizeof b, "%s.bias", name);
    return ls_linear(p, x, ls_param(p, w, (ls_init){ LS_INIT_NORMAL, 0.3 }, 2, (size_t[]){ out, in }),
                     ls_param(p, b, (ls_init){ LS_INIT_UNIFORM, 0.1 }, 1, &out));
}

void layers_build(ls_program *p, ls_dtype type)
{
    ls_value x = ls_input(p, "x", type, 2, (size_t[]){ LAYERS_BATCH, LAYERS_IN }),
        y = ls_input(p, "y", type, 2, (size_t[]){ LAYERS_BATCH, LAYERS_OUT });
    ls_value h = layers_layer(p, "in", x, LAYERS_IN, LAYERS_HIDDEN);
    static const char *const names[] = { "a", "b", "c" };

    for (int i = 0; i < 3; i++) {
        char up[8], down[8];

        snprintf(up, sizeof up, "%s.up", names[i]);
        snprintf(down, sizeof down, "%s.down", names[i]);
        ls_block_begin(p, names[i]);
        h = ls_add(p, h, layers_layer(p, down, ls_gelu_tanh(p, layers_layer(p, up, h, LAYERS_HIDDEN, LAYERS_HIDDEN)), LAYERS_HIDDEN,
                                      LAYERS_HIDDEN));
        ls_block_end(p);
    }
    ls_backward(p, ls_output(p, "loss", ls_mse(p, layers_layer(p, "out", h, LAYERS_HIDDEN, LAYERS_OUT), y)));
}
